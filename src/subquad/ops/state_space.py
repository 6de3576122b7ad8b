"""State space models x' = A x + B u, y = 2 Re(C x), as convolutions: initial values, kernels of l taps, two-sided sums.

A state of N real numbers with conjugate pairs is kept as N/2 complex ones, one of each pair. Letters of shapes: h
models (channels), p = N/2 pairs, r rows of C (read-outs of one model), l taps. Formulas: Gu et al. 2022,
https://arxiv.org/abs/2111.00396 (S4), and https://arxiv.org/abs/2206.11893 (S4D).
"""

import math
from typing import Any

import torch
from jaxtyping import Complex, Float, Inexact
from torch import Tensor

from subquad.utils.derivatives import by_torch, first_order


def legs(states: int) -> tuple[Float[Tensor, "N N"], Float[Tensor, " N"]]:
    """HiPPO-LegS: A_nk = -√((2n+1)(2k+1)) below the diagonal, -(n+1) on it, 0 above; B_n = √(2n+1). In float64."""
    b = torch.sqrt(2 * torch.arange(states, dtype=torch.float64) + 1)
    a = torch.outer(b, b).tril(-1) + torch.diag(torch.arange(1.0, states + 1, dtype=torch.float64))
    return -a, b


def legs_pairs(states: int) -> tuple[Complex[Tensor, " p"], Complex[Tensor, " p"], Complex[Tensor, " p"]]:
    """HiPPO-LegS as Λ - p p*: Λ, p and B in the eigenbasis of A + P Pᵀ, with P_n = √(n + 1/2), in complex128.

    A + P Pᵀ + I/2 is skew-symmetric, so Re Λ = -1/2. Eigenvectors are turned so that p is positive, which fixes their
    phases on every machine; then B = √2 p, since B = √2 P.
    """
    a, b = legs(states)
    low_rank = b / math.sqrt(2)
    skew = a + torch.outer(low_rank, low_rank) + 0.5 * torch.eye(states, dtype=torch.float64)
    frequencies, vectors = torch.linalg.eigh(-1j * skew)
    p = (vectors.mH @ low_rank.to(vectors.dtype))[states // 2 :].abs()
    return torch.complex(torch.full_like(p, -0.5), frequencies[states // 2 :]), p + 0j, math.sqrt(2) * p + 0j


def diagonal_pairs(states: int, kind: str) -> tuple[Complex[Tensor, " p"], Complex[Tensor, " p"]]:
    """Λ and B of S4D (Section 4 of its paper), in complex128.

    "legs": LegS without its low-rank term; "lin": Λ_n = -1/2 + iπn; "inv": Λ_n = -1/2 + i N/π (N/(2n+1) - 1); B = 1.
    """
    if kind == "legs":
        a, _, b = legs_pairs(states)
        return a, b
    n = torch.arange(states // 2, dtype=torch.float64)
    frequencies = math.pi * n if kind == "lin" else states / math.pi * (states / (2 * n + 1) - 1)
    return torch.complex(torch.full_like(n, -0.5), frequencies), torch.ones_like(n) + 0j


def zoh(
    a: Complex[Tensor, "h p"], b: Complex[Tensor, "h p"], dt: Float[Tensor, " h"]
) -> tuple[Complex[Tensor, "h p"], Complex[Tensor, "h p"]]:
    """Zero-order hold: log Ā = ΔA, and B̄ = (Ā - 1) A⁻¹ B."""
    log_a = a * dt[:, None]
    return log_a, torch.expm1(log_a) / a * b


def bilinear(
    a: Complex[Tensor, "h p"], b: Complex[Tensor, "h p"], dt: Float[Tensor, " h"]
) -> tuple[Complex[Tensor, "h p"], Complex[Tensor, "h p"]]:
    """Bilinear rule: log Ā with Ā = (1 + ΔA/2) / (1 - ΔA/2), and B̄ = ΔB / (1 - ΔA/2)."""
    half = 0.5 * a * dt[:, None]
    return torch.log1p(half) - torch.log1p(-half), dt[:, None] * b / (1 - half)


def diagonal_kernel(
    log_a: Complex[Tensor, "h p"], b: Complex[Tensor, "h p"], c: Complex[Tensor, "r h p"], length: int
) -> Float[Tensor, "r h l"]:
    """K_l = 2 Re Σ_n C_n B̄_n Ā_n^l, the Vandermonde product of a diagonal model."""
    coarse, fine = factored_powers(log_a, length)
    coarse = 2 * (c * b)[..., None] * coarse
    left = torch.cat([coarse.real, -coarse.imag], 2).permute(1, 0, 3, 2).flatten(1, 2)
    kernel = left @ torch.cat([fine.real, fine.imag], 1)
    return kernel.unflatten(1, (-1, coarse.shape[-1])).transpose(0, 1).flatten(2)[..., :length]


def factored_powers(log_a: Inexact[Tensor, "*h p"], length: int) -> tuple[Tensor, Tensor]:
    """Ā^(im) and Ā^j in `[*h, p, l/m]` and `[*h, p, m]`; their products Ā^(im+j) are the powers 0 to l - 1 and more.

    With m = √l only 2√l powers of each Ā are made; a sum over p of their products is one matrix product.
    """
    if torch.compiler.is_compiling():  # a graph takes any length, and would fix one block alone
        inner = 128
        outer = length // inner + 2
    else:
        inner = math.isqrt(length - 1) + 1
        outer = -(-length // inner)
    coarse = torch.arange(0, inner * outer, inner, dtype=log_a.real.dtype, device=log_a.device)
    fine = torch.arange(inner, dtype=log_a.real.dtype, device=log_a.device)
    return torch.exp(log_a[..., None] * coarse), torch.exp(log_a[..., None] * fine)


def dplr_kernel(
    a: Complex[Tensor, "h p"], p: Complex[Tensor, "h p"], b: Complex[Tensor, "h p"], c: Complex[Tensor, "r h p"],
    dt: Float[Tensor, " h"], length: int,
) -> Float[Tensor, "r h l"]:  # fmt: skip
    """The kernel of Λ - p p* under the bilinear rule, where `c` is C̃ = C (I - Ā^l) for this length l.

    At the roots of unity ω its transform is 2/(1+ω) [⟨C̃,B⟩ - ⟨C̃,p⟩ ⟨p*,B⟩ / (1 + ⟨p*,p⟩)] with Cauchy sums
    ⟨x,y⟩ = Σ_n x_n y_n / (z - Λ_n), z = 2/Δ (1-ω)/(1+ω) (Woodbury's identity takes care of p p*).

    With ω = e^(-2iθ), z = (2i/Δ) tan θ. A pair of conjugate terms v/(z-Λ) + v̄/(z-Λ̄), with λ = ΔΛ/2, is then
        (Δ/2) cos θ · 2 (i sin θ Re v - cos θ Re(v λ̄)) / (|λ|² cos² θ - sin² θ - 2i sin θ cos θ Re λ),
    which is finite at ω = -1 too, has one denominator for all six sums, and makes them one real matrix product.
    """
    half = 0.5 * dt[:, None]
    scaled = a * half
    angle = torch.arange(length // 2 + 1, dtype=torch.float64, device=a.device) * (math.pi / length)
    # The cosine as a sine, which is more exact near ω = -1; there, at even lengths, it is set to 0.
    sin, cos = angle.sin().to(dt.dtype), (math.pi / 2 - angle).sin().to(dt.dtype)
    if length % 2 == 0:
        cos = torch.cat([cos[:-1], torch.zeros_like(cos[:1])])
    denominators = _denominators if by_torch() else _Denominators.apply
    real, imaginary = denominators(scaled.abs(), scaled.real, sin, cos)

    terms = torch.cat([c * b, c * p, (p.conj() * b)[None], (p.conj() * p)[None]]).transpose(0, 1)
    weights = torch.cat([-2 * (terms * scaled.conj()[:, None]).real, 2 * terms.real], 1)
    even, odd = torch.complex(weights @ real, weights @ imaginary).chunk(2, 1)
    cauchy = (cos * even + 1j * sin * odd) * half[..., None]
    rows = c.shape[0]
    c_b, c_p, p_b, p_p = cauchy.split([rows, rows, 1, 1], 1)
    transform = torch.exp(1j * angle).to(a.dtype) * (c_b - c_p * p_b * (cos / (1 + cos * p_p)))
    return torch.fft.irfft(transform, length).transpose(0, 1)


def _denominators(size: Tensor, decay: Tensor, sin: Tensor, cos: Tensor) -> tuple[Tensor, Tensor]:
    """`_Denominators` as torch differentiates it."""
    scaled, imaginary = cos * size[..., None], (2 * sin * cos) * decay[..., None]
    real = (scaled - sin) * (scaled + sin)
    norm = real.square() + imaginary.square()
    return real / norm, imaginary / norm


class _Denominators(torch.autograd.Function):
    """Real and imaginary part of 1 / (|λ|² cos² θ - sin² θ - 2i sin θ cos θ Re λ), the largest tensors of a kernel.

    Differentiated by hand: the backward pass needs only these two tensors of h x p x l/2 numbers, autograd eight.
    """

    @staticmethod
    def forward(ctx: Any, size: Tensor, decay: Tensor, sin: Tensor, cos: Tensor) -> tuple[Tensor, Tensor]:
        """`size` |λ| and `decay` Re λ are `[h, p]`, `sin` and `cos` `[l / 2 + 1]`."""
        scaled = cos * size[..., None]
        # The difference of squares as a product: near a resonance the squares would cancel.
        real = (scaled - sin).mul_(scaled.add_(sin))
        imaginary = (2 * sin * cos) * decay[..., None]
        norm = torch.addcmul(real.square(), imaginary, imaginary)
        real.div_(norm)
        imaginary.div_(norm)
        ctx.save_for_backward(real, imaginary, size, sin, cos)
        return real, imaginary

    @staticmethod
    @first_order
    def backward(ctx: Any, d_real: Tensor, d_imaginary: Tensor) -> tuple[Tensor, Tensor, None, None]:
        real, imaginary, size, sin, cos = ctx.saved_tensors
        square = (real - imaginary).mul_(real + imaginary)
        cross = (real * imaginary).mul_(2)
        by_real = (square * d_real).addcmul_(cross, d_imaginary)
        by_imaginary = cross.mul_(d_real).addcmul_(square, d_imaginary, value=-1)
        return by_real @ cos.square() * (-2 * size), by_imaginary @ (-2 * sin * cos), None, None


def dense_bilinear(
    a: Complex[Tensor, "h p"], p: Complex[Tensor, "h p"], dt: Float[Tensor, " h"]
) -> Float[Tensor, "h N N"]:
    """Ā = (I - ΔA/2)⁻¹ (I + ΔA/2) of Λ - p p*, as a real matrix that acts on [Re x ; Im x]."""
    real, imaginary = torch.diag_embed(a.real), torch.diag_embed(a.imag)
    q = torch.cat([p.real, p.imag], -1)
    dense = torch.cat([torch.cat([real, -imaginary], -1), torch.cat([imaginary, real], -1)], -2)
    step = 0.5 * dt[:, None, None] * (dense - 2 * q[:, :, None] * q[:, None])
    eye = torch.eye(step.shape[-1], dtype=step.dtype, device=step.device)
    return torch.linalg.solve(eye - step, eye + step)


def advanced(c: Complex[Tensor, "r h p"], a_bar: Float[Tensor, "h N N"], steps: int) -> Complex[Tensor, "r h p"]:
    """C Ā^steps. C̃ = C - C Ā^l for kernels of l taps, and C̃ + C̃ Ā^l is C̃ for kernels of 2l taps."""
    row = torch.cat([c.real, -c.imag], -1)[..., None, :] @ torch.linalg.matrix_power(a_bar, steps)
    real, imaginary = row.squeeze(-2).chunk(2, -1)
    return torch.complex(real, -imaginary)


def two_sided_convolution(
    x: Float[Tensor, "b h n"], forward: Float[Tensor, "h n"], backward: Float[Tensor, "h n"]
) -> Float[Tensor, "b h n"]:
    """y_t = Σ_{s≤t} forward[t-s] x_s + Σ_{s>t} backward[s-t-1] x_s, by one FFT of at least 2n - 1 points.

    Computed in float32 at least; the result has the dtype of x.
    """
    n = x.shape[-1]
    size = fast_length(2 * n - 1)
    both = torch.cat([forward, forward.new_zeros(len(forward), size - 2 * n + 1), backward[:, : n - 1].flip(-1)], -1)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    convolved = _convolved if by_torch() or torch.compiler.is_exporting() else _Convolution.apply
    return convolved(wide, both.to(wide.dtype)).to(x.dtype)


def _convolved(x: Float[Tensor, "b h n"], kernel: Float[Tensor, "h m"]) -> Float[Tensor, "b h n"]:
    """`_Convolution` as torch differentiates it, and as ONNX Runtime computes it, which fails at halves of spectra."""
    size = kernel.shape[-1]
    return torch.fft.ifft(torch.fft.fft(x, size) * torch.fft.fft(kernel)).real[..., : x.shape[-1]]


class _Convolution(torch.autograd.Function):
    """The first n values of the circular convolution of `[b, h, n]` with `[h, m]`.

    Differentiated by hand, because torch differentiates a real FFT by a complex one of twice the work. The kernel's
    gradient is summed over the batch before it is transformed back.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor) -> Tensor:
        size = kernel.shape[-1]
        signal, filter_ = torch.fft.rfft(x, size), torch.fft.rfft(kernel)
        ctx.save_for_backward(signal, filter_)
        ctx.size = size
        return torch.fft.irfft(signal * filter_, size)[..., : x.shape[-1]]

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        signal, filter_ = ctx.saved_tensors
        backward = torch.fft.rfft(grad, ctx.size)
        by_kernel = torch.fft.irfft((backward * signal.conj()).sum(0), ctx.size)
        return torch.fft.irfft(backward.mul_(filter_.conj()), ctx.size)[..., : grad.shape[-1]], by_kernel


def two_sided_states(u: Complex[Tensor, "b p n"], log_a: Complex[Tensor, " p"]) -> Complex[Tensor, "b 2*p n"]:
    """x_t = Σ_{s≤t} Ā^(t-s) u_s of each state, and below them x'_t = Σ_{s≥t} Ā^(s-t) u_s; by FFT over the tokens."""
    n = u.shape[-1]
    size = fast_length(2 * n - 1)
    powers = torch.exp(log_a[:, None] * torch.arange(n, dtype=log_a.real.dtype, device=log_a.device))
    between = powers.new_zeros(len(powers), size - n)
    later = torch.cat([powers, between], -1)
    earlier = torch.cat([powers[:, :1], between, powers[:, 1:].flip(-1)], -1)
    product = torch.fft.fft(u, size)[:, None] * torch.fft.fft(torch.stack([later, earlier]))
    return torch.fft.ifft(product)[..., :n].flatten(1, 2)


def fast_length(least: int) -> int:
    """The smallest length of at least `least` whose prime factors are 2, 3 and 5 only, for which FFTs are fast.

    In an exported program, which takes any length, an even length.
    """
    if torch.compiler.is_exporting():
        return least + least % 2
    least = int(least)  # a tensor in a trace
    best = 1 << max(0, least - 1).bit_length()
    fives = 1
    while fives < best:
        odd = fives
        while odd < best:
            best = min(best, odd << (-(-least // odd) - 1).bit_length())
            odd *= 3
        fives *= 5
    return best
