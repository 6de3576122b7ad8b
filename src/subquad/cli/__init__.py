"""Commands: `subquad <name>` runs `main` of the module `subquad.cli.<name>`.

Importing this package makes an interrupted command say so in one line, from its first imports on.
"""

import sys
from types import TracebackType

INTERRUPTED = "Interrupted; the same command continues with what has not finished."


def _explain(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints one line for Ctrl-C, the traceback for any other exception that nothing has handled."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write(f"{INTERRUPTED}\n")
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _explain
