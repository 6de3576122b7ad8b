"""See src/subquad/cli/bench_long.py: `python scripts/bench_long.py ...` is `subquad bench_long ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("bench_long")
