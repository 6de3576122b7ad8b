"""See src/subquad/cli/check_attention.py: `python scripts/check_attention.py ...` is `subquad check_attention ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("check_attention")
