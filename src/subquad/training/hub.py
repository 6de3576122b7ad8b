"""Upload and download of a bundle by the Hugging Face hub, or the server that the variable HF_ENDPOINT names."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from subquad.utils.errors import UserError, first_line

FILE = "model.safetensors"
"""The name of a bundle in a repository, and in a folder."""

_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def is_repository(name: str) -> bool:
    """Whether a text has the form of a repository's id, such as `someone/listops`."""
    return _NAME.fullmatch(name) is not None and Path(name).suffix not in (".safetensors", ".ckpt")


def download(repository: str, revision: str | None = None) -> Path:
    """The path of a repository's bundle, which is downloaded once; no other file is.

    Raises UserError if it cannot be had.
    """
    from huggingface_hub import hf_hub_download

    with _explained(repository, revision):
        return Path(hf_hub_download(repository, FILE, revision=revision))


def upload(file: Path, repository: str) -> str:
    """Uploads a bundle, in a commit of a repository that is created if it is missing; returns the commit's address.

    Raises UserError if the name has another form, nobody is logged in, or the hub refuses.
    """
    from huggingface_hub import HfApi, get_token

    if not is_repository(repository):
        raise UserError(f"upload={repository} is no name of a repository; write it as upload=someone/listops.")
    if get_token() is None:
        raise UserError(
            "Nobody is logged in to the hub; run `hf auth login`, or set HF_TOKEN to a token that may write."
        )
    api = HfApi()
    with _explained(repository, None):
        api.create_repo(repository, exist_ok=True)
        commit = api.upload_file(
            path_or_fileobj=file, path_in_repo=FILE, repo_id=repository, commit_message="Upload a bundle of Subquad"
        )
    return str(commit.commit_url)


@contextmanager
def _explained(repository: str, revision: str | None) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"The hub has no repository {repository} that you may read; check the name, or, if it is private, run "
            "`hf auth login`."
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError(
            f"{repository} has no revision {revision}; give a branch, a tag or the hash of a commit."
        ) from None
    except errors.RemoteEntryNotFoundError:
        raise UserError(f"{repository} has no {FILE}; upload one by subquad pack <run> upload={repository}.") from None
    except errors.HfHubHTTPError as error:
        refused = error.response is not None and error.response.status_code in (401, 403)
        remedy = "check that your token (`hf auth whoami`) may do this" if refused else "try again later"
        raise UserError(f"The hub answered for {repository}: {first_line(error)}; {remedy}.") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, errors.HTTPError, OSError) as error:
        cause = first_line(error.__cause__ or error)
        raise UserError(
            f"The hub cannot be reached for {repository} ({cause}); check the network, and that HF_HUB_OFFLINE is not "
            "set, or give a file."
        ) from None
