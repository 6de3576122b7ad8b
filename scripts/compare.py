"""See src/subquad/cli/compare.py: `python scripts/compare.py ...` is `subquad compare ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("compare")
