"""Which data a run needs that are not on this machine, and the command that gets them."""

from collections.abc import Mapping
from typing import Any

from subquad.utils.errors import explain


def missing_data(settings: Mapping[str, Any]) -> str | None:
    """The missing files of data with these resolved settings, as a sentence with the remedy; None if none are missing.

    Looks for files and reads none of them. Synthetic data need nothing, and torch is not imported for them. Raises
    UserError for a value that a setting does not take.
    """
    if settings.get("synthetic"):
        return None
    from hydra.utils import instantiate

    from subquad.config.settings import check_settings

    check_settings("data", settings)
    try:
        instantiate(settings, _convert_="all").require()
    except Exception as error:
        cause = explain(error)
        if cause is None:
            raise
        return str(cause)
    return None
