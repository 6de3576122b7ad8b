"""Planted bugs of Synthesizer."""

from planted import Bug

FILE = "attention/synthesizer.py"
BUGS = [
    Bug("shared weights read padding", FILE, "v = v.masked_fill(~mask[..., None, None], 0)", "v = v * 1"),
    Bug("shared weights are not divided", FILE, "return y / total.masked_fill(total == 0, 1)[..., None]", "return y"),
    Bug("a row without tokens divides by 0", FILE, "total.masked_fill(total == 0, 1)", "total"),
    Bug("dropped shared weights divide", FILE, "total = (weights @", "total = (F.dropout(weights, 0.4) @"),
    Bug("a table forgets the mask", FILE, "else table.masked_fill(~keys, -math.inf)", "else table"),
    Bug("products forget the mask", FILE, "masked_softmax(table, keys)", "masked_softmax(table, None)"),
    Bug("vectors forget the mask", FILE, "bias = keys if table is None", "bias = None if table is None"),
    Bug("a short input uses the last rows", FILE, "self.rows[:, :n]", "self.rows[:, -n:]"),
    Bug("a short input uses the last columns", FILE, ")[:, :m]))", ")[:, -m:]))"),
    Bug("no scale of the dot product", FILE, "q * q.shape[-1] ** -0.5", "q"),
    Bug("bias of the dense logits lost", FILE, "(0, 1), value=1)", "(0, 1), value=0)"),
    Bug("no ReLU", FILE, "F.relu(self.hidden(x))", "self.hidden(x)"),
    Bug("A and B exchanged", FILE, "a[..., :, None] * b[..., None, :]", "b[..., :, None] * a[..., None, :]"),
    Bug(
        "fixed logits are learned",
        FILE,
        'self.register_buffer("fixed", torch.randn(heads, n, m))',
        "self.fixed = nn.Parameter(torch.randn(heads, n, m))",
    ),
    Bug(
        "only the first table counts",
        FILE,
        "for table in tables[1:]), tables[0][:, :n, :m])",
        "for table in tables[2:]), tables[0][:, :n, :m])",
    ),
    Bug("values cut to the wrong width", FILE, "[..., : v.shape[-1]]", "[..., -v.shape[-1] :]"),
    Bug(
        "dropout of written-out weights in eval",
        FILE,
        "drop(masked_softmax(table, keys), dropout, self.training)",
        "drop(masked_softmax(table, keys), self.site.dropout, True)",
    ),
    Bug(
        "no dropout of written-out weights",
        FILE,
        "drop(masked_softmax(table, keys), dropout, self.training)",
        "masked_softmax(table, keys)",
    ),
    Bug("no dropout of shared weights", FILE, "drop(weights, self.site.dropout, self.training)", "weights"),
]
