"""Planted bugs of Linformer."""

from planted import Bug

BUGS = [
    Bug("the carry is a parameter", "attention/linformer.py", "self.key_map[0].clone() if", "self.key_map[0] if"),
    Bug("no mask before compressing", "attention/linformer.py", "        x = zero_padding(x, mask)\n", ""),
    Bug(
        "no mask after projecting",
        "attention/linformer.py",
        "p.split(zero_padding(linear(x), mask))\n",
        "p.split(linear(x))\n",
    ),
    Bug(
        "bias counted at padding",
        "attention/linformer.py",
        "e.sum(1) if mask is None else mask.to(e.dtype) @ e.mT",
        "e.sum(1)",
    ),
    Bug("bias as if rows of E summed to 1", "attention/linformer.py", "total[..., None] * bias", "bias"),
    Bug("short input uses the last columns", "attention/linformer.py", "m[:, : x.shape[1]]", "m[:, -x.shape[1] :]"),
    Bug(
        "values compressed by E",
        "attention/linformer.py",
        "masks.context, value_map, p.value",
        "masks.context, key_map, p.value",
    ),
    Bug("E and F shared where they are not", "attention/linformer.py", '("none", "headwise") else', '("none",) else'),
    Bug(
        "empty windows are slots",
        "attention/linformer.py",
        "None if slots is None else slots[:, None, None, :]",
        "None",
    ),
    Bug(
        "the shared map is not handed on",
        "attention/linformer.py",
        "return [own], [own], own",
        "return [own], [own], carry",
    ),
    Bug(
        "windows too small for k slots",
        "attention/linformer.py",
        "math.ceil(site.context_len / self.slots[0])",
        "site.context_len // self.slots[0]",
    ),
]
