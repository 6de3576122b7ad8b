"""Planted bugs of the house: configurations that do not fit, and imports that climb."""

from planted import Bug

ARCHITECTURE = "tests/test_architecture.py"
BUGS = [
    Bug("a key of a configuration is misspelt", "configs/attention/linear.yaml", "eps:", "epz:"),
    Bug("a class was renamed, its configuration not", "configs/attention/linear.yaml", "linear.Linear", "linear.Lin"),
    Bug(
        "a mechanism imports Hydra",
        "attention/softmax.py",
        "import math\n",
        "import hydra\nimport math\n",
        ARCHITECTURE,
    ),
    Bug(
        "a mechanism imports another",
        "attention/softmax.py",
        "from subquad.ops.masking",
        "from subquad.attention.linear import Linear  # noqa: F401\nfrom subquad.ops.masking",
        ARCHITECTURE,
    ),
    Bug(
        "an op imports a mechanism",
        "ops/masking.py",
        "import torch\n",
        "import torch\nimport subquad.attention.base  # noqa: F401\n",
        ARCHITECTURE,
    ),
]
