"""Planted bugs of Reformer."""

from planted import Bug

BUGS = [
    Bug(
        "padding is hashed",
        "attention/reformer.py",
        ".masked_fill(~F.pad(real, (0, filling))[:, None], self.buckets)",
        "",
    ),
    Bug(
        "only half of the buckets",
        "attention/reformer.py",
        "(rotated.gather(-1, largest) < 0) * (self.buckets // 2)",
        "0",
    ),
    Bug(
        "one rotation for all rounds",
        "attention/reformer.py",
        "rotations.flatten(-2)",
        "rotations[:, :, :1].expand_as(rotations).flatten(-2)",
    ),
    Bug(
        "rotations fixed in training",
        "attention/reformer.py",
        "torch.randn_like(self.rotations) if self.training else",
        "",
    ),
    Bug(
        "rotations drawn in eval",
        "attention/reformer.py",
        "if self.training else self.rotations",
        "if True else self.rotations",
    ),
    Bug(
        "other buckets are read",
        "attention/reformer.py",
        "(codes == self.buckets).int() if self.across_buckets else codes.int()",
        "(codes == self.buckets).int()",
    ),
    Bug(
        "windows without the chunk before",
        "attention/reformer.py",
        "torch.where(visible, bias,",
        "torch.where(visible & (torch.arange(2 * self.chunk) >= self.chunk), bias,",
    ),
    Bug("logarithms of CUDA's autocast stay in float32", "attention/reformer.py", ".log().to(dtype)", ".log()"),
    Bug("meetings with the chunk before are not counted", "attention/reformer.py", ">> 1 == 0", "== 0"),
    Bug("the first chunk has one before it", "attention/reformer.py", "value=-2)", "value=0)"),
    Bug(
        "tokens read themselves",
        "attention/reformer.py",
        "dtype=dtype, device=groups.device) * alone",
        "dtype=dtype, device=groups.device) * 0",
    ),
    Bug("duplicates always count", "attention/reformer.py", "if self.hashes > 1 and not self.duplicates:", "if False:"),
    Bug("keys keep their length", "attention/reformer.py", "F.normalize(q, dim=-1).to(q.dtype)", "q"),
    Bug(
        "rounds weigh the same",
        "attention/reformer.py",
        "torch.stack(z).softmax(0)",
        "torch.stack(z).mul(0).softmax(0)",
    ),
    Bug(
        "no gradient through the weight of a round",
        "attention/reformer.py",
        "(of_y * y).sum(-1, keepdim=True) - of_z",
        "(of_y * y).sum(-1, keepdim=True)",
    ),
    Bug(
        "gradient forgets dropout",
        "attention/reformer.py",
        "of_weights = of_y @ v.mT if keep is None else of_y @ v.mT * keep",
        "of_weights = of_y @ v.mT",
    ),
    Bug("gradient of the chunk before is lost", "attention/reformer.py", "        total[:, :-1] += before\n", ""),
    Bug(
        "a token's row goes to the wrong place in the backward pass",
        "attention/reformer.py",
        "(group.transpose(1, 2) + 1) * self.chunk",
        "group.transpose(1, 2) * self.chunk",
    ),
    Bug("logits always scaled", "attention/reformer.py", "width**-0.5 if scaled else 1.0", "width**-0.5"),
]
