"""Planted bugs of recipes and experiments."""

from planted import Bug

RECIPES, EXPERIMENTS = "tests/test_recipes.py", "tests/test_experiments.py"
SHARED = "tests/backbones/test_shared_projection.py"
BUGS = [
    Bug("a rate of another task", "configs/recipe/luna.yaml", "lr: 5.0e-5", "lr: 5.0e-4", RECIPES),
    Bug("a class token in Retrieval", "configs/recipe/lra_official.yaml", "pool: first", "pool: cls", RECIPES),
    Bug("Path-X as Pathfinder", "configs/recipe/lra_official.yaml", "lra/pathfinder128:", "lra/pathfinderx:", RECIPES),
    Bug("large MCAN's rate", "configs/recipe/mcan_large.yaml", "7.0e-5", "1.0e-4", RECIPES),
    Bug(
        "a misread weight",
        "configs/experiment/primal_dual/_tuned.yaml",
        "heartbeat: 0.55,",
        "heartbeat: 0.5,",
        EXPERIMENTS,
    ),
    Bug("weights of one mechanism", "configs/attention/sparse_bn.yaml", "tuned.beta", "tuned.none", EXPERIMENTS),
    Bug("segments of another task", "configs/experiment/tlb/lra.yaml", "segment: 32", "segment: 64", EXPERIMENTS),
    Bug(
        "three attentions a layer",
        "configs/experiment/dba/vqa_performer.yaml",
        "image_self: false",
        "image_self: true",
        EXPERIMENTS,
    ),
    Bug(
        "E alone passes for E and F",
        "attention/linformer.py",
        "return one(), one() if",
        "same = one()\n        return same, same if True else one() if",
        SHARED,
    ),
    Bug(
        "the first token is padding",
        "backbones/sequence.py",
        '("cls", "cls_apart", "first"):\n            return self.norm(x[:, 0])',
        '("cls", "cls_apart", "first"):\n            return self.norm(x[:, 1])',
        "tests/backbones/test_sequence.py",
    ),
    Bug(
        "the last norm is forgotten",
        "backbones/mvts.py",
        "F.gelu(self.norm(x))",
        "F.gelu(x)",
        "tests/backbones/test_mvts.py",
    ),
]
