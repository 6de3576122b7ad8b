"""Ma et al. 2021, Eq. 5-7: two ordinary attentions, latents reading the context and queries reading the latents."""

import torch
from torch import Tensor, nn


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Multi-head softmax attention of projected rows."""
    scale = (q.shape[1] // heads) ** 0.5
    heads_of = zip(q.chunk(heads, 1), k.chunk(heads, 1), v.chunk(heads, 1), strict=True)
    return torch.cat([(a @ b.T / scale).softmax(1) @ c for a, b, c in heads_of], 1)


def layer(
    attention: nn.Module,
    x: Tensor,
    context: Tensor,
    carry: Tensor | None,
    *,
    heads: int,
    dynamic: bool = True,
    last: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`dynamic`: the queries read at most as many latents as the context has tokens."""
    m = attention
    first = m.latent if m.latent_norm is None else m.latent_norm(m.latent)
    latent = first if carry is None else carry
    packed = attend(m.pack_query(latent), m.pack_key(context), m.pack_value(context), heads)
    visible = packed[: len(context)] if dynamic else packed
    y = attend(m.query(x), m.key(visible), m.value(visible), heads)
    return m.out(y), carry if last else m.norm(latent + packed)
