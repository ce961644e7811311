"""The search per module improves, rarely accepts noise, and is a function of its records."""

import contextlib
import itertools
import json
import math
import random
import statistics
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from triptych.errors import DataError, UserError
from triptych.model.transformer import ModelConfig, Transformer, tagged_parameters
from triptych.recipes import recipe
from triptych.studies.compare_tables import compare, paired_gain
from triptych.studies.search_modules import INCUMBENT, VALUES, ModuleSearch, SearchState, replay, search_modules
from triptych.studies.table_runs import Evaluate, with_table
from triptych.transfer.groups import build_param_groups
from triptych.transfer.per_module import MULTIPLIER_TABLES, Multipliers, MultiplierTable, load_multiplier_table
from triptych.utils.config import override
from triptych.utils.trials import TrialRecords
from triptych.vocab import Vocabulary

ROLES = ("embed", "mlp_fc1", "norm1")
TARGETS = np.random.default_rng(5).uniform(-math.log(3), math.log(3), (len(ROLES) + 2, len(VALUES)))
NOISE = 0.15


def searching(**changes: object) -> ModuleSearch:
    return ModuleSearch(**{"roles": ROLES, "beta1": 0.9, "beta2": 0.95, **changes})  # type: ignore[arg-type]


def logs(table: MultiplierTable) -> np.ndarray:
    rows = [table.roles[role] for role in ROLES] + list(table.depth)
    return np.log([[getattr(row, name) for name in VALUES] for row in rows])


def true_loss(table: MultiplierTable) -> float:
    """Each multiplier has its own best value; without multipliers it is about 15."""
    return float(((logs(table) - TARGETS) ** 2).sum())


def drawn(table: MultiplierTable, seed: int) -> float:
    """Noise that is another for every table and every seed, and the same every time."""
    return float(np.random.default_rng([seed, zlib.crc32(logs(table).tobytes())]).standard_normal())


def separable(table: MultiplierTable, seed: int) -> float:
    return true_loss(table) + NOISE * drawn(table, seed)


def play(
    search: ModuleSearch, evaluate: Callable[[MultiplierTable, int], float], num_rounds: int
) -> tuple[SearchState, list[dict]]:
    """The search without files."""
    records: list[dict] = []
    while len((now := replay(search, records)).rounds) < num_rounds:
        for trial in now.wanted:
            loss = evaluate(search.table(np.array(trial.settings["x"])), trial.settings["seed"])
            records.append({"key": trial.key, **trial.settings, "loss": loss if math.isfinite(loss) else None})
    return now, records


def same(one: SearchState, other: SearchState) -> bool:
    return np.array_equal(one.incumbent, other.incumbent) and (one.radius, one.rounds, one.wanted) == (
        other.radius, other.rounds, other.wanted
    )  # fmt: skip


def test_a_noisy_separable_function_is_improved() -> None:
    before = true_loss(searching().table(searching().zeros))
    for seed in range(3):
        search = searching(seed=seed)
        now, records = play(search, separable, 15)
        assert true_loss(search.table(now.incumbent)) < 0.4 * before
        # Each accepted proposal was better in truth, too, but for one accident.
        steps = [before] + [true_loss(search.table(x)) for x in _incumbents(now, records)]
        falls = [later < earlier for earlier, later in itertools.pairwise(steps)]
        assert len(falls) >= 4
        assert sum(falls) >= len(falls) - 1
        assert now.losses[-1] == pytest.approx(true_loss(search.table(now.incumbent)), abs=3 * NOISE)


def _incumbents(now: SearchState, records: list[dict]) -> list[np.ndarray]:
    by_key = {record["key"]: np.array(record["x"]) for record in records}
    return [by_key[f"round{each.number}-{each.accepted}-0"] for each in now.rounds if each.accepted is not None]


