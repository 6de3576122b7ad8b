"""Planted bugs of what spreads a step over processes, parts and recomputed layers."""

from planted import Bug

PARTS = "tests/data/test_parts.py"
LAYERS = "tests/backbones/test_layers.py"
SAME = "tests/tasks/test_accumulation.py"
TRAINER = "tests/run/test_trainer.py"

BUGS = [
    Bug("stand-in rows count", "data/parts.py", "piece.weight if counts else 0", "piece.weight", PARTS),
    Bug("every part is the first", "data/parts.py", "first=number == 0", "first=True", PARTS),
    Bug("a loader forgets how many parts", "data/parts.py", "len(self.loader) * self.parts", "len(self.loader)", PARTS),
    Bug(
        "processes draw alike for different rows",
        "data/batches.py",
        "return self.rank + number * self.world_size",
        "return number",
        PARTS,
    ),
    Bug(
        "a process without rows counts one",
        "data/batches.py",
        "mine.counts = rank < len(self)",
        "mine.counts = True",
        PARTS,
    ),
    Bug(
        "a process evaluates more batches", "data/batches.py", "if world_size > 1 and len(lengths):", "if False:", PARTS
    ),
    Bug("hidden tokens are counted as rows", "specs.py", "int((self.target != UNMASKED).sum())", "len(self)", PARTS),
    Bug(
        "parts have equal weights",
        "tasks/supervised.py",
        "averaged * batch.weight / self.step_weight",
        "averaged * batch.share / averaged / self.step_weight",
        SAME,
    ),
    Bug(
        "a sum is over the rows of a part",
        "tasks/supervised.py",
        "/ self.step_weight), self.step_weight)",
        "/ self.step_weight), batch.weight)",
        SAME,
    ),
    Bug(
        "a hash is fitted to the first part",
        "tasks/refresh.py",
        "batch = data.whole_batch(batch.whole).to(pl_module.device)",
        "batch = batch.batch",
        SAME,
    ),
    Bug(
        "epochs are intervals between validations",
        "tasks/refresh.py",
        "place = data.place(*place)",
        "pass",
        "tests/tasks/test_refresh.py",
    ),
    Bug(
        "losses of batches have equal weights",
        "tasks/supervised.py",
        "self.total += loss * weight\n        self.weight += weight",
        "self.total += loss\n        self.weight += 1",
        "tests/tasks/test_supervised.py",
    ),
    Bug("statistics see a batch twice", "backbones/layers.py", "norm.momentum = 0.0", "pass", LAYERS),
    Bug("batches are counted twice", "backbones/layers.py", "count.copy_(value)", "pass", LAYERS),
    Bug(
        "a block computed again reads another carry",
        "backbones/layers.py",
        "now, thread.carry = thread.carry, carry",
        "now = thread.carry",
        LAYERS,
    ),
    Bug("layers are left as they are", "backbones/layers.py", "if not torch.is_grad_enabled():", "if True:", LAYERS),
    Bug(
        "half precision on a CPU is another half precision",
        "run/trainer.py",
        'precision in ("16-mixed", "16-true", "16")',
        "False",
        TRAINER,
    ),
    Bug(
        "batches that cannot be shared",
        "run/trainer.py",
        "data.batch_size % (trainer.world_size * parts)",
        "False",
        TRAINER,
    ),
    Bug("any error is the first", "records.py", "path.stat().st_mtime >= since", "True", TRAINER),
    Bug(
        "the variance is of one process",
        "ops/moments.py",
        "add(centred.square().sum(0)) / count",
        "centred.square().mean(0)",
        "tests/run/test_distributed.py",
    ),
    Bug(
        "gradients of statistics stay in their process",
        "ops/moments.py",
        "return _Sum.forward(ctx, grads[0].contiguous())",
        "return grads[0]",
        "tests/run/test_distributed.py",
    ),
    Bug(
        "the loss of a process alone",
        "tasks/supervised.py",
        'self.add_state("total", torch.zeros(()), "sum")',
        'self.add_state("total", torch.zeros(()), "mean")',
        "tests/run/test_distributed.py",
    ),
]
