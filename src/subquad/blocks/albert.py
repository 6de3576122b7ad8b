"""ALBERT from a folder, without network (Lan et al. 2020, https://arxiv.org/abs/1909.11942)."""

from pathlib import Path
from typing import Any

from subquad.errors import UserError, first_line


def open_albert(folder: Path) -> Any:
    """The model in a folder as the transformers library writes it; nothing is unpickled.

    Raises UserError where it cannot be read.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()
    try:
        return transformers.AlbertModel.from_pretrained(str(folder), local_files_only=True, use_safetensors=True)
    except Exception as error:  # safetensors and the library raise kinds of their own
        reason = first_line(error)
        raise UserError(f"{folder} holds no ALBERT that can be read ({reason}); take the published files.") from None
