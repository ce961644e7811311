"""Records of a run as JSON lines, and what the console and TensorBoard show of them."""

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_fakes import CPU, events, run_it, tiny_run, with_loader

from triptych.data.sequences import NO_OPEN_ENDS, OpenEnds
from triptych.errors import UserError
from triptych.model.transformer import Transformer, initialise
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import PromptConfig
from triptych.training.guard import GuardState
from triptych.training.logging import Console, RunLog, environment, read_records
from triptych.training.ranks import Ranks
from triptych.training.state import Run, TrainState
from triptych.training.step import build_optimizer

STEP: dict[str, Any] = {
    "kind": "step",
    "step": 120,
    "num_steps": 1000,
    "loss": 2.34567,
    "nll": {"text": 1.234, "image": 4.5, "audio": None},
    "lr": 3e-3,
    "grad_norm": 0.5,
    "tokens_per_second": 12345.6,
    "mfu": 0.416,
    "seconds_left": 3725.0,
}


# -- the file ---------------------------------------------------------------------------------------------------------


def test_every_event_is_a_json_line_and_reaches_the_loggers(tmp_path: Path) -> None:
    received: list[dict[str, Any]] = []
    records = RunLog(tmp_path / "new" / "records.jsonl", [received.append])
    records("run", step=0, recipe="näno")
    records("step", step=1, loss=0.5)
    lines = (tmp_path / "new" / "records.jsonl").read_text().splitlines()
    assert read_records(tmp_path / "new" / "records.jsonl") == received
    assert [{**json.loads(line), "crc32": None} for line in lines] == [{**event, "crc32": None} for event in received]
    assert [(event["kind"], event["step"]) for event in received] == [("run", 0), ("step", 1)]
    assert received[0]["recipe"] == "näno"
    assert all(event["time"] > 1.7e9 for event in received)


