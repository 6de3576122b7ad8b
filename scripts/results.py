"""See src/subquad/cli/results.py: `python scripts/results.py ...` is `subquad results ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("results")
