"""How the command-line programs start and how they fail. Light: nothing heavy is imported before a run is composed."""

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from hydra.errors import CompactHydraException

from subquad.errors import UserError
from subquad.run import identity


def prepare_process() -> None:
    """To be called before torch is imported.

    Threads that wait for work spin by default; two runs on the same cores then take each other's time and run ten times
    slower. Passive waiting costs a run alone next to nothing.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    identity.register()


def user_errors(task: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Turns a UserError into its one sentence, without a traceback, and exit status 1."""

    @wraps(task)
    def wrapped(config: Any) -> Any:
        try:
            return task(config)
        except Exception as error:
            cause = _user_error(error)
            if cause is None or os.environ.get("HYDRA_FULL_ERROR"):
                raise
            raise CompactHydraException(str(cause)) from None

    return wrapped


def _user_error(error: BaseException | None) -> UserError | None:
    """The UserError in a chain of causes: Hydra's instantiate wraps what a constructor raises."""
    while error is not None:
        if isinstance(error, UserError):
            return error
        error = error.__cause__ or error.__context__
    return None
