"""Planted bugs of the shared floor."""

from planted import Bug

BUGS = [
    Bug(
        "softmax forgets the mask",
        "ops/masking.py",
        "logits.masked_fill(~mask, torch.finfo(logits.dtype).min)",
        "logits",
    ),
    Bug(
        "a row without tokens reads the mean",
        "ops/masking.py",
        "return weights.masked_fill(~mask, 0)",
        "return weights",
    ),
    Bug("padding is not zeroed", "ops/masking.py", "x if mask is None else x.masked_fill(~mask[..., None], 0)", "x"),
    Bug("mean pooling counts padding", "ops/pooling.py", "real.sum(2, keepdim=True).clamp(min=1).to(x.dtype)", "size"),
    Bug("max pooling sees padding", "ops/pooling.py", ".masked_fill(~real[..., None], torch.finfo(x.dtype).min)", ""),
    Bug(
        "heads merged on the wrong axis",
        "attention/base.py",
        "y.transpose(1, 2).flatten(-2)",
        "y.permute(0, 2, 3, 1).flatten(-2)",
    ),
    Bug("one token too many is accepted", "attention/base.py", "if got > limit:", "if got > limit + 1:"),
    Bug(
        "an undeclared wiring is accepted",
        "attention/base.py",
        "if site.pattern not in self.patterns:",
        "if not self.patterns:",
    ),
    Bug("heads need not divide the width", "attention/base.py", "if site.dim % site.heads:", "if False:"),
    Bug(
        "the carry of others is dropped",
        "attention/base.py",
        "return self.attend(x, context, masks), carry",
        "return self.attend(x, context, masks), None",
    ),
]
