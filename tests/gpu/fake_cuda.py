"""A CUDA device without a GPU: torch's CPU wheel holds fake tensors on it, under the autocast rules of CUDA.

Importing this module loads the device, before torch, for the whole process: torch then finds a GPU. So only programs of
their own import it (`tests/gpu/sweep.py`, `tests/gpu/budgets.py`), never the process of the tests.
"""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import logging
import subprocess
import sys
from pathlib import Path

from subquad.kernels.build import cache_folder
from subquad.utils.atomic import atomic_write

SOURCE = Path(__file__).with_suffix(".cpp")


def library() -> Path:
    """The compiled device, from the cache folder of the kernels if the source, torch and its folder are unchanged."""
    [torch] = importlib.util.find_spec("torch").submodule_search_locations
    key = SOURCE.read_bytes() + importlib.metadata.version("torch").encode() + torch.encode()
    path = cache_folder() / f"fake_cuda-{hashlib.sha256(key).hexdigest()[:16]}.so"
    if not path.exists():
        flags = ["-shared", "-fPIC", "-std=c++20", f"-I{torch}/include", f"-L{torch}/lib", f"-Wl,-rpath,{torch}/lib"]
        with atomic_write(path, several=True) as partial:
            command = ["g++", *flags, str(SOURCE), "-ltorch_cpu", "-lc10", "-o", str(partial)]
            subprocess.run(command, check=True, timeout=300)
    return path


if "torch" in sys.modules:
    raise ImportError("Import the fake device before torch, which asks for devices once.")
ctypes.CDLL(str(library()), ctypes.RTLD_GLOBAL)

import torch  # noqa: E402

# An error is a finding, which the sweep reports in one line.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)

# Autocast asks whether the wheel was built for CUDA, which it was not.
torch.cuda.amp.common.amp_definitely_not_available = lambda: False
torch.cuda.is_bf16_supported = lambda *_, **__: True
