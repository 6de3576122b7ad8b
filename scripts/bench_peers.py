"""See src/subquad/cli/bench_peers.py: `python scripts/bench_peers.py ...` is `subquad bench_peers ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("bench_peers")
