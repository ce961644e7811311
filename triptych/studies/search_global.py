"""Random search over AdamW's five global values, by any number of processes that join one study by its name.

    search = Search(name="base", storage="sqlite:///search.db")
    random_search(search, evaluate, num_trials=200)      # the same line in every process, again after an interruption
    found = retest(search, evaluate)[0]                  # the best few once more, with fresh seeds

Random points, not a model's proposals: they need nobody's results, so processes never wait for each other, and what
they leave behind shows the whole landscape (landscape.py) and not one valley of it.

A run that diverged is a result: it is complete, with a loss of inf. One that was interrupted is none: the budget counts
complete trials, so others take its place.
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

if TYPE_CHECKING:  # a landscape is drawn from records alone, and needs no torch for it
    from triptych.training.config import RunConfig

Evaluate = Callable[[dict[str, float], int], float]
"""From the values and a seed to a loss; not finite if the run diverged."""

_POINTS, _RUNS, _RETESTS = 0, 1, 2  # what a seed is drawn for; no two share one
_OPENING_ATTEMPTS = 6


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """From, to: each is drawn evenly on a logarithmic scale."""

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
    """One study, as every process that joins it describes it."""

    name: str
    storage: str
    """The URL of a database (sqlite:///search.db, postgresql://...), or a path: then a journal file, which is the one
    for nodes that share a file system and no database."""
    ranges: Ranges = field(default_factory=Ranges)
    seed: int = 0
    grace_seconds: int = 300
    """Without a sign of life after which a database calls a running trial failed. A journal never does."""

    def __post_init__(self) -> None:
        if self.seed < 0 or self.grace_seconds < 2:
            raise UserError("a search needs a seed that is not negative, and at least 2 grace_seconds.")


def needed(module: str) -> ModuleType:
    """A package of the extra `hpo`."""
    return require(module, "hpo", "the hyperparameter search")


def tuned(config: "RunConfig", values: Mapping[str, float], seed: int) -> "RunConfig":
    """A run with the values of a trial. The seed decides the first weights, and which batches and masks it sees."""
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
    """Go on until the study has that many complete trials, of all processes; returns their records.

    A process looks before each trial whether more are needed: when the last ones are under way everywhere, there may be
    one too many for each process but the first.
    """
    optuna = needed("optuna")
    study = _join(search)
    returned: set[int] = set()

    def objective(trial: Any) -> float:
        # By its number: no two processes draw the same point, and a study's points do not depend on how many there are.
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
            report(
                "the last trial came too late: this process gave no sign of life for long, and it was called failed."
            )
    return records_of(search)


def records_of(search: Search) -> list[dict[str, Any]]:
    """What a study has found so far, as plain JSON: a loss that is not finite is None."""
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
    """The trial's, or that of a point that was given."""
    values: dict[str, float]
    first_loss: float
    """What it was chosen for: of many noisy results the lowest is low by luck, too, so it says nothing more."""
    losses: tuple[float, ...]
    """With fresh seeds, the same for every candidate."""

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
    """Run the best trials, and points that something else proposes, with seeds that no trial had; the best mean first.

    Each run is kept with the study as it ends, so an interrupted re-test goes on where it was. One process is enough:
    two would do the same runs.
    """
    if min(top, num_seeds) < 1:
        raise UserError(f"a re-test needs at least one trial and one seed, got top={top} and num_seeds={num_seeds}.")
    study = _join(search)
    finite = sorted((t for t in _complete(study) if math.isfinite(t.value)), key=lambda t: (t.value, t.number))
    if not finite:
        raise UserError(
            f"study {search.name!r} has no complete trial that did not diverge: run more, or search lower rates."
        )
    seeds = [_seed(search.seed, _RETESTS, index) for index in range(num_seeds)]
    chosen = [(f"trial {trial.number}", dict(trial.params), trial.value) for trial in finite[:top]]
    chosen += [(name, dict(point), math.nan) for name, point in (points or {}).items()]
    found = []
    for name, values, first_loss in chosen:
        for seed in seeds:
            if _key(values, seed) not in study.user_attrs:
                study.set_user_attr(_key(values, seed), _loss(evaluate, values, seed))
        kept = study.user_attrs
        found.append(Candidate(name, values, first_loss, tuple(kept[_key(values, seed)] for seed in seeds)))
    return sorted(found, key=lambda candidate: candidate.loss)


def _loss(evaluate: Evaluate, values: dict[str, float], seed: int) -> float:
    """inf for all that is not a finite number: optuna takes inf as a result, but NaN as a failure."""
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
    complete = needed("optuna.trial").TrialState.COMPLETE
    return study.get_trials(deepcopy=False, states=(complete,))


def _join(search: Search) -> Any:
    """The optuna study, new or as it is."""
    optuna = needed("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # `report` says what there is to say
    study = optuna.create_study(
        study_name=search.name,
        storage=_open(search),
        sampler=optuna.samplers.RandomSampler(seed=0),  # each trial brings its own
        load_if_exists=True,
    )
    wanted = {"seed": search.seed, "ranges": {name: list(pair) for name, pair in asdict(search.ranges).items()}}
    began_with = study.user_attrs.get("search", wanted)
    if began_with != wanted:
        raise UserError(
            f"study {search.name!r} began with {began_with}, and cannot go on with {wanted}: choose another name."
        )
    study.set_user_attr("search", wanted)
    return study


def _open(search: Search) -> Any:
    optuna = needed("optuna")
    if "://" not in search.storage:
        Path(search.storage).parent.mkdir(parents=True, exist_ok=True)
        backend = optuna.storages.journal.JournalFileBackend(search.storage)
        return optuna.storages.JournalStorage(backend)
    sqlalchemy = needed("sqlalchemy")
    # A database file is locked while one process writes: the others wait, instead of failing after five seconds.
    options = {"connect_args": {"timeout": 60}} if search.storage.startswith("sqlite") else {}
    for attempt in range(_OPENING_ATTEMPTS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # heartbeats are
                return optuna.storages.RDBStorage(
                    search.storage,
                    engine_kwargs=options,
                    heartbeat_interval=max(1, search.grace_seconds // 5),
                    grace_period=search.grace_seconds,
                )
        except sqlalchemy.exc.DBAPIError as error:  # two processes may create the tables at once: look again
            if attempt == _OPENING_ATTEMPTS - 1:
                shown = sqlalchemy.engine.make_url(search.storage).render_as_string(hide_password=True)
                raise UserError(f"the database {shown} cannot be opened ({error.orig}).") from error
            time.sleep(0.1 * 2**attempt)
        except (sqlalchemy.exc.ArgumentError, ImportError, ValueError) as error:
            kind = search.storage.partition("://")[0]  # a whole URL may hold a password
            raise UserError(
                f"a database {kind}://... cannot be opened ({error.args[0]}): expected sqlite:///FILE, the URL of one "
                "whose driver is installed, or a path for a journal file."
            ) from error
    raise AssertionError("unreachable")
