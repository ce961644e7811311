"""`triptych demo`: the demo model in every direction, and a small model in training, on one HTML page."""

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

from triptych.eval import html as page
from triptych.eval.audio import normalize_transcript
from triptych.hub.directions import GAP
from triptych.hub.pipeline import Pipeline
from triptych.recipes import recipe
from triptych.scenes.grammar import CATEGORIES, Scene, caption, questions, sample_scene
from triptych.scenes.image import draw, place
from triptych.scenes.judge import caption_is_right, detect, matches
from triptych.scenes.make import make_scenes
from triptych.scenes.samples import scene_sample
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.logging import read_records
from triptych.training.loop import train_loop
from triptych.training.setup import open_run
from triptych.vocab import Modality, Task

_SEED = 7
_NUM_TRAIN = {Task.TEXT: 400, Task.IMAGE_TEXT: 600, Task.AUDIO_TEXT: 200}  # training samples of the nano model
_NUM_VALIDATION = 40  # validation samples of each task
_GREY = (190, 190, 190)


def run_demo(
    out: Path, console: Console, nano_steps: int, model: str = "scenes", device: str | torch.device = "auto"
) -> Path:
    """Run all parts and write the page; returns its path. `nano_steps` 0 skips the training."""
    started = time.monotonic()
    pipe = Pipeline.from_pretrained(model, device=device)
    out.mkdir(parents=True, exist_ok=True)
    millions = sum(parameter.numel() for parameter in pipe.model.parameters()) / 1e6
    console.print(
        f"One masked-diffusion transformer with {millions:.1f}M parameters and {pipe.vocabulary.size:,} tokens "
        "for text, images and audio. All scenes below are compositions that were not in its training data."
    )
    parts: list[tuple[str, Callable[[], str]]] = [
        ("Text to image", lambda: _text_to_image(pipe, console)),
        ("Captions and answers", lambda: _image_to_text(pipe, console)),
        ("Text to speech, and back", lambda: _speech(pipe, console)),
        ("Infilling", lambda: _infilling(pipe, console)),
        ("Speech to image", lambda: _speech_to_image(pipe, console)),
    ]
    if nano_steps:
        parts.append(("Training a small model", lambda: _training(out, nano_steps, console)))
    sections = []
    for title, part in parts:
        console.rule(title, align="left")
        sections.append(page.section(title, part()))
    intro = (
        "<h1>Triptych</h1>"
        f"<p>One masked-diffusion transformer ({millions:.1f}M parameters) generates text, images and speech. "
        "This page shows the demo model on scenes of the built-in toy dataset. None of their compositions was in its "
        "training data. An exact judge marks right results with ✓ and wrong ones with ✗.</p>"
    )
    path = out / "index.html"
    path.write_text(page.page("Triptych: one model, every direction", intro + "".join(sections)))
    console.rule()
    seconds = time.monotonic() - started
    console.print(f"Finished in {seconds:.0f} s. Open [bold]{escape(str(path))}[/bold] in a browser.")
    return path


def unseen_scene(number: int, category: str) -> tuple[Scene, np.random.Generator]:
    """A scene of the test split, and the generator for its words and positions."""
    rng = np.random.default_rng([_SEED, number])
    return sample_scene(rng, "test", category), rng


def _mark(is_right: bool) -> str:
    return "[green]✓[/green]" if is_right else "[red]✗[/red]"


# -- text to image ----------------------------------------------------------------------------------------------------


def _text_to_image(pipe: Pipeline, console: Console) -> str:
    scenes = [unseen_scene(i, CATEGORIES[i + 2])[0] for i in range(4)]
    prompts = [caption(scene, np.random.default_rng(i)) for i, scene in enumerate(scenes)]
    recorder = _StepRecorder(pipe)
    images = pipe.text_to_image(prompts, seed=_SEED, callback=recorder)
    figures = []
    for prompt, scene, image, detection in zip(prompts, scenes, images, detect(images)):
        is_right = matches(detection, scene)
        console.print(f"  {_mark(is_right)} {prompt}")
        figures.append(page.figure(page.image(image), page.verdict(is_right, prompt)))
    steps = [page.figure(page.image(image, "thumbnail"), f"step {number}") for number, image in recorder.images]
    return "".join(
        [
            page.row(*figures),
            page.paragraph(f"{page.quote(prompts[0])} step by step. Masked tokens are grey."),
            page.row(*steps),
        ]
    )


