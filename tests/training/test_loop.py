"""The training loop: resume, skipped steps, moving average, learning."""

import math
import os
import signal
from dataclasses import replace
from pathlib import Path
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
    run_it,
    saved_tensors,
    tensors_of,
    tiny_run,
    with_loader,
    write_set,
)

from triptych.data.pack import Grouped, Packed, RowLayout
from triptych.diffusion.corrupt import CorruptConfig
from triptych.errors import UserError
from triptych.model.flops import flops
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training import checkpoint as ckpt
from triptych.training import loop
from triptych.training.config import OptimizerConfig, RunConfig, ValidationConfig
from triptych.training.setup import open_run
from triptych.training.signals import RunStopped
from triptych.training.state import Run
from triptych.training.step import train_step
from triptych.vocab import Task

LAYOUTS: list[RowLayout] = [Grouped(max_tokens=64, overhead=4), Packed(row_length=40)]


# -- stop and resume --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS, ids=["grouped", "packed"])
def test_a_resumed_run_equals_an_uninterrupted_one(layout: RowLayout, world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, layout=layout)
    uninterrupted = run_it(config, tmp_path / "uninterrupted")
    half = run_it(config, tmp_path / "parts", stop_after=3)
    assert (uninterrupted.state.step, half.state.step) == (6, 3)
    parts = run_it(config, tmp_path / "parts")
    assert parts is not half
    assert_same_bits(tensors_of(parts), tensors_of(uninterrupted))
    assert any(name.startswith("ema/") for name in tensors_of(uninterrupted))
    assert any(name.endswith("/exp_avg_sq") for name in tensors_of(uninterrupted))

    steps = [events(tmp_path / name, "step") for name in ("uninterrupted", "parts")]
    for recorded in steps:
        assert [event["step"] for event in recorded] == [1, 2, 3, 4, 5, 6]
    for one, other in zip(*steps):
        for key in ("loss", "nll", "lr", "grad_norm", "tokens", "padding"):
            assert one[key] == other[key], key
    validations = [events(tmp_path / name, "validation") for name in ("uninterrupted", "parts")]
    assert [(event["step"], event["nelbo"]) for event in validations[0]] == [
        (event["step"], event["nelbo"]) for event in validations[1]
    ]
    assert [event["step"] for event in validations[0]] == [4, 6]


