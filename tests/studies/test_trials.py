"""Trials: done once, by whoever comes first; what was interrupted begins anew, what was recorded is kept."""

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from triptych.errors import DataError
from triptych.studies import trials
from triptych.studies.trials import Records, Trial, run_trials

TRIALS = [Trial(f"trial {number}", {"number": number}) for number in range(6)]


def square(trial: Trial) -> dict:
    return {"value": float(trial.settings["number"] ** 2)}


def test_every_trial_is_run_once_and_recorded_whole(tmp_path: Path) -> None:
    asked, said = [], []

    def run(trial: Trial) -> dict:
        asked.append(trial.key)
        return square(trial)

    first = run_trials(tmp_path, TRIALS[:4], run, said.append)
    again = run_trials(tmp_path, TRIALS, run, said.append)
    assert asked == [trial.key for trial in TRIALS]
    assert [(record["key"], record["number"], record["value"]) for record in again] == [
        (f"trial {n}", n, n**2) for n in range(6)
    ]
    assert first == again[:4]
    assert said[0].startswith("1 of 4: trial 0 value 0")
    assert not list((tmp_path / "claims").iterdir())


def test_an_interrupted_trial_begins_anew(tmp_path: Path) -> None:
    def stop(trial: Trial) -> dict:
        if trial.key == "trial 2":
            raise KeyboardInterrupt
        return square(trial)

    with pytest.raises(KeyboardInterrupt):
        run_trials(tmp_path, TRIALS, stop, lambda _: None)
    assert Records(tmp_path).keys == {"trial 0", "trial 1"}
    assert len(run_trials(tmp_path, TRIALS, square, lambda _: None)) == 6


def test_what_someone_is_at_is_left_to_them_until_they_are_silent(tmp_path: Path) -> None:
    records = Records(tmp_path)
    claim = tmp_path / "claims" / "trial 1"
    claim.parent.mkdir()
    claim.write_text("elsewhere 1\n")
    assert {r["key"] for r in run_trials(tmp_path, TRIALS[:3], square, lambda _: None)} == {"trial 0", "trial 2"}
    silent = time.time() - trials.CLAIM_SECONDS - 1
    os.utime(claim, (silent, silent))
    assert len(run_trials(tmp_path, TRIALS[:3], square, lambda _: None)) == 3
    assert records.keys == {"trial 0", "trial 1", "trial 2"}


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
    found = list(Records(tmp_path))
    assert sorted(record["key"] for record in found) == sorted(f"trial {n}" for n in range(20))
    assert len({record["by"] for record in found}) == 3


def test_half_a_line_at_the_end_is_dropped_and_damage_is_said(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.add({"key": "a"})
    with open(records.path, "a") as file:
        file.write('{"key": "b", "va')
    assert records.keys == {"a"}
    records.add({"key": "c"})
    assert [json.loads(line)["key"] for line in records.path.read_text().splitlines()] == ["a", "c"]
    records.path.write_text('{"key": "a"}\nnonsense\n{"key": "c"}\n')
    with pytest.raises(DataError, match=r"line 2 is not JSON"):
        list(records)
