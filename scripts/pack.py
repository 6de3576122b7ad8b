"""See src/subquad/cli/pack.py: `python scripts/pack.py ...` is `subquad pack ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("pack")
