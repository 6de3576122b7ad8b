"""See src/subquad/cli/train.py: `python train.py ...` is `subquad train ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("train")
