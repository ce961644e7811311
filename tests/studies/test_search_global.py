"""The random search: its points, several processes, and trials that diverge or are interrupted."""

import math
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import optuna
import pytest
from scipy import stats

from triptych.errors import UserError
from triptych.recipes import recipe
from triptych.studies.search_global import NAMES, Ranges, Search, random_search, retest, trial_records, with_values

OPTIMUM = {"lr": 1e-3, "alpha1": 0.1, "alpha2": 0.05, "eps": 1e-8, "decay": 0.1}


def bowl(values: dict[str, float], seed: int = 0) -> float:
    """Lowest at the optimum; the learning rate matters most."""
    parts = {name: math.log10(values[name] / OPTIMUM[name]) ** 2 for name in NAMES}
    return 3 + 4 * parts.pop("lr") + 0.02 * sum(parts.values())


def quiet(_: str) -> None:
    pass


def journal(tmp_path: Path, **changes: object) -> Search:
    return Search(name="test", storage=str(tmp_path / "search.log"), **changes)  # type: ignore[arg-type]


def database(tmp_path: Path, **changes: object) -> Search:
    return Search(name="test", storage=f"sqlite:///{tmp_path}/search.db", **changes)  # type: ignore[arg-type]


def point(record: dict) -> tuple[float, ...]:
    return tuple(record[name] for name in NAMES)


def test_points_are_uniform_on_a_log_scale_and_the_optimum_is_found(tmp_path: Path) -> None:
    search = journal(tmp_path)
    records = random_search(search, bowl, 60, quiet)
    assert len(records) == len({point(record) for record in records}) == 60
    for name in NAMES:
        low, high = np.log(getattr(search.ranges, name))
        drawn = [(math.log(record[name]) - low) / (high - low) for record in records]
        assert stats.kstest(drawn, "uniform").pvalue > 1e-3, name
    found = retest(search, bowl)[0]
    assert 0.7 < found.values["lr"] / OPTIMUM["lr"] < 1.4
    assert found.loss == min(record["loss"] for record in records) < 3.15
    assert records == trial_records(search) == random_search(search, bowl, 60, quiet)  # nothing is run again


WORKER = """
import os, signal, sqlite3, sys, time
from pathlib import Path
import optuna
from triptych.studies.search_global import Search, random_search
storage, (budget, grace, killed_in), seconds = sys.argv[1], map(int, sys.argv[2:5]), float(sys.argv[5])
runs = []
def heartbeats(storage):
    # Of trials that are running.
    query = "SELECT COUNT(*) FROM trial_heartbeats JOIN trials USING (trial_id) WHERE state = 'RUNNING'"
    return sqlite3.connect(storage.removeprefix("sqlite:///")).execute(query).fetchone()[0]
def evaluate(values, seed):
    runs.append(seed)
    if len(runs) == killed_in:
        while storage.startswith("sqlite") and not heartbeats(storage):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(seconds)
    return abs(values["lr"] - 1e-3)
ready, together = Path(sys.argv[6]), int(sys.argv[7])
(ready / f"ready-{os.getpid()}").touch()
while len(list(ready.glob("ready-*"))) < together:
    time.sleep(0.01)
random_search(Search(name="test", storage=storage, grace_seconds=grace), evaluate, budget)
print("runs", *runs)
"""


