"""Runs as a whole: they learn, stop and go on exactly, refuse what is not theirs; and the verb `train`."""

import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from train_fakes import (
    CPU,
    TINY,
    assert_same_bits,
    broken_steps,
    events,
    first_step,
    random_pairs,
    run_it,
    tensors_of,
    tiny_run,
    with_loader,
    write_set,
)

import triptych.training.peak
from triptych.cli import model as verbs
from triptych.cli.main import main
from triptych.data.loader import Step
from triptych.data.pack import Grouped, Packed, RowLayout
from triptych.diffusion.corrupt import CorruptConfig
from triptych.diffusion.schedule import Polynomial
from triptych.errors import CheckpointError, DataError, UserError
from triptych.hub.export import write_card
from triptych.hub.format import Limits, SavedModel, write_model
from triptych.model.count import flops
from triptych.recipes import recipe
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training import checkpoint as ckpt
from triptych.training import loop, setup
from triptych.training.config import OptimizerConfig, RunConfig, ValidationConfig, fill_in, to_json
from triptych.training.ranks import Ranks
from triptych.training.step import train_step
from triptych.vocab import Task, Vocabulary

LAYOUTS: list[RowLayout] = [Grouped(max_tokens=64, overhead=4), Packed(row_length=40)]


# -- stop and go on ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS, ids=["grouped", "packed"])
def test_a_run_in_two_parts_is_the_run_in_one(layout: RowLayout, world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, layout=layout)
    whole = run_it(config, tmp_path / "whole")
    half = run_it(config, tmp_path / "parts", stop_after=3)
    assert (whole.step, half.step) == (6, 3)
    parts = run_it(config, tmp_path / "parts")
    assert parts is not half
    assert_same_bits(tensors_of(parts), tensors_of(whole))
    assert any(name.startswith("ema/") for name in tensors_of(whole))
    assert any(name.endswith("/exp_avg_sq") for name in tensors_of(whole))

    steps = [events(tmp_path / name, "step") for name in ("whole", "parts")]
    for recorded in steps:
        assert [event["step"] for event in recorded] == [1, 2, 3, 4, 5, 6]
    for one, other in zip(*steps):
        for key in ("loss", "nll", "lr", "grad_norm", "tokens", "padding"):
            assert one[key] == other[key], key
    validations = [events(tmp_path / name, "validation") for name in ("whole", "parts")]
    assert [(event["step"], event["nelbo"]) for event in validations[0]] == [
        (event["step"], event["nelbo"]) for event in validations[1]
    ]
    assert [event["step"] for event in validations[0]] == [4, 6]


