"""Helpers for the tests of the kernels."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from subquad.kernels.build import library

_POSSIBLE = sys.platform == "linux" and bool(os.environ.get("CXX") or shutil.which("g++"))


def needs(kernel: str) -> pytest.MarkDecorator:
    """A mark that skips tests where kernels are off or there is no compiler; a kernel that it refuses is an error."""
    switched_off = os.environ.get("SUBQUAD_KERNELS") == "off"
    assert switched_off or not _POSSIBLE or library(kernel) is not None, f"{kernel} does not compile"
    return pytest.mark.skipif(switched_off or not _POSSIBLE, reason="needs Linux and g++ of GCC 9 or newer")


def with_gradients(function: Callable[..., Tensor], inputs: list[Tensor], *arguments: object) -> list[Tensor]:
    """The output of a function, and the gradients of its inputs for a random output gradient with a fixed seed."""
    y = function(*inputs, *arguments)
    gradient = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float32).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, inputs, gradient)]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Sets the number of threads of torch, and so of the kernels, inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
