"""Blocks that switch something on, where several threads open them and the first one leaves before the last."""

from contextlib import AbstractContextManager
from threading import Barrier, Thread

import torch

from subquad.utils.derivatives import by_torch, plain_operators
from subquad.utils.fixed_weights import fixed_weights, keeps_products


def overlapping(block: AbstractContextManager[None], other: AbstractContextManager[None]) -> list[bool]:
    """What the thread of `other` sees of `by_torch` and `keeps_products` when `block` has been left."""
    both_open, one_left, seen = Barrier(2), Barrier(2), list[bool]()

    def second() -> None:
        with other, torch.no_grad():
            both_open.wait(10)
            one_left.wait(10)
            seen.extend([by_torch(), keeps_products()])

    thread = Thread(target=second)
    with block:
        thread.start()
        both_open.wait(10)
    one_left.wait(10)
    thread.join(10)
    return seen


def test_a_block_lasts_until_its_own_thread_leaves_it() -> None:
    assert overlapping(plain_operators(), plain_operators()) == [True, False]
    assert not by_torch()
    assert overlapping(fixed_weights(), fixed_weights()) == [False, True]
    with torch.no_grad():
        assert not keeps_products()
