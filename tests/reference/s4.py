"""S4, S4D and S4+DBA as printed: dense complex matrices, one step of the recurrence after another, one sequence."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def dense_legs(states: int) -> tuple[Tensor, Tensor]:
    """HiPPO-LegS, entry by entry."""
    a, b = torch.zeros(states, states, dtype=torch.float64), torch.zeros(states, dtype=torch.float64)
    for n in range(states):
        b[n] = math.sqrt(2 * n + 1)
        for k in range(states):
            if n > k:
                a[n, k] = -math.sqrt(2 * n + 1) * math.sqrt(2 * k + 1)
            elif n == k:
                a[n, k] = -(n + 1)
    return a, b


def bilinear(a: Tensor, b: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """(I - ΔA/2)⁻¹ (I + ΔA/2) and (I - ΔA/2)⁻¹ ΔB."""
    eye = torch.eye(len(a), dtype=a.dtype)
    return torch.linalg.inv(eye - dt / 2 * a) @ (eye + dt / 2 * a), torch.linalg.inv(eye - dt / 2 * a) @ (dt * b)


def zoh(a: Tensor, b: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """exp(ΔA) and A⁻¹ (exp(ΔA) - I) B."""
    a_bar = torch.linalg.matrix_exp(dt * a)
    return a_bar, torch.linalg.solve(a, (a_bar - torch.eye(len(a), dtype=a.dtype)) @ b)


def run(a_bar: Tensor, b_bar: Tensor, c: Tensor, u: Tensor) -> Tensor:
    """x_k = Ā x_{k-1} + B̄ u_k, y_k = Re(C x_k)."""
    x, outputs = torch.zeros_like(b_bar), []
    for value in u:
        x = a_bar @ x + b_bar * value
        outputs.append((c @ x).real)
    return torch.stack(outputs)


def with_conjugates(half: Tensor) -> Tensor:
    """All states from one of each pair."""
    return torch.cat([half, half.conj()], -1)


def model_of(kernel: nn.Module, channel: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ā, B̄ and both C of one channel, as dense matrices."""
    place = channel % len(kernel.log_decay)
    diagonal = torch.complex(-kernel.log_decay[place].exp(), kernel.frequency[place])
    a = torch.diag(with_conjugates(diagonal))
    b = with_conjugates(torch.complex(*kernel.b[place].unbind(-1)))
    c = with_conjugates(torch.complex(*kernel.c[:, channel].unbind(-1)))
    dt = kernel.log_dt[channel].exp()
    if not hasattr(kernel, "p"):
        rule = zoh if kernel.discretize.__name__ == "zoh" else bilinear
        return *rule(a, b, dt), c
    p = with_conjugates(torch.complex(*kernel.p[place].unbind(-1)))
    a_bar, b_bar = bilinear(a - torch.outer(p, p.conj()), b, dt)
    eye = torch.eye(len(a), dtype=a.dtype)
    return a_bar, b_bar, c @ torch.linalg.inv(eye - torch.linalg.matrix_power(a_bar, kernel.kernel_len))


def both_ways(kernel: nn.Module, x: Tensor) -> Tensor:
    """Σ_{s≤t} k0[t-s] x_s + Σ_{s>t} k1[s-t-1] x_s for each channel of x [n, d]: the second starts one step later."""
    channels = []
    for i in range(x.shape[1]):
        a_bar, b_bar, c = model_of(kernel, i)
        forward = run(a_bar, b_bar, c[0], x[:, i])
        backward = run(a_bar, b_bar, c[1], x[:, i].flip(0)).flip(0)
        channels.append(forward + torch.cat([backward[1:], backward.new_zeros(1)]))
    return torch.stack(channels, 1)


def norm(layer: nn.Module, x: Tensor) -> Tensor:
    """BatchNorm as it evaluates, or LayerNorm, of x [n, d]."""
    if isinstance(layer, nn.BatchNorm1d):
        centred = (x - layer.running_mean) / (layer.running_var + layer.eps).sqrt()
    else:
        centred = x - x.mean(1, keepdim=True)
        centred = centred / (centred.square().mean(1, keepdim=True) + layer.eps).sqrt()
    return centred * layer.weight + layer.bias


def block(module: nn.Module, x: Tensor, pre: bool) -> Tensor:
    """One residual block on x [n, d]."""
    layer, source = module.layer, norm(module.norm, x) if pre else x
    y = F.gelu(both_ways(layer.kernel, source) + layer.skip * source)
    a, gate = (y @ layer.out.weight.T + layer.out.bias).chunk(2, 1)
    x = x + a * gate.sigmoid()
    return x if pre else norm(module.norm, x)


def s4(model: nn.Module, x: Tensor, pre: bool, readout: str) -> Tensor:
    """Prediction for one sequence of embeddings [n, d]."""
    for module in model.blocks:
        x = block(module, x, pre)
    return predict(model, x, pre, readout)


def predict(model: nn.Module, x: Tensor, pre: bool, readout: str) -> Tensor:
    """Final norm, read-out, linear map."""
    x = norm(model.norm, x) if pre else x
    return model.head(x.mean(0) if readout == "mean" else x[-1])


def row_logits(weights: nn.Module, x: Tensor, keys: Tensor, head: int) -> Tensor:
    """Logits [d_p, n] of one head, with the bias by place."""
    rows, n = weights.rows, len(x)
    width = x.shape[1] // weights.groups
    own = slice(head * width, (head + 1) * width)
    if weights.latent is not None:
        logits = weights.latent[:, own] @ keys[:, own].T
    else:
        logits = keys[:, head * rows : (head + 1) * rows].T
    if weights.log_sharpness is None:
        return logits
    places = (torch.arange(n, dtype=x.dtype) + 0.5) * rows / n - 0.5
    far = places[None] - torch.arange(rows, dtype=x.dtype)[:, None]
    return logits - 0.5 * (weights.log_sharpness.exp() * far) ** 2


def s4_dba(model: nn.Module, x: Tensor, pre: bool, readout: str) -> Tensor:
    """Prediction of S4+DBA for one sequence of embeddings [n, d], head by head."""
    first, *others = model.blocks
    tokens = block(first, x, pre)
    heads, width = model.compress.groups, x.shape[1] // model.compress.groups
    keys, parts = model.compress.map(tokens), []
    for h in range(heads):
        parts.append(row_logits(model.compress, tokens, keys, h).softmax(1) @ tokens[:, h * width : (h + 1) * width])
    y = torch.cat(parts, 1)
    if model.mix is not None:
        q, k, v = model.mix.query(y), model.mix.key(y), model.mix.value(y)
        parts = []
        for q_h, k_h, v_h in zip(*(t.chunk(model.mix.heads, 1) for t in (q, k, v)), strict=True):
            parts.append((q_h @ k_h.T / math.sqrt(q_h.shape[1])).softmax(1) @ v_h)
        y = y + model.mix.out(torch.cat(parts, 1))
    for module in others:
        y = block(module, y, pre)
    if model.restore is None:
        return predict(model, y, pre, readout)
    keys, parts = model.restore.map(tokens), []
    for h in range(heads):
        w = row_logits(model.restore, tokens, keys, h)
        parts.append((w.softmax(0) if model.normalised else w).T @ y[:, h * width : (h + 1) * width])
    restored = torch.cat(parts, 1)
    return predict(model, tokens + restored if model.residual else restored, pre, readout)
