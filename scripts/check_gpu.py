"""See src/subquad/cli/check_gpu.py: `python scripts/check_gpu.py ...` is `subquad check_gpu ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("check_gpu")
