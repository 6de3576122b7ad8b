"""See src/subquad/cli/reproduce.py: `python scripts/reproduce.py ...` is `subquad reproduce ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("reproduce")
