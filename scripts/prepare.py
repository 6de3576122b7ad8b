"""See src/subquad/cli/prepare.py: `python scripts/prepare.py ...` is `subquad prepare ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("prepare")
