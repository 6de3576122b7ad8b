"""The machine and the software versions that records contain."""

import importlib.metadata
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

from subquad.kernels.build import in_use
from subquad.records import now
from subquad.utils.cores import usable_cores


def facts() -> dict[str, Any]:
    """The entries of every record about its origin: machine, versions, commit and time of completion."""
    return {"machine": describe(), "versions": _versions(), "commit": _commit(), "finished": now()}


def describe() -> dict[str, Any]:
    """Processor, the vector instructions that torch uses on it, cores, threads, GPU and system."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": _cpu(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "system": f"{platform.system()} {platform.machine()}",
    }


def device_facts(device: str) -> dict[str, Any]:
    """Name, number, memory, driver and libraries of the GPUs, or the name of the CPU."""
    if device == "cpu":
        return {"name": _cpu(), "count": 1}
    gpu = torch.cuda.get_device_properties(0)
    return {
        "name": gpu.name,
        "count": torch.cuda.device_count(),
        "memory_bytes": gpu.total_memory,
        "capability": f"{gpu.major}.{gpu.minor}",
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()[:1],
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": list(torch.cuda.nccl.version()) if torch.distributed.is_nccl_available() else None,
    }


def _output(*command: str) -> str:
    """What a command prints; "unknown" if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect results, and the kernels of this package that are loaded.

    A package that runs from its source folder is "not installed".
    """
    packages = ("subquad", "torch", "pytorch-lightning", "hydra-core", "numpy", "sktime")
    versions = {"python": platform.python_version()} | {name: _version(name) for name in packages}
    return versions | {"kernels": "+".join(in_use()) or "none"}


@cache
def source() -> tuple[str, str]:
    """The git commit of the source, and the content of src/ and configs/, when this process first called this.

    A process that was forked has those of its parent. Whatever computes calls this before it begins.
    """
    return _source()


def _commit() -> str:
    """The commit of the source; "+changes" if src/ or configs/ differ from it, or have changed since `source`."""
    commit, content = source()
    return commit if content == _source()[1] or commit.endswith("+changes") else f"{commit}+changes"


def _source() -> tuple[str, str]:
    """The commit, "+changes" if src/ or configs/ differ from it, and their content; "unknown" outside a checkout."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)  # fails if the package is installed inside another repository
        changed = git("status", "--porcelain", "--", ":/src", ":/configs")
        commit, *trees = git("rev-parse", "HEAD", "HEAD:src", "HEAD:configs").split()
        return commit[:12] + ("+changes" if changed else ""), f"{trees} {changed}"
    except (OSError, subprocess.CalledProcessError):
        return "unknown", ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
