"""Planted bugs of Luna."""

from planted import Bug

BUGS = [
    Bug("Luna's carry is its pack only", "attention/luna.py", "self.norm(latent + packed)", "self.norm(packed)"),
    Bug(
        "Luna hands its latent on unchanged",
        "attention/luna.py",
        "carry if self.norm is None else self.norm(latent + packed)",
        "latent",
    ),
    Bug(
        "narrow pack forgets the mask",
        "attention/luna.py",
        "masked_softmax(compressor @ context[:, None].mT, keys)",
        "(compressor @ context[:, None].mT).softmax(-1)",
    ),
    Bug(
        "wide pack forgets the mask",
        "attention/luna.py",
        "masked_softmax(queries @ self._split(self.pack_key(context)).mT, keys)",
        "(queries @ self._split(self.pack_key(context)).mT).softmax(-1)",
    ),
    Bug("short sequences read all latents", "attention/luna.py", "if not self.dynamic or (", "if True or ("),
    Bug(
        "a short batch without a mask reads all latents",
        "attention/luna.py",
        "(mask is None and length >= self.l)",
        "mask is None",
    ),
    Bug(
        "query bias lost in the narrow form",
        "attention/luna.py",
        "logits = logits + (keys @ self.query.bias.view(self.heads, -1, 1)).mT",
        "logits = logits",
    ),
    Bug(
        "W_O bias lost in the narrow form",
        "attention/luna.py",
        "rows.flatten(1, 2) + self.out.bias",
        "rows.flatten(1, 2)",
    ),
    Bug("bias of a softmax over tokens", "attention/luna.py", "nn.Linear(dim, dim, bias=False)", "nn.Linear(dim, dim)"),
]
