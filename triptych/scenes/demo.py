"""`triptych demo`: the embedded model in every direction, and a small one as it learns, on one page."""

import html
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from triptych.eval import html as report
from triptych.eval.audio import normalize_transcript
from triptych.hub.pipeline import GAP, Pipeline
from triptych.recipes import recipe
from triptych.scenes.grammar import CATEGORIES, Scene, caption, questions, sample_scene
from triptych.scenes.image import draw, place
from triptych.scenes.judge import read, shows, tells
from triptych.scenes.make import make_scenes
from triptych.scenes.samples import scene_sample
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.logging import read_records
from triptych.training.loop import train
from triptych.training.setup import start
from triptych.vocab import Modality, Task

_SEED = 7
_HELD_OUT = 40  # samples of each task it is measured on
_TRAIN = {Task.TEXT: 400, Task.IMAGE_TEXT: 600, Task.AUDIO_TEXT: 200}  # samples the nano model learns from


def run_demo(out: Path, console: Console, nano_steps: int, model: str = "scenes") -> Path:
    """Run all parts, write the page, say where it is."""
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    pipe = Pipeline.from_pretrained(model)
    count = sum(parameter.numel() for parameter in pipe.model.parameters())
    console.print(
        f"One masked-diffusion transformer of {count / 1e6:.1f}M parameters over {pipe.vocabulary.size:,} ids of text, "
        "picture and sound. Everything it is asked about here was held out of its training.",
        soft_wrap=True,
    )
    parts: list[tuple[str, Callable[[], str]]] = [
        ("drawing four prompts", lambda: _drawing(pipe, console)),
        ("looking at a picture", lambda: _looking(pipe, console)),
        ("speaking and listening", lambda: _speaking(pipe, console)),
        ("filling in", lambda: _filling(pipe, console)),
        ("from speech to a picture", lambda: _speech_to_picture(pipe, console)),
    ]
    if nano_steps:
        parts.append(("training a nano model", lambda: _learning(out, nano_steps, console)))
    body = []
    for name, part in parts:
        console.rule(name, align="left")
        body.append(part())
    intro = (
        f"<h1>Triptych</h1><p>One masked-diffusion transformer ({count / 1e6:.1f}M parameters) for text, pictures and "
        "speech, trained from scratch on a CPU. All scenes below are compositions it never saw in training; "
        "✓ and ✗ are the verdicts of exact judges.</p>"
    )
    page = out / "index.html"
    page.write_text(report.page("Triptych: one model, every direction", intro + "".join(body)))
    console.rule()
    console.print(f"Done in {time.monotonic() - started:.0f} s. Look and listen: [bold]{page}[/bold]", soft_wrap=True)
    return page


def _held_out(number: int, category: str) -> tuple[Scene, np.random.Generator]:
    rng = np.random.default_rng([_SEED, number])
    return sample_scene(rng, "test", category), rng


def _mark(is_right: bool) -> str:
    return "[green]✓[/green]" if is_right else "[red]✗[/red]"


# -- text to picture --------------------------------------------------------------------------------------------------


def _drawing(pipe: Pipeline, console: Console) -> str:
    scenes = [_held_out(i, CATEGORIES[i + 2])[0] for i in range(4)]
    prompts = [caption(scene, np.random.default_rng(i)) for i, scene in enumerate(scenes)]
    watched = _Watch(pipe)
    pictures = pipe.text_to_image(prompts, seed=_SEED, callback=watched)
    figures = []
    for prompt, scene, image, reading in zip(prompts, scenes, pictures, read(pictures)):
        is_right = shows(reading, scene)
        console.print(f"  {_mark(is_right)} {prompt}")
        figures.append(report.figure(report.picture(image), report.verdict(is_right, prompt)))
    steps = [report.figure(report.picture(image, "step"), f"look {number}") for number, image in watched.seen]
    return report.section(
        "Text to picture",
        report.row(*figures),
        report.paragraph(f"How {report.quote(prompts[0])} came to be; what is still masked is grey:"),
        report.row(*steps),
    )