def start_worker(
    tmp_path: Path, search: Search, budget: int, seconds: float = 0.0, killed_in: int = 0, together: int = 1
) -> subprocess.Popen:
    """The worker starts searching when `together` workers are ready."""
    arguments = [search.storage, budget, search.grace_seconds, killed_in, seconds, tmp_path, together]
    return subprocess.Popen([sys.executable, "-c", WORKER, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def test_two_processes_share_a_study(tmp_path: Path) -> None:
    """Both start without a database, and create it at the same time."""
    search = database(tmp_path)
    workers = [start_worker(tmp_path, search, budget=6, seconds=0.2, together=2) for _ in range(2)]
    outputs = [worker.communicate(timeout=300)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    runs = [output.splitlines()[-1].split()[1:] for output in outputs]
    assert all(runs), "one process did all trials"
    records = trial_records(search)
    assert 6 <= len(records) == sum(map(len, runs)) <= 7
    assert len({point(record) for record in records}) == len({record["seed"] for record in records}) == len(records)
    # Points depend only on trial numbers: a single process draws the same ones.
    alone = random_search(journal(tmp_path), bowl, len(records), quiet)
    assert [point(record) for record in alone] == [point(record) for record in records]


def test_a_search_continues_after_a_process_was_killed(tmp_path: Path) -> None:
    search = database(tmp_path, grace_seconds=2)
    worker = start_worker(tmp_path, search, budget=5, killed_in=3)
    worker.communicate(timeout=300)
    assert worker.returncode == -signal.SIGKILL
    before = trial_records(search)
    assert len(before) == 2
    study = optuna.load_study(study_name="test", storage=search.storage)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "RUNNING"]
    with sqlite3.connect(tmp_path / "search.db") as connection:  # as if the grace period had passed
        connection.execute("UPDATE trial_heartbeats SET heartbeat = datetime('now', '-1 hour')")
    after = random_search(search, bowl, 5, quiet)
    assert len(after) == 5
    assert after[:2] == before
    assert [trial.state.name for trial in study.get_trials()] == ["COMPLETE"] * 2 + ["FAIL"] + ["COMPLETE"] * 3


def test_a_journal_continues_after_a_process_was_killed(tmp_path: Path) -> None:
    search = journal(tmp_path)
    worker = start_worker(tmp_path, search, budget=4, killed_in=2)
    worker.communicate(timeout=300)
    assert worker.returncode == -signal.SIGKILL
    assert [record["number"] for record in random_search(search, bowl, 4, quiet)] == [0, 2, 3, 4]


@pytest.mark.parametrize("kind", [database, journal])
def test_diverged_trials_count_and_are_never_the_best(tmp_path: Path, kind) -> None:
    search = kind(tmp_path)
    calls = []

    def cliff(values: dict[str, float], seed: int) -> float:
        calls.append(values)
        match len(calls):
            case 1:
                return math.nan
            case 2:
                return math.inf
            case 3:
                raise OverflowError("math range error")
            case 4:
                return -math.inf
            case _:
                return bowl(values)

    records = random_search(search, cliff, 6, quiet)
    assert [record["diverged"] for record in records] == [True] * 4 + [False] * 2
    assert [record["loss"] for record in records[:4]] == [None] * 4
    assert retest(search, bowl)[0].name in ("trial 4", "trial 5")


def test_a_search_in_which_all_trials_diverged_is_reported(tmp_path: Path) -> None:
    search = journal(tmp_path)
    with pytest.raises(UserError, match="no complete trial that did not diverge"):
        retest(search, bowl)[0]
    random_search(search, lambda values, seed: math.inf, 2, quiet)
    with pytest.raises(UserError, match="no complete trial that did not diverge"):
        retest(search, bowl)[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError, RuntimeError])
def test_interruptions_and_errors_end_the_search_without_a_result(tmp_path: Path, error) -> None:
    search = journal(tmp_path)

    def fails(values: dict[str, float], seed: int) -> float:
        raise error("no such data")

    with pytest.raises(error):
        random_search(search, fails, 3, quiet)
    assert trial_records(search) == []
    assert len(random_search(search, bowl, 3, quiet)) == 3


def test_a_late_result_of_a_failed_trial_is_ignored(tmp_path: Path) -> None:
    """As of a suspended laptop: another process has marked the trial as failed, and the search continues."""
    search = database(tmp_path)
    said = []

    def sleeps_once(values: dict[str, float], seed: int) -> float:
        study = optuna.load_study(study_name="test", storage=search.storage)
        if len(study.trials) == 1:
            study.tell(0, state=optuna.trial.TrialState.FAIL)
        return bowl(values)

    records = random_search(search, sleeps_once, 2, said.append)
    assert [record["number"] for record in records] == [1, 2]
    assert sum("too late" in line for line in said) == 1


def test_a_lucky_trial_does_not_survive_fresh_seeds(tmp_path: Path) -> None:
    search = journal(tmp_path)
    true = {record["number"]: bowl(record) for record in random_search(search, bowl, 12, quiet)}
    worst = max(true, key=true.__getitem__)

    lucky = Search(name="lucky", storage=search.storage)  # the same seed, so the same points
    seeds = []
    records = random_search(lucky, lambda v, s: bowl(v) - 100 * (bowl(v) == true[worst]), 12, quiet)
    assert min(records, key=lambda record: record["loss"])["number"] == worst

    def honest(values: dict[str, float], seed: int) -> float:
        seeds.append(seed)
        return bowl(values) + 1e-3 * len(seeds)

    found = retest(lucky, honest, top=3, num_seeds=2)
    assert len(found) == 3
    assert found[0].name == f"trial {min(true, key=true.__getitem__)}"
    assert found[-1].name == f"trial {worst}"
    assert found[-1].first_loss < 0 < found[-1].loss == pytest.approx(true[worst], abs=0.01)
    assert len(seeds) == 6
    assert len(set(seeds)) == 2
    assert not set(seeds) & {record["seed"] for record in records}
    # Finished runs are not repeated: only a third seed is new.
    assert retest(lucky, honest, top=3, num_seeds=2) == found
    assert [c.losses[:2] for c in sorted(retest(lucky, honest, 3, 3), key=lambda c: c.name)] == [
        c.losses for c in sorted(found, key=lambda c: c.name)
    ]
    assert len(seeds) == 9
    assert len(set(seeds)) == 3


def test_a_search_is_joined_only_with_the_same_settings(tmp_path: Path) -> None:
    first = random_search(journal(tmp_path), bowl, 2, quiet)
    for other in (journal(tmp_path, seed=1), journal(tmp_path, ranges=Ranges(lr=(1e-5, 1e-3)))):
        with pytest.raises(UserError, match="choose another name"):
            random_search(other, bowl, 4, quiet)
    other = Search(name="other", storage=str(tmp_path / "search.log"), seed=1)
    assert not {point(r) for r in random_search(other, bowl, 2, quiet)} & {point(r) for r in first}


@pytest.mark.parametrize("storage", ["nothing://user:secret@host/name", "sqlite:///{}/missing/search.db"])
def test_errors_about_the_storage_do_not_show_its_password(tmp_path, storage, monkeypatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(UserError, match="cannot be opened") as caught:
        trial_records(Search(name="test", storage=storage.format(tmp_path)))
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_optuna_the_install_command_is_shown(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install .*\[hpo\]"):
        random_search(journal(tmp_path), bowl, 1)


@pytest.mark.parametrize(
    "ranges", [{"lr": (1e-2, 1e-3)}, {"eps": (0.0, 1.0)}, {"alpha2": (0.1, 1.0)}, {"decay": (0.1, math.inf)}]
)
def test_wrong_ranges_are_refused(ranges) -> None:
    with pytest.raises(UserError, match=next(iter(ranges))):
        Ranges(**ranges)


def test_a_run_with_the_values_of_a_trial() -> None:
    config = recipe("nano")
    found = with_values(config, {"lr": 2e-3, "alpha1": 0.2, "alpha2": 0.01, "eps": 1e-10, "decay": 0.3}, seed=7)
    values = found.resolved.values
    assert (values.lr, values.beta1, values.beta2) == pytest.approx((2e-3, 0.8, 0.99))
    assert (values.eps, values.decay) == (1e-10, 0.3)
    assert (found.seed, found.loader.seed) == (7, 7)
    assert (found.num_steps, found.model) == (config.num_steps, config.model)


def test_the_landscape_does_not_import_torch() -> None:
    code = "import sys, triptych.studies.landscape; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
