"""FLatten: focused linear attention (Han et al. 2023, https://arxiv.org/abs/2308.00442, Eq. 4-8)."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from subquad.attention.base import Projections, StatelessAttention
from subquad.ops.depthwise import depthwise
from subquad.ops.linear_attention import divisor, head_dot
from subquad.ops.masks import count, zero_padding
from subquad.ops.mixed_precision import without_autocast
from subquad.ops.unit import unit
from subquad.specs import Context, Masks, Pattern, Site, Tokens
from subquad.utils.setting_types import Count, Odd, Positive


class FLatten(StatelessAttention):
    """y_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / (φ(q_i)ᵀ Σ_j φ(k_j) + n ε) + DWC(v)_i in each head.

        φ(x) = ‖r‖ rᵖ / ‖rᵖ‖ with r = (ReLU(x) + ε) / softplus(s)

    The power p moves a vector towards its largest features and keeps its norm. Norms are over the whole width, before
    the heads are split; s is learned for each feature. DWC is a depthwise convolution of the values, whose kernels the
    heads share: over `site.grid` if there is one, otherwise along the tokens. With a grid, a learned position is added
    to each key. Padded keys get φ(k) = 0, padded values 0. `site.dropout` is unused.

    Args:
        power: p, the focusing factor.
        kernel: taps of DWC along each axis, odd.
        eps: ε; also added to the mean similarity of a query.

    Why the fast path is equal: φ is ‖r‖ u / ‖u‖ with u = (r / ‖r‖)ᵖ, which no float32 exceeds. All between the maps is
    computed in float32 at least: sums of similarities have a wider range than half precision.

    Examples:
        >>> import torch
        >>> from subquad import FLatten
        >>> layer = FLatten(dim=64, heads=4)
        >>> layer(torch.randn(2, 300, 64)).shape
        torch.Size([2, 300, 64])

    Released code: square images only; no padding masks; the sum of keys and values overflows in half precision in
    some of its files. With spatial reduction, values are interpolated for DWC; here there is no reduction.
    """

    patterns = frozenset({Pattern.SELF})
    complexity = "time O(n d² + n d s), memory O(n d)"

    def __init__(self, site: Site, power: Count = 3, kernel: Odd = 5, eps: Positive = 1e-6) -> None:
        super().__init__(site)
        self.power, self.eps = power, eps
        self.width = site.grid[1] if site.grid else None
        if site.grid:
            self.fix_grid()
        self.projections = Projections(site.dim, site.heads)
        self.scale = nn.Parameter(torch.zeros(site.dim))
        self.positions = nn.Parameter(torch.zeros(site.context_len, site.dim)) if site.grid else None
        shape = (kernel, kernel) if site.grid else (1, kernel)
        width = site.dim // site.heads
        self.local = nn.Conv2d(width, width, shape, groups=width)

    def attend(self, x: Tokens, context: Context, masks: Masks) -> Tokens:
        p, real = self.projections, masks.context
        k = p.key(context)
        if self.positions is not None:
            k = k + self.positions[: k.shape[1]]
        q, k = self._focused(p.query(x)), zero_padding(self._focused(k), real)
        q, k = (t.unflatten(-1, (p.heads, -1)) for t in (q, k))
        v = zero_padding(p.value(context), real)
        with without_autocast(x):
            state = k.permute(0, 2, 3, 1) @ v.to(k.dtype).unflatten(-1, (p.heads, -1)).transpose(1, 2)
            n = count(real, v.shape[1])
            normaliser = head_dot(q, k.sum(1)) + self.eps * (n if isinstance(n, int) else n.to(k.dtype)[..., None])
            y = (q.transpose(1, 2) @ state).transpose(1, 2) / divisor(normaliser, real)
        y = y.flatten(-2).to(v.dtype)
        taps = self.local.weight[:, 0].repeat(p.heads, 1, 1)
        return p.out(y + depthwise(v, taps, self._bias().repeat(p.heads), self.width))

    def _focused(self, x: Tokens) -> Tokens:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        r = (F.relu(wide) + self.eps) / F.softplus(self.scale)
        size = r.square().sum(-1, keepdim=True).sqrt()
        return size * unit((r / size) ** self.power)

    def _bias(self) -> Float[Tensor, " e"]:
        assert self.local.bias is not None
        return self.local.bias