def test_a_crash_loses_only_the_steps_after_the_checkpoint(world: Path, tmp_path: Path) -> None:
    config = replace(tiny_run(world), save_every=2)
    uninterrupted = run_it(config, tmp_path / "uninterrupted")

    def crash(event: dict[str, Any]) -> None:
        if event["kind"] == "step" and event["step"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_it(config, tmp_path / "crashed", loggers=[crash])
    assert [event["step"] for event in events(tmp_path / "crashed", "step")] == [1, 2, 3, 4, 5]
    again = run_it(config, tmp_path / "crashed")
    assert_same_bits(tensors_of(again), tensors_of(uninterrupted))
    assert [event["step"] for event in events(tmp_path / "crashed", "step")] == [1, 2, 3, 4, 5, 6]


def test_records_count_every_token_once_despite_saves_and_stops(world: Path, tmp_path: Path) -> None:
    """Logged every 4 steps, saved every 3, stopped after 5."""
    config = tiny_run(world, save_every=3)
    run_it(config, tmp_path / "fine")
    run_it(replace(config, log_every=4), tmp_path / "coarse", stop_after=5)
    run_it(replace(config, log_every=4), tmp_path / "coarse")
    fine, coarse = (events(tmp_path / name, "step") for name in ("fine", "coarse"))
    assert [event["step"] for event in coarse] == [3, 4, 5, 6]
    assert sum(event["tokens"] for event in coarse) == sum(event["tokens"] for event in fine)
    assert coarse[0]["tokens"] == sum(event["tokens"] for event in fine[:3])
    assert coarse[0]["loss"] == pytest.approx(sum(event["loss"] for event in fine[:3]) / 3, abs=1e-5)


def test_a_signal_finishes_the_step_and_saves(world: Path, tmp_path: Path) -> None:
    def interrupt(event: dict[str, Any]) -> None:
        if event["kind"] == "step" and event["step"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    config = tiny_run(world)
    with pytest.raises(RunStopped) as caught:
        run_it(config, tmp_path, loggers=[interrupt])
    stop = caught.value
    assert (stop.signal, stop.step, stop.saved, stop.exit_code) == (signal.SIGTERM, 2, True, 75)
    assert signal.getsignal(signal.SIGTERM) is before
    assert [path.name for path in ckpt.list_checkpoints(tmp_path / "checkpoints")] == ["step-00000002"]


def test_the_seed_decides_the_run(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, num_steps=2)
    one, same = (run_it(config, tmp_path / name) for name in ("one", "same"))
    other = run_it(replace(config, seed=1), tmp_path / "other")
    assert_same_bits(tensors_of(one), tensors_of(same))
    assert not torch.equal(one.state.model.embed.text, other.state.model.embed.text)


def test_the_ema_is_a_moving_average_of_the_weights(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, ema_decay=0.3, num_steps=4, validation_data=())
    weights = [run_it(config, tmp_path / "steps", stop_after=n).state.model.state_dict() for n in range(1, 5)]
    with open_run(config, tmp_path / "empty", TokenizerBundle.load(config.tokenizers), CPU) as run:
        start = run.state.model.state_dict()
    mean = {name: value.double() for name, value in start.items()}
    for step, now in enumerate(weights, start=1):
        decay = min(0.3, (1 + step) / (10 + step))  # a short memory at the start
        mean = {name: decay * mean[name] + (1 - decay) * now[name].double() for name in mean}
    run = run_it(config, tmp_path / "steps")
    assert run.state.ema is not None
    assert run.state.eval_model is run.state.ema
    for name, value in run.state.ema.state_dict().items():
        torch.testing.assert_close(value.double(), mean[name], atol=1e-6, rtol=1e-5, msg=name)
    assert not torch.equal(run.state.ema.embed.text, run.state.model.embed.text)


# -- skipped steps ----------------------------------------------------------------------------------------------------


def run_without(config: RunConfig, skipped: set[int], folder: Path) -> Run:
    """The run as if some of its steps did not exist."""
    with open_run(config, folder, TokenizerBundle.load(config.tokenizers), CPU) as run:
        state = run.state
        assert state.ema is not None
        for index in sorted(set(range(config.num_steps)) - skipped):
            train_step(state.model, state.optimizer, first_step(config, index), config, TINY, CPU)
            decay = min(config.ema_decay or 0.0, (2 + index) / (11 + index))
            with torch.no_grad():
                torch._foreach_lerp_(list(state.ema.parameters()), list(state.model.parameters()), 1 - decay)
    return run


@pytest.mark.parametrize("what", [("loss", "gradient"), ("loss",), ("gradient",)], ids="-".join)
def test_one_step_that_is_not_finite_is_skipped(what: tuple[str, ...], world: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    run_it(config, tmp_path / "fine")
    with broken_steps({2}, *what):
        run = run_it(config, tmp_path / "broken")
    assert run.state.step == 6
    assert_same_bits(tensors_of(run), tensors_of(run_without(config, {2}, tmp_path / "slow")))
    fine, broken = (events(tmp_path / name, "step") for name in ("fine", "broken"))
    assert [event["skipped"] for event in broken] == [None, None, "not finite", None, None, None]
    assert not any(event["skipped"] for event in fine)
    for key in ("step", "lr", "tokens"):  # data order and learning rate do not change
        assert [event[key] for event in broken] == [event[key] for event in fine]
    assert (broken[2]["loss"] is None, broken[2]["grad_norm"] is None) == ("loss" in what, "gradient" in what)
    assert (set(broken[2]["nll"].values()) == {None}) == ("loss" in what)
    for text in ("NaN", "Infinity"):
        assert text not in (tmp_path / "broken" / "records.jsonl").read_text()
    assert len(events(tmp_path / "broken", "end")) == 1


def test_a_skipped_step_is_not_averaged(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, log_every=3)
    run_it(replace(config, log_every=1), tmp_path / "fine")
    with broken_steps({4}):
        run_it(config, tmp_path / "broken")
    fine, broken = (events(tmp_path / name, "step") for name in ("fine", "broken"))
    # Step 4 has a record because of the validation, step 5 because it was skipped.
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
def test_a_run_with_skipped_steps_resumes_exactly(broken: set[int], stop: int, world: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    with broken_steps(broken):
        uninterrupted = run_it(config, tmp_path / "uninterrupted")
        run_it(config, tmp_path / "parts", stop_after=stop)
        parts = run_it(config, tmp_path / "parts")
    assert_same_bits(tensors_of(parts), tensors_of(uninterrupted))
    assert_same_bits(tensors_of(parts), tensors_of(run_without(config, broken, tmp_path / "slow")))


def test_nine_skipped_steps_in_a_row_do_not_end_the_run(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, num_steps=21, validation_data=())
    with broken_steps({*range(1, 10), *range(11, 20)}):
        assert run_it(config, tmp_path).state.step == 21
    assert sum(event["skipped"] == "not finite" for event in events(tmp_path, "step")) == 18


def test_ten_skipped_steps_in_a_row_end_the_run(world: Path, tmp_path: Path) -> None:
    """The last good checkpoint is kept, although more saves were due since than are kept."""
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
    assert all(value.isfinite().all() for value in saved_tensors(tmp_path).values())
    assert [event["step"] for event in events(tmp_path, "step") if event["skipped"]] == list(range(5, 15))
    assert events(tmp_path, "end") == []


def test_a_due_save_waits_for_a_good_step(world: Path, tmp_path: Path) -> None:
    with broken_steps({1, 2}):
        run_it(tiny_run(world, save_every=2, keep_last_checkpoints=9), tmp_path / "run")
    assert [event["step"] for event in events(tmp_path / "run", "saved")] == [4, 6]
    with broken_steps({1}):
        run_it(tiny_run(world, save_every=2, keep_last_checkpoints=9), tmp_path / "other")
    assert [event["step"] for event in events(tmp_path / "other", "saved")] == [3, 4, 6]


@pytest.mark.parametrize("changes", [{"save_every": 1}, {"validation": ValidationConfig(every=1)}], ids=str)
def test_weights_that_are_not_finite_are_not_saved(changes: dict[str, Any], world: Path, tmp_path: Path) -> None:
    # The epsilon is 0 in float32, so that the update of a zero gradient is 0 / 0.
    config = tiny_run(world, optimizer=OptimizerConfig(lr=1e-2, eps=1e-300), **changes)
    with pytest.raises(loop.Diverged, match=r"the weights after step 1 are not finite\. There is no checkpoint yet"):
        run_it(config, tmp_path)
    assert ckpt.list_checkpoints(tmp_path / "checkpoints") == []
    assert [event["step"] for event in events(tmp_path, "step")] == [1]


# -- learning ---------------------------------------------------------------------------------------------------------


def test_training_learns_the_relation_of_text_and_media(tmp_path: Path) -> None:
    """One of 6 symbols decides the two codes of an image or audio: each pair holds one choice of six."""
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
    nelbo = events(tmp_path / "run", "validation")[-1]["nelbo"]
    choice = math.log(6)
    for name in ("image", "audio"):
        assert nelbo[f"{name}|text"]["nats_per_token"] < 0.7 * choice / 2  # without the text: one choice per two codes
        assert nelbo[f"text|{name}"]["nats_per_token"] < 0.6 * choice
    steps = events(tmp_path / "run", "step")
    assert steps[-1]["loss"] < 0.4 * steps[0]["loss"]


def test_mfu_is_the_share_of_counted_flops(world: Path, tmp_path: Path) -> None:
    """With complementary masks, every token is processed twice and every maskable token is predicted once."""
    corrupt = CorruptConfig()
    config = with_loader(
        tiny_run(world, complementary_masks=True, corrupt=corrupt, num_steps=1, validation_data=()), mask_text_eos="all"
    )
    config = replace(config, model=replace(config.model, softmax_scope="full"))
    run_it(config, tmp_path, peak_flops=1e6)
    (event,) = events(tmp_path, "step")
    predicted = sum(int(batch.maskable.sum()) for batch in first_step(config).micro_batches)
    tokens = event["tokens"]
    least = flops(config.model, TINY, 0.0, predicted=0.0).training * 2 * tokens
    d = config.model.width
    end = 2 * (d**2 + 3 * d * config.model.d_ff)  # the last block's end, at predicted positions only
    head = 3 * (2 * TINY.size * d + end) * predicted
    attention = 3 * 4 * config.model.width * (tokens / 9) * 2 * tokens
    seconds = tokens / event["tokens_per_second"]
    assert event["mfu"] == pytest.approx((least + head + attention) / seconds / 1e6, rel=0.01)
