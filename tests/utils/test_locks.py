"""Locks on files."""

from pathlib import Path

import pytest

from triptych.errors import UserError
from triptych.utils.locks import AlreadyLocked, FolderLock, hold_lock, lock_file


def test_a_second_owner_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    first = hold_lock(tmp_path / "lock", "process 1")
    with pytest.raises(AlreadyLocked, match="locked by process 1") as caught:
        hold_lock(tmp_path / "lock", "process 2")
    assert caught.value.owner == "process 1"
    first.close()
    hold_lock(tmp_path / "lock", "2").close()
    assert (tmp_path / "lock").read_text() == "2"


def test_a_file_of_its_own_can_be_locked(tmp_path: Path) -> None:
    with open(tmp_path / "records", "a+b") as file:
        lock_file(file)
        with pytest.raises(AlreadyLocked, match="locked by another process"):
            hold_lock(tmp_path / "records", "")
    hold_lock(tmp_path / "records", "").close()


def test_a_folder_that_does_not_exist_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        hold_lock(tmp_path / "nowhere" / "lock", "")


def test_a_locked_folder_is_one_line_for_the_second(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = FolderLock(folder, "trained")
    first.take()
    with pytest.raises(UserError, match=r"run is being trained by process \d+ on .*choose another --out\.$"):
        FolderLock(folder, "trained").take()
    first.release()
    second = FolderLock(folder, "written", "--work")
    second.take()
    second.release(undo=True)
    assert folder.exists(), "a folder of someone else was removed"
