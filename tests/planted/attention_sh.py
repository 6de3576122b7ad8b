"""Planted bugs of Attention-SH, on softmax, linear and sparse attention."""

from planted import Bug

SCALES, SOFTMAX, LINEAR, SPARSE = (
    "ops/scaled_heads.py",
    "attention/attention_sh.py",
    "attention/linear_bn_sh.py",
    "attention/sparse_bn_sh.py",
)
BUGS = [
    Bug("mean of unpooled keys", SCALES, "means[group.scale]) for", "means[min(means)]) for"),
    Bug("windows of padding are keys", SCALES, "None if mask is None else real", "None"),
    Bug(
        "heads of one scale are joined across others",
        SCALES,
        "in itertools.groupby(each)",
        "in itertools.groupby(sorted(each))",
    ),
    Bug("scales of 8 heads for 4", SCALES, "4: (1, 1, 2, 4)", "4: (1, 1, 2, 2)"),
    Bug("any number of scales", SCALES, "if len(each) != heads or", "if"),
    Bug(
        "a projection of the first heads",
        SCALES,
        "linear.bias[self.features]",
        "linear.bias[: self.features.stop - self.features.start]",
    ),
    Bug("pooled heads are never recentred", SOFTMAX, "if self.recentred:", "if False:"),
    Bug("mean is added to the queries", SOFTMAX, "q = q - self.beta", "q = q + self.beta"),
    Bug("padded windows are read", SOFTMAX, "attn_mask=visible, ", ""),
    Bug("dropout acts in eval", SOFTMAX, "self.site.dropout if self.training else 0.0", "self.site.dropout"),
    Bug(
        "every head reads all tokens",
        SOFTMAX,
        "tokens, real = scaled[group.scale]",
        "tokens, real = context, masks.context",
    ),
    Bug("keys of linear attention are not centred", LINEAR, "tokens) - shift[..., group.features])", "tokens))"),
    Bug("queries of linear attention are not centred", LINEAR, "p.query(x) - shift", "p.query(x)"),
    Bug("padded keys of linear attention count", LINEAR, "zero_padding(k, real)", "zero_padding(k, None)"),
    Bug("bias of the values once", LINEAR, "total[..., None] * p.value", "p.value"),
    Bug("linear attention has no epsilon", LINEAR, "head_dot(q, total) + self.eps", "head_dot(q, total)"),
    Bug("mean of the band is left out", SPARSE, "if self.recentred:", "if False:"),
    Bug("reach is not scaled", SPARSE, "self.window / 2 / group.scale", "self.window / 2"),
    Bug("reach is cut", SPARSE, "math.ceil(", "int("),
    Bug("only what is behind is seen", SPARSE, "after=reach", "after=0"),
    Bug("keys of the band are not pooled ones", SPARSE, "after=reach, stride=group.scale", "after=reach"),
    Bug("padded keys of the band are read", SPARSE, "k, v, real, heads", "k, v, None, heads"),
    Bug("padded keys of the pattern are read", SPARSE, "k, v, real, form", "k, v, None, form"),
    Bug("a learned weight of 0 is none", SOFTMAX, "learned or beta != 0", "beta != 0"),
    Bug("a learned weight of 0 is none in sparse attention", SPARSE, "learned or beta != 0", "beta != 0"),
    Bug("odd windows are rounded", SPARSE, "if window < 2 or window % 2:", "if window < 2:"),
]
