"""Claims of studies: on records with a planted truth, each verdict is the right one."""

import math
from functools import partial

import numpy as np
import pytest

from triptych.recipes.proxy import proxy
from triptych.scaling.fit import compare, fit
from triptych.scaling.law import ADDITIVE, JOINT, Law
from triptych.scaling.parabola import ParabolaMinimum
from triptych.scaling.runs import Runs, runs_from_columns
from triptych.studies import batch_size, coordinates, gamma, lr_transfer, modules, scaling_claims, search
from triptych.studies.base import Claim
from triptych.transfer.per_module import MULTIPLIER_TABLES, Multipliers, MultiplierTable

from .test_studies import options


def verdicts(claims: list[Claim]) -> list[str]:
    for claim in claims:
        assert claim.paper.endswith(".")
        assert claim.place.startswith(("Figure ", "Table ", "Section ", "Equation "))
    return [claim.verdict for claim in claims]


# -- coordinates ------------------------------------------------------------------------------------------------------


def coordinate_records(power: float, noise: float, seeds: int) -> list[dict]:
    """Both rules grow as width^power; every seed has a power of its own."""
    rng = np.random.default_rng(0)
    powers = power + noise * rng.standard_normal(seeds)
    records = []
    for trial in coordinates.trials(options(coordinates, "--steps", "2", "--seeds", str(seeds)), proxy()):
        settings = trial.settings
        size = settings[settings["axis"]] ** powers[settings["seed"]]
        rows = [
            {"steps": steps, "part": part, "size": size, "change": size}
            for steps in range(3)
            for part in coordinates.PARTS
        ]
        records.append({"key": trial.key, **settings, "sizes": rows})
    return records


@pytest.mark.parametrize(
    ("power", "noise", "seeds", "expected"),
    [(0.01, 0.005, 4, "agrees"), (0.5, 0.01, 4, "disagrees"), (0.08, 0.05, 3, "undecided"), (0.0, 0.0, 1, "undecided")],
)
def test_flat_and_growing_activations(power: float, noise: float, seeds: int, expected: str) -> None:
    claims = coordinates.claims(coordinate_records(power, noise, seeds))
    assert verdicts(claims) == [expected]
    assert claims[0].place == "Section 4"


# -- learning rates ---------------------------------------------------------------------------------------------------


def rate_records(shift: float, noise: float, seeds: int) -> list[dict]:
    """With the rule the best rate of four times the width is 2^shift times the proxy's; without it, a quarter."""
    rng, base = np.random.default_rng(1), proxy().optimizer.lr
    records = []
    for trial in lr_transfer.trials(options(lr_transfer, "--depths", "2", "--seeds", str(seeds)), proxy()):
        settings = trial.settings
        moved = 0.0 if settings["width"] == 64 else shift if settings["rule"] == "completed_p" else -2.0
        loss = 1 + 0.1 * (math.log2(settings["lr"] / base) - moved) ** 2
        loss *= math.exp(noise * rng.standard_normal())
        records.append({"key": trial.key, **settings, "loss": loss, "base_shape": [64, 2]})
    return records


@pytest.mark.parametrize(
    ("shift", "noise", "seeds", "expected"),
    [
        (0.0, 0.002, 2, "agrees"),
        (2.0, 0.002, 2, "disagrees"),
        (0.5, 0.2, 2, "undecided"),
        (0.0, 0.002, 1, "undecided"),
    ],
)
def test_the_best_rate_of_larger_models(shift: float, noise: float, seeds: int, expected: str) -> None:
    records = rate_records(shift, noise, seeds)
    assert verdicts(lr_transfer.claims(records)) == [expected]
    if noise < 0.1:
        assert lr_transfer.shifts(records, "completed_p")[256, 2].value == pytest.approx(shift, abs=0.2)
        assert lr_transfer.shifts(records, "standard")[256, 2].value == pytest.approx(-2, abs=0.2)


def test_the_proxy_is_known_from_the_records() -> None:
    records = rate_records(0.0, 0.0, 1)
    assert lr_transfer.base_shape(records) == (64, 2)
    assert lr_transfer.base_shape([{**record, "base_shape": [256, 2]} for record in records]) == (256, 2)
    older = [{name: value for name, value in record.items() if name != "base_shape"} for record in records]
    assert lr_transfer.base_shape(older) == (64, 2)


# -- batch sizes ------------------------------------------------------------------------------------------------------


