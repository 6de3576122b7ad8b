"""See src/subquad/cli/bench_data.py: `python scripts/bench_data.py ...` is `subquad bench_data ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("bench_data")
