"""See src/subquad/cli/count.py: `python scripts/count.py ...` is `subquad count ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("count")
