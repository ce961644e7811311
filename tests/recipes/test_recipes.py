"""Every recipe builds; unknown names suggest similar ones; `key.path=value` sets fields or explains errors."""

import json
from dataclasses import replace

import pytest
import torch

from triptych.data.pack import Grouped, Packed, Padded
from triptych.diffusion.schedule import Cosine, Geometric, Linear, Polynomial
from triptych.errors import UserError
from triptych.model.transformer import Targets, Transformer, initialise
from triptych.recipes import RECIPES, recipe
from triptych.training.config import RunConfig
from triptych.utils.config import override, to_json
from triptych.vocab import Modality, Vocabulary, paper_vocabulary

ALL = [*RECIPES, "aspect_1", "aspect_4", "aspect_20"]
SMALL = Vocabulary(text=50, image=30, audio=20)


# -- recipes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_every_recipe_builds(name: str) -> None:
    run = recipe(name)
    assert run == recipe(name)
    assert run.recipe == name
    with torch.device("meta"):
        model = Transformer(run.model, paper_vocabulary())
        tokens = torch.zeros(2, 16, dtype=torch.int64)
        assert model(tokens, tokens).shape == (2, 16, run.model.width)
    assert json.loads(json.dumps(to_json(run)))["model"]["width"] == run.model.width
    assert run.model.head_width in (16, 32, 48, 64, 128)
    assert 0 < run.warmup_steps <= run.num_steps / 4