def test_noise_is_rarely_accepted() -> None:
    """Accepting the best proposal without a retest would accept one in most rounds."""
    accepted = naive = rounds = 0
    for seed in range(16):
        now, _ = play(searching(seed=seed), drawn, 8)
        rounds += len(now.rounds)
        accepted += sum(each.accepted is not None for each in now.rounds)
        naive += sum(min(each.losses) < np.mean(each.retests[INCUMBENT]) - each.margin for each in now.rounds)
    assert naive > 0.5 * rounds
    assert accepted < 0.25 * rounds


def test_the_mean_of_good_proposals_makes_more_progress() -> None:
    """Without it, the same number of rounds ends at a higher loss."""
    ends: dict[int, list[float]] = {1: [], 4: []}
    for num_mixed, found in ends.items():
        for seed in range(4):
            search = searching(seed=seed, num_mixed=num_mixed)
            found.append(true_loss(search.table(play(search, separable, 15)[0].incumbent)))
    assert statistics.mean(ends[4]) < 0.8 * statistics.mean(ends[1])


def test_rounds_follow_the_algorithm() -> None:
    search = searching(seed=1)
    now, records = play(search, separable, 10)
    losses = {record["key"]: record["loss"] for record in records}
    points = {record["key"]: np.array(record["x"]) for record in records}
    radius, incumbent, groups_of_losses = math.log(1.5), search.zeros, []
    assert {each.accepted is None for each in now.rounds} == {True, False}
    for number, each in enumerate(now.rounds):
        assert each.radius == pytest.approx(radius)
        assert each.losses == tuple(losses[f"round{number}-{index}"] for index in range(16))
        best = sorted(range(16), key=lambda index: each.losses[index])
        assert list(each.retests) == [INCUMBENT, "best", "mean", "twice"]
        assert np.array_equal(points[f"round{number}-{INCUMBENT}-1"], incumbent)
        assert np.array_equal(points[f"round{number}-best-0"], points[f"round{number}-{best[0]}"])
        step = np.mean([points[f"round{number}-{index}"] - incumbent for index in best[:4]], axis=0)
        assert points[f"round{number}-mean-0"] == pytest.approx(incumbent + step, abs=1e-5)
        assert points[f"round{number}-twice-2"] == pytest.approx(search.clip(incumbent + 2 * step), abs=1e-5)
        groups_of_losses += [list(group) for group in each.retests.values()]
        squares = sum(statistics.variance(group) * (len(group) - 1) for group in groups_of_losses)
        std = math.sqrt(squares / sum(len(group) - 1 for group in groups_of_losses))
        assert each.margin == pytest.approx(1.5 * std * math.sqrt(2 / 3))
        means = {name: statistics.fmean(group) for name, group in each.retests.items()}
        top = min(("best", "mean", "twice"), key=means.__getitem__)
        if means[top] < means[INCUMBENT] - each.margin:
            assert each.accepted == top
            incumbent, radius = points[f"round{number}-{top}-0"], min(1.25 * radius, math.log(3))
        else:
            assert each.accepted is None
            radius = max(0.75 * radius, math.log(1.05))
    assert now.radius == pytest.approx(radius)
    assert np.array_equal(now.incumbent, incumbent)
    # Runs that are compared share a seed, and no seed serves twice.
    seeds = {record["key"]: record["seed"] for record in records}
    for number, each in enumerate(now.rounds):
        assert len({seeds[f"round{number}-{index}"] for index in range(16)}) == 1
        again = [[seeds[f"round{number}-{name}-{k}"] for k in range(3)] for name in each.retests]
        assert all(each == again[0] for each in again)
        assert len({*again[0], seeds[f"round{number}-0"]}) == 4
    assert len(set(seeds.values())) == 10 * 4


def test_a_search_is_a_function_of_its_records() -> None:
    search = searching(seed=2)
    now, records = play(search, separable, 4)
    shuffled = json.loads(json.dumps(records))
    random.Random(0).shuffle(shuffled)
    assert same(replay(search, shuffled), now)
    twice = shuffled + [{**record, "loss": -100.0} for record in records]  # the first result of a trial counts
    assert same(replay(search, twice), now)
    again, _ = play(search, separable, 4)
    assert same(again, now)
    other, _ = play(searching(seed=3), separable, 4)
    assert not np.array_equal(other.incumbent, now.incumbent)


