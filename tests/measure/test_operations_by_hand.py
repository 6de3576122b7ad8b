"""Layers counted by hand, term by term, against the counter: what each mechanism here executes."""

import pytest
import torch

from subquad.attention.dba import DBA
from subquad.attention.ecoformer import EcoFormer
from subquad.attention.linear import Linear
from subquad.attention.linformer import Linformer
from subquad.attention.softmax import Softmax
from subquad.measure.aten import Tally
from subquad.measure.operations import count
from subquad.specs import Masks, Pattern, Site

SIZES = [(27, 12, 3), (7, 20, 5)]
"""Tokens, width, heads: more tokens than channels, and fewer, for which layers choose another order of products."""


def macs(times):
    return Tally(mul=times, add=times)


def affine(rows, inputs, outputs):
    return macs(rows * inputs * outputs) + Tally(add=rows * outputs)


def softmax(logits):
    """Maximum, difference, exponential, sum, quotient."""
    return Tally(add=2 * logits, other=3 * logits)


def counted(factory, n, d, h, batch=1):
    site = Site(pattern=Pattern.SELF, dim=d, heads=h, query_len=n, context_len=n)
    x = torch.empty(batch, n, d)
    return count(factory(site=site).eval(), (x, x, Masks())).total


@pytest.mark.parametrize(("n", "d", "h"), SIZES)
@pytest.mark.parametrize("batch", [1, 3])
def test_softmax(n, d, h, batch):
    terms = {
        "query, key, value, out": affine(n, d, 4 * d),
        "logits": macs(n * n * d) + Tally(mul=h * n * n),
        "softmax": softmax(h * n * n),
        "weighted values": macs(n * n * d),
    }
    assert counted(Softmax, n, d, h, batch) == batch * sum(terms.values(), Tally())


@pytest.mark.parametrize(("n", "d", "h"), SIZES)
def test_softmax_written_out(n, d, h):
    fused = counted(Softmax, n, d, h)
    explicit = counted(lambda site: Softmax(site, fused=False), n, d, h)
    scale = h * n * n  # divided by √d_h, not multiplied by its inverse
    assert explicit == fused + Tally(mul=-scale, other=scale)


@pytest.mark.parametrize(("n", "d", "h"), SIZES)
def test_linear(n, d, h):
    e = d // h
    terms = {
        "query, key": affine(n, d, 2 * d),
        "features: max(x, 0) + exp(min(x, 0))": Tally(add=2 * n * d, other=3 * 2 * n * d),
        "Σ k": Tally(add=n * d),
        "q Σ k + ε": macs(n * d) + Tally(add=n * h),
        "1 / normaliser": Tally(other=n * h),
        "q / normaliser": Tally(mul=n * d),
    }
    if n > d:  # compressed first: values of tokens are never formed
        terms |= {
            "kᵀ C": macs(n * d * d),
            "(kᵀ C) W_V": macs(d * d * e),
            "(Σ k) b_V": Tally(add=n * d, mul=d * e) + Tally(add=d * e),
            "state W_O": macs(d * e * d),
            "q (state W_O) + b_O": affine(n, d, d),
        }
    else:
        terms |= {
            "value": affine(n, d, d),
            "kᵀ v": macs(n * d * e),
            "q state": macs(n * d * e),
            "out": affine(n, d, d),
        }
    assert counted(Linear, n, d, h) == sum(terms.values(), Tally())


@pytest.mark.parametrize(("n", "d", "h"), SIZES)
def test_dba(n, d, h):
    p, width = 3, 2 * h
    terms = {
        "Z scaled by phi, R by the scale of logits": Tally(mul=p * d + width * d),
        "Z and R times W_Q and W_K": macs(2 * (p + width) * d * d),
        "four rows of logits": macs(4 * p * n * d),
        "bias of W'_r": Tally(add=p * n),
        "softmax over tokens": softmax(3 * p * n),
        "three compressions": macs(3 * p * n * d),
        "bias of queries": macs(d * width),
        "query": affine(p, d, width),
        "key": macs(p * d * width),
        "value": affine(p, d, d),
        "logits": macs(p * p * width),
        "softmax": softmax(h * p * p),
        "weighted values": macs(p * p * d),
        "U W_O + b_O": affine(p, d, d),
        "softmax over slots": softmax(p * n),
        "expansion": macs(n * p * d),
    }
    assert counted(lambda site: DBA(site, d_p=p, d_in=width), n, d, h) == sum(terms.values(), Tally())


@pytest.mark.parametrize(("n", "d", "h"), SIZES)
def test_linformer(n, d, h):
    k = 5
    terms = {
        "query, out": affine(n, d, 2 * d),
        "E X and F X": macs(2 * k * n * d),
        "E 1 and F 1": Tally(add=2 * k * n),
        "(E X) W_K and (F X) W_V": macs(2 * k * d * d),
        "(E 1) b_K and (F 1) b_V": macs(2 * k * d),
        "logits": macs(n * k * d) + Tally(mul=h * n * k),
        "softmax": softmax(h * n * k),
        "weighted values": macs(n * k * d),
    }
    assert counted(lambda site: Linformer(site, k=k), n, d, h) == sum(terms.values(), Tally())


@pytest.mark.parametrize(("n", "d", "h"), SIZES)
def test_ecoformer(n, d, h):
    """Products with codes h are additions; a code has b bits and a 1 that carries the bias."""
    m, b = 5, 3
    k, e = b + 1, d // h
    terms = {
        "shared query and key": affine(n, d, d),
        "qᵀs": macs(n * m * d),
        "‖q‖, at least 10⁻⁶": macs(n * d) + Tally(other=2 * n * h),
        "cosine": Tally(other=h * n * m),
        "spread, 2 - 2 mean": Tally(add=h * n * m, other=h) + Tally(mul=h, add=h, other=h),
        "exp((cosine - 1) / spread)": Tally(add=h * n * m, other=2 * h * n * m),
        "A μ": macs(h * b * m),
        "A κ - A μ": macs(h * n * m * k) + Tally(add=h * n * k),
        "sign, and where its gradient passes": Tally(other=2 * h * n * k),
        "N, at least 1": Tally(add=n, other=1),
        "h / N": Tally(mul=h * n * k, other=n),
        "Σ h": Tally(add=h * n * k, mul=h * k),
        "hᵀ Σ h, at least 10⁻⁶": Tally(add=h * n * k, other=h * n),
        "h / normaliser": Tally(other=h * n * k),
        "which features are summed": Tally(mul=k, other=k),
        "bias of the state": Tally(mul=h * k * e),
    }
    if n > d:
        terms |= {
            "Σ h ⊗ x": Tally(add=n * h * k * d),
            "(Σ h ⊗ x) W_V": macs(h * k * d * e),
            "(Σ h) b_V": Tally(add=n * h * k) + macs(h * k * e),
            "state W_O": macs(h * k * e * d),
            "hᵀ (state W_O) + b_O": Tally(add=n * h * k * d + n * d),
        }
    else:
        terms |= {
            "value, out": affine(n, d, 2 * d),
            "Σ h ⊗ v": Tally(add=n * k * d),
            "hᵀ state": Tally(add=n * k * d),
        }
    assert counted(lambda site: EcoFormer(site, bits=b, anchors=m), n, d, h) == sum(terms.values(), Tally())
