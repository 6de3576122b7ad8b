"""Planted bugs of DBA."""

from planted import Bug

BUGS = [
    Bug("W'_c forgets the mask", "attention/dba.py", "w = w.masked_fill(~keep, 0)", "w = w * 1"),
    Bug(
        "normalised W'_c forgets the mask", "attention/dba.py", "return masked_softmax(w, keep)", "return w.softmax(-1)"
    ),
    Bug(
        "W_r and W_c forget the mask",
        "attention/dba.py",
        "masked_softmax(torch.cat([r, c], 1), keep)",
        "torch.cat([r, c], 1).softmax(-1)",
    ),
    Bug(
        "the compression of a context forgets its mask",
        "attention/dba.py",
        "return masked_softmax(logits, keep)",
        "return logits.softmax(-1)",
    ),
    Bug(
        "cross-attention forgets the mask of queries",
        "attention/dba.py",
        "None if masks.query is None else masks.query[:, None, :]",
        "None",
    ),
    Bug(
        "bias weight of the values dropped",
        "attention/dba.py",
        "self._project(x_v, self.value, w_c.sum(-1, keepdim=True))",
        "self._project(x_v, self.value)",
    ),
    Bug("division by padded length", "attention/dba.py", "w / count(mask, w.shape[-1])", "w / w.shape[-1]"),
    Bug("scale of all heads", "attention/dba.py", 'width if scale == "total" else width // self.maps', "width"),
    Bug("d_in rounded down", "attention/dba.py", "math.ceil(d_in / self.maps)", "(d_in // self.maps)"),
    Bug("keys reduced by the R of queries", "attention/dba.py", "self.r_key if key else self.r_query", "self.r_query"),
    Bug("Z is not renewed", "attention/dba.py", "self.norm(z + compressed)", "self.norm(z)"),
    Bug(
        "each layer its own Z despite the carry",
        "attention/dba.py",
        'owns = z_mode == "per_layer" or site.layer == 0',
        "owns = True",
    ),
    Bug(
        "Z is not mapped in cross-attention",
        "attention/dba.py",
        "self._compressor(self.guide(c_2), self.query)",
        "self._compressor(c_2, self.query)",
    ),
    Bug("W_O bias lost", "attention/dba.py", "y if self.out is None else y + self.out.bias", "y"),
    Bug(
        "bias of W'_r lost",
        "attention/dba.py",
        "recon_r + r_bias[:, None])\n        return y, self._pooled(x_r)",
        "recon_r)\n        return y, self._pooled(x_r)",
    ),
    Bug("no scale of the logits where asked", "attention/dba.py", "(dim // self.groups) ** -0.5", "1.0"),
]
