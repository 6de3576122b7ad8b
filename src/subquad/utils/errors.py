"""UserError, the exception whose message is shown to the user, and how other errors become one."""

import errno
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from subquad.utils.display import as_typed


class UserError(ValueError):
    """An error that the user can correct. The message is one sentence that names the cause and the remedy.

    Commands print the message without a traceback and exit with status 1. A message names commands as they are typed in
    a checkout (`python scripts/prepare.py`); `as_typed` converts them for an installed package.

    Examples:
        >>> from subquad import UserError, build_attention
        >>> try:
        ...     build_attention("dbq", dim=64, heads=4, max_len=512)
        ... except UserError as error:
        ...     print(error)
        There is no attention dbq; did you mean dba?
    """

    def __init__(self, message: str) -> None:
        super().__init__(as_typed(message))


def first_line(error: BaseException) -> str:
    """The first line with text of an error message, or the name of the error's class where the message is empty."""
    return next(filter(None, str(error).splitlines()), type(error).__name__)


def explain(error: Exception) -> UserError | None:
    """The UserError behind an error, or one that explains a failed import or file access; None for any other error.

    Raises KeyboardInterrupt as `end_if_interrupted` does.
    """
    end_if_interrupted(error)
    return (
        _user_error(error)
        or _missing_package(error)
        or _import_error(error)
        or memory_error(error)
        or _loader_error(error)
        or _lightning_error(error)
        or _wandb_error(error)
        or _file_error(error)
    )


def end_if_interrupted(error: BaseException | None) -> None:
    """Raises KeyboardInterrupt if the error arose while Ctrl-C was ending what ran, as in a library's `finally`."""
    while error is not None:
        error = error.__cause__ or error.__context__
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt from None


def _user_error(error: BaseException | None) -> UserError | None:
    """The UserError in a chain of causes; Hydra's instantiate wraps the error that a constructor raises.

    The message of an error from a DataLoader worker is a traceback that ends with the message of the UserError.
    """
    while error is not None:
        if isinstance(error, UserError):
            return UserError(str(error).rpartition(f"{UserError.__module__}.UserError: ")[2].strip())
        error = error.__cause__ or error.__context__
    return None


