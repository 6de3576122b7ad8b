"""See src/subquad/cli/report.py: `python scripts/report.py ...` is `subquad report ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("report")
