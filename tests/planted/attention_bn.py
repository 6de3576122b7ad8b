"""Planted bugs of Attention-BN."""

from planted import Bug

FILE = "attention/attention_bn.py"
BUGS = [
    Bug("mean of padding too", FILE, "p.key(masked_mean(context, masks.context))", "p.key(masked_mean(context, None))"),
    Bug(
        "mean without the bias of the keys",
        FILE,
        "p.key(masked_mean(context, masks.context))",
        "F.linear(masked_mean(context, masks.context), p.key.weight)",
    ),
    Bug("mean of the queries' side", FILE, "masked_mean(context, masks.context))", "masked_mean(x, masks.query))"),
    Bug("mean is added", FILE, "p.query(x) - self.beta * mean", "p.query(x) + self.beta * mean"),
    Bug("weight of the mean is forgotten", FILE, "- self.beta * mean", "- mean"),
    Bug("deviation instead of variance", FILE, "+ self.eps).rsqrt()", "+ self.eps).rsqrt().sqrt()"),
    Bug("variance around zero", FILE, "k - mean, masks", "k, masks"),
    Bug("variance around the weighted mean", FILE, "k - mean, masks", "k - self.beta * mean, masks"),
    Bug("variance of padding too", FILE, ".square(), masks.context)", ".square(), None)"),
    Bug("no epsilon", FILE, " + self.eps)", ")"),
    Bug("padded keys are read", FILE, "attn_mask=visible, ", ""),
    Bug("dropout acts in eval", FILE, "self.site.dropout if self.training else 0.0", "self.site.dropout"),
]
