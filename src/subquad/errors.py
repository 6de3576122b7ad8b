"""The one exception that is written for the person at the keyboard."""


class UserError(ValueError):
    """Something the user can mend. The message is one sentence that names the cause and the remedy.

    The doors (`train.py`, `eval.py`, `scripts/`) print the message without a traceback and exit with a non-zero status.
    """


def at_least_one(owner: str, **sizes: int) -> None:
    """Raises UserError at a size below 1: "attention.d_p is 0; DBA needs at least 1"."""
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"attention.{name} is {size}; {owner} needs at least 1.")


def first_line(error: BaseException) -> str:
    """What an error says, or its kind where it says nothing: other libraries explain themselves over many lines."""
    return next(iter(str(error).splitlines()), type(error).__name__)