def strict_json(line: str) -> Any:
    """Standard JSON: Python's parser would also accept NaN and Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(line, parse_constant=refuse)


def test_nan_and_infinities_become_null(tmp_path: Path) -> None:
    received: list[dict[str, Any]] = []
    records = RunLog(tmp_path / "records.jsonl", [received.append])
    records("step", step=1, loss=float("nan"), nll={"text": float("inf"), "image": 1.5}, all=[-float("inf"), 2])
    (line,) = records.path.read_text().splitlines()
    assert {**strict_json(line), "crc32": None} == {**received[0], "crc32": None}
    assert received[0]["loss"] is None
    assert received[0]["nll"] == {"text": None, "image": 1.5}
    assert received[0]["all"] == [None, 2]
    records.path.write_text('{"kind": "step", "step": 1, "loss": NaN}\n')  # as earlier versions wrote it
    records.rewind(1)
    assert strict_json(records.path.read_text())["loss"] is None


def test_rewinding_drops_later_events(tmp_path: Path) -> None:
    records = RunLog(tmp_path / "records.jsonl", [])
    records.rewind(0)  # there is nothing yet
    for step in range(6):
        records("step", step=step)
    records("note", text="of no step")
    records.rewind(3)
    assert [event.get("step") for event in read_records(records.path)] == [0, 1, 2, 3, None]
    records("step", step=4)
    assert [event.get("step") for event in read_records(records.path)] == [0, 1, 2, 3, None, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


@pytest.mark.parametrize("cut", [1, 2, 5, 30])
def test_a_truncated_last_line_is_ignored(cut: int, tmp_path: Path) -> None:
    records = RunLog(tmp_path / "records.jsonl", [])
    for step in (1, 2, 3):
        records("step", step=step, loss=1.0)
    text = records.path.read_text()
    records.path.write_text(text[:-cut])
    known = 3 if cut == 1 else 2
    assert [event["step"] for event in read_records(records.path)] == [1, 2, 3][:known]
    records.rewind(3)
    records("step", step=4)
    assert [event["step"] for event in read_records(records.path)] == [*[1, 2, 3][:known], 4]


def test_one_flipped_bit_costs_one_line(tmp_path: Path) -> None:
    """Of all bits of a line, none makes the others unreadable, and none changes a value without a word."""
    records = RunLog(tmp_path / "records.jsonl", [])
    for step in range(5):
        records("step", step=step, loss=1.0 + step, text="ä")
    original = records.path.read_bytes()
    events = read_records(records.path)
    start = original.index(b"\n") + 1
    for position in range(start, original.index(b"\n", start)):
        for bit in (0, 3, 7):
            damaged = bytearray(original)
            damaged[position] ^= 1 << bit
            records.path.write_bytes(damaged)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                kept = read_records(records.path)
            assert [event for event in kept if event in events] == [event for event in events if event in kept]
            others = [event for event in kept if event not in events]
            # A flip in the name of the checksum leaves the values as they were.
            assert not others or [{**event, **events[1]} for event in others] == others
            assert bool(caught) == (len([event for event in kept if event in events]) < 5 and not others)
            assert all("records.jsonl: " in str(each.message) and "damaged" in str(each.message) for each in caught)
            assert len(kept) in (4, 5)


def test_a_run_with_damaged_records_resumes_and_says_so(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    run_it(config, tmp_path, stop_after=3)
    path = tmp_path / "records.jsonl"
    content = path.read_bytes()
    position = content.index(b'"kind": "step"') + 3
    path.write_bytes(content[:position] + bytes([content[position] ^ 0x80]) + content[position + 1 :])  # no UTF-8
    run_it(config, tmp_path)
    (note,) = events(tmp_path, "note")
    assert note["text"] == f"{path}: line 2 is damaged and left out"
    assert [event["step"] for event in events(tmp_path, "step")] == [2, 3, 4, 5, 6]


def test_records_of_earlier_versions_are_read_with_current_keys(tmp_path: Path) -> None:
    records = RunLog(tmp_path / "records.jsonl", [])
    records("run", step=0, config={"keep": 3, "world": "scenes", "parallel": {"watch": 9.0}, "seed": 1})
    (event,) = read_records(records.path)
    assert event["config"] == {"keep_last_checkpoints": 3, "parallel": {"hang_timeout": 9.0}, "seed": 1}
    before = records.path.read_text()
    records.rewind(0)
    assert records.path.read_text() == before  # history is not rewritten


def test_the_records_describe_the_run(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world, num_steps=2)
    run_it(config, tmp_path, peak_flops=1e9)
    assert [event["kind"] for event in read_records(tmp_path / "records.jsonl")] == [
        "run",
        "step",
        "step",
        "validation",
        "saved",
        "end",
    ]
    (start,) = events(tmp_path, "run")
    assert start["config"] == json.loads((tmp_path / "config.json").read_text())
    assert start["parameters"] == sum(p.numel() for p in Transformer(config.model, _vocabulary(config)).parameters())
    assert start["environment"] == environment()
    assert start["environment"]["torch"] == torch.__version__
    for event in events(tmp_path, "step"):
        assert event["num_steps"] == 2
        assert event["tokens_per_second"] > 0
        assert 0 <= event["padding"] < 1
        assert event["mfu"] > 0
        assert set(event["nll"]) == {"text", "image", "audio"}
    assert events(tmp_path, "step")[-1]["seconds_left"] == 0


def _vocabulary(config: Any) -> Any:
    return TokenizerBundle.load(config.tokenizers).vocabulary


# -- the console ------------------------------------------------------------------------------------------------------


def test_the_console_line_of_a_step(capsys: pytest.CaptureFixture) -> None:
    console = Console()
    console(STEP)
    console({**STEP, "mfu": None, "seconds_left": 59.6})
    console({"kind": "something else"})
    assert capsys.readouterr().err.splitlines() == [
        "step    120/1000  loss 2.346 (text 1.23 image 4.50)  lr 3.0e-03  12,346 tokens/s, 42% of peak, "
        "1 h 02 min left",
        "step    120/1000  loss 2.346 (text 1.23 image 4.50)  lr 3.0e-03  12,346 tokens/s, 1 min 00 s left",
    ]


def test_the_console_lines_of_other_events(capsys: pytest.CaptureFixture) -> None:
    console = Console()
    nelbo = {"image|text": {"nats_per_token": 3.21049, "margin": 0.0123, "tokens": 100}}
    console({"kind": "validation", "step": 500, "nelbo": nelbo})
    console({"kind": "saved", "step": 500, "path": "runs/a/checkpoints/step-00000500"})
    console(
        {
            "kind": "run",
            "recipe": "nano",
            "parameters": 1_234_567,
            "non_embedding": 500_000,
            "num_steps": 11_000,
            "folder": "runs/a",
        }
    )
    console({"kind": "end", "step": 11_000, "seconds": 65.2})
    console({"kind": "note", "text": "well"})
    assert capsys.readouterr().err.splitlines() == [
        "step    500  validation, nats per token: image|text 3.210 ± 0.012",
        "step    500  saved runs/a/checkpoints/step-00000500",
        "nano: 1.2M parameters (0.5M without embeddings), 11,000 steps, into runs/a",
        "done: 11,000 steps in 1 min 05 s",
        "well",
    ]


def test_on_a_terminal_steps_overwrite_each_other(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    console = Console()
    console(STEP)
    console({"kind": "note", "text": "well"})
    written = capsys.readouterr().err
    assert written.startswith("\r\x1b[2Kstep    120/1000")
    assert written.endswith("left\r\x1b[2Kwell\n")


def test_a_skipped_step_stays_on_the_terminal(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"text": None, "image": None, "audio": None}
    skipped = {**STEP, "skipped": "not finite", "loss": None, "grad_norm": None, "nll": nothing}
    console = Console()
    console({**STEP, "skipped": None})
    console(skipped)
    console({**skipped, "loss": 2.5})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("step    120/1000  loss 2.346")
    assert lines[1:] == [
        "step    120/1000  skipped, not finite: loss, gradient",
        "step    120/1000  skipped, not finite: gradient",
    ]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    Console()(skipped)
    assert capsys.readouterr().err.endswith("gradient\n")


def test_the_console_line_of_a_validation_that_is_not_finite(capsys: pytest.CaptureFixture) -> None:
    nelbo = {
        "text": {"nats_per_token": None, "margin": None, "tokens": 9},
        "image": {"nats_per_token": 1.0, "margin": 0.5, "tokens": 9},
    }
    Console()({"kind": "validation", "step": 500, "nelbo": nelbo})
    assert capsys.readouterr().err == (
        "step    500  validation, nats per token: text not finite, image 1.000 ± 0.500\n"
    )


# -- TensorBoard ------------------------------------------------------------------------------------------------------


def test_a_missing_tensorboard_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from triptych.training.tensorboard import TensorBoardLogger

    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    with pytest.raises(UserError, match=r'tensorboard.*-e "\.\[train\]"'):
        TensorBoardLogger(tmp_path, TokenizerBundle.load("scenes"))
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_gets_curves_and_samples(world: Path, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from triptych.training.tensorboard import TensorBoardLogger

    prompts = ("two cats", "a red heart")
    bundle = TokenizerBundle.load("scenes")
    board = TensorBoardLogger(tmp_path, bundle)
    for step, loss in ((20, 3.5), (40, 2.5)):
        board({**STEP, "step": step, "loss": loss})
    nelbo = {"image|text": {"nats_per_token": 3.25, "margin": 0.01, "tokens": 100}}
    board({"kind": "validation", "step": 40, "nelbo": nelbo})
    board({**STEP, "step": 41, "skipped": "not finite", "loss": None, "grad_norm": None})
    board({"kind": "validation", "step": 41, "nelbo": {"image|text": {"nats_per_token": None, "margin": None}}})

    config = tiny_run(world, tokenizers="scenes")
    # Without open ends the model cannot choose the duration of audio, so the logger does.
    config = replace(with_loader(config, seq_len=120, open_ends=NO_OPEN_ENDS), prompts=PromptConfig(examples=prompts))
    model = Transformer(config.model, bundle.vocabulary)
    initialise(model, 0)
    state = TrainState(model, build_optimizer(model, config.resolved), None, GuardState.from_json(config.guard, {}), 40)
    run = Run(config, tmp_path, bundle, CPU, Ranks(), state)
    board.show_samples(run, model)
    assert model.training
    run.config, state.step = with_loader(config, open_ends=OpenEnds(probability=0.1, text=30, audio=40)), 60
    board.show_samples(run, model)
    board({"kind": "saved", "step": 60, "path": "x"})

    read = accumulator.EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"images": 0, "audio": 0})
    read.Reload()
    tags = read.Tags()
    assert [(event.step, event.value) for event in read.Scalars("train/loss")] == [(20, 3.5), (40, 2.5)]
    assert [event.value for event in read.Scalars("val/image given text")] == [3.25]
    assert {"train/lr", "train/grad_norm", "train/tokens_per_second", "train/mfu"} <= set(tags["scalars"])
    assert {"train/nll text", "train/nll image"} <= set(tags["scalars"])
    assert "train/nll audio" not in tags["scalars"]
    assert sorted(tags["images"]) == sorted(prompts)
    for prompt in prompts:
        images = read.Images(prompt)
        assert [image.step for image in images] == [40, 60]
        assert (images[0].width, images[0].height) == (64, 64)
    (tag,) = tags["audio"]
    audio = read.Audio(tag)
    assert [clip.step for clip in audio] == [40, 60]
    assert audio[0].sample_rate == 16_000
    assert audio[0].length_frames > 0


def test_a_run_without_example_prompts_has_no_samples(world: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from triptych.training.tensorboard import TensorBoardLogger

    config = replace(tiny_run(world), num_steps=1)
    bundle = TokenizerBundle.load(config.tokenizers)
    board = TensorBoardLogger(tmp_path, bundle)
    run_it(config, tmp_path, loggers=[board], on_validation=board.show_samples)
    assert np.isfinite(events(tmp_path, "step")[0]["loss"])
    assert list((tmp_path / "tensorboard").iterdir())
