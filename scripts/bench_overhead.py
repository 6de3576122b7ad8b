"""See src/subquad/cli/bench_overhead.py: `python scripts/bench_overhead.py ...` is `subquad bench_overhead ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("bench_overhead")
