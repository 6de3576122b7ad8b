"""Planted bugs of Nyströmformer."""

from planted import Bug

FILE = "attention/nystromformer.py"

BUGS = [
    Bug("landmarks average padding", FILE, "mean_pool(x, mask, segment)", "mean_pool(x, None, segment)"),
    Bug("empty segments are landmarks", FILE, "pooled, None if mask is None else real", "pooled, None"),
    Bug("rows of empty segments stay", FILE, "a = a.masked_fill(~slots_q[:, None, :, None], 0)", "pass"),
    Bug("one norm for the whole batch", FILE, "a.sum(1).amax(-1)", "a.sum(1).amax().expand(len(a))"),
    Bug(
        "segments of the padded length", FILE, "mean_pool(x, mask, segment)", "mean_pool(x, mask, -(-x.shape[1] // 4))"
    ),
    Bug("wrong coefficient of the iteration", FILE, "beta=15", "beta=16"),
    Bug(
        "query bias lost",
        FILE,
        "(k @ p.query.bias.view(p.heads, -1, 1))",
        "(k @ torch.zeros_like(p.query.bias).view(p.heads, -1, 1))",
    ),
    Bug("logits of gathering are not scaled", FILE, "(q * self.scale) @", "q @"),
    Bug(
        "the convolution sees padding",
        FILE,
        "zero_padding(values.transpose(1, 2).flatten(2), mask)",
        "values.transpose(1, 2).flatten(2)",
    ),
    Bug("filters in the wrong order", FILE, "repeat_interleave(values.shape[-1], 0)", "repeat(values.shape[-1], 1)"),
    Bug(
        "queries have the segments of the context", FILE, "masks.query, self.query_segment", "masks.query, self.segment"
    ),
    Bug("the inverse in low precision", FILE, "torch.promote_types(q.dtype, torch.float32)", "torch.bfloat16"),
]
