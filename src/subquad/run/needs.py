"""What a run needs that is not on this machine: files of its data, and the command that brings them."""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from subquad.run.doors import compose_run, sentence


def needs(words: Sequence[str]) -> str | None:
    """What is missing before `python train.py <words>` can start, as a sentence with the remedy; None where nothing is.

    Raises UserError where the words do not compose.
    """
    return missing_data(data_settings(words))


def data_settings(words: Sequence[str]) -> dict[str, Any]:
    """The resolved settings of a run's data."""
    settings = OmegaConf.to_container(compose_run(words).data, resolve=True)
    assert isinstance(settings, dict)
    return {str(key): value for key, value in settings.items()}


def missing_data(settings: Mapping[str, Any]) -> str | None:
    """The same for the resolved settings of data: looks for files and reads none of them.

    Made-up data (`standin`) need nothing, and torch is not imported for them.
    """
    if settings.get("standin"):
        return None
    from hydra.utils import instantiate

    from subquad.run.settings import check_settings

    try:
        check_settings("data", settings)
        instantiate(settings, _convert_="all").require()
    except Exception as error:
        cause = sentence(error)
        if cause is None:
            raise
        return str(cause)
    return None