def batch_records(slope: float, valley: float, noise: float, seeds: int = 3) -> list[dict]:
    """Below a critical batch of 40 the loss with the rule changes by `slope` per factor of 2."""
    rng = np.random.default_rng(2)
    records = []
    for trial in batch_size.trials(options(batch_size, "--seeds", str(seeds)), proxy()):
        settings, total = trial.settings, trial.settings["tokens"] * 16 * 400
        steps = round(total / settings["batch"])
        loss = 0.5 + math.log1p(0.1 * (total / 40 / steps) ** 4) + noise * rng.standard_normal()
        loss += slope * math.log2(settings["batch"] / 2)
        if settings["way"] == "none":
            loss += valley * math.log2(settings["batch"] / 16) ** 2
        records.append({"key": trial.key, **settings, "loss": loss, "num_steps": steps})
    return records


@pytest.mark.parametrize(
    ("slope", "valley", "noise", "expected"),
    [
        (0.0, 0.1, 0.003, ["agrees", "agrees", "agrees"]),
        (-0.1, 0.1, 0.003, ["disagrees", "agrees", "agrees"]),
        (0.0, 0.005, 0.08, ["undecided", "agrees", "undecided"]),
    ],
)
def test_a_plateau_and_a_valley(
    slope: float, valley: float, noise: float, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_size, "bootstrap", partial(batch_size.bootstrap, resamples=40))
    claims = batch_size.claims(batch_records(slope, valley, noise))
    assert {claim.place for claim in claims} == {"Figure 4"}
    assert verdicts(claims) == expected


def test_a_sweep_below_the_critical_batch_does_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "bootstrap", partial(batch_size.bootstrap, resamples=40))
    records = [record for record in batch_records(0.0, 0.1, 0.003) if record["batch"] <= 16]
    assert verdicts(batch_size.claims(records))[1] == "undecided"


def test_a_spread_has_no_interval_with_one_seed() -> None:
    by_batch = {2: [1.0], 4: [1.1], 8: [1.05]}
    spread = batch_size.spread_interval(by_batch, math.inf)
    assert spread.value == pytest.approx(0.1)
    assert math.isnan(spread.low)
    assert math.isnan(batch_size.rise_interval(by_batch, 4).low)
    # A diverged run is higher than any other.
    assert batch_size.rise_interval({**by_batch, 16: [math.inf]}, 16).low == math.inf


def test_the_interval_of_a_spread_covers_batches_that_do_not_differ() -> None:
    rng = np.random.default_rng(3)
    drawn = [{batch: list(rng.standard_normal(3)) for batch in (2, 4, 8, 16)} for _ in range(400)]
    covers = [batch_size.spread_interval(each, math.inf).low == 0 for each in drawn]
    assert 0.92 < np.mean(covers) < 0.98


# -- gamma ------------------------------------------------------------------------------------------------------------


def gamma_records(power: float, noise: float, seeds: int = 2) -> list[dict]:
    """A law whose best virtual batch grows as tokens^power."""
    rng = np.random.default_rng(4)
    words = ["--tokens", "0.5,1,2,4", "--virtual", "1,2,4,8,16,32,64,128", "--seeds", str(seeds)]
    records = []
    alpha, beta = 0.75 * power / (1 - power), 0.75
    for trial in gamma.trials(options(gamma, *words), proxy()):
        settings = trial.settings
        steps = settings["tokens"] * 16 * 400 / settings["virtual_batch"]
        bend = alpha / beta * 0.5 * (16 ** (-beta)) / (800**-alpha)
        loss = 0.3 + bend / (alpha / beta) ** 2 * steps**-alpha + 0.5 * settings["virtual_batch"] ** -beta
        loss *= math.exp(noise * rng.standard_normal())
        records.append({"key": trial.key, **settings, "loss": loss, "virtual_steps": steps})
    return records


@pytest.mark.parametrize(
    ("power", "noise", "expected"),
    [
        (0.44, 1e-4, ["agrees", "agrees", "agrees"]),
        (0.7, 1e-4, ["agrees", "disagrees", "agrees"]),
    ],
)
def test_the_exponent_of_the_virtual_batch(power: float, noise: float, expected: list[str]) -> None:
    claims = gamma.claims(gamma_records(power, noise))
    assert [claim.place for claim in claims] == ["Figure 8", "Figure 9", "Section 5.2"]
    assert verdicts(claims) == expected


def test_an_exponent_without_seeds_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gamma, "_law", lambda columns: None)
    assert verdicts(gamma.claims(gamma_records(0.44, 1e-4, seeds=1)))[:2] == ["undecided", "undecided"]


# -- searches ---------------------------------------------------------------------------------------------------------


