"""`triptych demo`: the embedded world and what its tokenizers keep of it, as one page to look at and listen to."""

import base64
import html
import io
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from triptych.eval.image import psnr
from triptych.scenes.grammar import Group, Scene, parse, plain_caption
from triptych.scenes.judge import read, relation_holds, same_scene
from triptych.scenes.picture import draw, place
from triptych.scenes.samples import scene_sample
from triptych.scenes.speech import speak
from triptych.tokenizers.audio import resample
from triptych.tokenizers.base import Sound
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.mel import MelConfig
from triptych.vocab import Task

_SEED = 7


@dataclass(frozen=True)
class RoundTrip:
    """One held-out sentence in its three forms, before and after the tokenizers."""

    sentence: str
    scene: Scene
    text_ids: np.ndarray
    text_back: str
    picture: Image.Image
    picture_ids: np.ndarray
    picture_back: Image.Image
    picture_read: str
    psnr: float
    sound: Sound
    sound_ids: np.ndarray
    sound_back: Sound


def run_demo(out: Path, sentences: int, console: Console) -> Path:
    """Round trips of held-out scenes through the three embedded tokenizers; writes a page and returns its path."""
    started = time.monotonic()
    bundle = TokenizerBundle.load("scenes")
    trips = []
    with console.status("") as status:
        for index in range(sentences):
            status.update(f"sentence {index + 1} of {sentences} ...")
            trips.append(_round_trip(bundle, index))
    out.mkdir(parents=True, exist_ok=True)
    page = out / "index.html"
    page.write_text(_page(bundle, trips))
    console.print(_table(trips))
    ids = bundle.vocabulary
    special = ids.size - ids.text - ids.image - ids.audio
    console.print(
        f"One vocabulary of {ids.size:,} ids: {ids.text:,} for text, {ids.image:,} for pictures, "
        f"{ids.audio:,} for sound and {special} special ones."
    )
    console.print(f"Done in {time.monotonic() - started:.0f} s. Look and listen: [bold]{page}[/bold]", soft_wrap=True)
    return page


def _round_trip(bundle: TokenizerBundle, index: int) -> RoundTrip:
    sample = scene_sample(Task.AUDIO_TEXT, "test", index, seed=_SEED)
    rng = np.random.default_rng([_SEED, index])
    picture = draw(place(sample.scene, rng))
    sound = sample.sound or speak(sample.text, rng)
    (text_ids,), (picture_ids,), (sound_ids,) = (
        bundle.text.encode([sample.text]),
        bundle.image.encode([picture]),
        bundle.audio.encode([sound]),
    )
    (picture_back,) = bundle.image.decode([picture_ids])
    return RoundTrip(
        sentence=sample.text,
        scene=sample.scene,
        text_ids=text_ids,
        text_back=bundle.text.decode([text_ids])[0],
        picture=picture,
        picture_ids=picture_ids,
        picture_back=picture_back,
        picture_read=_say_reading(picture_back, sample.scene),
        psnr=psnr(picture, picture_back),
        sound=sound,
        sound_ids=sound_ids,
        sound_back=bundle.audio.decode([sound_ids])[0],
    )


def _say_reading(picture: Image.Image, scene: Scene) -> str:
    """What the judge sees, said in the words of the grammar; the relation that was asked for is kept if it holds."""
    (reading,) = read([picture])
    try:
        groups = tuple(Group(kind, colour, count) for (kind, colour), count in reading.looks.items())
        seen = Scene(groups)
    except ValueError:
        return "something that is no scene"
    if scene.relation and set(seen.groups) == set(scene.groups) and relation_holds(reading.things, scene):
        seen = scene
    return plain_caption(seen)


def _table(trips: list[RoundTrip]) -> Table:
    table = Table(title="Held-out sentences through the embedded tokenizers and back")
    table.add_column("sentence")
    table.add_column("text", justify="right")
    table.add_column("picture", justify="right")
    table.add_column("PSNR", justify="right")
    table.add_column("judge")
    table.add_column("speech", justify="right")
    for trip in trips:
        right = same_scene(parse(trip.picture_read), trip.scene)
        table.add_row(
            trip.sentence,
            f"{len(trip.text_ids)} ids{'' if trip.text_back == trip.sentence else ' DIFFERS'}",
            f"{len(trip.picture_ids)} ids",
            f"{trip.psnr:.1f} dB",
            "[green]right[/green]" if right else f"[red]{trip.picture_read}[/red]",
            f"{len(trip.sound_ids)} ids, {trip.sound.seconds:.1f} s",
        )
    return table


# -- the page ---------------------------------------------------------------------------------------------------------

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-weight: 600; } .trip { border-top: 1px solid #ddd; padding: 1rem 0; }
.row { display: flex; gap: 2rem; flex-wrap: wrap; align-items: flex-start; }
figure { margin: 0; } figcaption { font-size: .8rem; color: #666; max-width: 20rem; }
img { width: 160px; height: 160px; image-rendering: pixelated; border: 1px solid #ddd; }
.sounds { display: flex; flex-direction: column; gap: 1rem; }
img.spectrogram { width: 320px; height: 80px; image-rendering: auto; display: block; }
audio { width: 322px; height: 32px; display: block; } code { font-size: .75rem; color: #555; word-break: break-word; }
"""


def _page(bundle: TokenizerBundle, trips: list[RoundTrip]) -> str:
    body = "".join(_section(trip) for trip in trips)
    vocabulary = bundle.vocabulary
    return (
        "<!doctype html><meta charset='utf-8'><title>Triptych: the embedded world</title>"
        f"<style>{_STYLE}</style><h1>One sentence, three forms</h1>"
        "<p>Held-out sentences as text, picture and speech, each turned into token ids and back. "
        f"All ids live in one vocabulary of {vocabulary.size:,}.</p>{body}"
    )


def _section(trip: RoundTrip) -> str:
    return (
        f"<div class='trip'><h2>{html.escape(trip.sentence)}</h2>"
        f"<p><code>{' '.join(map(str, trip.text_ids))}</code> &rarr; {html.escape(trip.text_back)}</p><div class='row'>"
        + _figure(_image_tag(trip.picture), "original")
        + _figure(
            _image_tag(trip.picture_back),
            f"from {len(trip.picture_ids)} ids, {trip.psnr:.1f} dB; the judge reads: {trip.picture_read}",
        )
        + "<div class='sounds'>"
        + _figure(_sound_tags(trip.sound), f"spoken, {trip.sound.seconds:.1f} s")
        + _figure(_sound_tags(trip.sound_back), f"from {len(trip.sound_ids)} ids")
        + "</div></div></div>"
    )


def _figure(content: str, caption: str) -> str:
    return f"<figure>{content}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _image_tag(image: Image.Image, kind: str = "picture") -> str:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return f"<img class='{kind}' alt='' src='data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}'>"


def _sound_tags(sound: Sound) -> str:
    """The sound's spectrogram above a player."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, sound.samples, sound.rate, format="WAV", subtype="PCM_16")
    player = f"<audio controls src='data:audio/wav;base64,{base64.b64encode(buffer.getvalue()).decode()}'></audio>"
    return _image_tag(_spectrogram(sound), "spectrogram") + player


def _spectrogram(sound: Sound) -> Image.Image:
    """Log-mels, low tones at the bottom, loud ones dark."""
    mel = MelConfig()
    log_mel = mel.log_mel(torch.from_numpy(resample(sound, mel.rate).samples)).numpy()
    level = (log_mel - np.log(mel.floor)) / (log_mel.max() - np.log(mel.floor))
    return Image.fromarray(np.round(255 * (1 - level.T[::-1])).astype(np.uint8))