@pytest.mark.parametrize("name", ["scenes", "nano"])
def test_the_loss_of_small_recipes_falls(name: str) -> None:
    run = recipe(name)
    model = Transformer(run.model, SMALL)
    initialise(model, run.seed)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, SMALL.size, (2, 24), generator=generator)
    ids = torch.cat([torch.tensor(SMALL.data_ids(m))[:6] for m in Modality])
    targets = Targets(torch.arange(18), ids, torch.full((18,), 1 / 18), torch.full((18,), 1e-5), (6, 6, 6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    totals = []
    for _ in range(4):
        loss = model.loss(tokens, torch.arange(24).expand(2, 24), None, targets)
        loss.total.backward()
        optimizer.step()
        optimizer.zero_grad()
        totals.append(float(loss.total.detach()))
    # Untrained, each is nearly uniform over its own modality's answers.
    uniform = sum(torch.log(torch.tensor(SMALL.data_size(m) + 2.0)) for m in Modality) / 3
    assert totals[0] == pytest.approx(float(uniform), rel=0.15)
    assert totals[-1] < totals[0] - 0.1


def test_open_ends_of_a_recipe_fit_its_sequences() -> None:
    """Otherwise none of the longest would be filled, and lengths would be learnt wrongly."""
    for name in ("scenes", "nano"):
        loader = recipe(name).loader
        assert 3 + loader.open_ends.audio + loader.open_ends.text <= loader.seq_len


def test_the_papers_recipes_have_its_aspect_ratio() -> None:
    assert recipe("aspect_8").model == recipe("paper_base").model
    assert recipe("aspect_24").model == recipe("paper_3b").model
    assert (recipe("paper_base").model.d_ff, recipe("paper_3b").model.d_ff) == (1920, 5632)
    for layers in (1, 2, 5, 12, 33):
        model = recipe(f"aspect_{layers}").model
        assert (model.num_layers, model.width, model.num_heads) == (layers, 128 * layers, layers)
        assert model.d_ff % 128 == 0
        assert 0 <= model.d_ff - 2 / 3 * 2.75 * model.width < 128
    assert recipe("paper_3b").num_steps == 1_000_000


def test_the_papers_token_counts_leave_out_padding() -> None:
    """6.4T tokens of the 3B run and 13B of the base run, both without padding: kappa of the 3B run is .785."""
    base, large = recipe("paper_base"), recipe("paper_3b")
    tokens_per_sequence = 6.4e12 / (large.num_steps * large.loader.global_batch)
    assert base.num_steps * base.loader.global_batch * tokens_per_sequence == pytest.approx(13e9, rel=1e-4)
    aspect = recipe("aspect_24")
    assert aspect.transfer.base_steps == base.num_steps
    expected = (13e9 / 6.4e12) ** 0.44 * 3072 / 256
    assert expected == pytest.approx(0.785, abs=5e-4)
    for name, changes in (
        ("aspect_24", ["loader.global_batch=3072", "num_steps=1e6"]),
        ("paper_3b", ["transfer.base_batch=256", f"transfer.base_steps={base.num_steps}"]),
    ):
        assert override(recipe(name), changes).resolved.kappa == pytest.approx(expected, rel=1e-4)


def test_the_papers_recipes_use_global_hyperparameters() -> None:
    """As all its ablations and scaling runs; the multiplier table is a setting."""
    for name in ("paper_base", "paper_3b", "aspect_1", "aspect_8", "aspect_24"):
        assert recipe(name).transfer.per_module == "none"
        assert override(recipe(name), ["transfer.per_module=paper"]).transfer.table.decays_all


def test_warm_up_of_the_papers_recipes() -> None:
    assert recipe("paper_3b").warmup_steps == 2000
    assert recipe("aspect_8").warmup_steps == 1000
    assert override(recipe("aspect_8"), ["num_steps=1200"]).warmup_steps == 300  # at most a quarter


def test_the_old_name_of_the_proxy_is_accepted() -> None:
    """Grids and checkpoints of earlier versions name the recipe `family`."""
    assert recipe("family") == recipe("proxy")
    assert recipe("family").recipe == "proxy"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "scene",
            r"^unknown recipe 'scene'\. Did you mean 'scenes'\? Known: .*paper_base, proxy, scenes, scenes_full\.$",
        ),
        ("paper-base", r"Did you mean 'paper_base'"),
        ("aspect8", r"Did you mean 'aspect_8'"),
        ("aspect_0", r"unknown recipe 'aspect_0'"),
        ("aspect_-8", r"unknown recipe 'aspect_-8'"),
        ("aspect_8x", r"unknown recipe"),
        ("xaspect_8", r"unknown recipe"),
        ("", r"unknown recipe ''"),
        pytest.param("aspect_²", r"unknown recipe 'aspect_²'"),
    ],
)
def test_an_unknown_recipe_suggests_similar_ones(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe(name)


# -- key.path=value ---------------------------------------------------------------------------------------------------

RUN = replace(recipe("nano"), norm="sequence")  # any schedule goes with it


def changed(**parts) -> RunConfig:
    return replace(RUN, **parts)


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        ([], RUN),
        (["num_steps=12"], changed(num_steps=12)),
        (["num_steps=2e4"], changed(num_steps=20_000)),
        (["num_steps=10_000"], changed(num_steps=10_000)),
        (["model.width=256"], changed(model=replace(RUN.model, width=256))),
        (
            ["model.width=256", "model.num_heads=8", "model.width=64"],
            changed(model=replace(RUN.model, width=64, num_heads=8)),
        ),
        (["model.softmax_scope=full"], changed(model=replace(RUN.model, softmax_scope="full"))),
        (["optimizer.lr=1e-4"], changed(optimizer=replace(RUN.optimizer, lr=1e-4))),
        (["optimizer.clip=none"], changed(optimizer=replace(RUN.optimizer, clip=None))),
        (["optimizer.clip=0.5"], changed(optimizer=replace(RUN.optimizer, clip=0.5))),
        (["ema_decay=None"], changed(ema_decay=None)),
        (["threads=3"], changed(threads=3)),
        (["threads=none"], changed(threads=None)),
        (["tensorboard=yes"], changed(tensorboard=True)),
        (["tensorboard=False"], changed(tensorboard=False)),
        (["norm=tokens"], changed(norm="tokens")),
        (["data=a,b/c"], changed(data=("a", "b/c"))),
        (["data=a=b"], changed(data=("a=b",))),
        (["data="], changed(data=())),
        (["corrupt.schedule=cosine"], changed(corrupt=replace(RUN.corrupt, schedule=Cosine()))),
        (["corrupt.schedule=linear"], changed(corrupt=replace(RUN.corrupt, schedule=Linear()))),
        (["corrupt.schedule=polynomial"], changed(corrupt=replace(RUN.corrupt, schedule=Polynomial()))),
        (["corrupt.schedule=polynomial(3)"], changed(corrupt=replace(RUN.corrupt, schedule=Polynomial(3)))),
        (
            ["corrupt.schedule=geometric(1e-4, 30)"],
            changed(corrupt=replace(RUN.corrupt, schedule=Geometric(1e-4, 30))),
        ),
        (
            ["corrupt.schedule=polynomial", "corrupt.schedule.power=0.5"],
            changed(corrupt=replace(RUN.corrupt, schedule=Polynomial(0.5))),
        ),
        (["loader.layout=padded"], changed(loader=replace(RUN.loader, layout=Padded()))),
        (["loader.layout=packed(512)"], changed(loader=replace(RUN.loader, layout=Packed(row_length=512)))),
        (
            ["loader.layout=grouped(100,7)"],
            changed(loader=replace(RUN.loader, layout=Grouped(max_tokens=100, overhead=7))),
        ),
        (
            ["loader.layout=packed", "loader.layout.row_length=600", "loader.layout.micro_batch_rows=none"],
            changed(loader=replace(RUN.loader, layout=Packed(row_length=600))),
        ),
        (
            ["loader.task_weights.text=0.5"],
            changed(loader=replace(RUN.loader, task_weights={**RUN.loader.task_weights, "text": 0.5})),
        ),
        (["loader.dataset_weights.mine=2"], changed(loader=replace(RUN.loader, dataset_weights={"mine": 2.0}))),
        (
            ["loader.open_ends.probability=0.3"],
            changed(loader=replace(RUN.loader, open_ends=replace(RUN.loader.open_ends, probability=0.3))),
        ),
    ],
    ids=str,
)
def test_values_are_set(assignments: list[str], expected: RunConfig) -> None:
    before = to_json(RUN)
    found = override(RUN, assignments)
    assert found == expected
    for key in ("num_steps", "threads"):
        assert type(getattr(found, key)) is type(getattr(expected, key))
    assert to_json(RUN) == before  # a recipe is not changed by what is derived from it


