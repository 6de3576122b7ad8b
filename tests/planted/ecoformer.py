"""Planted bugs of EcoFormer and its comparisons."""

from planted import Bug

FILE, OTHERS, FITTING = "attention/ecoformer.py", "attention/ecoformer_variants.py", "ops/hash_fitting.py"

BUGS = [
    Bug("the bias is b + 1 in the paper's form", FILE, 'if read_out == "paper" else', "if False else"),
    Bug("values are summed in the released form", FILE, 'scale, self.read_out == "released"', "scale, False"),
    Bug("similarities are not centred", FILE, "-(planes @ mean[..., None])", "0 * (planes @ mean[..., None])"),
    Bug(
        "sigma sees padding", FILE, "similarity, _ = anchor_similarity(q, anchors, mask)",
        "similarity, _ = anchor_similarity(q, anchors, None)",
    ),
    Bug("sums see padding", FILE, "shared_attention(codes, x, masks.context,", "shared_attention(codes, x, None,"),
    Bug("refits in no epoch", FILE, "epoch % self.refit_epochs == 0", "False"),
    Bug("fits again and again", FILE, "self.fitted.fill_(True)", "pass"),
    Bug("anchors may be padding", FILE, "q[0][mask[0]]", "q[0]"),
    Bug("rows of padding are fitted", FILE, "mask.any(1).nonzero()", "mask.any(1).add(1).nonzero()"),
    Bug("the centre sees padding", FILE, "(similarity * real).sum(2)", "similarity.sum(2)"),
    Bug(
        "labels see padding", FILE, "transpose(0, 1), mask, self.neighbours",
        "transpose(0, 1), mask | True, self.neighbours",
    ),
    Bug("A is fitted and not kept", FILE, ", (self.planes, planes))", ")"),
    Bug("columns of no group are no candidates", FITTING, "torch.cat([members, rest], -1)", "members"),
    Bug("labels that meet are not added up", FITTING, "index_add_(0, entry,", "index_copy_(0, entry,"),
    Bug("queries keep their length", OTHERS, "q / norms(q)[..., None]", "q"),
    Bug("what large products gave is overwritten", OTHERS, "directions, shift).exp()", "directions, shift).exp_()"),
    Bug("the mean of features sees padding", OTHERS, "if mask is None:", "if True:"),
    Bug("features are not centred", OTHERS, "sign(phi - mean)", "sign(phi)"),
    Bug(
        "all heads share hyperplanes", OTHERS, "phi, self.planes.to(phi.dtype)",
        "phi, self.planes[:1].expand_as(self.planes).to(phi.dtype)",
    ),
]  # fmt: skip
