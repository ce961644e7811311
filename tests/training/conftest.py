from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from train_fakes import make_world


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums in another order are other bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))