def retests(before: float, optimum: float, noise: float) -> list[dict]:
    rng = np.random.default_rng(5)
    points = {"trial 3": 3.0, "the landscape's optimum": 3.0 + optimum, "the values before": 3.0 + before}
    return [
        {"key": f"again: {name}", "again": list(loss + noise * rng.standard_normal(8))}
        for name, loss in sorted(points.items(), key=lambda item: item[1])
    ]


@pytest.mark.parametrize(
    ("before", "optimum", "noise", "expected"),
    [
        (0.5, -0.1, 0.05, ["agrees", "agrees"]),
        (-0.5, 0.5, 0.05, ["disagrees", "disagrees"]),
        (0.0, 0.1, 0.1, ["undecided", "undecided"]),
    ],
)
def test_retests_of_a_search(before: float, optimum: float, noise: float, expected: list[str]) -> None:
    assert verdicts(search.claims(retests(before, optimum, noise))) == expected
    assert search.claims(retests(before, optimum, noise)[:1]) == []


def table_of(rates: dict[str, float]) -> MultiplierTable:
    return MultiplierTable(roles={role: Multipliers(lr=rate) for role, rate in rates.items()})


def test_ranks_of_multipliers() -> None:
    paper = MULTIPLIER_TABLES["paper"]
    rates = {role: own.lr for role, own in paper.roles.items()}
    assert modules.rank_correlation(table_of({role: 10 * rate**2 for role, rate in rates.items()}), paper).low > 0.9
    assert modules.rank_correlation(table_of({role: 1 / rate for role, rate in rates.items()}), paper).high < -0.9
    mixed = dict(zip(rates, np.random.default_rng(6).permutation(list(rates.values()))))
    drawn = modules.rank_correlation(table_of(mixed), paper)
    assert drawn.low < 0 < drawn.high
    assert math.isnan(modules.rank_correlation(table_of({}), paper).value)


# -- scaling laws -----------------------------------------------------------------------------------------------------


def scaling_verdicts(law: Law, noise: float = 0.002, edges: int = 0) -> dict[tuple[str, int], str]:
    rng = np.random.default_rng(7)
    sizes, tokens = (each.ravel() for each in np.meshgrid(np.geomspace(1e6, 1e9, 7), np.geomspace(1e8, 1e11, 7)))
    losses = law.loss(sizes, tokens) * np.exp(noise * rng.standard_normal(len(sizes)))
    table = runs_from_columns(("N", "D"), sizes, tokens, losses, 6 * sizes * tokens)
    comparison = compare(*(fit(form, table, rounds=10, hops=3) for form in (JOINT, ADDITIVE)))
    minima = [ParabolaMinimum(1.0, 1.0, is_on_edge=number < edges) for number in range(20)]
    claims = scaling_claims.scaling_claims(table, comparison.better, comparison, minima)
    numbered: dict[tuple[str, int], str] = {}
    for claim, made in zip(claims, verdicts(claims)):
        numbered[claim.place, sum(place == claim.place for place, _ in numbered)] = made
    return numbered


def test_claims_about_a_joint_law_like_the_papers() -> None:
    law = Law(JOINT, E=1.0, A=0.03, B=0.05, a=0.30, b=0.36)
    made = scaling_verdicts(law)
    assert made["Figure 11", 0] == made["Figure 11", 1] == "agrees"
    assert made["Equation 5.2", 0] == made["Equation 5.3", 0] == made["Figure 14", 0] == "agrees"


def test_claims_about_an_additive_law_with_more_tokens_for_larger_models() -> None:
    law = Law.from_raw(ADDITIVE, E=1.0, A=300.0, B=300.0, a=0.5, b=0.3)
    made = scaling_verdicts(law, edges=18)
    assert made["Figure 11", 0] == "disagrees"
    assert made["Equation 5.2", 0] == made["Equation 5.3", 0] == made["Figure 14", 0] == "disagrees"


def test_half_of_the_budgets_at_an_edge_decide_nothing() -> None:
    minima = [ParabolaMinimum(1.0, 1.0, is_on_edge=number % 2 == 0) for number in range(10)]
    assert scaling_claims._minimum_claim(minima).verdict == "undecided"


def test_the_share_of_the_loss_that_compute_explains() -> None:
    rng = np.random.default_rng(8)
    compute, other = 1e6 * np.exp(rng.uniform(0, 8, 80)), rng.uniform(0, 1, 80)
    columns = {"all": compute**-0.1, "none": np.exp(other)}
    shares = {
        name: scaling_claims.compute_share(Runs(("N", "D"), (compute, compute), losses, compute))
        for name, losses in columns.items()
    }
    assert shares["all"].low > 0.99
    assert shares["none"].high < 0.5
