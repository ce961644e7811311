"""Fixtures that tests of several packages share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny tokenizers and datasets, enough to train on."""
    from train_fakes import make_world

    return make_world(tmp_path_factory.mktemp("world"))
