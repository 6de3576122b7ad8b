"""See src/subquad/cli/eval.py: `python eval.py ...` is `subquad eval ...`."""

from subquad.cli.command import run

if __name__ == "__main__":
    run("eval")
