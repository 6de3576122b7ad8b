"""See src/subquad/cli/new.py: `python scripts/new.py ...` is `subquad new ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("new")
