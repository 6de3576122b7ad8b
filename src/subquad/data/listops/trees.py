"""Draws ListOps expressions from the distribution of the Long Range Arena, vectorised over many trees.

A node above the last level is an operator with probability 1/4, else a uniform digit; an operator has 2..10 arguments
and is one of MIN, MAX, MED, SM, all uniform. The root is at level 1; level `max_depth` holds digits only. Trees of
min_length < length < max_length are kept, where a digit counts 1 and an operator 2.

Each step processes a whole level: first the shapes top-down, then for the kept trees sizes bottom-up (the size of an
operator is that of its arguments plus 2), positions top-down, and values bottom-up.

Source: google-research/long-range-arena, `data/listops.py` (whose constant VALUE_P is the probability of an operator).
"""

import contextlib
import functools
import itertools
from dataclasses import dataclass

import numpy as np

from subquad.data.listops.grammar import CLOSE, MAX, MED, MIN, SM, ZERO
from subquad.data.parallel import in_order, progress
from subquad.data.ragged import Ragged
from subquad.utils.errors import UserError

VERSION = 1
"""Part of the cache's name. Increase it when the same settings no longer give the same bytes, as with another CHUNK."""

CHUNK = 4096
"""Trees drawn from one seed; small enough that a level fits in the processor's cache."""

_FEWEST, _MOST = 2, 10
_PATIENCE = 64  # number of successive chunks without a new tree after which the search ends


@dataclass(frozen=True, slots=True)
class _Level:
    """The nodes of one level in the order of their parents.

    `tree` [nodes] is the index of each node's tree, `branching` [nodes] is True at operators, `arguments` [operators]
    is their number of arguments.
    """

    tree: np.ndarray
    branching: np.ndarray
    arguments: np.ndarray

    @property
    def starts(self) -> np.ndarray:
        """[operators] index of each operator's first argument in the next level."""
        return np.cumsum(self.arguments) - self.arguments

    def only(self, kept: np.ndarray) -> "_Level":
        chosen = kept[self.tree]
        return _Level(self.tree[chosen], self.branching[chosen], self.arguments[chosen[self.branching]])


def generate(
    count: int, *, more: int = 0, seed: int = 0, min_length: int = 500, max_length: int = 2000, max_depth: int = 10,
    workers: int = 1,
) -> tuple[Ragged, float]:  # fmt: skip
    """`count` different expressions in random order, and the fraction of the drawn trees that had an allowed length.

    Behind them come the `more` that are drawn next, different from all others, so that more of them change none of the
    first. values: uint8 token ids without padding; targets: int64 0..9. The result does not depend on the number of
    threads `workers`. Raises UserError when the limits allow too few different expressions.
    """
    wanted = count + more
    draw = functools.partial(draw_chunk, seed=seed, min_length=min_length, max_length=max_length, max_depth=max_depth)
    trees: dict[bytes, int] = {}
    kept = drawn = barren = 0
    with (
        progress("ListOps: drawing expressions", wanted) as show,
        contextlib.closing(in_order(draw, itertools.count(), workers)) as chunks,
    ):
        for chunk in chunks:
            before = len(trees)
            trees.update((chunk[i].tobytes(), int(target)) for i, target in enumerate(chunk.targets))
            kept, drawn = kept + len(chunk), drawn + CHUNK
            barren = barren + 1 if len(trees) == before else 0
            show(min(len(trees), wanted))
            if len(trees) >= wanted:
                break
            if barren == _PATIENCE:
                raise UserError(
                    f"{wanted} ListOps expressions are wanted, but only {len(trees)} different ones of more than "
                    f"{min_length} and fewer than {max_length} tokens turned up; lower data.sizes or widen the limits."
                )
    # Because duplicates are dropped, late trees are rarer than early ones; shuffling makes the splits alike.
    order = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,))).permutation(count)
    expressions = list(trees)
    rows = [expressions[i] for i in (*order, *range(count, wanted))]
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    targets = np.array([trees[row] for row in rows], np.int64)
    return Ragged(np.frombuffer(b"".join(rows), np.uint8), offsets, targets), kept / drawn


