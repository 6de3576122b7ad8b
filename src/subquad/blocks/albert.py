"""ALBERT (Lan et al. 2020, https://arxiv.org/abs/1909.11942) from a local folder."""

from pathlib import Path
from typing import Any

from subquad.utils.errors import UserError, first_line


def open_albert(folder: Path) -> Any:
    """Loads a model from a folder in the format of the transformers library, without network and without unpickling.

    Raises UserError where the folder cannot be read.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()
    try:
        return transformers.AlbertModel.from_pretrained(str(folder), local_files_only=True, use_safetensors=True)
    except Exception as error:  # safetensors and transformers raise many kinds of errors
        reason = first_line(error)
        raise UserError(f"{folder} holds no ALBERT that can be read ({reason}); take the published files.") from None
