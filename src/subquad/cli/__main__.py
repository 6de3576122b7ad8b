"""The command `subquad`: `subquad <name> ...` runs the command of subquad/cli/<name>.py.

subquad train attention=dba task=lra/listops scale=laptop
subquad <name> --help
"""

import ast
import runpy
import sys
from pathlib import Path

from subquad.utils.output import ending_with_reader

_NOT_COMMANDS = ("__main__", "command", "table_arguments")


def commands() -> dict[str, str]:
    """Names of all commands, with the first line of their docstrings."""
    files = {path.stem: path for path in sorted(Path(__file__).parent.glob("[!_]*.py"))}
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items() if name not in _NOT_COMMANDS}
    return {name: str(ast.get_docstring(ast.parse(text))).splitlines()[0] for name, text in texts.items()}


@ending_with_reader()
def main() -> None:
    """Runs the command named by the first argument."""
    name, *sys.argv[1:] = sys.argv[1:] or ["--help"]
    known = commands()
    if name in ("-h", "--help"):
        lines = [f"  {command:<16} {summary}" for command, summary in known.items()]
        sys.stdout.write(
            "\n".join(
                [str(__doc__), "Commands (check is short for check_attention, check gpu for check_gpu):", *lines, ""]
            )
        )
        return
    from subquad.cli.command import run  # Hydra, which --help does not need
    from subquad.config.choices import hint

    if name not in known and name != "check":
        sys.exit(f'There is no command "{name}"; {hint(name, list(known))}')
    elif name == "train":
        # As `python -m subquad.cli.train`, because Lightning starts other processes of a run by the main module's name.
        runpy.run_module("subquad.cli.train", run_name="__main__", alter_sys=True)
    else:
        run(name)


if __name__ == "__main__":
    main()
