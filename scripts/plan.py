"""See src/subquad/cli/plan.py: `python scripts/plan.py ...` is `subquad plan ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("plan")
