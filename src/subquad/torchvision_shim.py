"""Makes `import torchvision` work beside a torch without CUDA.

PyPI's torchvision carries CUDA operators; next to a CPU-only torch its extension cannot be loaded and the import dies
with "operator torchvision::nms does not exist". Datasets, transforms and timm never call those operators, so declaring
their schemas is enough. pytorch-lightning imports torchvision through torchmetrics: import this module before it.
"""

import importlib.util
from pathlib import Path

import torch

_SCHEMAS = ("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
            "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # fmt: skip
_library: list[torch.library.Library] = []  # a Library's definitions live as long as the object


def _extension_loads() -> bool:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True
    try:
        for extension in Path(spec.origin).parent.glob("_C*.so"):
            torch.ops.load_library(str(extension))
    except OSError:
        return False
    return True


if not _extension_loads() and not _library:
    _library.append(torch.library.Library("torchvision", "DEF"))
    for _schema in _SCHEMAS:
        _library[0].define(_schema)