class Interrupted:
    """Runs that count, and stop the process after some."""

    def __init__(self, evaluate: Evaluate, after: int):
        self.evaluate, self.left, self.seen = evaluate, after, Counter[tuple[str, int]]()

    def __call__(self, table: MultiplierTable, seed: int) -> float:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        self.seen[logs(table).tobytes().hex(), seed] += 1
        return self.evaluate(table, seed)


SMALL: dict[str, object] = {"num_proposals": 5, "num_mixed": 2, "num_retest_seeds": 2, "seed": 4}


def test_an_interrupted_search_resumes_to_the_same_result(tmp_path: Path) -> None:
    search = searching(**SMALL)
    whole, records = play(search, separable, 4)
    seen: Counter = Counter()
    for after in (0, 2, 1, 7, 5, 4, 1000):  # amid the start, proposals and re-tests
        run = Interrupted(separable, after)
        with contextlib.suppress(KeyboardInterrupt):
            now = search_modules(search, run, tmp_path, 4, lambda line: None, wait_seconds=0.01)
        seen += run.seen
    assert same(now, whole)
    assert len(seen) == len(records) == 4 * (5 + 4 * 2)
    assert set(seen.values()) == {1}, "a run was repeated"
    assert same(replay(search, TrialRecords(tmp_path)), whole)


def test_processes_share_the_runs_of_a_round(tmp_path: Path) -> None:
    search = searching(**SMALL)
    whole, records = play(search, separable, 3)
    runs = [Interrupted(separable, 1000) for _ in range(2)]
    found: dict[int, SearchState] = {}
    lines: list[str] = []

    def work(index: int) -> None:
        found[index] = search_modules(search, runs[index], tmp_path, 3, lines.append, wait_seconds=0.01)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=100)
    assert same(found[0], whole)
    assert same(found[1], whole)
    total = runs[0].seen + runs[1].seen
    assert set(total.values()) == {1}
    assert len(total) == len(records)
    assert min(len(run.seen) for run in runs) > 2, "one process did all runs"
    assert sum(line.startswith("round 2, region") for line in lines) == 2


def test_records_of_another_search_are_refused(tmp_path: Path) -> None:
    search_modules(searching(**SMALL), separable, tmp_path, 1, lambda line: None)
    for other in (searching(**{**SMALL, "seed": 5}), searching(**SMALL, roles=("embed", "mlp_fc1"))):
        with pytest.raises(DataError, match="another search"):
            replay(other, TrialRecords(tmp_path))


def test_diverged_candidates_are_never_accepted() -> None:
    """A cliff right beside the start, in a direction that otherwise pays off."""
    column, row = VALUES.index("lr"), 0

    def cliff(table: MultiplierTable, seed: int) -> float:
        x = logs(table)
        if x[row, column] > 0.1:
            return [math.nan, math.inf][seed % 2]
        return separable(table, seed) - 5 * x[row, column]

    search = searching(seed=6)
    now, records = play(search, cliff, 8)
    assert sum(record["loss"] is None for record in records) > 20
    assert now.incumbent[row, column] <= 0.1
    assert any(each.accepted is not None for each in now.rounds)
    assert all(np.isfinite(each.retests[each.accepted]).all() for each in now.rounds if each.accepted is not None)


def test_all_proposals_diverged_shrinks_the_region_and_a_diverged_start_is_replaced() -> None:
    search = searching(**SMALL)
    now, records = play(search, lambda table, seed: 1.0 if np.allclose(logs(table), 0) else math.inf, 2)
    assert [each.accepted for each in now.rounds] == [None, None]
    assert all(not each.retests for each in now.rounds)
    assert len(records) == 2 * 5
    assert now.radius == pytest.approx(0.75**2 * math.log(1.5))
    assert np.array_equal(now.incumbent, search.zeros)

    now, _ = play(search, lambda table, seed: math.inf if np.allclose(logs(table), 0) else 2.0, 1)
    assert now.rounds[0].accepted is not None
    assert now.losses == [2.0]


