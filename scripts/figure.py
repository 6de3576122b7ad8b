"""See src/subquad/cli/figure.py: `python scripts/figure.py ...` is `subquad figure ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("figure")