class _StepRecorder:
    """A sampling callback that keeps images of the first request while it is generated."""

    def __init__(self, pipe: Pipeline, num_images: int = 8):
        self.pipe, self.num_images = pipe, num_images
        self.images: list[tuple[int, Image.Image]] = []
        self._batches = 0

    def __call__(self, step: int, num_steps: int, tokens: Tensor) -> None:
        self._batches += step == 0
        recorded_steps = {round(x) for x in np.linspace(0, num_steps - 1, self.num_images)}
        if self._batches > 1 or step not in recorded_steps:
            return
        self.images.append((step + 1, partial_image(self.pipe, tokens[0].cpu().numpy())))


def partial_image(pipe: Pipeline, tokens: np.ndarray) -> Image.Image:
    """The image in a sequence that is not finished: masked tokens become grey squares."""
    vocabulary = pipe.vocabulary
    ids = vocabulary.data_ids(Modality.IMAGE)
    mask = vocabulary.mask(Modality.IMAGE)
    codes = tokens[((tokens >= ids.start) & (tokens < ids.stop)) | (tokens == mask)]
    is_masked = codes == mask
    local = np.where(is_masked, _white_code(pipe), codes - ids.start)
    image = pipe.bundle.image.decode([local])[0]
    side = int(len(codes) ** 0.5)
    cover = Image.fromarray((is_masked.reshape(side, side) * 255).astype(np.uint8))
    grey = Image.new("RGB", image.size, _GREY)
    return Image.composite(grey, image, cover.resize(image.size, Image.Resampling.NEAREST))


def _white_code(pipe: Pipeline) -> int:
    size = pipe.bundle.image.resolution
    codes = pipe.bundle.image.encode([Image.new("RGB", (size, size), "white")])[0]
    return int(np.bincount(codes).argmax())


# -- image to text ----------------------------------------------------------------------------------------------------


def _image_to_text(pipe: Pipeline, console: Console) -> str:
    scene, rng = unseen_scene(10, "position")
    objects = place(scene, rng)
    image = draw(objects)
    text = pipe.caption(image, seed=_SEED)
    is_right = caption_is_right(text, scene, objects)
    console.print(f"  {_mark(is_right)} caption: {escape(text)}")
    lines = [page.paragraph(f"Caption: {page.verdict(is_right, text)}")]
    for question, expected in questions(scene)[:3]:
        answer = pipe.answer(image, question, seed=_SEED)
        console.print(f"  {_mark(answer == expected)} {question} {escape(answer)}")
        lines.append(page.paragraph(f"{html.escape(question)} {page.verdict(answer == expected, answer)}"))
    return page.row(page.figure(page.image(image), "input image"), f"<div>{''.join(lines)}</div>")


# -- speech -----------------------------------------------------------------------------------------------------------


def _speech(pipe: Pipeline, console: Console) -> str:
    scene, rng = unseen_scene(20, "two objects")
    text = caption(scene, rng)
    speech = pipe.text_to_speech(text, seed=_SEED)
    transcript = pipe.transcribe(speech, seed=_SEED)
    is_right = normalize_transcript(transcript) == normalize_transcript(text)
    console.print(f"  {speech.seconds:.1f} s of speech: {text}")
    console.print(f"  {_mark(is_right)} transcript of it: {escape(transcript)}")
    return "".join(
        [
            page.paragraph(f"The model speaks {page.quote(text)} and chooses the duration itself:"),
            page.figure(page.audio(speech), f"{speech.seconds:.1f} s"),
            page.paragraph(f"Its transcript of that speech: {page.verdict(is_right, transcript)}"),
        ]
    )


