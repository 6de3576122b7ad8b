"""See src/subquad/cli/check_theorems.py: `python scripts/check_theorems.py ...` is `subquad check_theorems ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("check_theorems")
