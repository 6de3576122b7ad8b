"""See src/subquad/cli/dashboard.py: `python scripts/dashboard.py ...` is `subquad dashboard ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("dashboard")
