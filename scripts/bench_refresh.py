"""See src/subquad/cli/bench_refresh.py: `python scripts/bench_refresh.py ...` is `subquad bench_refresh ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("bench_refresh")
