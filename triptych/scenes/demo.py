"""`triptych demo`: the demo model in every direction, and a small model in training, on one HTML page."""

import html
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from triptych.errors import UnusualInputWarning
from triptych.eval import html as page
from triptych.eval.audio.speech import normalize_transcript
from triptych.hub.directions import GAP
from triptych.hub.pipeline import Pipeline
from triptych.scenes.answer_check import answer_is_right
from triptych.scenes.caption_check import caption_is_right
from triptych.scenes.captions import caption
from triptych.scenes.demo_training import train_small_model
from triptych.scenes.exam_samples import Voices, world_of
from triptych.scenes.image import draw
from triptych.scenes.judge import detect, matches
from triptych.scenes.layout import place
from triptych.scenes.picture import Picture
from triptych.scenes.questions import questions
from triptych.scenes.speech import ALWAYS_AVAILABLE, speakable, synthesize
from triptych.scenes.world import Scene, World
from triptych.utils.media import Audio
from triptych.vocab import Modality

_SEED = 7
_GREY = (190, 190, 190)
_DRAWN = {"full": ("counting", "position", "colour attribution", "background")}  # categories of the first images
_REQUESTED_VOICES = ("emma", "michael")  # preferred, if the model has them


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
    world = world_of(pipe)
    parts: list[tuple[str, Callable[[], str]]] = [
        ("Text to image", lambda: _text_to_image(pipe, world, console)),
        ("Captions and answers", lambda: _image_to_text(pipe, world, console)),
        ("Text to speech, and back", lambda: _speech(pipe, world, console)),
        ("Infilling", lambda: _infilling(pipe, world, console)),
        ("Speech to image", lambda: _speech_to_image(pipe, world, console)),
    ]
    if pipe.voices:
        parts.insert(3, ("A voice by request", lambda: _voice_by_request(pipe, world, console)))
    if pipe.input_checks is not None and "image" in pipe.input_checks.distributions:
        parts.append(("An unusual input", lambda: _unusual_input(pipe, console)))
    if nano_steps:
        parts.append(("Training a small model", lambda: train_small_model(out, nano_steps, console)))
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


def unseen_scene(number: int, category: str, world: World) -> tuple[Scene, np.random.Generator]:
    """A scene of the test split, and the generator for its words and positions."""
    rng = np.random.default_rng([_SEED, number])
    return world.sample(rng, "test", category), rng


def _mark(is_right: bool) -> str:
    return "[green]✓[/green]" if is_right else "[red]✗[/red]"


# -- text to image ----------------------------------------------------------------------------------------------------


def _text_to_image(pipe: Pipeline, world: World, console: Console) -> str:
    categories = _DRAWN.get(world.name, world.categories[2:6])
    scenes = [unseen_scene(i, category, world)[0] for i, category in enumerate(categories)]
    prompts = [caption(scene, np.random.default_rng(i), world) for i, scene in enumerate(scenes)]
    recorder = _StepRecorder(pipe)
    images = pipe.text_to_image(prompts, seed=_SEED, callback=recorder)
    figures = []
    for prompt, scene, image, detection in zip(prompts, scenes, images, detect(images, world)):
        is_right = matches(detection, scene, world)
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


def _image_to_text(pipe: Pipeline, world: World, console: Console) -> str:
    scene, rng = unseen_scene(10, "position", world)
    picture = place(scene, rng, world)
    image = draw(picture, world)
    text = pipe.caption(image, seed=_SEED)
    is_right = caption_is_right(text, scene, picture, world)
    console.print(f"  {_mark(is_right)} caption: {escape(text)}")
    lines = [page.paragraph(f"Caption: {page.verdict(is_right, text)}")]
    for asked in _different_questions(scene, picture, world, rng):
        answer = pipe.answer(image, asked, seed=_SEED)
        is_right = answer_is_right(asked, answer, picture, world)
        console.print(f"  {_mark(is_right)} {asked} {escape(answer)}")
        lines.append(page.paragraph(f"{html.escape(asked)} {page.verdict(is_right, answer)}"))
    return page.row(page.figure(page.image(image), "input image"), f"<div>{''.join(lines)}</div>")


