"""Two attentions with two seeds on BasicMotions at laptop scale, in a smaller model, and a page of the results.

The same as `subquad train -m ...` and `subquad report` in a terminal; run again, it trains only what is missing. Prints
the accuracy of each run beside that of the majority class, and where the page is. Takes about a minute on one core,
more than half of it for the pages.
"""

import subprocess
import sys


def subquad(*words: str) -> None:
    """Runs the command `subquad` of this environment; raises CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", "subquad.cli", *words], check=True)


def main() -> None:
    model = ("backbone.layers=1", "backbone.dim=64", "backbone.ffn=64")
    subquad("train", "-m", "attention=softmax,dba", "seed=0,1", "task=uea/basic_motions", "scale=laptop", *model)
    subquad("report")


if __name__ == "__main__":
    main()