def _missing_package(error: BaseException | None) -> UserError | None:
    """A UserError for a package that is not installed and that one of Subquad's extras would install."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            # An error of a DataLoader worker or of Lightning has the name in its message alone.
            for name in [error.name] if error.name else re.findall(r"[`'](\w[\w.]*)[`']", str(error)):
                package = name.partition(".")[0]
                if extra := _extra(package):
                    return UserError(f"{package} is not installed; pip install 'subquad[{extra}]'.")
        error = error.__cause__ or error.__context__
    return None


def _extra(package: str) -> str | None:
    """The first extra with a package, according to the metadata of the installed Subquad."""
    with suppress(PackageNotFoundError):
        for line in requires("subquad") or ():
            found = re.match(r"([\w-]+).*extra == ['\"](\w+)['\"]", line)
            if found and found[1].replace("-", "_") == package != "subquad":  # some extras include others
                return found[2]
    return None


def _import_error(error: BaseException | None) -> UserError | None:
    """A UserError for a `_target_` that Hydra cannot import, whose error names the target and the cause."""
    while error is not None:
        if isinstance(error, ImportError) and (found := re.match(r"Error loading '(.+)':\n(.*)", str(error))):
            (module, _, name), cause = found[1].rpartition("."), error.__cause__
            if isinstance(cause, SyntaxError):
                return UserError(f"{cause.filename} has an error in line {cause.lineno} ({cause.msg}); correct it.")
            if isinstance(cause, ModuleNotFoundError) and cause.name == found[1]:
                return UserError(f"{module} has no {name}; correct the name, or add it there.")
            return UserError(
                f"{found[1]} cannot be imported ({found[2]}); correct the _target_, or run this in the folder of its "
                "module. HYDRA_FULL_ERROR=1 shows where an import fails."
            )
        error = error.__cause__ or error.__context__
    return None


def memory_error(error: Exception) -> UserError | None:
    """A UserError for a tensor or array that the memory cannot hold."""
    if not isinstance(error, MemoryError) and not re.search(r"out of memory|allocate memory|enough memory", str(error)):
        return None
    return UserError(
        f"The memory does not suffice ({first_line(error)}); choose a smaller model, a smaller recipe.batch_size or "
        "shorter data, or set trainer.accumulate_grad_batches."
    )


def _loader_error(error: BaseException | None) -> UserError | None:
    """A UserError for a process of a DataLoader that ended."""
    while error is not None:
        if found := re.match(r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (.*)", str(error)):
            if "Bus error" in found[1]:
                return UserError(
                    "Shared memory (/dev/shm) is full, so that a loader process ended; give it more (in Docker "
                    "--shm-size=8g), or set data.num_workers=0."
                )
            if "Killed" in found[1]:
                return UserError(
                    "A loader process was killed, most likely because the memory is full; set data.num_workers to "
                    "fewer, or to 0."
                )
            return UserError(
                "A loader process ended with the error that is printed above; with data.num_workers=0 the run loads "
                "its batches itself."
            )
        error = error.__cause__ or error.__context__
    return None


def _lightning_error(error: Exception) -> UserError | None:
    """A UserError for settings that Lightning finds wrong when training starts."""
    if type(error).__name__ != "MisconfigurationException":
        return None
    return UserError(f"Lightning refuses these settings ({first_line(error)}); change that key of trainer=.")


def _wandb_error(error: Exception) -> UserError | None:
    """A UserError for a run that W&B does not take, most often because nobody is logged in."""
    if not type(error).__module__.startswith("wandb."):
        return None
    return UserError(
        f"W&B refuses the run ({first_line(error).rstrip('.')}); log in, or set "
        "logger.wandb.offline=true and send the run later."
    )


def _file_error(error: Exception) -> UserError | None:
    """A UserError for a file that cannot be read or written: no space, no permission, no such folder."""
    if isinstance(error, RuntimeError) and "unexpected pos" in str(error):  # torch: the disk is full
        return UserError("A checkpoint cannot be written; free some space, or set SUBQUAD_OUTPUTS to another folder.")
    if type(error).__name__ == "SafetensorError" and "I/O error" in str(error):
        return UserError(f"A file cannot be written ({error}); free some space, mend the permissions, or set output=.")
    if not isinstance(error, OSError) or type(error).__module__ == "hydra.errors":
        return None
    path, cause = error.filename or "A file", error.strerror or error
    beside = f"move the file {_in_the_way(str(path))} away"
    folders = "set SUBQUAD_OUTPUTS and SUBQUAD_DATA to other folders"
    remedies = {
        errno.ENOSPC: f"free some space, or {folders}",
        errno.EDQUOT: f"free some space, or {folders}",
        errno.EACCES: f"mend the permissions, or {folders}",
        errno.EPERM: f"mend the permissions, or {folders}",
        errno.EROFS: f"make its disk writable, or {folders}",
        errno.ENOTDIR: f"{beside}, or {folders}",
        errno.EEXIST: f"{beside}, or {folders}",
        errno.ENOENT: "correct the path",
        errno.EISDIR: "name a file in it",
        errno.EMFILE: "raise the limit of open files (ulimit -n 65536), or start fewer processes",
        errno.ENFILE: "close other programs, or start fewer processes",
        errno.ENAMETOOLONG: f"{folders} with shorter names",
    }
    remedy = remedies.get(error.errno or 0, f"correct this, or {folders}")
    return UserError(f"{path} cannot be read or written ({cause}); {remedy}.")


def _in_the_way(path: str) -> str:
    """The file that stands where a path needs a folder; the path itself where none is found."""
    return next((str(parent) for parent in (*reversed(Path(path).parents), Path(path)) if not parent.is_dir()), path)