def _different_questions(
    scene: Scene, picture: Picture, world: World, rng: np.random.Generator, count: int = 3
) -> list[str]:
    """Questions of different forms."""
    by_form: dict[str, list[str]] = {}
    for each in questions(scene, picture, world):
        by_form.setdefault(each.form, []).append(each.text)
    first = [form for form in ("count", "relation", "what is", "colour", "background") if form in by_form]
    return [by_form[form][int(rng.integers(len(by_form[form])))] for form in first[:count]]


# -- speech -----------------------------------------------------------------------------------------------------------


def _speech(pipe: Pipeline, world: World, console: Console) -> str:
    _, text, _ = _spoken(20, world)
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


def _spoken(number: int, world: World) -> tuple[Scene, str, np.random.Generator]:
    """A scene and what a person would say to have it drawn, which is no question."""
    scene, rng = unseen_scene(number, "two objects", world)
    while True:
        scene, text, _ = speakable(scene, "test", rng, [ALWAYS_AVAILABLE], None, world, Voices.find(None).folder)
        if not text.endswith("?"):
            return scene, text, rng


def _voice_by_request(pipe: Pipeline, world: World, console: Console) -> str:
    _, text, _ = _spoken(21, world)
    figures = []
    preferred = [voice for voice in _REQUESTED_VOICES if voice in pipe.voices]
    for voice in preferred or pipe.voices[:2]:
        speech = pipe.text_to_speech(text, voice=voice, seed=_SEED)
        console.print(f"  {speech.seconds:.1f} s of speech, {voice}: {text}")
        figures.append(page.figure(page.audio(speech), f"{page.quote(text)}, {voice}"))
    return page.paragraph("The same sentence, in voices by request:") + page.row(*figures)


def _speech_to_image(pipe: Pipeline, world: World, console: Console) -> str:
    scene, text, rng = _spoken(40, world)
    speech: Audio = synthesize(text, rng, world, ALWAYS_AVAILABLE, Voices.find(None).folder)
    transcript, image = pipe.speech_to_image(speech, seed=_SEED)
    is_right = matches(detect([image], world)[0], scene, world)
    console.print(f"  spoken: {text}\n  transcript: {escape(transcript)}\n  {_mark(is_right)} image")
    return page.paragraph("The model transcribes the speech and draws the transcript:") + page.row(
        page.figure(page.audio(speech), f"input speech: {page.quote(text)}"),
        page.figure(page.image(image), page.verdict(is_right, transcript)),
    )


# -- infilling --------------------------------------------------------------------------------------------------------


def _infilling(pipe: Pipeline, world: World, console: Console) -> str:
    scene, rng = unseen_scene(30, "colour attribution", world)
    picture = place(scene, rng, world)
    image, text = draw(picture, world), caption(scene, rng, world, opening="")
    box = picture.objects[-1].box
    with_hole = image.copy()
    with_hole.paste(_GREY, box)
    filled = pipe.infill_image(image, box, text, seed=_SEED)
    is_image_right = matches(detect([filled], world)[0], scene, world)
    console.print(f"  {_mark(is_image_right)} image with a hole, filled with the text: {text}")

    colours = {group.colour for group in scene.groups}
    with_gaps = " ".join(GAP if word in colours else word for word in text.split())
    completed = pipe.infill_text(with_gaps, image, seed=_SEED)
    is_text_right = caption_is_right(completed, scene, picture, world)
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


# -- unusual inputs ---------------------------------------------------------------------------------------------------


def _unusual_input(pipe: Pipeline, console: Console) -> str:
    size = pipe.bundle.image.resolution
    noise = np.random.default_rng(_SEED).integers(0, 256, (size, size, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnusualInputWarning)
        text = pipe.caption(image, seed=_SEED)
    messages = [str(each.message) for each in caught if issubclass(each.category, UnusualInputWarning)]
    message = messages[0] if messages else "no warning"
    console.print(f"  caption of noise: {escape(text)}\n  {_mark(bool(messages))} {escape(message)}")
    return page.row(
        page.figure(page.image(image), "noise"),
        f"<div>{page.paragraph(f'Caption: {page.quote(text)}')}"
        f"{page.paragraph(f'Warning: {page.verdict(bool(messages), message)}')}</div>",
    )
