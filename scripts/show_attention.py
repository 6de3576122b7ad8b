"""See src/subquad/cli/show_attention.py: `python scripts/show_attention.py ...` is `subquad show_attention ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("show_attention")
