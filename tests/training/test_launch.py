"""The launcher of several ranks: which of them prints a message."""

from pathlib import Path

import pytest

from triptych.training.launch import is_first_to_print


def test_a_lost_rank_is_silent_when_another_rank_has_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_PRINTED", str(tmp_path))
    assert is_first_to_print("parallel.shard=7 must divide the number of ranks, 2.")
    assert not is_first_to_print("another rank has exited", alone=True)
    assert is_first_to_print("a second error")
    assert not is_first_to_print("a second error")


def test_a_lost_rank_reports_when_no_other_rank_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_PRINTED", str(tmp_path))
    assert is_first_to_print("another rank has exited", alone=True)
    assert not is_first_to_print("another rank has exited", alone=True)


def test_a_restarted_rank_reports_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPTYCH_PRINTED", str(tmp_path))
    assert is_first_to_print("an error")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert is_first_to_print("another rank has exited", alone=True)
    assert is_first_to_print("an error")