class _Watch:
    """Keeps pictures of the first request on its way; masked codes are painted grey."""

    def __init__(self, pipe: Pipeline, frames: int = 8):
        self.pipe, self.frames = pipe, frames
        self.seen: list[tuple[int, Image.Image]] = []
        self._groups = 0

    def __call__(self, step: int, steps: int, tokens: Tensor) -> None:
        self._groups += step == 0
        wanted = {round(x) for x in np.linspace(0, steps - 1, self.frames)}
        if self._groups > 1 or step not in wanted:
            return
        self.seen.append((step + 1, half_masked_picture(self.pipe, tokens[0].cpu().numpy())))


def half_masked_picture(pipe: Pipeline, tokens: np.ndarray) -> Image.Image:
    """The picture in a sequence that is not finished: masked codes become grey squares."""
    vocabulary = pipe.vocabulary
    ids = vocabulary.data_ids(Modality.IMAGE)
    mask = vocabulary.mask(Modality.IMAGE)
    codes = tokens[((tokens >= ids.start) & (tokens < ids.stop)) | (tokens == mask)]
    is_masked = codes == mask
    local = np.where(is_masked, _white_code(pipe), codes - ids.start)
    image = pipe.bundle.image.decode([local])[0]
    side = int(len(codes) ** 0.5)
    cover = Image.fromarray((is_masked.reshape(side, side) * 255).astype(np.uint8))
    grey = Image.new("RGB", image.size, (190, 190, 190))
    return Image.composite(grey, image, cover.resize(image.size, Image.Resampling.NEAREST))


def _white_code(pipe: Pipeline) -> int:
    size = pipe.bundle.image.resolution
    codes = pipe.bundle.image.encode([Image.new("RGB", (size, size), "white")])[0]
    return int(np.bincount(codes).argmax())


# -- picture to text --------------------------------------------------------------------------------------------------


def _looking(pipe: Pipeline, console: Console) -> str:
    scene, rng = _held_out(10, "position")
    things = place(scene, rng)
    image = draw(things)
    said = pipe.caption(image, seed=_SEED)
    is_right = tells(said, scene, things)
    console.print(f"  {_mark(is_right)} caption: {escape(said)}")
    lines = [report.paragraph(f"Caption: {report.verdict(is_right, said)}")]
    for question, answer in questions(scene)[:3]:
        given = pipe.answer(image, question, seed=_SEED)
        console.print(f"  {_mark(given == answer)} {question} {escape(given)}")
        lines.append(report.paragraph(f"{html.escape(question)} {report.verdict(given == answer, given)}"))
    shown = report.figure(report.picture(image), "a held-out picture")
    return report.section("Picture to text, and questions", report.row(shown, f"<div>{''.join(lines)}</div>"))


# -- speech -----------------------------------------------------------------------------------------------------------


def _speaking(pipe: Pipeline, console: Console) -> str:
    scene, rng = _held_out(20, "two objects")
    sentence = caption(scene, rng)
    spoken = pipe.speak(sentence, seed=_SEED)
    heard = pipe.transcribe(spoken, seed=_SEED)
    is_right = normalize_transcript(heard) == normalize_transcript(sentence)
    console.print(f"  said in {spoken.seconds:.1f} s: {sentence}")
    console.print(f"  {_mark(is_right)} heard from that: {escape(heard)}")
    return report.section(
        "Text to speech, and back",
        report.paragraph(f"It says {report.quote(sentence)}, taking as long as it likes:"),
        report.figure(report.sound(spoken), f"{spoken.seconds:.1f} s"),
        report.paragraph(f"and writes down what it hears: {report.verdict(is_right, heard)}"),
    )