def _speech_to_image(pipe: Pipeline, console: Console) -> str:
    sample = scene_sample(Task.AUDIO_TEXT, "test", 3, seed=_SEED)
    assert sample.audio is not None
    transcript, image = pipe.speech_to_image(sample.audio, seed=_SEED)
    is_right = matches(detect([image])[0], sample.scene)
    console.print(f"  spoken: {sample.text}\n  transcript: {escape(transcript)}\n  {_mark(is_right)} image")
    return page.paragraph("The model transcribes the speech and draws the transcript:") + page.row(
        page.figure(page.audio(sample.audio), f"input speech: {page.quote(sample.text)}"),
        page.figure(page.image(image), page.verdict(is_right, transcript)),
    )


# -- infilling --------------------------------------------------------------------------------------------------------


def _infilling(pipe: Pipeline, console: Console) -> str:
    scene, rng = unseen_scene(30, "colour attribution")
    objects = place(scene, rng)
    image, text = draw(objects), caption(scene, rng)
    box = objects[-1].box
    with_hole = image.copy()
    with_hole.paste(_GREY, box)
    filled = pipe.infill_image(image, box, text, seed=_SEED)
    is_image_right = matches(detect([filled])[0], scene)
    console.print(f"  {_mark(is_image_right)} image with a hole, filled with the text: {text}")

    with_gaps = " ".join(GAP if word in _colours(scene) else word for word in text.split())
    completed = pipe.infill_text(with_gaps, image, seed=_SEED)
    is_text_right = caption_is_right(completed, scene, objects)
    console.print(f"  {_mark(is_text_right)} {with_gaps}  ->  {escape(completed)}")
    return "".join(
        [
            page.paragraph("The model fills the grey hole in an image, following a text:"),
            page.row(
                page.figure(page.image(with_hole), "image with a hole"),
                page.figure(page.image(filled), page.verdict(is_image_right, text)),
                page.figure(page.image(image), "original"),
            ),
            page.paragraph(
                "It fills the gaps in a text about the original image: "
                f"{page.quote(with_gaps)} &rarr; {page.verdict(is_text_right, completed)}"
            ),
        ]
    )


def _colours(scene: Scene) -> set[str]:
    return {group.colour for group in scene.groups if group.colour}


# -- training ---------------------------------------------------------------------------------------------------------


def _training(out: Path, num_steps: int, console: Console) -> str:
    data = out / "data"
    console.print("  making a small dataset ...")
    make_scenes(data, _NUM_TRAIN, _NUM_VALIDATION, workers=0, overwrite=True, report=lambda line: None)
    config = recipe("nano")
    config = replace(
        config,
        num_steps=num_steps,
        data=tuple(str(data / "train" / task.label) for task in Task),
        validation_data=tuple(str(data / "validation" / task.label) for task in Task),
        validation=replace(config.validation, every=max(1, num_steps // 4)),
        save_every=num_steps,
        log_every=min(config.log_every, max(1, num_steps // 2)),
    )
    bundle = TokenizerBundle.load("scenes")
    folder = out / "nano"
    shutil.rmtree(folder, ignore_errors=True)  # every demo trains from scratch
    with console.status("") as status, open_run(config, folder, bundle, torch.device("cpu")) as run:
        train_loop(run, [lambda event: _show_progress(event, status)])
    events = [
        event for event in read_records(folder / "records.jsonl") if event["kind"] == "step" and not event["skipped"]
    ]
    first, last = events[0], events[-1]
    console.print(f"  {last['step']} steps: loss {first['loss']:.2f} -> {last['loss']:.2f} nats per token")
    lines = {"all": [(float(e["step"]), float(e["loss"])) for e in events]}
    for name in ("text", "image", "audio"):
        points = [(float(e["step"]), float(e["nll"][name])) for e in events if e["nll"].get(name) is not None]
        lines |= {name: points} if points else {}
    return "".join(
        [
            page.paragraph(
                f"The recipe <code>nano</code>: {num_steps} steps on {sum(_NUM_TRAIN.values()):,} samples, trained on "
                "this machine just now. The chart shows the negative log-likelihood of masked tokens in nats. "
                "<code>triptych train scenes</code> trains the demo model itself."
            ),
            page.line_chart(lines, "step", "nats per masked token"),
        ]
    )


def _show_progress(event: dict[str, Any], status: Any) -> None:
    if event["kind"] == "step" and not event["skipped"]:
        status.update(f"  step {event['step']} of {event['num_steps']}, loss {event['loss']:.2f}")
