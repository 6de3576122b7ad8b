"""Adds the user's own folders of configurations to the ones that Hydra searches."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class OwnFolders(SearchPathPlugin):
    """Appends the user's folders where Subquad composes; Hydra's search paths of other programs stay as they are."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        from subquad.config import choices

        if any(str(choices.CONFIGS) == part.path.removeprefix("file://") for part in search_path.get_path()):
            for folder in choices.folders()[:-1]:
                search_path.append("subquad", f"file://{folder}")
