"""Public implementations as layers, to be measured together with ours.

A function here is named like the mechanism and builds the layer that its users get, without dropout, at the settings of
configs/peers.yaml. None of that code is part of this package: transformers is a dependency, other packages must be
installed, and single files are read from checkouts of their repositories.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from subquad.attention.base import AttentionFactory, StatelessAttention
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.errors import UserError

Layer = tuple[nn.Module, Callable[[Any, Tensor], Tensor]]
"""A module, and a function that calls it on tokens [b, n, d] and returns a tensor of that shape."""


def public(name: str, checkouts: Path | None) -> AttentionFactory | None:
    """The public layer of the mechanism as an attention; None if no public code of it is listed here.

    `checkouts` is the folder that holds the repositories. A layer without its code raises UserError when it is built.
    """
    build = globals().get(name)
    return None if build is None else partial(_Public, build=build, checkouts=checkouts)


class _Public(StatelessAttention):
    """A public layer with the interface of an attention."""

    patterns = frozenset({Pattern.SELF})
    complexity = "as the public code"

    def __init__(self, site: Site, build: Callable[[Site, Path | None], Layer], checkouts: Path | None) -> None:
        super().__init__(site)
        self.layer, self.call = build(site, checkouts)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        return self.call(self.layer, x)


def flowformer(site: Site, checkouts: Path | None) -> Layer:
    """https://github.com/thuml/Flowformer, its core file."""
    code = _file(checkouts, "https://github.com/thuml/Flowformer", "Flow_Attention.py")
    layer = code.Flow_Attention(site.dim, site.dim, site.dim, site.heads, drop_out=0.0)
    return layer, lambda module, x: module(x, x, x)


def cosformer(site: Site, checkouts: Path | None) -> Layer:
    """https://github.com/OpenNLPLab/cosFormer, whose inputs have tokens as the first axis."""
    code = _file(checkouts, "https://github.com/OpenNLPLab/cosFormer", "cosformer.py")
    return code.CosformerAttention(site.dim, site.heads), lambda module, x: module(x.transpose(0, 1)).transpose(0, 1)


def transformer_ls(site: Site, checkouts: Path | None) -> Layer:
    """https://github.com/NVIDIA/transformer-ls, the layer of Long Range Arena."""
    code = _file(checkouts, "https://github.com/NVIDIA/transformer-ls", "lra/attention_transformer_ls.py")
    settings = SimpleNamespace(
        pooling_mode="mean", cls_token=False, num_head=site.heads, head_dim=site.dim // site.heads,
        num_landmarks=32, max_seq_len=site.query_len, transformer_dim=site.dim, attention_dropout=0.0,
        window_size=8, fp32_attn=False,
    )  # fmt: skip
    return code.AttentionLS(settings), lambda module, x: module(x, torch.ones(x.shape[:2], device=x.device))


def linformer(site: Site, checkouts: Path | None) -> Layer:
    """The package linformer."""
    code = _installed("linformer", "linformer")
    return code.LinformerSelfAttention(site.dim, site.query_len, k=256, heads=site.heads), _plain


def performer(site: Site, checkouts: Path | None) -> Layer:
    """The package performer-pytorch."""
    code = _installed("performer-pytorch", "performer_pytorch")
    width = site.dim // site.heads
    return code.SelfAttention(site.dim, heads=site.heads, dim_head=width, nb_features=266, causal=False), _plain


def sinkhorn(site: Site, checkouts: Path | None) -> Layer:
    """The package sinkhorn-transformer, which attends to one sorted block and does not mix blocks."""
    code = _installed("sinkhorn-transformer", "sinkhorn_transformer.sinkhorn_transformer")
    return code.SinkhornSelfAttention(site.dim, 64, site.query_len, heads=site.heads), _plain


def local(site: Site, checkouts: Path | None) -> Layer:
    """The package local-attention: 128 tokens on both sides."""
    code = _installed("local-attention", "local_attention")
    width = site.dim // site.heads
    return code.LocalMHA(
        dim=site.dim, window_size=128, dim_head=width, heads=site.heads, use_rotary_pos_emb=False
    ), _plain


