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
