"""Planted bugs of S4, S4D and S4+DBA."""

from planted import Bug

OPS, TESTS, LAYERS = "ops/state_space.py", "tests/backbones/test_state_space.py", "tests/backbones/test_s4.py"
DBA, GROUPS = "tests/backbones/test_s4_dba.py", "tests/tasks/test_parameter_groups.py"

BUGS = [
    Bug("the low-rank term is added", OPS, "(c_b - c_p * p_b", "(c_b + c_p * p_b", TESTS),
    Bug("p is not conjugated", OPS, "(p.conj() * b)[None]", "(p * b)[None]", TESTS),
    Bug("Woodbury without its 1", OPS, "(cos / (1 + cos * p_p))", "(cos / (cos * p_p))", TESTS),
    Bug("B of LegS is P", OPS, "math.sqrt(2) * p + 0j", "p + 0j", TESTS),
    Bug("the wrong half of the pairs", OPS, "torch.log1p(half) - torch.log1p(-half)", "torch.log1p(half)", TESTS),
    Bug("Vandermonde rows one apart", OPS, "(inner * powers[:outer])", "((inner - 1) * powers[:outer])", TESTS),
    Bug(
        "the backward kernel starts at the token itself",
        OPS,
        "backward[:, : n - 1].flip(-1)",
        "backward[:, 1:].flip(-1)",
        TESTS,
    ),
    Bug("an FFT that is too short", OPS, "size = fast_length(2 * n - 1)", "size = fast_length(2 * n - 1) - 1", TESTS),
    Bug("a gradient of the denominators", OPS, "square, d_imaginary, value=-1", "square, d_imaginary, value=1", TESTS),
    Bug("a kernel's gradient without conjugation", OPS, "backward * signal.conj()", "backward * signal", TESTS),
    Bug("the dense step forgets conjugates", OPS, "dense - 2 * q", "dense - q", TESTS),
    Bug("longer kernels by halves", "blocks/state_space.py", "taps), 2 * taps", "taps // 2), 2 * taps", LAYERS),
    Bug(
        "the length is not in the state", "blocks/state_space.py", "self.kernel_len = int(state)", "int(state)", LAYERS
    ),
    Bug("16 bits for a frequency", "blocks/state_space.py", "moved.element_size() >= 4", "True", LAYERS),
    Bug(
        "steps uniform, not log-uniform",
        "blocks/state_space.py",
        "low + torch.rand(dim) * (high - low)",
        "(dt_min + torch.rand(dim) * (dt_max - dt_min)).log()",
        LAYERS,
    ),
    Bug(
        "a channel takes its neighbour's model",
        "blocks/state_space.py",
        "self.frequency).repeat(self.turns, 1)",
        "self.frequency).repeat_interleave(self.turns, 0)",
        LAYERS,
    ),
    Bug("padding enters the convolution", "blocks/s4.py", "x = x.masked_fill(~valid[:, None], 0)", "pass", LAYERS),
    Bug("no skip", "blocks/s4.py", "y + self.skip[:, None] * x", "y", LAYERS),
    Bug(
        "padding in the statistics",
        "ops/moments.py",
        "kept = wide if real is None else wide.masked_fill(~real[:, None], 0)",
        "kept = wide",
        LAYERS,
    ),
    Bug("the biased variance is kept", "blocks/channel_norm.py", "(count / (count - 1).clamp(min=1))", "1", LAYERS),
    Bug(
        "the last token of the batch",
        "backbones/s4.py",
        "device=x.device) * valid",
        "device=x.device) * (valid | True)",
        LAYERS,
    ),
    Bug(
        "the mean counts padding",
        "backbones/s4.py",
        "valid.sum(1, keepdim=True).clamp(min=1)",
        "valid.shape[1]",
        LAYERS,
    ),
    Bug(
        "places count padding",
        "backbones/s4_dba.py",
        "valid.cumsum(1).to(x.dtype) - 1",
        "(valid | True).cumsum(1).to(x.dtype)",
        DBA,
    ),
    Bug(
        "rows see padding",
        "backbones/s4_dba.py",
        "masked_softmax(self.compress(tokens, valid), real)",
        "self.compress(tokens, valid).softmax(-1)",
        DBA,
    ),
    Bug("restored over tokens", "backbones/s4_dba.py", "weights.softmax(2) if", "weights.softmax(3) if", DBA),
    Bug("the layers between stay at n", "backbones/s4_dba.py", "inner_len=d_p, ", "", DBA),
    Bug(
        "heads share their weights",
        "backbones/s4_dba.py",
        "weight.unflatten(0, (groups, -1))",
        "weight.unflatten(0, (groups, -1)).flip(0)",
        DBA,
    ),
    Bug("biases are decayed", "blocks/parameter_groups.py", 'or name == "bias"', "", GROUPS),
    Bug(
        "C is not decayed",
        "blocks/state_space.py",
        '{} if name == "c" else {"weight_decay": 0.0}',
        '{"weight_decay": 0.0}',
        GROUPS,
    ),
    Bug(
        "the rate of A is the optimiser's", "blocks/state_space.py", ".get(name, self.rates.ssm)", ".get(name)", GROUPS
    ),
    Bug("groups are not asked for", "tasks/supervised.py", "isinstance(self.network, Grouped)", "False", GROUPS),
    Bug(
        "one cycle with one rate",
        "tasks/schedules.py",
        '[group["lr"] for group in optimizer.param_groups]',
        'optimizer.defaults["lr"]',
        GROUPS,
    ),
]
