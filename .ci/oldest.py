"""Prints pip constraints: the oldest version that pyproject.toml allows of each package, and torch as it is locked."""

import tomllib
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement

TORCH = ("torch", "torchvision")
project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
for requirement in map(Requirement, chain(project["dependencies"], *project["optional-dependencies"].values())):
    if requirement.name not in TORCH:
        for bound in requirement.specifier:
            if bound.operator == ">=":
                print(f"{requirement.name}=={bound.version}")
for line in Path("requirements.lock").read_text(encoding="utf-8").splitlines():
    if line.partition("==")[0] in TORCH:
        print(line)
