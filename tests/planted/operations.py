"""Planted bugs of the operation counter and of the models of energy."""

from planted import Bug

COUNTER, HAND = "tests/measure/test_operations.py", "tests/measure/test_operations_by_hand.py"
TABLES, BITFUSION = "tests/measure/test_ecoformer_operations.py", "tests/measure/test_bitfusion.py"

BUGS = [
    Bug(
        "biases are not added",
        "measure/aten.py",
        "else total + Tally(add=result.numel())\n\n\ndef _linear",
        "else total\n\n\ndef _linear",
        HAND,
    ),
    Bug(
        "the fused kernel hides its products",
        "measure/aten.py",
        "each = macs(q.shape[-1] + v.shape[-1]) + Tally(mul=1,",
        "each = Tally(mul=1,",
        HAND,
    ),
    Bug(
        "the scale of logits is forgotten",
        "measure/aten.py",
        "macs(q.shape[-1] + v.shape[-1]) + Tally(mul=1,",
        "macs(q.shape[-1] + v.shape[-1]) + Tally(mul=0,",
        HAND,
    ),
    Bug(
        "groups of a convolution are overlooked",
        "measure/aten.py",
        "each = macs((x if args[7] else gradient).numel() * weight[0].numel())",
        "each = macs((x if args[7] else gradient).numel() * weight[0, 0].numel() * x.shape[1])",
        COUNTER,
    ),
    Bug(
        "indices are priced as floats",
        "measure/operations.py",
        "tally = Tally(other=tally.mul + tally.add + tally.other)",
        "pass",
        COUNTER,
    ),
    Bug(
        "a code stays one whatever is added",
        "measure/operations.py",
        "        self._mark(result, False)\n        factors",
        "        self._mark(result, True)\n        factors",
        COUNTER,
    ),
    Bug(
        "codes do not survive padding",
        "measure/aten.py",
        "clone constant_pad_nd contiguous",
        "clone contiguous",
        COUNTER,
    ),
    Bug("any factor keeps a code", "measure/operations.py", "or other.shape[-1] == 1", "or other.dim() > 0", COUNTER),
    Bug("unknown operators are silent", "measure/operations.py", "            self._unknown[name] += 1\n", "", COUNTER),
    Bug("weights are lost after a count", "measure/shapes.py", "holder.update(tensors)", "pass", COUNTER),
    Bug("the backward pass belongs to nobody", "measure/places.py", "if node is None:", "if True:", COUNTER),
    Bug(
        "a module never ends",
        "measure/places.py",
        "        self._running.pop()\n        self._turn",
        "        self._turn",
        COUNTER,
    ),
    Bug("codes are not announced", "ops/codes.py", "        listener(x)\n", "        pass\n", HAND),
    Bug("codes are heard for ever", "ops/codes.py", "_listeners.remove(listener)", "pass", COUNTER),
    Bug("signs are no codes", "ops/hashing.py", "return code(_Sign.apply(z))", "return _Sign.apply(z)", HAND),
    Bug(
        "squares are counted",
        "measure/published.py",
        "Tally(mul=2 * m * h * n, add",
        "Tally(mul=2 * m * h * n + m * n * d, add",
        TABLES,
    ),
    Bug(
        "biases of linear maps are counted",
        "measure/published.py",
        "macs(output.numel() * module.in_features)",
        "macs(output.numel() * (module.in_features + 1))",
        TABLES,
    ),
    Bug("biases of convolutions are not", "measure/published.py", "+ (module.bias is not None)", "", TABLES),
    Bug("projections of an attention count twice", "measure/published.py", " or path.startswith(whole):", ":", TABLES),
    Bug(
        "softmax has no scale",
        "measure/published.py",
        "2 * n * n * d) + Tally(mul=h * n * n))",
        "2 * n * n * d))",
        TABLES,
    ),
    Bug(
        "additions cost what multiplications cost",
        "measure/energy.py",
        "unit.add_pj * operations.add",
        "unit.mul_pj * operations.add",
        TABLES,
    ),
    Bug("half precision has full energy", "measure/energy.py", "add_pj=0.4", "add_pj=0.9", TABLES),
    Bug(
        "buffers are not double", "measure/bitfusion.py", '"outputs": 16384 * 8 // 2', '"outputs": 16384 * 8', BITFUSION
    ),
    Bug("DRAM at the energy of the comment", "measure/bitfusion.py", "_DRAM_NJ = 15e-3", "_DRAM_NJ = 6e-3", BITFUSION),
    Bug(
        "partial sums are not fetched",
        "measure/bitfusion.py",
        'sum(traffic.values()) + traffic["outputs"]',
        "sum(traffic.values())",
        BITFUSION,
    ),
    Bug(
        "one order of loops only",
        "measure/bitfusion.py",
        "orders = list(itertools.permutations(_TENSORS))",
        "orders = [tuple(_TENSORS)]",
        BITFUSION,
    ),
    Bug(
        "of a pair one text is read",
        "measure/inputs.py",
        "return inputs * 2 if isinstance(network, TwoTowers) else inputs",
        "return inputs",
        "tests/measure/test_count_script.py",
    ),
]
