"""Planted bugs of softmax attention with dropout on a CPU."""

from planted import Bug

FILE, TESTS = "ops/softmax_attention.py", "tests/attention/test_softmax_attention.py"

BUGS = [
    Bug(name, FILE, old, new, tests=TESTS)
    for name, old, new in [
        (
            "a given scale is ignored",
            "if scale is None else scale",
            "if scale is None else 1 / math.sqrt(q.shape[-1])",
        ),
        ("rows without keys are the mean of padding", ", v.masked_fill(~attn_mask.mT, 0)", ", v"),
        ("padding is seen", "masked_fill(~attn_mask, torch", "masked_fill(attn_mask, torch"),
        ("only padding is masked", "masked_softmax(logits, attn_mask)", "masked_softmax(logits, None)"),
        ("weights are never dropped", "drop(weights, dropout_p, training=True)", "weights"),
        ("what is added is taken for a mask", "or attn_mask.dtype == torch.bool)", "or True)"),
    ]
]
BUGS += [
    Bug(name, "attention/softmax.py", old, new, tests="tests/attention/test_softmax.py")
    for name, old, new in [
        (
            "every head reads the first heads' weights",
            "masked_softmax(query @ key.mT",
            "masked_softmax(q[:, : query.shape[1]] @ key.mT",
        ),
        ("heads_at_once is taken where nothing is written out", "(fused or heads_at_once < 1)", "(heads_at_once < 1)"),
    ]
]
