"""Trials: each is run once by any process, interrupted ones are repeated, and records are kept."""

import json
import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest

from triptych.errors import DamageWarning
from triptych.utils import trials
from triptych.utils.trials import Trial, TrialRecords, run_trials

TRIALS = [Trial(f"trial {number}", {"number": number}) for number in range(6)]


def square(trial: Trial) -> dict:
    return {"value": float(trial.settings["number"] ** 2)}


def test_every_trial_is_run_and_recorded_once(tmp_path: Path) -> None:
    ran, reports = [], []

    def run(trial: Trial) -> dict:
        ran.append(trial.key)
        return square(trial)

    first = run_trials(tmp_path, TRIALS[:4], run, reports.append)
    again = run_trials(tmp_path, TRIALS, run, reports.append)
    assert ran == [trial.key for trial in TRIALS]
    assert [(key, record["number"], record["value"]) for key, record in again.items()] == [
        (f"trial {n}", n, n**2) for n in range(6)
    ]
    assert first == {trial.key: again[trial.key] for trial in TRIALS[:4]}
    assert reports[0].startswith("1 of 4: trial 0 value 0")
    assert [path.name for path in (tmp_path / "claims").iterdir()] == [".lock"]
    assert run_trials(tmp_path, [*TRIALS, *TRIALS], run, reports.append) == again


def test_an_interrupted_trial_is_repeated(tmp_path: Path) -> None:
    def stop(trial: Trial) -> dict:
        if trial.key == "trial 2":
            raise KeyboardInterrupt
        return square(trial)

    with pytest.raises(KeyboardInterrupt):
        run_trials(tmp_path, TRIALS, stop, lambda _: None)
    assert TrialRecords(tmp_path).keys == {"trial 0", "trial 1"}
    assert len(run_trials(tmp_path, TRIALS, square, lambda _: None)) == 6


def test_claimed_trials_are_left_alone_until_the_claim_expires(tmp_path: Path) -> None:
    records = TrialRecords(tmp_path)
    claim = tmp_path / "claims" / "trial 1"
    claim.parent.mkdir()
    claim.write_text("elsewhere 1")
    assert set(run_trials(tmp_path, TRIALS[:3], square, lambda _: None)) == {"trial 0", "trial 2"}
    assert records.claimed_by("trial 1") == "elsewhere 1"
    assert records.claimed_by("trial 0") is None
    silent = time.time() - trials.CLAIM_SECONDS - 1
    os.utime(claim, (silent, silent))
    assert len(run_trials(tmp_path, TRIALS[:3], square, lambda _: None)) == 3
    assert records.keys == {"trial 0", "trial 1", "trial 2"}


def test_a_process_with_an_expired_claim_neither_overwrites_nor_frees_the_new_one(tmp_path: Path) -> None:
    records = TrialRecords(tmp_path)
    claim = tmp_path / "claims" / "trial 1"

    def slow(trial: Trial) -> dict:
        """Meanwhile the claim has expired, and another process has finished the trial and claimed it again."""
        records.add({"key": trial.key, "by": "another"})
        claim.write_text("another")
        return {"by": "this"}

    found = run_trials(tmp_path, TRIALS[1:2], slow, lambda _: None)
    assert found["trial 1"]["by"] == "another"
    assert len(list(records)) == 1
    assert claim.read_text() == "another"


def test_only_one_process_takes_an_expired_claim(tmp_path: Path) -> None:
    claim = tmp_path / "claims" / "trial 1"
    claim.parent.mkdir()
    for _ in range(20):
        claim.write_text("gone")
        os.utime(claim, (1, 1))
        together, taken = threading.Barrier(4), []

        def take(number: int, together: threading.Barrier = together, taken: list = taken) -> None:
            together.wait()
            if trials.take_claim(claim, f"taker {number}"):
                taken.append(number)

        takers = [threading.Thread(target=take, args=(number,)) for number in range(4)]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join()
        assert len(taken) == 1
        assert claim.read_text() == f"taker {taken[0]}"