def draw_chunk(chunk: int, *, seed: int, min_length: int, max_length: int, max_depth: int) -> Ragged:
    """The trees of an allowed length among the `CHUNK` trees of (seed, chunk); duplicates may occur."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, chunk]))
    levels, lengths = _draw_shapes(rng, max_length, max_depth)
    kept = (lengths > min_length) & (lengths < max_length)
    return _fill(rng, [level.only(kept) for level in levels], lengths[kept])


def _draw_shapes(rng: np.random.Generator, max_length: int, max_depth: int) -> tuple[list[_Level], np.ndarray]:
    """The levels from the root down, and the length of each tree; trees that become too long stay unfinished."""
    lengths = np.ones(CHUNK, np.int64)
    tree = np.arange(CHUNK, dtype=np.int32)
    levels = []
    for depth in range(1, max_depth + 1):
        if depth < max_depth:
            branching = rng.integers(4, size=len(tree), dtype=np.uint8) == 0
        else:
            branching = np.zeros(len(tree), bool)
        parents = tree[branching]
        arguments = rng.integers(_FEWEST, _MOST, size=len(parents), dtype=np.uint8, endpoint=True).astype(np.int32)
        levels.append(_Level(tree, branching, arguments))
        # An operator in place of a digit adds one token, and at least one token for each argument.
        lengths += np.bincount(parents, weights=arguments + 1, minlength=CHUNK).astype(np.int64)
        growing = lengths[parents] < max_length
        tree = np.repeat(parents[growing], arguments[growing])
        if not len(tree):
            break
    return levels, lengths


def _fill(rng: np.random.Generator, levels: list[_Level], lengths: np.ndarray) -> Ragged:
    """The expressions of finished trees of the given lengths, with random digits and operators."""
    symbols = [_draw_symbols(rng, level) for level in levels]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    above = range(len(levels) - 1)

    sizes = [np.ones(len(level.tree), np.int32) for level in levels]
    for i in reversed(above):
        sizes[i][levels[i].branching] = 2 + np.add.reduceat(sizes[i + 1], levels[i].starts)

    tokens = np.empty(offsets[-1], np.uint8)
    position = offsets[:-1].astype(np.int32)
    tokens[position] = symbols[0]
    for i in above:
        opening = position[levels[i].branching]
        tokens[opening + sizes[i][levels[i].branching] - 1] = CLOSE
        before = np.cumsum(sizes[i + 1], dtype=np.int32) - sizes[i + 1]
        position = np.repeat(opening + 1 - before[levels[i].starts], levels[i].arguments) + before
        tokens[position] = symbols[i + 1]

    values = [symbol - ZERO for symbol in symbols]  # wraps around at operators, which the loop overwrites
    for i in reversed(above):
        branching = levels[i].branching
        values[i][branching] = _apply(symbols[i][branching], levels[i], values[i + 1])
    return Ragged(tokens, offsets, values[0].astype(np.int64))


def _draw_symbols(rng: np.random.Generator, level: _Level) -> np.ndarray:
    symbols = rng.integers(ZERO, ZERO + 10, size=len(level.tree), dtype=np.uint8)
    symbols[level.branching] = rng.integers(MIN, CLOSE, size=len(level.arguments), dtype=np.uint8)
    return symbols


def _apply(operators: np.ndarray, level: _Level, values: np.ndarray) -> np.ndarray:
    """uint8 [operators]: the value of each operator; `values` [next level] holds the arguments."""
    starts = level.starts
    results = np.minimum.reduceat(values, starts)
    for operator, function in ((MAX, np.maximum.reduceat), (SM, lambda v, s: np.add.reduceat(v, s) % 10)):
        np.copyto(results, function(values, starts), where=operators == operator)

    chosen = operators == MED
    counts = level.arguments[chosen]
    table = np.full((len(counts), _MOST), 255, np.uint8)
    table[np.arange(_MOST) < counts[:, None]] = values[np.repeat(chosen, level.arguments)]
    table.sort(axis=1)
    rows = np.arange(len(counts))
    results[chosen] = (table[rows, (counts - 1) // 2] + table[rows, counts // 2]) // 2
    return results
