"""See src/subquad/cli/predict.py: `python scripts/predict.py ...` is `subquad predict ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("predict")
