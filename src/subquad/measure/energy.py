"""Models of the energy and area of arithmetic: one constant for each operation of a 45 nm process.

Memory, control and leakage are not modelled, although moving a number from DRAM costs some hundred times as much as an
addition (Horowitz 2014). `subquad.measure.analysis.bitfusion` models an accelerator with its memories.
"""

from dataclasses import dataclass
from typing import Literal

from subquad.measure.aten import Tally

Precision = Literal["int8", "int32", "fp16", "fp32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Energy in pJ and area in µm² of one addition and of one multiplication."""

    add_pj: float
    mul_pj: float
    add_um2: float
    mul_um2: float


ARITHMETIC: dict[Precision, Arithmetic] = {
    "int8": Arithmetic(add_pj=0.03, mul_pj=0.2, add_um2=36, mul_um2=282),
    "int32": Arithmetic(add_pj=0.1, mul_pj=3.1, add_um2=137, mul_um2=3495),
    "fp16": Arithmetic(add_pj=0.4, mul_pj=1.1, add_um2=1360, mul_um2=1640),
    "fp32": Arithmetic(add_pj=0.9, mul_pj=3.7, add_um2=4184, mul_um2=7700),
}
"""At 45 nm and 0.9 V: Horowitz 2014 (https://doi.org/10.1109/ISSCC.2014.6757323, Figure 1.1.9), areas from his slides.

The floating-point rows are Table 1 of EcoFormer (https://arxiv.org/abs/2209.09004).
"""


def energy(operations: Tally, precision: Precision = "fp32") -> float:
    """Model of the energy in pJ: multiplications and additions; other operations have no published constant and are 0.

    For fp32 this is 3.7 · multiplications + 0.9 · additions, the rule of EcoFormer's tables.
    """
    unit = ARITHMETIC[precision]
    return unit.mul_pj * operations.mul + unit.add_pj * operations.add


def area(operations: Tally, precision: Precision = "fp32") -> float:
    """Model of the area in µm² if every operation had a unit of its own, as EcoFormer's code prints it."""
    unit = ARITHMETIC[precision]
    return unit.mul_um2 * operations.mul + unit.add_um2 * operations.add