@pytest.mark.parametrize(
    ("betas", "start"),
    [((0.9, 0.95), MultiplierTable()), ((0.5, 0.2), MultiplierTable()), ((0.9, 0.95), MULTIPLIER_TABLES["paper"])],
)
def test_no_proposal_leaves_the_bounds_or_makes_a_beta_negative(betas, start) -> None:
    roles = tuple(MULTIPLIER_TABLES["paper"].roles)
    search = ModuleSearch(roles=roles, beta1=betas[0], beta2=betas[1], start=start, radius=2.0, num_proposals=30)
    limits_met = 0
    for x in search.proposals(0, search.zeros, search.radius):
        table = search.table(x)
        assert (x <= math.log(32) + 1e-6).all()
        free = [index for index, name in enumerate(VALUES) if not name.startswith("alpha")]
        assert (x[:, free] >= -math.log(32) - 1e-6).all()
        for role in roles:
            for layer in (None, 0, 1):
                own = table.at(role, layer, 2)
                for forgets in (own.alpha1 * (1 - betas[0]), own.alpha2 * (1 - betas[1])):
                    assert forgets < 0.991
                    limits_met += forgets > 0.98
    assert limits_met > 0, "the limit was never reached, so nothing was tested"


def test_multipliers_apply_on_top_of_the_start_table() -> None:
    start = MULTIPLIER_TABLES["scenes"]
    search = ModuleSearch(roles=("embed_text", "attn_qkv"), beta1=0.9, beta2=0.98, start=start)
    unchanged = search.table(search.zeros)
    for role in ("embed_text", "embed_image", "unembed_text", "unembed_norm", "attn_qkv"):
        assert unchanged.at(role, 1, 2) == start.at(role, 1, 2), role
    x = search.zeros
    x[0, VALUES.index("lr")] = math.log(2)
    x[3, VALUES.index("eps")] = math.log(3)
    text = search.table(x).at("embed_text", None, 2)
    assert (text.lr, text.init) == pytest.approx((40.0, 20.0))
    assert search.table(x).at("embed_image", None, 2) == start.roles["embed"]
    assert search.table(x).at("attn_qkv", 1, 2).eps == pytest.approx(3.0)
    assert search.table(x).at("attn_qkv", 0, 2).eps == 1.0
    assert (
        ModuleSearch(roles=("norm1",), beta1=0.9, beta2=0.95, start=MULTIPLIER_TABLES["paper"])
        .table(x[:3] * 0)
        .decays_all
    )
    with pytest.raises(UserError, match="parts of the depth"):
        ModuleSearch(roles=("norm1",), beta1=0.9, beta2=0.95, start=MULTIPLIER_TABLES["paper"], depth_bins=3)


def test_a_table_is_saved_loaded_and_used_by_a_run(tmp_path: Path) -> None:
    nano = override(recipe("nano"), ["model.width=16", "model.num_heads=2", "model.d_ff=24"])
    model = Transformer(nano.resolved.scaled_shape, Vocabulary(text=11, image=7, audio=5))
    roles = tuple(dict.fromkeys(weight.role for weight in tagged_parameters(model)))
    search = ModuleSearch(roles=roles, beta1=nano.optimizer.beta1, beta2=nano.optimizer.beta2, num_proposals=3)
    assert search.zeros.shape == (len(roles) + 2, 6)
    table = search.table(search.proposals(0, search.zeros, search.radius)[0])
    path = tmp_path / "found.json"
    table.save(path)
    assert load_multiplier_table(str(path)) == table
    run = override(nano, [f"transfer.per_module={path}"])
    assert run.transfer.table == table
    assert len(build_param_groups(run.resolved, tagged_parameters(model))) > len(roles)

    changed = replace(nano, transfer=replace(nano.transfer, multipliers={"embed": {"lr": 7.0}}))
    mine = with_table(changed, table, seed=3, folder=tmp_path / "tables")
    assert mine.transfer.table == table
    assert (mine.seed, mine.loader.seed) == (3, 3)
    assert mine == with_table(changed, table, seed=3, folder=tmp_path / "tables")
    assert len(list((tmp_path / "tables").iterdir())) == 1


