"""See src/subquad/cli/bench_vision.py: `python scripts/bench_vision.py ...` is `subquad bench_vision ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("bench_vision")
