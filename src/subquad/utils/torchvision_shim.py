"""Makes `import torchvision` work beside a torch without CUDA.

PyPI's torchvision has CUDA operators. With a CPU-only torch its extension cannot be loaded, and the import fails with
"operator torchvision::nms does not exist". Datasets, transforms and timm never call those operators, so that it is
enough to declare their schemas. They are declared when torchvision is first imported: by timm, by transformers, or by
pytorch_lightning through torchmetrics.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_SCHEMAS = ("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
            "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # fmt: skip


class _OperatorsOfTorchvision(MetaPathFinder):
    """Declares the operators before the first import of torchvision; finds no module itself."""

    def __init__(self) -> None:
        self.checked = False
        self.library: Any = None  # its definitions exist as long as this object does

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "torchvision" and not self.checked:
            self.checked = True
            if not _extension_loads():
                self._declare()

    def _declare(self) -> None:
        import torch

        self.library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS:
            self.library.define(schema)


def _extension_loads() -> bool:
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True
    try:
        for extension in Path(spec.origin).parent.glob("_C*.so"):
            torch.ops.load_library(str(extension))
    except OSError:
        return False
    return True


sys.meta_path.insert(0, _OperatorsOfTorchvision())