def test_a_comparison_uses_the_same_fresh_seeds(tmp_path: Path) -> None:
    search = searching(**SMALL)
    found = search.table(np.clip(TARGETS, -1, 1))
    seeds = Counter[int]()

    def run(table: MultiplierTable, seed: int) -> float:
        """What the seed does is the same for both, and larger than what the table does."""
        seeds[seed] += 1
        shared = np.random.default_rng(seed).normal(0, 5)
        return true_loss(table if table.roles else search.table(search.zeros)) + shared + 0.01 * np.sin(seed)

    def comparison(**tables: MultiplierTable) -> dict:
        return compare(tables, run, tmp_path, num_seeds=6, report=lambda line: None)

    result = comparison(none=MultiplierTable(), found=found)
    truth = true_loss(search.table(search.zeros)) - true_loss(found)
    assert set(seeds.values()) == {2}
    assert len(seeds) == 6
    paired = paired_gain(result["found"], result["none"])
    assert paired.mean == pytest.approx(truth)
    assert paired.standard_error < 1e-6 < 0.5 < result["found"].standard_error
    assert result["none"].mean - result["found"].mean == pytest.approx(truth)
    assert result["found"].standard_error == pytest.approx(statistics.stdev(result["found"].losses) / math.sqrt(6))
    searched = {record["seed"] for record in play(search, separable, 2)[1]}
    assert not searched & set(seeds)
    # Done once, it is read and not run again; another table is another comparison.
    assert comparison(none=MultiplierTable(), found=found) == result
    assert sum(seeds.values()) == 12
    comparison(none=MultiplierTable(), found=search.table(search.zeros + 0.1))
    assert sum(seeds.values()) == 18  # those of "none" are there


def test_a_comparison_reports_diverged_runs(tmp_path: Path) -> None:
    tables = {"none": MultiplierTable(), "found": MultiplierTable({"embed": Multipliers(lr=100.0)})}
    result = compare(tables, lambda t, seed: math.inf if t.roles else 1.0, tmp_path, 3, report=lambda line: None)
    assert (result["found"].num_diverged, result["none"].num_diverged) == (3, 0)
    assert result["found"].mean == math.inf
    assert paired_gain(result["found"], result["none"]).mean == -math.inf
    assert math.isnan(result["found"].standard_error)
    with pytest.raises(UserError, match="at least 2 seeds"):
        compare(tables, separable, tmp_path, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"roles": ()}, "needs roles"),
        ({"roles": ("embed", "embed")}, "without duplicates"),
        ({"num_proposals": 0}, "at least 1"),
        ({"num_retest_seeds": 1}, "at least 2"),
        ({"beta1": 1.0}, r"\[0, 1\)"),
        ({"beta1": 0.0}, "beta below 0.01"),
        ({"start": MultiplierTable({"embed": Multipliers(alpha1=12.0)})}, "beta below 0.01"),
        ({"seed": -1}, "negative"),
    ],
)
def test_wrong_settings_are_refused(changes, message) -> None:
    with pytest.raises(UserError, match=message):
        searching(**changes)


def test_roles_of_the_papers_table_are_roles_of_the_model() -> None:
    """The roles of its table are roles of the model."""
    shape = ModelConfig(num_layers=2, width=16, num_heads=2, d_ff=24)
    model = Transformer(shape, Vocabulary(text=11, image=7, audio=5))
    assert {weight.role for weight in tagged_parameters(model)} == set(MULTIPLIER_TABLES["paper"].roles)
