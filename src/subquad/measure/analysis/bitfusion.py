"""Cycles and energy of matrix products on BitFusion, an accelerator of bit-flexible units, by its public cost model.

Source: Sharma et al. 2018, https://arxiv.org/abs/1712.01507, and the simulator hsharma35/bitfusion: its configuration
bf_e_conf.ini, its synthesis results and its memory energies, at 45 nm. The simulator knows layers with weights only; a
product of two activations is such a layer whose weights are the keys or the values. It knows no softmax, no exponential
and no elementwise arithmetic, so none of them costs anything here.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from subquad.utils.errors import UserError

FREQUENCY = 500e6
"""Cycles per second."""

_ROWS, _COLUMNS = 16, 32
"""Units of the systolic array: along the inputs of a product, along its outputs."""

_PORT = 192
"""Bits transferred from or to DRAM in a cycle."""

_BUFFER = {"weights": 65536 * 8 // 2, "inputs": 32768 * 8 // 2, "outputs": 16384 * 8 // 2}
"""Usable bits of each buffer; the other half is being filled or emptied meanwhile."""

_ARRAY_NJ = 3673500 / 16 * _ROWS * _COLUMNS / FREQUENCY
"""Energy of a cycle of the array: 3,673,500 nW for 4 x 4 units, scaled to all."""

_READ_NJ = {"weights": 0.021365656e-3, "inputs": 0.059474375e-3, "outputs": 0.033155313e-3}
_WRITE_NJ = {"weights": 0.028916156e-3, "inputs": 0.113704063e-3, "outputs": 0.073084063e-3}
_DRAM_NJ = 15e-3
"""Energies of a bit. The simulator charges 15 pJ for DRAM, although a comment in its source says 6."""

_OUTPUT_BITS = 32

_TENSORS = {"rows": ("inputs", "outputs"), "inputs": ("weights", "inputs"), "outputs": ("weights", "outputs")}
"""Tensors whose tile changes along each loop."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cycles, and a model of the energy in nJ."""

    cycles: int = 0
    nanojoules: float = 0.0

    def __add__(self, more: "Cost") -> "Cost":
        return Cost(self.cycles + more.cycles, self.nanojoules + more.nanojoules)

    @property
    def milliseconds(self) -> float:
        """Time at 500 MHz."""
        return self.cycles / FREQUENCY * 1e3


