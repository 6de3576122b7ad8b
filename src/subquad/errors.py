"""The one exception that is written for the person at the keyboard."""


class UserError(ValueError):
    """Something the user can mend. The message is one sentence that names the cause and the remedy.

    The doors (`train.py`, `eval.py`, `scripts/`) print the message without a traceback and exit with a non-zero status.
    """
