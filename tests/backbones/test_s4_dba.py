"""S4+DBA against the formula written out, its limits, and its settings."""

import pytest
import torch
from reference import s4 as printed
from test_s4 import PLAIN, SPEC, agree, count, rows, unusual
from torch.testing import assert_close

from subquad.backbones.s4 import S4Encoder
from subquad.backbones.s4_dba import S4DBAEncoder
from subquad.specs import DataSpec
from subquad.utils.errors import UserError


def encoder(spec: DataSpec = SPEC, **changes) -> S4DBAEncoder:
    return unusual(S4DBAEncoder(spec, 4, **(PLAIN | {"layers": 3, "d_p": 5, "heads": 2} | changes)))


@pytest.mark.parametrize("lengths", [[17, 17], [17, 5, 1]], ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"locality": "none", "order": "post"},
        {"compress_heads": "per_head", "residual": True},
        {"mix": "attention", "d_in": 2},
        {"restore_norm": "none", "readout": "last"},
        {"read_from": "rows", "kernel": "diagonal"},
    ],
    ids=str,
)
def test_the_encoder_equals_the_formula(lengths, changes):
    model = encoder(**changes)
    for weights in (model.compress, model.restore):
        if weights is not None and weights.log_sharpness is not None:
            torch.nn.init.constant_(weights.log_sharpness, -0.5)
    pre, readout = changes.get("order") != "post", changes.get("readout", "mean")
    agree(model, lambda x: printed.s4_dba(model, x, pre, readout), lengths)


def test_identity_compression_is_s4():
    """As many rows as tokens, each of them at one token."""
    model = encoder(d_p=9)
    for weights in (model.compress, model.restore):
        torch.nn.init.zeros_(weights.map.weight)
        torch.nn.init.constant_(weights.log_sharpness, 4.0)
    torch.nn.init.zeros_(model.restore.map.bias)
    plain = unusual(S4Encoder(SPEC, 4, layers=3, **PLAIN))
    shared = {name: value for name, value in model.state_dict().items() if name in plain.state_dict()}
    plain.load_state_dict(shared)
    tokens, _ = rows([9, 9])
    assert_close(model(tokens, None), plain(tokens, None), rtol=0, atol=1e-10)


def test_rows_follow_the_order_of_the_tokens_from_the_start():
    model = encoder(d_p=4)
    torch.nn.init.zeros_(model.compress.map.weight)
    weights = model.compress(torch.randn(1, 4, 8, dtype=torch.float64), None)[0, 0].softmax(-1)
    centres = weights @ torch.arange(8, dtype=torch.float64)
    assert (centres.diff() > 1).all()
    assert_close(weights[0].argmax(), torch.tensor(0))


def test_padding_does_not_stretch_the_places():
    model = encoder()
    x, valid = torch.randn(1, 4, 9, dtype=torch.float64), torch.arange(9)[None] < 6
    assert_close(model.compress(x, valid)[..., :6], model.compress(x[..., :6], None))


def test_layers_after_the_first_run_on_d_p_rows():
    model, recorded = encoder(), []
    for block in model.blocks:
        block.register_forward_hook(lambda _, given, __: recorded.append(given[0].shape[-1]))
    model(*rows([17, 12]))
    assert recorded == [17, 5, 5]
    assert [block.layer.kernel.kernel_len for block in model.blocks] == [18, 5, 5]


def test_half_the_longest_sequence_is_the_default():
    assert encoder(d_p=None).compress.rows == 9


def test_parameters_beside_those_of_s4():
    """Z d_p x d, W_K d x d, a map d -> d_p with bias, and two scalars of the locality term."""
    plain = S4Encoder(SPEC, 4, layers=3, **PLAIN)
    assert count(encoder()) - count(plain) == 5 * 4 + 4 * 4 + 5 * 4 + 5 + 2


@pytest.mark.usefixtures("unchecked")
def test_what_it_cannot_be_is_refused():
    for changes, sentence in [
        ({"heads": 3, "compress_heads": "per_head"}, "cannot be split into 3 heads"),
        ({"mix": "attention", "d_in": 3}, "2 heads cannot share queries of 3"),
    ]:
        with pytest.raises(UserError, match=sentence):
            encoder(**changes)