def test_a_crash_loses_only_what_came_behind_the_checkpoint(world: Path, tmp_path: Path) -> None:
    config = replace(tiny_run(world), save_every=2)
    whole = run_it(config, tmp_path / "whole")

    def crash(event: dict[str, Any]) -> None:
        if event["kind"] == "step" and event["step"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_it(config, tmp_path / "crashed", listeners=[crash])
    assert [event["step"] for event in events(tmp_path / "crashed", "step")] == [1, 2, 3, 4, 5]
    again = run_it(config, tmp_path / "crashed")
    assert_same_bits(tensors_of(again), tensors_of(whole))
    assert [event["step"] for event in events(tmp_path / "crashed", "step")] == [1, 2, 3, 4, 5, 6]


def test_nothing_is_left_out_of_the_records_where_saving_and_stopping_cut_them(world: Path, tmp_path: Path) -> None:
    """Logged every 4 steps, saved every 3, stopped after 5: still every token is counted once."""
    config = tiny_run(world, save_every=3)
    run_it(config, tmp_path / "fine")
    run_it(replace(config, log_every=4), tmp_path / "coarse", stop_after=5)
    run_it(replace(config, log_every=4), tmp_path / "coarse")
    fine, coarse = (events(tmp_path / name, "step") for name in ("fine", "coarse"))
    assert [event["step"] for event in coarse] == [3, 4, 5, 6]
    assert sum(event["tokens"] for event in coarse) == sum(event["tokens"] for event in fine)
    assert coarse[0]["tokens"] == sum(event["tokens"] for event in fine[:3])
    assert coarse[0]["loss"] == pytest.approx(sum(event["loss"] for event in fine[:3]) / 3, abs=1e-5)


def test_a_signal_ends_the_step_saves_and_stops(world: Path, tmp_path: Path) -> None:
    def interrupt(event: dict[str, Any]) -> None:
        if event["kind"] == "step" and event["step"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    config = tiny_run(world)
    with pytest.raises(loop.Stopped) as caught:
        run_it(config, tmp_path, listeners=[interrupt])
    assert (caught.value.number, caught.value.step) == (signal.SIGTERM, 2)
    assert signal.getsignal(signal.SIGTERM) is before
    assert [path.name for path in ckpt.list_checkpoints(tmp_path / "checkpoints")] == ["step-00000002"]


def test_the_same_seed_is_the_same_run_and_another_is_not(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, num_steps=2)
    one, same = (run_it(config, tmp_path / name) for name in ("one", "same"))
    other = run_it(replace(config, seed=1), tmp_path / "other")
    assert_same_bits(tensors_of(one), tensors_of(same))
    assert not torch.equal(one.model.embed.text, other.model.embed.text)


def test_the_running_mean_is_a_running_mean(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, ema_decay=0.3, num_steps=4, validation_data=())
    weights = [run_it(config, tmp_path / "steps", stop_after=n).model.state_dict() for n in range(1, 5)]
    start = setup.start(config, tmp_path / "empty", TokenizerBundle.load(config.tokenizers), CPU).model.state_dict()
    mean = {name: value.double() for name, value in start.items()}
    for step, now in enumerate(weights, start=1):
        decay = min(0.3, (1 + step) / (10 + step))  # short memory at first: the beginning is not worth remembering
        mean = {name: decay * mean[name] + (1 - decay) * now[name].double() for name in mean}
    run = run_it(config, tmp_path / "steps")
    assert run.ema is not None
    assert run.best is run.ema
    for name, value in run.ema.state_dict().items():
        torch.testing.assert_close(value.double(), mean[name], atol=1e-6, rtol=1e-5, msg=name)
    assert not torch.equal(run.ema.embed.text, run.model.embed.text)


# -- what is not finite ------------------------------------------------------------------------------------------------


def steps_without(config: RunConfig, left_out: set[int], folder: Path) -> setup.Run:
    """The run as if some of its steps were not there."""
    run = setup.start(config, folder, TokenizerBundle.load(config.tokenizers), CPU)
    assert run.ema is not None
    for index in sorted(set(range(config.num_steps)) - left_out):
        train_step(run.model, run.optimizer, first_step(config, index), config, TINY, CPU)
        decay = min(config.ema_decay or 0.0, (2 + index) / (11 + index))
        with torch.no_grad():
            torch._foreach_lerp_(list(run.ema.parameters()), list(run.model.parameters()), 1 - decay)
    return run


@pytest.mark.parametrize("what", [("loss", "gradient"), ("loss",), ("gradient",)], ids="-".join)
def test_one_step_that_is_not_finite_is_skipped(what: tuple[str, ...], world: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    run_it(config, tmp_path / "fine")
    with broken_steps({2}, *what):
        run = run_it(config, tmp_path / "broken")
    assert run.step == 6
    assert_same_bits(tensors_of(run), tensors_of(steps_without(config, {2}, tmp_path / "slow")))
    fine, broken = (events(tmp_path / name, "step") for name in ("fine", "broken"))
    assert [event["skipped"] for event in broken] == [None, None, "not finite", None, None, None]
    assert not any(event["skipped"] for event in fine)
    for key in ("step", "lr", "tokens"):  # the order of the data and the rate do not move
        assert [event[key] for event in broken] == [event[key] for event in fine]
    assert (broken[2]["loss"] is None, broken[2]["grad_norm"] is None) == ("loss" in what, "gradient" in what)
    assert (set(broken[2]["nll"].values()) == {None}) == ("loss" in what)
    for text in ("NaN", "Infinity"):
        assert text not in (tmp_path / "broken" / "records.jsonl").read_text()
    assert len(events(tmp_path / "broken", "end")) == 1


def test_a_skipped_step_is_in_no_mean(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, log_every=3)
    run_it(replace(config, log_every=1), tmp_path / "fine")
    with broken_steps({4}):
        run_it(config, tmp_path / "broken")
    fine, broken = (events(tmp_path / name, "step") for name in ("fine", "broken"))
    # Step 4 is cut off by the validation, step 5 because it was skipped.
    assert [(event["step"], event["skipped"]) for event in broken] == [
        (3, None),
        (4, None),
        (5, "not finite"),
        (6, None),
    ]
    assert sum(event["tokens"] for event in broken) == sum(event["tokens"] for event in fine)
    assert broken[0]["loss"] == pytest.approx(sum(event["loss"] for event in fine[:3]) / 3, abs=1e-5)
    assert broken[3]["loss"] is not None
    assert all(event["tokens_per_second"] < 1e8 for event in broken)


@pytest.mark.parametrize(("broken", "stop"), [({0}, 1), ({0, 1}, 2), ({2}, 3), ({2, 3}, 3)], ids=str)
def test_a_run_with_skipped_steps_goes_on_exactly(broken: set[int], stop: int, world: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    with broken_steps(broken):
        whole = run_it(config, tmp_path / "whole")
        run_it(config, tmp_path / "parts", stop_after=stop)
        parts = run_it(config, tmp_path / "parts")
    assert_same_bits(tensors_of(parts), tensors_of(whole))
    assert_same_bits(tensors_of(parts), tensors_of(steps_without(config, broken, tmp_path / "slow")))


def test_nine_skipped_steps_in_a_row_are_survived(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, num_steps=21, validation_data=())
    with broken_steps({*range(1, 10), *range(11, 20)}):
        assert run_it(config, tmp_path).step == 21
    assert sum(event["skipped"] == "not finite" for event in events(tmp_path, "step")) == 18


def test_ten_skipped_steps_in_a_row_end_the_run(world: Path, tmp_path: Path) -> None:
    """The last good checkpoint stays, although meanwhile more were due than are kept."""
    config = tiny_run(world, num_steps=30, save_every=2, keep_last_checkpoints=2)
    with broken_steps(range(4, 30)), pytest.raises(loop.Diverged) as caught:
        run_it(config, tmp_path)
    message = str(caught.value)
    newest = tmp_path / "checkpoints" / "step-00000004"
    assert "the loss or the gradient of 10 steps in a row, up to 14, was not finite" in message
    assert str(newest) in message
    assert "lower optimizer.lr" in message
    assert "\n" not in message
    assert isinstance(caught.value, UserError)
    assert caught.value.exit_code == 5
    assert ckpt.list_checkpoints(tmp_path / "checkpoints")[-1] == newest
    assert all(value.isfinite().all() for value in saved_weights(tmp_path).values())
    assert [event["step"] for event in events(tmp_path, "step") if event["skipped"]] == list(range(5, 15))
    assert events(tmp_path, "end") == []


def test_saving_waits_for_a_step_that_works(world: Path, tmp_path: Path) -> None:
    with broken_steps({1, 2}):
        run_it(tiny_run(world, save_every=2, keep_last_checkpoints=9), tmp_path / "run")
    assert [event["step"] for event in events(tmp_path / "run", "saved")] == [4, 6]
    with broken_steps({1}):
        run_it(tiny_run(world, save_every=2, keep_last_checkpoints=9), tmp_path / "other")
    assert [event["step"] for event in events(tmp_path / "other", "saved")] == [3, 4, 6]


@pytest.mark.parametrize("changes", [{"save_every": 1}, {"validation": ValidationConfig(every=1)}], ids=str)
def test_weights_that_are_not_finite_are_not_saved(changes: dict[str, Any], world: Path, tmp_path: Path) -> None:
    # A float32 holds no such epsilon, and where the gradient is 0 the update is 0 / 0.
    config = tiny_run(world, optimizer=OptimizerConfig(lr=1e-2, eps=1e-300), **changes)
    with pytest.raises(loop.Diverged, match=r"the weights after step 1 are not finite\. There is no checkpoint yet"):
        run_it(config, tmp_path)
    assert ckpt.list_checkpoints(tmp_path / "checkpoints") == []
    assert [event["step"] for event in events(tmp_path, "step")] == [1]


# -- what may change --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    run_it(tiny_run(world), folder, stop_after=3)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_configuration_is_refused_by_name(world: Path, stopped: Path) -> None:
    config = tiny_run(world)
    before = content(stopped)
    for changed, message in [
        (replace(config, optimizer=replace(config.optimizer, lr=0.5)), "optimizer.lr was 0.01, is 0.5"),
        (replace(config, model=replace(config.model, width=32)), "model.width was 16, is 32"),
        (replace(config, seed=7), "seed was 0, is 7"),
        (replace(config, ema_decay=None), "ema_decay was 0.9, is None"),
        (replace(config, num_steps=7), "num_steps was 6, is 7"),
        (with_loader(config, global_batch=8), "loader.global_batch was 9, is 8"),
        (replace(config, corrupt=CorruptConfig()), "corrupt.p_one_sided was 0.3, is 0.0"),
    ]:
        with pytest.raises(CheckpointError, match="is of another run") as caught:
            run_it(changed, stopped)
        assert message in str(caught.value)
        assert caught.value.exit_code == 4
    assert content(stopped) == before


def forget(folder: Path, *paths: str) -> None:
    """Take fields out of the configuration that a run has saved, as if it were of a version without them."""
    (path,) = ckpt.list_checkpoints(folder / "checkpoints")
    state = json.loads((path / "state.json").read_text())
    for whole in paths:
        *parents, name = whole.split(".")
        branch = state["config"]
        for parent in parents:
            branch = branch[parent]
        del branch[name]
    (path / "state.json").write_text(json.dumps(state))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sha256"]["state.json"] = hashlib.sha256((path / "state.json").read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("missing", "now", "answer"),
    [
        (["corrupt.p_text_end"], {}, None),
        (["loader.open_ends.audio_share", "complementary_masks"], {}, None),
        (["loader.open_ends", "world", "threads"], {}, None),
        (["corrupt.p_text_end"], {"corrupt": {"p_text_end": 0.25}}, "corrupt.p_text_end was 0.0, is 0.25"),
        (["loader.open_ends"], {"loader": {"p_subsample": 0.5}}, "loader.p_subsample was 0.05, is 0.5"),
        (["optimizer.clip"], {}, "optimizer.clip was None, is 1.0"),
        (["loader.global_batch"], {}, "loader.global_batch was None, is 9"),  # it has no default
        (["world"], {"world": "scenes"}, None),  # changes no weight
    ],
    ids=str,
)
def test_what_an_older_run_does_not_know_was_the_default(
    missing: list[str], now: dict[str, Any], answer: str | None, world: Path, tmp_path: Path
) -> None:
    config = tiny_run(world)
    run_it(config, tmp_path / "parts", stop_after=3)
    forget(tmp_path / "parts", *missing)
    changes = {
        name: replace(getattr(config, name), **value) if isinstance(value, dict) else value
        for name, value in now.items()
    }
    changed = replace(config, **changes)
    if answer is None:
        parts = run_it(changed, tmp_path / "parts")
        assert_same_bits(tensors_of(parts), tensors_of(run_it(config, tmp_path / "whole")))
        return
    with pytest.raises(CheckpointError, match="is of another run") as caught:
        run_it(changed, tmp_path / "parts")
    assert answer in str(caught.value)


def test_defaults_are_filled_in_only_where_the_choice_is_the_same() -> None:
    config = recipe("nano")
    saved = to_json(config)
    assert fill_in(saved, config) == saved
    polynomial = replace(config, corrupt=CorruptConfig(schedule=Polynomial(3.0)))
    older = {**saved, "corrupt": {"schedule": {"kind": "polynomial"}}}
    filled = fill_in(older, polynomial)["corrupt"]
    assert filled["schedule"] == {"kind": "polynomial", "power": 2.0}
    assert filled["seed"] == 0
    assert fill_in(older, config)["corrupt"]["schedule"] == {"kind": "polynomial"}
    assert older["corrupt"] == {"schedule": {"kind": "polynomial"}}  # not changed


def test_what_changes_no_weight_may_change(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    whole = run_it(config, tmp_path / "whole")
    run_it(config, tmp_path / "parts", stop_after=3)
    free = replace(
        config,
        log_every=5,
        save_every=1,
        keep_last_checkpoints=3,
        threads=1,
        validation=ValidationConfig(every=2),
        validation_data=(),
    )
    parts = run_it(free, tmp_path / "parts")
    assert_same_bits(tensors_of(parts), tensors_of(whole))
    assert len(ckpt.list_checkpoints(tmp_path / "parts" / "checkpoints")) == 3
    assert json.loads((tmp_path / "parts" / "config.json").read_text())["log_every"] == 5

    # Another layout adds in another order: the same run up to rounding.
    run_it(config, tmp_path / "packed", stop_after=3)
    packed = run_it(with_loader(config, layout=Packed(row_length=40)), tmp_path / "packed")
    for name, value in packed.model.state_dict().items():
        torch.testing.assert_close(value, whole.model.state_dict()[name], atol=1e-4, rtol=1e-3, msg=name)


def test_data_may_move_but_not_change(world: Path, stopped: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    before = content(stopped)
    moved = tuple(write_set(tmp_path / task.label, task, random_pairs(task, 40, 1)) for task in Task)
    other = write_set(tmp_path / "other", Task.TEXT, random_pairs(Task.TEXT, 40, 9))
    with pytest.raises(DataError, match="not the batches of the saved run") as caught:
        run_it(replace(config, data=(other, *config.data[1:])), stopped)
    assert caught.value.exit_code == 3
    assert content(stopped) == before
    assert run_it(replace(config, data=moved), stopped).step == 6


@pytest.mark.parametrize("field", ["data", "validation_data"])
def test_data_of_another_vocabulary_is_refused(field: str, world: Path, tmp_path: Path) -> None:
    larger = Vocabulary(text=24, image=11, audio=7)
    folders = tuple(write_set(tmp_path / task.label, task, random_pairs(task, 9, 1), larger) for task in Task)
    with pytest.raises(UserError, match=r"Vocabulary\(text=24.*but the tokenizers.*Vocabulary\(text=23") as caught:
        run_it(replace(tiny_run(world), **{field: folders}), tmp_path / "run")
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_data_of_another_tokenizer_is_refused(world: Path, tmp_path: Path) -> None:
    bundle = TokenizerBundle.load(world / "tokenizers")
    bundle.fingerprints = {"text": "b" * 64}
    config = tiny_run(world)
    with pytest.raises(UserError, match="was made with another text tokenizer"):
        setup.start(config, tmp_path / "run", bundle, CPU)
    assert not (tmp_path / "run").exists()


def test_other_tokenizers_are_refused(world: Path, stopped: Path, tmp_path: Path) -> None:
    TokenizerBundle(Vocabulary(text=24, image=11, audio=7)).save(tmp_path)
    with pytest.raises(CheckpointError, match=r"content of vocabulary was '[0-9a-f]{64}', is '[0-9a-f]{64}'"):
        run_it(replace(tiny_run(world), tokenizers=str(tmp_path)), stopped)


# -- beginning with the weights of another ----------------------------------------------------------------------------


def saved_model(run: setup.Run, folder: Path, bundle: TokenizerBundle) -> str:
    folder.mkdir()
    limits = Limits(seq_len=20, text_slot=None, audio_slot=None)
    write_model(folder, SavedModel(run.best, bundle, limits, "scenes", None), half=False, embedded_tokenizers=None)
    return str(folder)


def test_a_run_can_begin_with_the_weights_of_a_saved_model(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    bundle = TokenizerBundle.load(config.tokenizers)
    first = run_it(config, tmp_path / "first")
    following = replace(config, init_from=saved_model(first, tmp_path / "saved", bundle), seed=5)
    begun = setup.start(following, tmp_path / "next", bundle, CPU)
    assert begun.step == 0
    for name, weight in first.best.state_dict().items():
        assert torch.equal(begun.model.state_dict()[name], weight)
        assert torch.equal(begun.best.state_dict()[name], weight)
    begun.lock.release()
    whole = run_it(following, tmp_path / "next")
    run_it(following, tmp_path / "parts", stop_after=2)
    shutil.rmtree(tmp_path / "saved")  # is needed once
    assert_same_bits(tensors_of(run_it(following, tmp_path / "parts")), tensors_of(whole))
    assert ", beginning with the weights of " in write_card(tmp_path / "next", 6, whole.best)
    assert ", beginning with" not in write_card(tmp_path / "first", 6, first.best)


def test_the_card_says_what_was_not_as_in_the_recipe(world: Path, tmp_path: Path) -> None:
    run = run_it(tiny_run(world), tmp_path, stop_after=1)
    card = write_card(tmp_path, 1, run.best)
    assert "`triptych train nano` with changes to the recipe (" in card
    assert "num_steps was 300, is 6" in card
    assert "threads" not in card


def test_a_run_does_not_begin_with_a_model_of_another_shape(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    bundle = TokenizerBundle.load(config.tokenizers)
    saved = saved_model(run_it(config, tmp_path / "first", stop_after=1), tmp_path / "saved", bundle)
    wider = replace(config, init_from=saved, model=replace(config.model, d_ff=32))
    with pytest.raises(CheckpointError, match=r"other tokenizers: model\.d_ff was 24, is 32"):
        setup.start(wider, tmp_path / "next", bundle, CPU)
    others = TokenizerBundle(Vocabulary(text=24, image=11, audio=7))
    with pytest.raises(CheckpointError, match=r"other tokenizers: vocabulary was '[0-9a-f]{64}', is"):
        setup.start(replace(config, init_from=saved), tmp_path / "next", others, CPU)
    with pytest.raises(CheckpointError, match="is not a saved Triptych model"):
        setup.start(replace(config, init_from=str(tmp_path / "first")), tmp_path / "next", bundle, CPU)


# -- learning ---------------------------------------------------------------------------------------------------------


def test_training_learns_what_text_says_of_media(tmp_path: Path) -> None:
    """One of 6 symbols decides the two codes of a picture or a sound: one choice of six in each pair."""
    rng = np.random.default_rng(0)

    def pairs(task: Task, count: int) -> list[tuple[Any, Any]]:
        if task == Task.TEXT:
            return [([], [a, a]) for a in rng.integers(6, size=count)]
        return [([5 - a, (a + 2) % 6], [a]) for a in rng.integers(6, size=count)]

    for split, count in (("train", 400), ("validation", 60)):
        for task in Task:
            write_set(tmp_path / split / task.label, task, pairs(task, count))
    TokenizerBundle(TINY).save(tmp_path / "tokenizers")
    config = tiny_run(
        tmp_path,
        layout=Grouped(max_tokens=1000, overhead=200),
        num_steps=120,
        corrupt=CorruptConfig(p_one_sided=0.8),
        optimizer=OptimizerConfig(lr=1e-2, clip=1.0, warmup_steps=10, weight_decay=0.01),
        validation=ValidationConfig(every=1000, sequences=60, draws=2),
        log_every=20,
        norm="masked",
    )
    config = with_loader(
        replace(config, model=replace(config.model, num_layers=2, width=32)), global_batch=16, mask_text_eos="none"
    )
    run_it(config, tmp_path / "run")
    found = events(tmp_path / "run", "validation")[-1]["nelbo"]
    choice = math.log(6)
    for name in ("image", "audio"):
        assert found[f"{name}|text"]["nats_per_token"] < 0.7 * choice / 2  # without the text: one choice for two codes
        assert found[f"text|{name}"]["nats_per_token"] < 0.6 * choice
    steps = events(tmp_path / "run", "step")
    assert steps[-1]["loss"] < 0.4 * steps[0]["loss"]


def test_the_share_of_peak_is_that_of_the_flops_it_counts(world: Path, tmp_path: Path) -> None:
    """With complementary masks every token passes twice, and every maskable one is predicted once."""
    corrupt = CorruptConfig()
    config = with_loader(
        tiny_run(world, complementary_masks=True, corrupt=corrupt, num_steps=1, validation_data=()), mask_text_eos="all"
    )
    config = replace(config, model=replace(config.model, softmax_scope="full"))
    run_it(config, tmp_path, peak_flops=1e6)
    (event,) = events(tmp_path, "step")
    run = setup.start(config, tmp_path / "empty", TokenizerBundle.load(config.tokenizers), CPU)
    predicted = sum(int(batch.maskable.sum()) for batch in first_step(config).micro_batches)
    tokens = event["tokens"]
    least = flops(config.model, run.model.vocabulary, 0.0, predicted=0.0).training * 2 * tokens
    d = config.model.width
    end = 2 * (d**2 + 3 * d * config.model.d_ff)  # of the last block, for positions that are predicted
    head = 3 * (2 * TINY.size * d + end) * predicted
    attention = 3 * 4 * config.model.width * (tokens / 9) * 2 * tokens
    seconds = tokens / event["tokens_per_second"]
    assert event["mfu"] == pytest.approx((least + head + attention) / seconds / 1e6, rel=0.01)


# -- the verb ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def fast_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triptych.training.peak, "matmul_peak", lambda device: 1e12)


def words(world: Path, out: Path, *more: str) -> list[str]:
    names = {split: ",".join(str(world / split / task.label) for task in Task) for split in ("train", "validation")}
    return [
        "train",
        "nano",
        "--out",
        str(out),
        f"data={names['train']}",
        f"validation_data={names['validation']}",
        f"tokenizers={world / 'tokenizers'}",
        "model.num_layers=1",
        "model.width=16",
        "model.num_heads=2",
        "model.d_ff=24",
        "loader.seq_len=24",
        "loader.global_batch=6",
        "loader.open_ends.text=8",
        "loader.open_ends.audio=10",
        "validation.sequences=4",
        "threads=1",
        "log_every=1",
        *more,
    ]


def saved_weights(folder: Path) -> dict[str, torch.Tensor]:
    return ckpt.load(ckpt.list_checkpoints(folder / "checkpoints")[-1]).tensors


@pytest.mark.usefixtures("fast_peak")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_stopped_process_goes_on_to_the_same_weights(
    number: int, code: int, world: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    # So long that it cannot end before the signal comes; from there on, the rest is left out of both.
    command = words(world, tmp_path / "run", "num_steps=100000", "save_every=100000", "validation.every=100000")
    process = subprocess.Popen(
        [sys.executable, "-m", "triptych", *command],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # Tests that run in the background of a shell inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step      3/"):
            break
    process.send_signal(number)
    errors = process.stderr.read()
    assert process.wait(60) == code
    (saved,) = ckpt.list_checkpoints(tmp_path / "run" / "checkpoints")
    step = int(saved.name.removeprefix("step-"))
    assert step >= 3
    assert f"saved step {step}; run the same command to go on" in errors
    assert "Traceback" not in errors

    end = ["--stop-after", str(step + 2)]
    assert main([*command, *end]) == 0
    assert f"going on after step {step} of 100000" in capfd.readouterr().err
    command[command.index("--out") + 1] = str(tmp_path / "whole")
    assert main([*command, *end]) == 0
    assert_same_bits(saved_weights(tmp_path / "run"), saved_weights(tmp_path / "whole"))
    parts, whole = (events(tmp_path / name, "step") for name in ("run", "whole"))
    assert [event["step"] for event in parts] == list(range(1, step + 3))
    assert [event["loss"] for event in parts] == [event["loss"] for event in whole]


@pytest.mark.usefixtures("fast_peak")
def test_the_verb_trains_says_so_and_says_when_it_is_done(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    command = words(world, tmp_path / "run", "num_steps=2")
    assert main(command) == 0
    first = capsys.readouterr()
    assert f"triptych generate image 'two cats' --model {tmp_path / 'run'}" in first.out
    assert "nano: " in first.err
    assert "step      2/2  loss " in first.err
    assert "held out, nats per token: audio" in first.err
    assert "done: 2 steps" in first.err
    before = content(tmp_path / "run")
    assert main(command) == 0
    again = capsys.readouterr()
    assert (again.out, again.err) == ("", f"{tmp_path / 'run'} has had its 2 steps\n")
    assert content(tmp_path / "run") == before
    assert main([*command, "optimizer.lr=0.5"]) == 4
    assert f"optimizer.lr was {recipe('nano').optimizer.lr}, is 0.5" in capsys.readouterr().err


@pytest.mark.usefixtures("fast_peak")
def test_stopping_after_a_step_is_not_the_end(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    command = words(world, tmp_path / "run", "num_steps=4")
    again = "run the same command without --stop-after to go on\n"
    assert main([*command, "--stop-after", "2"]) == 0
    first = capsys.readouterr()
    assert first.err.endswith(f"stopped after 2 of 4 steps; {again}")
    assert "done:" not in first.err
    assert first.out == ""
    assert events(tmp_path / "run", "end") == []
    before = content(tmp_path / "run")
    assert main([*command, "--stop-after", "2"]) == 0
    assert capsys.readouterr().err == f"{tmp_path / 'run'} has had 2 of its 4 steps; {again}"
    assert content(tmp_path / "run") == before
    assert main([*command, "--stop-after", "9"]) == 0
    last = capsys.readouterr()
    assert "done: 4 steps" in last.err
    assert "stopped" not in last.err
    assert "triptych generate" in last.out
    assert len(events(tmp_path / "run", "end")) == 1


@pytest.mark.usefixtures("fast_peak")
@pytest.mark.parametrize(
    ("save_every", "lost"),
    [
        (2, "1 of 3 steps are lost; run the same command to go on after step 2"),
        (100, "3 of 3 steps are lost; run the same command to begin anew"),
    ],
)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_second_signal_stops_at_once_and_says_what_is_lost(
    number: int,
    code: int,
    save_every: int,
    lost: str,
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    def step_with_signals(model: Any, optimizer: Any, step: Step, *rest: Any) -> Any:
        if step.index == 3:
            os.kill(os.getpid(), number)
            time.sleep(0.6)
            os.kill(os.getpid(), number)
        return train_step(model, optimizer, step, *rest)

    monkeypatch.setattr(loop, "train_step", step_with_signals)
    try:
        found = main(words(world, tmp_path / "run", "num_steps=9", f"save_every={save_every}"))
    except SystemExit as stop:
        found = stop.code
    assert found == code
    errors = capsys.readouterr().err
    assert f"stopped at once: {lost}\n" in errors
    assert "nothing is lost" not in errors
    saved = [path.name for path in ckpt.list_checkpoints(tmp_path / "run" / "checkpoints")]
    assert saved == (["step-00000002"] if save_every == 2 else [])


@pytest.mark.usefixtures("fast_peak")
def test_an_echo_of_a_signal_is_not_a_second_one(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A scheduler signals a whole job, and the process that started this one passes the signal on."""

    def step_with_signals(model: Any, optimizer: Any, step: Step, *rest: Any) -> Any:
        if step.index == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        return train_step(model, optimizer, step, *rest)

    monkeypatch.setattr(loop, "train_step", step_with_signals)
    with pytest.raises(SystemExit) as stop:
        main(words(world, tmp_path / "run", "num_steps=9", "save_every=100"))
    assert stop.value.code == 75
    assert "saved step 4; run the same command to go on" in capsys.readouterr().err


@pytest.mark.usefixtures("fast_peak")
def test_a_run_that_diverges_ends_with_one_line(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with broken_steps(range(1, 30)):
        assert main(words(world, tmp_path / "run", "num_steps=30")) == 5
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("triptych: error: the loss or the gradient of 10 steps in a row, up to 11, was not")
    assert lines[-2] == "step     11/30  skipped, because not finite: loss, gradient"
    assert lines[-11].startswith("step      2/30  skipped")


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_rank_has_a_board(
    rank: int, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boards, heard = [], []

    class FakeBoard:
        show_samples = None

        def __init__(self, folder: Path, bundle: TokenizerBundle):
            boards.append(folder)

    def fake_start(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(step=0)  # two ranks share a model, and here is one process

    def fake_train(run: Any, listeners: list[Any], *_: Any, **__: Any) -> None:
        run.step = 10**9
        heard.extend(listeners)

    monkeypatch.setattr("triptych.training.tensorboard.Board", FakeBoard)
    monkeypatch.setattr(loop, "train", fake_train)
    monkeypatch.setattr(triptych.training.peak, "matmul_peak", lambda device: 1e12)
    monkeypatch.setattr(setup, "start", fake_start)
    verbs._train(tiny_run(world, tensorboard=True), tmp_path / "run", None, CPU, Ranks(rank, 2))
    assert boards == ([tmp_path / "run"] if rank == 0 else [])
    assert sum(isinstance(each, FakeBoard) for each in heard) == len(boards)


@pytest.mark.parametrize(
    ("changes", "code", "answer"),
    [
        (["train", "scene"], 2, "unknown recipe 'scene'. Did you mean 'scenes'?"),
        (["train", "nano", "optimizer.lrr=1"], 2, "unknown key 'optimizer.lrr'. Did you mean 'lr'?"),
        (["train", "nano", "num_step=3"], 2, "unknown key 'num_step'. Did you mean 'num_steps'?"),
        (["train", "nano", "num_steps"], 2, "expected key=value, got 'num_steps'"),
        (["train", "nano", "--ot", "x"], 2, "unknown option --ot. Did you mean '--out'?"),
        (
            ["train", "nano", "data=nowhere"],
            2,
            "nowhere holds no data set. Make it with `triptych scenes make data/scenes`",
        ),
        (["train", "paper_base"], 2, "names no data; add data=FOLDER,FOLDER."),
        (["train", "nano", "--stop-after", "0"], 2, "--stop-after must be at least 1, got 0."),
        (["train", "nano", "threads=-1"], 2, "threads must lie between 1 and 4096, or be none for all, got -1."),
        (["train", "nano", "threads=0"], 2, "threads must lie between 1 and 4096, or be none for all, got 0."),
        (["train", "nano", "threads=1e9"], 2, "threads must lie between 1 and 4096"),
        (["train", "nano", "num_steps=1e300"], 2, "num_steps must lie between -2**63 and 2**63, got '1e300'."),
        (["train", "nano", f"corrupt.seed={2**64}"], 2, "corrupt.seed must lie between -2**63 and 2**63"),
        (
            ["train", "nano", "keep_last_checkpoints=0"],
            2,
            "num_steps, log_every, save_every and keep_last_checkpoints must be at least 1.",
        ),
        (
            ["train", "nano", "save_every=-1"],
            2,
            "num_steps, log_every, save_every and keep_last_checkpoints must be at least 1.",
        ),
        (["train", "nano", "model.num_heads=5"], 2, "width=128 must be a multiple of 2 * num_heads=10"),
        (["train", "nano", "z_loss_weight=inf"], 2, "z_loss_weight must lie between 0 and 1e+06, got inf."),
        (["train", "nano", "z_loss_weight=1e300"], 2, "z_loss_weight must lie between 0 and 1e+06, got 1e+300."),
        (["train", "nano", "optimizer.clip=inf"], 2, "clip must be positive and finite, or none, got inf."),
        (["train", "nano", "optimizer.weight_decay=inf"], 2, "weight_decay and warmup_steps must be finite"),
    ],
)
def test_mistakes_are_named(
    changes: list[str], code: int, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(changes) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert answer in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_show_prints_the_configuration_as_json(capsys: pytest.CaptureFixture) -> None:
    assert main(["train", "scenes", "--show", "norm=sequence", "optimizer.lr=0.25", "corrupt.schedule=cosine"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["optimizer"]["lr"] == 0.25
    assert shown["corrupt"]["schedule"]["kind"] == "cosine"
    assert shown["recipe"] == "scenes"


def test_missing_tensorboard_is_named_before_training(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    assert main(words(world, tmp_path / "run", "tensorboard=true", "num_steps=1")) == 2
    error = capsys.readouterr().err
    assert "needs the package 'tensorboard'" in error
    assert '-e ".[train]"' in error
    assert events_file_free(tmp_path)


def events_file_free(folder: Path) -> bool:
    return not list(folder.rglob("records.jsonl"))
