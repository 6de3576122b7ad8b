"""Planted bugs of Luna."""

from planted import Bug

BUGS = [
    Bug(
        "Luna's carry is its pack only",
        "attention/luna.py",
        "self.norm(latent + self._dropped(packed))",
        "self.norm(packed)",
    ),
    Bug(
        "Luna hands its latent on unchanged",
        "attention/luna.py",
        "carry if self.norm is None else self.norm(latent + self._dropped(packed))",
        "latent",
    ),
    Bug("Luna's latents have no norm", "attention/luna.py", "self.latent_norm(self.latent)", "self.latent"),
    Bug("Luna's packed rows are never dropped", "attention/luna.py", "self._dropped(packed)", "packed"),
    Bug("Luna's latents are never dropped", "attention/luna.py", "self._dropped(latent.expand", "(latent.expand"),
    Bug("Luna's latents start large under a norm", "attention/luna.py", "(dim**-0.5 if latent_norm else 1)", "1"),
    Bug("narrow pack forgets the mask", "attention/luna.py", "context, mask).unflatten", "context, None).unflatten"),
    Bug("wide pack forgets the mask", "attention/luna.py", "attn_mask=real", "attn_mask=None"),
    Bug(
        "narrow unpack reads hidden latents",
        "attention/luna.py",
        "self.out.bias, mask, dropout)",
        "self.out.bias, None, dropout)",
    ),
    Bug("wide unpack reads hidden latents", "attention/luna.py", "attn_mask=slots", "attn_mask=None"),
    Bug("short sequences read all latents", "attention/luna.py", "if not self.dynamic or (", "if True or ("),
    Bug(
        "a short batch without a mask reads all latents",
        "attention/luna.py",
        "(mask is None and length >= self.l)",
        "mask is None",
    ),
    Bug("bias of the packed values lost", "attention/luna.py", ".mT) + self.pack_value.bias", ".mT)"),
    Bug("bias of a softmax over tokens", "attention/luna.py", "nn.Linear(dim, dim, bias=False)", "nn.Linear(dim, dim)"),
]
