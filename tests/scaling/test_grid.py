"""IsoFLOP grids: every run costs its budget by exact counts, with transferred hyperparameters."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.model.flops import count_parameters, flops
from triptych.recipes import recipe
from triptych.recipes.proxy import proxy_of_width, proxy_per_module
from triptych.scaling.family import ModelFamily, family_members, model_family
from triptych.scaling.grid import GridPoint, LengthStats, budgets_between, grid_point, isoflop_grid
from triptych.scaling.law import JOINT, Law
from triptych.scaling.optimal import Frontier
from triptych.scaling.published import CHINCHILLA, PAPER
from triptych.scaling.queue import grid_run, read_grid, write_grid
from triptych.utils.config import override
from triptych.vocab import paper_vocabulary

VOCABULARY = paper_vocabulary()
LENGTHS = LengthStats(mean=2100.0, context=2600.0)
MEMBERS = family_members("paper_3b")


def test_the_papers_grid() -> None:
    points = isoflop_grid(MEMBERS, VOCABULARY, LENGTHS, budgets_between(5e18, 1e22, 24), max_sizes=11)
    assert 250 <= len(points) <= 264  # the paper: 262
    assert len({point.budget for point in points}) == 24
    assert len({point.key for point in points}) == len(points)
    for point in points:
        model = point.config.model
        assert model.width == 128 * model.num_layers
        assert count_parameters(model, VOCABULARY).blocks == point.N
        assert pytest.approx(point.D * flops(model, VOCABULARY, LENGTHS.context).training) == point.C
        assert pytest.approx(point.budget, rel=0.002) == point.C  # steps are whole
        assert 1 <= point.tokens_per_parameter <= 2000
        assert point.config.num_steps * point.config.loader.global_batch * LENGTHS.mean == point.D


def test_hyperparameters_are_transferred() -> None:
    for point in isoflop_grid(MEMBERS, VOCABULARY, LENGTHS, [1e20], max_sizes=5):
        resolved = point.config.resolved
        assert resolved.kappa == pytest.approx(1, abs=0.01)
        assert point.config.transfer.per_module == "none"
        assert resolved.ratios[0] == point.config.model.width / 1024


def test_warm_up_of_the_papers_runs_is_1000_steps_or_a_quarter() -> None:
    for point in isoflop_grid(MEMBERS, VOCABULARY, LENGTHS, [5e18, 1e20, 1e22], max_sizes=5):
        assert point.config.warmup_steps == 1000
    short = grid_point(MEMBERS[7], VOCABULARY, LENGTHS, 1e17)
    assert short is not None
    assert short.config.num_steps < 4000
    assert short.config.warmup_steps == short.config.num_steps // 4


def test_scaled_proxies_warm_up_for_the_share_of_the_tuned_run() -> None:
    """50 of 400 steps, the setting that the proxy was tuned with."""
    for width, budget in ((16, 1e11), (64, 1e12), (160, 2e13)):
        point = grid_point(proxy_of_width(proxy_per_module(), width), VOCABULARY, LengthStats(30.0, 40.0), budget)
        assert point is not None
        assert point.config.warmup_steps == point.config.num_steps // 8


def test_multipliers_per_module_are_a_setting_of_the_family() -> None:
    family = model_family("aspect_8", ["transfer.per_module=paper", "optimizer.warmup_steps=200"])
    (point, *_) = isoflop_grid(family.members, VOCABULARY, LENGTHS, [1e20], max_sizes=1)
    assert {"transfer.per_module=paper", "optimizer.warmup_steps=200"} <= set(grid_run(point).changes)
    assert point.config.warmup_steps == 200


def test_few_sizes_are_spread_over_the_range() -> None:
    every = [point.N for point in isoflop_grid(MEMBERS, VOCABULARY, LENGTHS, [1e20])]
    few = [point.N for point in isoflop_grid(MEMBERS, VOCABULARY, LENGTHS, [1e20], max_sizes=4)]
    assert len(few) == 4
    assert (few[0], few[-1]) == (every[0], every[-1])
    steps = np.diff(np.log(few))
    assert steps.max() < 1.5 * steps.min()


def test_budgets() -> None:
    assert budgets_between(1e10, 1e12, 3) == [1e10, 1e11, 1e12]
    with pytest.raises(UserError, match="not all different"):
        budgets_between(1e18, 1.00001e18, 3)
    for wrong in ((1e12, 1e10, 3), (0, 1, 3), (1, 2, 1), (1, float("inf"), 3)):
        with pytest.raises(UserError, match="budgets need"):
            budgets_between(*wrong)
    with pytest.raises(UserError, match="no model of the family has 1 to 2000 tokens per parameter"):
        isoflop_grid(MEMBERS, VOCABULARY, LENGTHS, [1e9])


def test_without_a_base_batch_the_batch_of_the_recipe_is_used() -> None:
    point = grid_point(recipe("paper_base"), VOCABULARY, LENGTHS, 1e19)
    assert point is not None
    assert point.config.loader.global_batch == 256


def test_a_budget_below_a_step_has_no_run() -> None:
    assert grid_point(recipe("paper_3b"), VOCABULARY, LENGTHS, 1e6) is None


def test_shapes_of_scaled_proxies() -> None:
    shapes = [
        (run.model.num_layers, run.model.width)
        for run in (proxy_of_width(proxy_per_module(), w) for w in (16, 48, 64, 96, 160))
    ]
    assert shapes == [(1, 16), (2, 48), (2, 64), (3, 96), (5, 160)]
    with pytest.raises(UserError, match="multiple of 16, got 40"):
        proxy_of_width(proxy_per_module(), 40)


def test_a_grid_run_is_the_point_as_a_command(tmp_path: Path) -> None:
    """What `triptych train` makes of the words is the configuration that was grid_run."""
    for member in (family_members("proxy")[3], family_members("aspect_8")[3]):
        name = member.recipe
        point = grid_point(member, VOCABULARY, LENGTHS, 3e19 if name.startswith("aspect") else 1e12)
        assert point is not None
        run = grid_run(point)
        assert override(recipe(name), list(run.changes)) == point.config
        assert run.command(tmp_path)[:2] == ["train", name]
        assert run.command(tmp_path)[-2:] == ["--out", str(tmp_path / "runs" / run.name)]
        assert " " not in run.name


def test_an_existing_grid_is_not_replaced(tmp_path: Path) -> None:
    points = isoflop_grid(MEMBERS, VOCABULARY, LENGTHS, [1e19, 1e20], max_sizes=2)
    runs = [grid_run(point) for point in points]
    write_grid(tmp_path / "grid", runs)
    assert read_grid(tmp_path / "grid") == runs
    write_grid(tmp_path / "grid", runs)
    with pytest.raises(UserError, match="holds another grid"):
        write_grid(tmp_path / "grid", runs[:-1])
    with pytest.raises(UserError, match="holds no grid"):
        read_grid(tmp_path)
    (tmp_path / "grid" / "grid.json").write_text('{"runs": [{"key": "a"}]}')
    with pytest.raises(UserError, match="is not a grid"):
        read_grid(tmp_path / "grid")


def test_grids_of_earlier_versions_load(tmp_path: Path) -> None:
    """They name the recipe and its table `family`, and have old keys."""
    point = grid_point(override(family_members("proxy")[3], ["complementary_masks=true"]), VOCABULARY, LENGTHS, 1e12)
    assert point is not None
    run = grid_run(point)
    changes = [change.replace("per_module=proxy", "per_module=family") for change in run.changes]
    changes = [change.replace("complementary_masks", "antimask") for change in changes]
    assert {"transfer.per_module=family", "antimask=true"} <= set(changes)
    old = {"runs": [{**asdict(run), "recipe": "family", "changes": [*changes, "world=scenes"]}]}
    (tmp_path / "grid.json").write_text(json.dumps(old))
    assert read_grid(tmp_path) == [run]
    write_grid(tmp_path, [run])  # the same grid
    assert json.loads((tmp_path / "grid.json").read_text()) == old


def test_fields_set_by_the_budget_cannot_be_changed() -> None:
    with pytest.raises(UserError, match="num_steps follows from the budget"):
        model_family("aspect_8", ["num_steps=10"])


@pytest.mark.parametrize(("recipe", "budget"), [("aspect_8", 1e20), ("aspect_8", 3e22), ("proxy", 1e13)])
def test_the_nearest_model_for_a_budget_has_the_lowest_loss(recipe: str, budget: float) -> None:
    """Checked with the exact FLOPs of every model and the law itself."""
    family = model_family(recipe)
    sizes, tokens = np.array(family.sizes, float), budget / np.array(family.exact_flops)
    for law in (CHINCHILLA, Law(JOINT, E=1.5, A=2.0, B=330.0, a=0.14, b=0.17)):
        point = chosen(family, Frontier.from_law(law), budget)
        assert point is not None
        losses = law.excess(sizes, tokens)
        assert losses[family.sizes.index(point.N)] <= 1.002 * losses.min()  # CPU sizes lie a factor of two apart
    assert recipe == "proxy" or chosen(family, PAPER, 1e12) is None


def chosen(family: ModelFamily, frontier: Frontier, budget: float) -> GridPoint | None:
    best = frontier.optimum(budget, family.flops_per_token)
    assert best is not None
    return family.nearest(best, frontier)


def test_complementary_masks_double_the_cost() -> None:
    plain, twice = model_family("aspect_8"), model_family("aspect_8", ["complementary_masks=true"])
    assert twice.exact_flops == pytest.approx([2 * each for each in plain.exact_flops])
    one, two = chosen(plain, PAPER, 1e20), chosen(twice, PAPER, 2e20)
    assert one is not None
    assert two is not None
    assert (two.N, pytest.approx(two.D, rel=1e-3)) == (one.N, one.D)
    for point in (one, two):
        assert point.config.resolved.kappa == pytest.approx(1, rel=0.01)
