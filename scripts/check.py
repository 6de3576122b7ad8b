"""`python scripts/check.py gpu ...` is scripts/check_gpu.py, and without a first word scripts/check_attention.py."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("check")