def test_a_trial_of_a_dead_process_is_run_by_another(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(trials, "CLAIM_SECONDS", 0.2)
    claim = tmp_path / "claims" / "trial 0"
    claim.parent.mkdir()
    claim.write_text("killed")

    def slow(trial: Trial) -> dict:
        time.sleep(0.15)
        return square(trial)

    assert len(run_trials(tmp_path, TRIALS[:3], slow, lambda _: None)) == 3


def _work(folder: Path) -> None:
    def slow(trial: Trial) -> dict:
        time.sleep(0.05)
        return {"by": os.getpid()}

    run_trials(folder, [Trial(f"trial {n}", {}) for n in range(20)], slow, lambda _: None)


def test_processes_share_the_work(tmp_path: Path) -> None:
    workers = [multiprocessing.get_context("fork").Process(target=_work, args=(tmp_path,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = list(TrialRecords(tmp_path))
    assert sorted(record["key"] for record in found) == sorted(f"trial {n}" for n in range(20))
    assert len({record["by"] for record in found}) == 3


def test_an_incomplete_last_line_is_dropped(tmp_path: Path) -> None:
    records = TrialRecords(tmp_path)
    records.add({"key": "a"})
    with open(records.path, "a") as file:
        file.write('{"key": "b", "va')
    assert records.keys == {"a"}
    records.add({"key": "c"})
    assert [json.loads(line)["key"] for line in records.path.read_text().splitlines()] == ["a", "c"]


@pytest.mark.parametrize("line", [b"nonsense", b"[1]", b'{"kez": "b"}', b'{"key": 5}', b"\xff\xfe", b"[" * 10_000])
def test_damaged_lines_are_left_out_with_a_warning(line: bytes, tmp_path: Path) -> None:
    records = TrialRecords(tmp_path)
    records.path.write_bytes(b'{"key": "a"}\n' + line + b'\n{"key": "c"}\n')
    with pytest.warns(DamageWarning, match=r"records\.jsonl: line 2 is damaged and left out"):
        assert records.keys == {"a", "c"}


def test_a_trial_whose_record_is_damaged_is_run_again(tmp_path: Path) -> None:
    run_trials(tmp_path, TRIALS, square, lambda _: None)
    path = tmp_path / "records.jsonl"
    path.write_text(path.read_text().replace('"value": 4.0', '"value": 5.0'))  # still JSON
    again = []

    def run(trial: Trial) -> dict:
        again.append(trial.key)
        return square(trial)

    with pytest.warns(DamageWarning, match="line 3 is damaged"):
        records = run_trials(tmp_path, TRIALS, run, lambda _: None)
    assert again == ["trial 2"]
    assert {key: record["value"] for key, record in records.items()} == {f"trial {n}": n**2 for n in range(6)}


def test_a_claim_stays_in_its_folder(tmp_path: Path) -> None:
    with TrialRecords(tmp_path / "trials").claim("../../..") as is_ours:
        assert is_ours
        assert [path.name for path in tmp_path.iterdir()] == ["trials"]
        assert TrialRecords(tmp_path / "trials").workers


def _work_slowly(folder: Path, seconds: float) -> None:
    def slow(trial: Trial) -> dict:
        (folder / f"{trial.key} {os.getpid()} started").touch()
        time.sleep(seconds)
        return {"by": os.getpid()}

    run_trials(folder, [Trial(f"trial-{n}", {}) for n in range(12)], slow, lambda _: None)


def test_a_killed_process_neither_loses_nor_repeats_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two processes gets SIGKILL in the middle of a trial; only that trial is run again."""
    monkeypatch.setattr(trials, "CLAIM_SECONDS", 1.5)
    monkeypatch.setattr(trials, "_TOUCH_SECONDS", 0.2)
    fork = multiprocessing.get_context("fork")
    # Nothing but SIGKILL ends the trial of the first one; the other has enough to do until the claim expires.
    killed = fork.Process(target=_work_slowly, args=(tmp_path, 600.0))
    killed.start()
    while not (started := list(tmp_path.glob(f"* {killed.pid} started"))):
        time.sleep(0.01)
    other = fork.Process(target=_work_slowly, args=(tmp_path, 0.02))
    other.start()
    while not TrialRecords(tmp_path).keys:
        time.sleep(0.01)
    killed.kill()
    killed.join()
    other.join()
    assert killed.exitcode == -9
    interrupted = started[0].name.split()[0]
    # The same command after the kill, when the claim has expired.
    stale = time.time() - 10
    if (claim := tmp_path / "claims" / interrupted).exists():
        os.utime(claim, (stale, stale))
    again = fork.Process(target=_work_slowly, args=(tmp_path, 0.0))
    again.start()
    again.join()
    assert sorted(record["key"] for record in TrialRecords(tmp_path)) == sorted(f"trial-{n}" for n in range(12))
    starts = [path.name.split()[0] for path in tmp_path.glob("* started")]
    assert sorted(starts) == sorted([*(f"trial-{n}" for n in range(12)), interrupted])
    assert list((tmp_path / "claims").glob("[!.]*")) == []