def _speech_to_picture(pipe: Pipeline, console: Console) -> str:
    sample = scene_sample(Task.AUDIO_TEXT, "test", 3, seed=_SEED)
    assert sample.sound is not None
    heard, image = pipe.speech_to_image(sample.sound, seed=_SEED)
    is_right = shows(read([image])[0], sample.scene)
    console.print(f"  heard: {escape(heard)}\n  {_mark(is_right)} the picture shows {sample.text!r}")
    return report.section(
        "Speech to picture",
        report.row(
            report.figure(report.sound(sample.sound), f"a held-out recording: {report.quote(sample.text)}"),
            report.figure(report.picture(image), f"heard {report.quote(heard)} {report.verdict(is_right, 'drawn')}"),
        ),
    )


# -- filling in -------------------------------------------------------------------------------------------------------


def _filling(pipe: Pipeline, console: Console) -> str:
    scene, rng = _held_out(30, "colour attribution")
    things = place(scene, rng)
    image, text = draw(things), caption(scene, rng)
    box = things[-1].plot
    holed = image.copy()
    holed.paste((190, 190, 190), box)
    filled = pipe.infill_image(image, box, text, seed=_SEED)
    is_right = shows(read([filled])[0], scene)
    console.print(f"  {_mark(is_right)} a hole in a picture of: {text}")

    words = text.split()
    gapped = " ".join(GAP if word in _content(scene) else word for word in words)
    completed = pipe.infill_text(gapped, image=image, seed=_SEED)
    right_text = tells(completed, scene, things)
    console.print(f"  {_mark(right_text)} {gapped}  ->  {escape(completed)}")
    return report.section(
        "Filling in",
        report.row(
            report.figure(report.picture(holed), "a hole"),
            report.figure(report.picture(filled), f"filled, as {report.quote(text)} {report.verdict(is_right, '')}"),
            report.figure(report.picture(image), "what had been there"),
        ),
        report.paragraph(f"A sentence about it: {report.quote(gapped)} &rarr; {report.verdict(right_text, completed)}"),
    )


def _content(scene: Scene) -> set[str]:
    """Words that only the picture can tell."""
    return {word for group in scene.groups for word in (group.colour or "",) if word}


# -- learning ---------------------------------------------------------------------------------------------------------


def _learning(out: Path, steps: int, console: Console) -> str:
    data = out / "data"
    console.print("  making a little data ...")
    make_scenes(data, _TRAIN, _HELD_OUT, workers=0, renew=True, report=lambda line: None)
    config = recipe("nano")
    config = replace(
        config,
        num_steps=steps,
        data=tuple(str(data / "train" / task.label) for task in Task),
        validation_data=tuple(str(data / "validation" / task.label) for task in Task),
        validation=replace(config.validation, every=max(1, steps // 4)),
        save_every=steps,
        log_every=min(config.log_every, max(1, steps // 2)),
    )
    bundle = TokenizerBundle.load("scenes")
    folder = out / "nano"
    shutil.rmtree(folder, ignore_errors=True)  # a demo begins anew each time
    with console.status("") as status:
        run = start(config, folder, bundle, torch.device("cpu"))
        train(run, [lambda event: _show_progress(event, status)], bundle)
    events = [
        event for event in read_records(folder / "records.jsonl") if event["kind"] == "step" and not event["skipped"]
    ]
    first, last = events[0], events[-1]
    console.print(f"  {last['step']} steps: loss {first['loss']:.2f} -> {last['loss']:.2f} nats per token")
    lines = {"all": [(float(e["step"]), float(e["loss"])) for e in events]}
    for name in ("text", "image", "audio"):
        points = [(float(e["step"]), float(e["nll"][name])) for e in events if e["nll"].get(name) is not None]
        lines |= {name: points} if points else {}
    return report.section(
        "A nano model learns",
        report.paragraph(
            f"The recipe <code>nano</code>, {steps} steps on {sum(_TRAIN.values()):,} samples made on this machine. "
            "Negative log-likelihood of masked tokens, in nats; "
            "<code>triptych train scenes</code> is the same for longer."
        ),
        report.curves(lines, "step", "nats per masked token"),
    )


def _show_progress(event: dict[str, Any], status: Any) -> None:
    if event["kind"] == "step" and not event["skipped"]:
        status.update(f"  step {event['step']} of {event['num_steps']}, loss {event['loss']:.2f}")
