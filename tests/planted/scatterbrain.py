"""Planted bugs of Scatterbrain and its random features."""

from planted import Bug

FILE = "attention/scatterbrain.py"

BUGS = [
    Bug("the window reads padding", FILE, "~(visible & real)", "~visible.expand(len(real), 1, -1, -1)"),
    Bug("features of padding count", FILE, "half_k = half_k.masked_fill(padding, math.inf)", "half_k = half_k * 1"),
    Bug("pairs of the window count twice", FILE, "far[..., -1:] - estimates.sum(-1, keepdim=True)", "far[..., -1:]"),
    Bug("values of the window count twice", FILE, "(exact - estimates * of_features)", "exact"),
    Bug("the window is one key short", FILE, "(offset < self.window)", "(offset < self.window - 1)"),
    Bug("half of the features", FILE, "torch.cat([along_k, -along_k], -1)", "torch.cat([along_k, along_k], -1)"),
    Bug("scale of the features lost", FILE, "- math.log(self.features)", ""),
    Bug("directions without length", "ops/features.py", "[:count] * norms", "[:count]"),
]
