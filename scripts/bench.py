"""See src/subquad/cli/bench.py: `python scripts/bench.py ...` is `subquad bench ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("bench")