def nystromformer(site: Site, checkouts: Path | None) -> Layer:
    """The layer of transformers, without its convolution."""
    code = _installed("transformers", "transformers.models.nystromformer.modeling_nystromformer")
    settings = code.NystromformerConfig(**_sizes(site), num_landmarks=64, segment_means_seq_len=site.query_len)
    layer = code.NystromformerAttention(settings)
    layer.self.conv_kernel_size = None
    return layer, _first


def longformer(site: Site, checkouts: Path | None) -> Layer:
    """The layer of transformers, without global tokens."""
    code = _installed("transformers", "transformers.models.longformer.modeling_longformer")

    def call(module: Any, x: Tensor) -> Tensor:
        zeros = x.new_zeros(x.shape[:2])
        y: Tensor = module(x, zeros, is_index_masked=zeros > 0, is_index_global_attn=zeros > 0, is_global_attn=False)[0]
        return y

    return code.LongformerAttention(code.LongformerConfig(**_sizes(site), attention_window=[256])), call


def bigbird(site: Site, checkouts: Path | None) -> Layer:
    """The layer of transformers."""
    code = _installed("transformers", "transformers.models.big_bird.modeling_big_bird")

    def call(module: Any, x: Tensor) -> Tensor:
        blocked, band, rows, columns = code.BigBirdModel.create_masks_for_block_sparse_attn(x.new_ones(x.shape[:2]), 64)
        y: Tensor = module(
            x, band_mask=band, from_mask=rows, to_mask=columns, from_blocked_mask=blocked, to_blocked_mask=blocked
        )[0]
        return y

    settings = code.BigBirdConfig(**_sizes(site), attention_type="block_sparse", block_size=64, num_random_blocks=3)
    return code.BigBirdAttention(settings, seed=0), call


def yoso(site: Site, checkouts: Path | None) -> Layer:
    """The layer of transformers that computes the expectation."""
    code = _installed("transformers", "transformers.models.yoso.modeling_yoso")
    settings = code.YosoConfig(**_sizes(site), use_expectation=True)
    return code.YosoAttention(settings), lambda module, x: module(x, x.new_ones(x.shape[:2]))[0]


def fnet(site: Site, checkouts: Path | None) -> Layer:
    """The layer of transformers."""
    code = _installed("transformers", "transformers.models.fnet.modeling_fnet")
    settings = code.FNetConfig(hidden_size=site.dim, hidden_dropout_prob=0.0)
    return code.FNetFourierTransform(settings), _first


def reformer(site: Site, checkouts: Path | None) -> Layer:
    """The layer of transformers, with one hash and chunks of 64."""
    code = _installed("transformers", "transformers.models.reformer.modeling_reformer")
    buckets = 1 << (2 * site.query_len // 64).bit_length() - 1  # what the layer would choose itself, with a warning
    settings = code.ReformerConfig(
        hidden_size=site.dim, num_attention_heads=site.heads, attention_head_size=site.dim // site.heads,
        attn_layers=["lsh"], num_hashes=1, num_buckets=max(2, buckets), lsh_attn_chunk_length=64, is_decoder=False,
        hidden_dropout_prob=0.0, lsh_attention_probs_dropout_prob=0.0, max_position_embeddings=site.query_len,
    )  # fmt: skip
    return code.ReformerAttention(settings), lambda module, x: module(x).hidden_states


def _sizes(site: Site) -> dict[str, Any]:
    return {
        "hidden_size": site.dim,
        "num_attention_heads": site.heads,
        "attention_probs_dropout_prob": 0.0,
        "hidden_dropout_prob": 0.0,
    }


def _plain(module: Any, x: Tensor) -> Tensor:
    y: Tensor = module(x)
    return y


def _first(module: Any, x: Tensor) -> Tensor:
    y: Tensor = module(x)[0]
    return y


def _file(checkouts: Path | None, url: str, path: str) -> ModuleType:
    """A file of a repository that is checked out below `checkouts`, as a module."""
    source = (checkouts or Path()) / Path(url).name / path
    if checkouts is None or not source.is_file():
        raise UserError(f"There is no {source}; `git clone {url}` into a folder, and set checkouts= to that folder.")
    spec = importlib.util.spec_from_file_location(f"public_{source.stem}", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _installed(package: str, module: str) -> ModuleType:
    """A module of a package that pip installs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{error}. `pip install {package}` brings the public code.") from error