def test_numbers_have_the_type_of_their_field() -> None:
    run = override(RUN, ["model.width=512", "optimizer.lr=1", "num_steps=1e3"])
    assert type(run.model.width) is int
    assert type(run.optimizer.lr) is float
    assert type(run.num_steps) is int


WRONG = [
    ("num_steps", r"expected key=value, got 'num_steps'; try num_steps=VALUE"),
    ("model.width=wide", r"model\.width must be a number, got 'wide'"),
    ("model.width=", r"model\.width must be a number, got ''"),
    ("model.width=2.5", r"model\.width must be a whole number, got '2\.5'"),
    ("model.width=none", r"model\.width must be a number, got 'none'"),
    ("model.width=250", r"width=250 must be a multiple of 2 \* num_heads=8"),
    ("optimizer.lr=fast", r"optimizer\.lr must be a number, got 'fast'"),
    ("optimizer.lr=-1", r"lr must be positive, got -1"),
    ("optimizer.lr=nan", r"lr must be positive, got nan|lr must be a number, got 'nan'"),
    ("optimizer.lr=none", r"optimizer\.lr must be a number"),
    ("tensorboard=maybe", r"tensorboard must be true or false, got 'maybe'"),
    ("norm=mask", r"norm must be one of sequence, tokens, masked, paper_literal, got 'mask'"),
    ("model.softmax_scope=all", r"model\.softmax_scope must be one of full, modality, got 'all'"),
    ("corrupt.schedule=cosin", r"corrupt\.schedule: unknown kind 'cosin'\. Did you mean 'cosine'\?"),
    ("corrupt.schedule=polynomial(-1)", r"power of a polynomial schedule must be positive, got -1"),
    ("loader.layout=grouping", r"loader\.layout: unknown kind 'grouping'\. Did you mean 'grouped'\?"),
    ("loader.layout=grouped(1.5)", r"max_tokens must be (an integer of at least 1|a whole number), got '?1\.5"),
    ("loader.layout=packed(10)", r"row_length=10 must be at least seq_len"),
    ("loader.task_weights.text=much", r"loader\.task_weights\.text must be a number, got 'much'"),
    ("loader.task_weights=1", r"loader\.task_weights cannot be set as a whole"),
    ("loader.open_ends.probability=2", r"open_ends needs probabilities between 0 and 1"),
    ("model=big", r"model cannot be set as a whole; set one of its fields \(model\.FIELD=VALUE\)"),
    ("model.width.x=3", r"'model\.width\.x': model\.width has no fields; write model\.width=VALUE"),
    ("ema_decay=2", r"ema_decay must lie between 0 and 1 or be none, got 2"),
    # Unknown keys: the nearest comes first.
    ("model.widht=64", r"unknown key 'model\.widht'\. Did you mean '(model\.)?width'\?"),
    ("modle.width=64", r"unknown key 'modle\.width'\. Did you mean 'model\.width'\?"),
    ("width=64", r"unknown key 'width'\. Did you mean 'model\.width'\?"),
    ("num_step=64", r"unknown key 'num_step'\. Did you mean 'num_steps'\?"),
    (
        "loader.open_ends.prob=1",
        r"unknown key 'loader\.open_ends\.prob'\. Did you mean '(loader\.open_ends\.)?probability'",
    ),
    ("corrupt.schedule.power=3", r"unknown key 'corrupt\.schedule\.power'"),
    ("=3", r"unknown key ''"),
    ("num_steps=inf", r"num_steps must be a whole number, got 'inf'"),
    ("num_steps=nan", r"num_steps must be a (whole )?number, got 'nan'"),
    ("z_loss_weight=nan", r"z_loss_weight must not be negative, got nan|z_loss_weight must be a number"),
    ("optimizer.weight_decay=nan", r"weight_decay"),
    ("corrupt.schedule=polynomial(x)", r"corrupt\.schedule"),
    ('corrupt.schedule=polynomial("3")', r"corrupt\.schedule|power"),
    ("corrupt.schedule=polynomial()", r"corrupt\.schedule"),
    ("corrupt.schedule=polynomial(2,3)", r"corrupt\.schedule"),
    ("corrupt.schedule=polynomial(2", r"corrupt\.schedule"),
    ("loader.task_weights.text.more=1", r"loader\.task_weights\.text"),
]


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        *(pytest.param(*case, id=case[0]) for case in WRONG),
    ],
)
def test_wrong_values_are_one_clear_error(assignment: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        override(RUN, [assignment])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2500


def test_large_numbers_are_exact() -> None:
    assert override(RUN, [f"loader.seed={2**60 + 1}"]).loader.seed == 2**60 + 1


def test_interdependent_values_need_no_order() -> None:
    """Neither step of 128 / 4 heads -> 6 heads of 36 is right alone in this order."""
    run = override(RUN, ["model.num_heads=6", "model.width=216"])
    assert (run.model.num_heads, run.model.width) == (6, 216)


def test_json_has_the_kind_of_a_choice() -> None:
    run = override(RUN, ["corrupt.schedule=polynomial(3)", "loader.layout=padded"])
    found = json.loads(json.dumps(to_json(run)))
    assert found["corrupt"]["schedule"] == {"kind": "polynomial", "power": 3}
    assert found["loader"]["layout"] == {"kind": "padded", "micro_batch_rows": None}
    assert found["loader"]["open_ends"]["text"] == run.loader.open_ends.text
    assert found["optimizer"]["lr"] == run.optimizer.lr
