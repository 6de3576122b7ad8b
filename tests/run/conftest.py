"""Folders for the tests of whole runs: data that a session shares, outputs of each test alone."""

from pathlib import Path

import pytest
from runs import data_root


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_root(tmp_path_factory.getbasetemp())


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    return tmp_path / "outputs"
