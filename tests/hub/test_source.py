"""Names of models: local folders and hub names are told apart, and the network is asked once."""

from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

from triptych.errors import CheckpointError, UserError
from triptych.hub.pipeline import Pipeline
from triptych.hub.source import check_source, download, hub_name


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_path_is_never_a_hub_name(here: Path) -> None:
    (here / "runs" / "mine" / "checkpoints").mkdir(parents=True)
    for path in ("runs/mine", "runs/mien", "./owner/name", "/tmp/a/b", "../a/b", "a/b/c", "scenes", "~/a"):
        assert hub_name(path) is None, path
    assert hub_name("hf://runs/mine") == "runs/mine"
    assert hub_name("owner/name") == "owner/name"


def test_a_mistyped_run_is_answered_with_the_nearest_one_and_no_network(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "runs" / "mine" / "checkpoints").mkdir(parents=True)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: pytest.fail("the hub was asked"))
    with pytest.raises(UserError, match=r"there is no model 'runs/mien'.*Did you mean 'runs/mine'\?.*hf://OWNER/NAME"):
        Pipeline.from_pretrained("runs/mien")
    (here / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"holds neither a saved model \(config.json\) nor a run"):
        check_source("empty")
    with pytest.raises(UserError, match="expected hf://OWNER/NAME, got 'hf://name'"):
        check_source("hf://name")


def test_offline_the_hub_is_asked_once_and_the_message_says_so(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def no_network(self: object, name: str, **_: object) -> None:
        asked.append(name)
        raise ConnectionError("no network")

    def only_cache(name: str, *, local_files_only: bool = False, **_: object) -> None:
        assert local_files_only, "a download was tried without a network"
        raise LocalEntryNotFoundError("nothing in the cache")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", no_network)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", only_cache)
    with pytest.raises(
        CheckpointError, match=r"hf://some/model is not in the local cache, and the hub cannot be reached"
    ):
        Pipeline.from_pretrained("some/model")
    assert asked == ["some/model"]


def test_a_model_that_the_hub_does_not_have(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: object, name: str, **_: object) -> None:
        response = SimpleNamespace(headers={}, request=None, status_code=404)
        raise RepositoryNotFoundError("404 Not Found\nfor some/model", response=response)  # type: ignore[arg-type]

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", missing)
    with pytest.raises(
        CheckpointError, match=r"the hub has no model 'some/model' for you .*404 Not Found for some/model"
    ):
        download("some/model", revision=None, cache_dir=None, token=None)


def test_a_failing_hub_does_not_hide_what_was_downloaded(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, name: str, **_: object) -> None:
        response = SimpleNamespace(headers={}, request=None, status_code=503)
        raise HfHubHTTPError("503 Service Unavailable", response=response)  # type: ignore[arg-type]

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", broken)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, local_files_only, **__: "cached")
    assert download("some/model", revision=None, cache_dir=None, token=None) == Path("cached")


def test_a_downloaded_model_is_loaded(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triptych.hub.source import BUILTIN_MODELS

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(BUILTIN_MODELS["scenes"]))
    assert Pipeline.from_pretrained("hf://some/model", revision="main").limits.words