@dataclass(frozen=True, slots=True)
class Product:
    """`rows` x `inputs` numbers times `inputs` x `outputs` numbers ("weights"), of 2, 4 or 8 bits."""

    rows: int
    inputs: int
    outputs: int
    input_bits: int = 8
    weight_bits: int = 8

    @property
    def at_once(self) -> int:
        """Products of numbers that one unit does in a cycle; a single bit costs as much as two."""
        return (8 // max(self.input_bits, 2)) * (8 // max(self.weight_bits, 2))


def cost(product: Product) -> Cost:
    """The fastest of all tilings by powers of two and orders of loops; on a tie the one of least energy."""
    tilings = itertools.product(_tiles(product.rows, 1), _tiles(product.inputs, 1), _tiles(product.outputs, _COLUMNS))
    orders = list(itertools.permutations(_TENSORS))
    costs = [c for tile in tilings for order in orders if (c := _tiled(product, tile, order)) is not None]
    return min(costs, key=lambda c: (c.cycles, c.nanojoules))


def table_7(name: str) -> Cost:
    """The layer of EcoFormer's Table 7 (https://arxiv.org/abs/2209.09004) in the interpretation that gives its numbers.

    "Batch size 16, sequence length 3,136, embedding dimension 32": products of 16 rows with keys and values of one
    sequence, 8 bits throughout. The printed latency is `milliseconds / 16`, the printed energy is `nanojoules` of all
    16 rows, though its column says pJ. Transformer comes out to the last digit, EcoFormer at -2 %; the compressed
    lengths of Linformer (40) and Performer (64) were chosen to come near; no layout of Reformer was found.
    """
    return attention_layer(name, rows=16, features=64, slots=40)


def attention_layer(
    name: str, rows: int, tokens: int = 3136, dim: int = 32, *,
    anchors: int = 25, bits: int = 16, features: int = 256, slots: int = 256,
) -> Cost:  # fmt: skip
    """One layer of one head, without its softmax: `rows` queries read `tokens` keys and values.

    With rows = tokens it is the whole layer for one sequence. With fewer, what compresses the context is computed for
    as many rows too, as table_7 needs it. name: transformer, ecoformer, linformer or performer; others raise UserError.
    """
    square = Product(rows, dim, dim)
    layers: dict[str, Callable[[], list[Product]]] = {
        "transformer": lambda: [*[square] * 4, Product(rows, dim, tokens), Product(rows, tokens, dim)],
        "ecoformer": lambda: [
            *[square] * 3, Product(rows, dim, anchors), Product(rows, anchors, bits),
            Product(min(rows, bits), tokens, dim), Product(rows, bits, dim),
        ],
        "linformer": lambda: [
            *[square] * 4, *[Product(min(rows, slots), tokens, dim)] * 2,
            Product(rows, dim, slots), Product(rows, slots, dim),
        ],
        "performer": lambda: [
            *[square] * 4, *[Product(rows, dim, features)] * 2,
            Product(min(rows, dim), tokens, features), Product(rows, features, dim),
        ],
    }  # fmt: skip
    if name not in layers:
        raise UserError(f'There is no layout of a layer of "{name}"; choose {", ".join(layers)}.')
    return sum(map(cost, layers[name]()), Cost())


def _tiles(size: int, least: int) -> list[int]:
    return [min(least << power, size) for power in range(math.ceil(math.log2(math.ceil(size / least))) + 1)]


def _tiled(product: Product, tile: tuple[int, int, int], order: tuple[str, ...]) -> Cost | None:
    """The cost with loops over tiles in this order, outermost first; None if a tile does not fit into the buffers."""
    rows, inputs, outputs = tile
    loops = {
        "rows": math.ceil(product.rows / rows),
        "inputs": math.ceil(product.inputs / inputs),
        "outputs": math.ceil(product.outputs / outputs),
    }
    deep, wide = _round_up(inputs, _ROWS * product.at_once), _round_up(outputs, _COLUMNS)
    sizes = {
        "weights": deep * outputs * product.weight_bits,
        "inputs": rows * inputs * product.input_bits,
        "outputs": rows * wide * _OUTPUT_BITS,
    }
    moved = {name: _traffic(name, bits, loops, order) for name, bits in sizes.items()}
    if None in moved.values():
        return None
    resident = {name: pair[0] for name, pair in moved.items() if pair}
    traffic = {name: pair[1] for name, pair in moved.items() if pair}

    tiles = math.prod(loops.values())
    compute = tiles * rows * (wide // _COLUMNS) * (deep // (_ROWS * product.at_once))
    first, last = sum(resident.values()), resident["outputs"]
    dram = sum(traffic.values()) + traffic["outputs"]  # outputs are fetched, added to, and brought back
    stall = max(0, math.ceil((dram - first - last) / _PORT) - compute)
    cycles = compute + stall + math.ceil(first / _PORT) + math.ceil(last / _PORT)

    reads, written = _buffer_accesses(product, rows, inputs, outputs, deep, wide)
    energy = compute * _ARRAY_NJ + dram * _DRAM_NJ
    for name, bits in traffic.items():
        energy += bits * _WRITE_NJ[name] + tiles * reads[name] * _READ_NJ[name]
    energy += traffic["outputs"] * _READ_NJ["outputs"] + tiles * written * _WRITE_NJ["outputs"]
    return Cost(cycles, energy)


def _traffic(name: str, bits: int, loops: dict[str, int], order: tuple[str, ...]) -> tuple[int, int] | None:
    """Bits of a tensor that stay in its buffer, and bits that cross the port; None if a tile does not fit."""
    if bits > _BUFFER[name]:
        return None
    resident, crossed, stays = bits, bits, True
    for loop in reversed(order):
        if not stays:
            crossed *= loops[loop]
        elif name in _TENSORS[loop]:
            crossed *= loops[loop]
            stays = crossed <= _BUFFER[name]
            resident = crossed if stays else resident
    return resident, crossed


def _buffer_accesses(
    product: Product, rows: int, inputs: int, outputs: int, deep: int, wide: int
) -> tuple[dict[str, int], int]:
    """Bits read from each buffer for a tile, and written to the output buffer, by the cheapest of three orders.

    The cheapest is chosen with filled-up sizes and charged with the tile's own, as the simulator does.
    """
    narrow, weight = product.input_bits, product.weight_bits
    of_order = {
        "input stationary": deep * rows * (narrow + wide * (weight + _OUTPUT_BITS)),
        "output stationary": wide * rows * (_OUTPUT_BITS + deep * (narrow + weight)),
        "weight stationary": deep * wide * (weight + rows * (narrow + _OUTPUT_BITS)),
    }
    products = rows * inputs * outputs
    accesses = {  # of inputs, weights, outputs
        "input stationary": (rows * inputs, products, products),
        "output stationary": (products, products, rows * outputs),
        "weight stationary": (products, inputs * outputs, products),
    }
    # The order of the simulator; min takes the first of equal ones.
    best = min(("input stationary", "output stationary", "weight stationary"), key=lambda name: of_order[name])
    of_inputs, of_weights, of_outputs = accesses[best]
    written = of_outputs * _OUTPUT_BITS
    return {"inputs": of_inputs * narrow, "weights": of_weights * weight, "outputs": written}, written


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step
