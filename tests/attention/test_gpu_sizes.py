"""The sizes and operators that a GPU uses give the numbers of the printed forms too; here they run on a CPU."""

import sys
from functools import partial

import pytest
from reference import bigbird, reformer, sparse, yoso

from attention.cells import HEADS
from attention.checks import LENGTHS, agree, by_head, stack
from subquad.attention import combiner
from subquad.attention.bigbird import BigBird
from subquad.attention.combiner import Combiner, naive_combiner
from subquad.attention.reformer import Reformer
from subquad.attention.sparse import Sparse
from subquad.attention.yoso import YOSO, SampledYOSO
from subquad.specs import Pattern

ROUNDS = {"chunk": 4, "duplicates": False, "across_buckets": False}
STRIDED = {"form": "strided", "block": 6, "summary": 2, "causal": False}
CASES = {
    "bigbird": (partial(BigBird, block=3, random_blocks=2), partial(bigbird.layer, block=3)),
    "reformer": (partial(Reformer, hashes=3, chunk=4), partial(reformer.layer, **ROUNDS)),
    "sparse": (partial(Sparse, **STRIDED), partial(sparse.layer, **STRIDED)),
    "yoso": (partial(YOSO, bits=6), partial(yoso.layer, bits=6, sampled=False)),
    "yoso_sampled": (partial(SampledYOSO, bits=4, hashes=3), partial(yoso.layer, bits=4, sampled=True)),
}  # fmt: skip


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", CASES)
def test_all_at_once_equals_the_printed_form(name: str, lengths: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    for module in [m for m in sys.modules.values() if m.__name__.startswith("subquad.") and hasattr(m, "at_once")]:
        monkeypatch.setattr(module, "at_once", lambda *_: asked.append(1) or 1 << 28)
    build, reference = CASES[name]
    agree(stack(build, Pattern.SELF).eval(), partial(reference, heads=HEADS), lengths)
    assert asked or name == "bigbird"


def test_short_spans_by_elementwise_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combiner, "_elementwise", lambda *_: True)
    choices = {"factorization": "logn", "span": 3}
    reference = by_head(lambda _, __, *qkv: naive_combiner(*qkv, **choices), HEADS)
    agree(stack(partial(Combiner, **choices), Pattern.SELF), reference, "padded")
