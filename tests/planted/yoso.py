"""Planted bugs of YOSO, exact and sampled."""

from planted import Bug

FILE = "attention/yoso.py"

BUGS = [
    Bug("values at padding count", FILE, "zero_padding(p.value(context), masks.context)", "p.value(context)"),
    Bug("the gradient is not the lower bound", FILE, "mul_(ctx.bits / 2)", "mul_(ctx.bits)"),
    Bug(
        "outputs are not of unit length",
        FILE,
        "F.normalize(self._weigh(q, k, values.to(precise)), dim=-1)",
        "self._weigh(q, k, values.to(precise))",
    ),
    Bug("queries are not of unit length", FILE, "q, k = F.normalize(q.to(precise), dim=-1),", "q, k = q.to(precise),"),
    Bug("a wrong power for odd numbers of bits", FILE, "power.mul_(base)", "power.mul_(power)"),
    Bug("arccos beyond 1", FILE, ".clamp_(-1, 1)", ".clamp_(-2, 2)"),
    Bug(
        "all heads share one table",
        FILE,
        "torch.arange(len(v), device=v.device)[:, None] << bits",
        "torch.zeros(len(v), 1, device=v.device, dtype=torch.int64)",
    ),
    Bug(
        "the first hash is not counted",
        FILE,
        "(q_codes[0, :, :, None] == k_codes[0, :, None])",
        "(q_codes[0, :, :, None] != k_codes[0, :, None])",
    ),
    Bug(
        "hyperplanes are drawn in evaluation",
        FILE,
        "planes = self.planes.to(x.dtype)",
        "planes = torch.randn_like(self.planes).to(x.dtype)",
    ),
    Bug("the last bit is ignored", FILE, "places = 2 **", "places = 0.5 * 2 **"),
]
