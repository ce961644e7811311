"""Random search over AdamW's five global hyperparameters, shared by any number of processes.

    search = Search(name="base", storage="sqlite:///search.db")
    random_search(search, evaluate, num_trials=200)      # the same call in every process, and after an interruption
    best = retest(search, evaluate)[0]                   # the best few trials again, with fresh seeds

Points are random and not proposed by a model: they do not depend on other results, so processes never wait for each
other, and they cover the whole landscape (triptych.studies.landscape) instead of one valley.

A diverged trial counts as complete, with a loss of inf. An interrupted trial does not count, and another one replaces
it.
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from triptych.errors import UserError, require

if TYPE_CHECKING:  # landscape.py imports this module and must not load torch
    from triptych.training.config import RunConfig

Evaluate = Callable[[dict[str, float], int], float]
"""The loss of a run with these values and this seed; not finite if it diverged."""

_POINTS, _RUNS, _RETESTS = 0, 1, 2  # purposes of seeds; each purpose has its own stream
_OPENING_ATTEMPTS = 6


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """Lowest and highest value of each hyperparameter; drawn uniformly on a log scale."""

    lr: tuple[float, float] = (1e-4, 1e-2)
    alpha1: tuple[float, float] = (1e-2, 0.5)
    """1 - beta1."""
    alpha2: tuple[float, float] = (1e-3, 0.5)
    """1 - beta2."""
    eps: tuple[float, float] = (1e-12, 1e-5)
    decay: tuple[float, float] = (1e-3, 1.0)

    def __post_init__(self) -> None:
        for name, (low, high) in asdict(self).items():
            if not 0 < low < high < math.inf:
                raise UserError(
                    f"the range of {name} must be two positive numbers, the smaller first, got {low}, {high}."
                )
            if name in ("alpha1", "alpha2") and high >= 1:
                raise UserError(f"{name} is 1 - beta and must stay below 1, got a range up to {high}.")


NAMES = tuple(f.name for f in fields(Ranges))


@dataclass(frozen=True, kw_only=True)
class Search:
    """Settings of a search; equal in every process that joins it."""

    name: str
    storage: str
    """URL of a database (sqlite:///search.db, postgresql://...), or path of a journal file for nodes that share a file
    system but no database."""
    ranges: Ranges = field(default_factory=Ranges)
    seed: int = 0
    grace_seconds: int = 300
    """Seconds without a heartbeat after which a database marks a running trial as failed; a journal never does."""

    def __post_init__(self) -> None:
        if self.seed < 0 or self.grace_seconds < 2:
            raise UserError("a search needs a non-negative seed and at least 2 grace_seconds.")


def require_hpo(module: str) -> ModuleType:
    """Import a package of the extra `hpo`."""
    return require(module, "hpo", "the hyperparameter search")


def with_values(config: "RunConfig", values: Mapping[str, float], seed: int) -> "RunConfig":
    """The run with the hyperparameters of a trial. The seed determines initial weights, batches and masks."""
    return replace(
        config,
        seed=seed,
        loader=replace(config.loader, seed=seed),
        corrupt=replace(config.corrupt, seed=seed),
        optimizer=replace(
            config.optimizer,
            lr=values["lr"],
            beta1=1 - values["alpha1"],
            beta2=1 - values["alpha2"],
            eps=values["eps"],
            weight_decay=values["decay"],
        ),
    )


def random_search(
    search: Search, evaluate: Evaluate, num_trials: int, report: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """Run trials until the search has `num_trials` complete ones from all processes; returns their records.

    A process checks before each trial whether more are needed. So the total may exceed `num_trials` by up to one trial
    per further process.
    """
    optuna = require_hpo("optuna")
    study = _join(search)
    returned: set[int] = set()

    def objective(trial: Any) -> float:
        # Seeded by the trial's number: points are distinct, and do not depend on the number of processes.
        study.sampler = optuna.samplers.RandomSampler(seed=_seed(search.seed, _POINTS, trial.number))
        values = {name: trial.suggest_float(name, *getattr(search.ranges, name), log=True) for name in NAMES}
        seed = _seed(search.seed, _RUNS, trial.number)
        trial.set_user_attr("seed", seed)
        loss = _loss(evaluate, values, seed)
        returned.add(trial.number)
        trial.set_user_attr("diverged", math.isinf(loss))
        shown = " ".join(f"{name} {value:.3g}" for name, value in values.items())
        report(f"trial {trial.number}: loss {loss:.4f}, {shown}")
        return loss

    while len(_complete(study)) < num_trials:
        before = len(returned)
        try:
            study.optimize(objective, n_trials=1)
        except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
            if len(returned) == before:  # an error of the run itself
                raise
            report("the last trial finished too late: without heartbeats for too long, it was marked as failed.")
    return trial_records(search)


def trial_records(search: Search) -> list[dict[str, Any]]:
    """The complete trials so far, as plain JSON; the loss of a diverged one is None."""
    return [
        {
            "number": trial.number,
            "seed": trial.user_attrs["seed"],
            **trial.params,
            "loss": None if math.isinf(trial.value) else trial.value,
            "diverged": math.isinf(trial.value),
            "seconds": round(trial.duration.total_seconds(), 1),
        }
        for trial in _complete(_join(search))
    ]


@dataclass(frozen=True)
class Candidate:
    name: str
    """Name of the trial, or of a given point."""
    values: dict[str, float]
    first_loss: float
    """The loss it was selected by; biased low by the selection. NaN for a given point."""
    losses: tuple[float, ...]
    """Losses with fresh seeds, the same for every candidate."""

    @property
    def loss(self) -> float:
        return float(np.mean(self.losses))


def retest(
    search: Search,
    evaluate: Evaluate,
    top: int = 3,
    num_seeds: int = 2,
    points: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Candidate]:
    """Run the best trials and other given points with seeds that no trial used; returns the best mean first.

    Each run is stored with the search when it ends, so an interrupted retest resumes. Use one process: several would
    do the same runs.
    """
    if min(top, num_seeds) < 1:
        raise UserError(f"a retest needs at least one trial and one seed, got top={top} and num_seeds={num_seeds}.")
    study = _join(search)
    finite = sorted((t for t in _complete(study) if math.isfinite(t.value)), key=lambda t: (t.value, t.number))
    if not finite:
        raise UserError(
            f"search {search.name!r} has no complete trial that did not diverge: run more, or search lower rates."
        )
    seeds = [_seed(search.seed, _RETESTS, index) for index in range(num_seeds)]
    chosen = [(f"trial {trial.number}", dict(trial.params), trial.value) for trial in finite[:top]]
    chosen += [(name, dict(point), math.nan) for name, point in (points or {}).items()]
    candidates = []
    for name, values, first_loss in chosen:
        for seed in seeds:
            if _key(values, seed) not in study.user_attrs:
                study.set_user_attr(_key(values, seed), _loss(evaluate, values, seed))
        stored = study.user_attrs
        candidates.append(Candidate(name, values, first_loss, tuple(stored[_key(values, seed)] for seed in seeds)))
    return sorted(candidates, key=lambda candidate: candidate.loss)


def _loss(evaluate: Evaluate, values: dict[str, float], seed: int) -> float:
    """The loss, or inf if it is not finite: optuna accepts inf as a result, but treats NaN as a failure."""
    try:
        loss = float(evaluate(values, seed))
    except ArithmeticError:
        return math.inf
    return loss if math.isfinite(loss) else math.inf


def _key(values: Mapping[str, float], seed: int) -> str:
    return f"again {' '.join(f'{name} {values[name]:.6g}' for name in NAMES)} seed {seed}"


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def _complete(study: Any) -> list[Any]:
    complete = require_hpo("optuna.trial").TrialState.COMPLETE
    return study.get_trials(deepcopy=False, states=(complete,))


def _join(search: Search) -> Any:
    """The optuna study of the search, created if it does not exist."""
    optuna = require_hpo("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # progress goes through `report`
    study = optuna.create_study(
        study_name=search.name,
        storage=_open(search),
        sampler=optuna.samplers.RandomSampler(seed=0),  # replaced for each trial
        load_if_exists=True,
    )
    wanted = {"seed": search.seed, "ranges": {name: list(pair) for name, pair in asdict(search.ranges).items()}}
    saved = study.user_attrs.get("search", wanted)
    if saved != wanted:
        raise UserError(
            f"search {search.name!r} was started with {saved} and cannot continue with {wanted}: choose another name."
        )
    study.set_user_attr("search", wanted)
    return study


def _open(search: Search) -> Any:
    optuna = require_hpo("optuna")
    if "://" not in search.storage:
        Path(search.storage).parent.mkdir(parents=True, exist_ok=True)
        backend = optuna.storages.journal.JournalFileBackend(search.storage)
        return optuna.storages.JournalStorage(backend)
    sqlalchemy = require_hpo("sqlalchemy")
    # SQLite locks its file while a process writes; the others wait up to 60 s instead of failing after 5.
    options = {"connect_args": {"timeout": 60}} if search.storage.startswith("sqlite") else {}
    for attempt in range(_OPENING_ATTEMPTS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # for heartbeats
                return optuna.storages.RDBStorage(
                    search.storage,
                    engine_kwargs=options,
                    heartbeat_interval=max(1, search.grace_seconds // 5),
                    grace_period=search.grace_seconds,
                )
        except sqlalchemy.exc.DBAPIError as error:  # two processes may create the tables at once: try again
            if attempt == _OPENING_ATTEMPTS - 1:
                shown = sqlalchemy.engine.make_url(search.storage).render_as_string(hide_password=True)
                raise UserError(f"the database {shown} cannot be opened ({error.orig}).") from error
            time.sleep(0.1 * 2**attempt)
        except (sqlalchemy.exc.ArgumentError, ImportError, ValueError) as error:
            kind = search.storage.partition("://")[0]  # the full URL may contain a password
            raise UserError(
                f"the database {kind}://... cannot be opened ({error.args[0]}): expected sqlite:///FILE, the URL of a "
                "database whose driver is installed, or the path of a journal file."
            ) from error
    raise AssertionError("unreachable")
