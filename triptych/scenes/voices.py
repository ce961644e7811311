"""Speech in 29 English voices: 28 of Kokoro-82M (int8), and the one of hibari-tts.

    synthesize("two red foxes", "emma")         Audio at 24 kHz; the same arguments give the same samples
    python -m triptych.scenes.voices fetch      download Kokoro and the judge of speech
    python -m triptych.scenes.voices say TEXT --voice emma --out emma.flac

hibari's G2P turns text into phonemes, by the accent of the voice; kokoro.py and hibari turn them into samples.
"""

import argparse
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from triptych.errors import UserError, did_you_mean, require
from triptych.scenes import kokoro
from triptych.scenes.voice_files import KOKORO, WHISPER, fetch
from triptych.utils.media import Audio

SAMPLE_RATE = kokoro.SAMPLE_RATE
SPEEDS = (0.5, 2.0)
_SILENCE_RMS = 0.003  # root mean square over 10 ms below which audio is silence
_MARGIN = 0.02  # seconds of silence kept before and after speech: half a window of the tokenizer
SHORT = 20  # phonemes; Kokoro speaks shorter texts after a carrier sentence, which is cut off
CARRIER = "Now listen to this bit."


@dataclass(frozen=True)
class Voice:
    """A speaker, by the name that users ask for."""

    name: str
    accent: Literal["American", "British"]
    gender: Literal["female", "male"]
    style: str | None
    """Name of Kokoro's style vectors; None: the voice of hibari."""


_KOKORO_NAMES = {
    "af": ("alloy", "aoede", "bella", "heart", "jessica", "kore", "nicole", "nova", "river", "sarah", "sky"),
    "am": ("adam", "echo", "eric", "fenrir", "liam", "michael", "onyx", "puck", "santa"),
    "bf": ("alice", "emma", "isabella", "lily"),
    "bm": ("daniel", "fable", "george", "lewis"),
}


def _kokoro_voice(prefix: str, name: str) -> Voice:
    is_british, is_male = prefix.startswith("b"), prefix.endswith("m")
    return Voice(
        name, "British" if is_british else "American", "male" if is_male else "female", style=f"{prefix}_{name}"
    )


VOICES: dict[str, Voice] = {
    **{name: _kokoro_voice(prefix, name) for prefix, names in _KOKORO_NAMES.items() for name in names},
    "robin": Voice("robin", "American", "female", style=None),
}
"""All voices by name. robin is hibari's, which was distilled from heart: two models of one speaker."""

HELD_OUT_VOICES = ("sarah", "puck", "isabella", "fable")
"""Never trained on: a woman and a man of each accent. The exam asks for voices that the model has not heard."""

TRAINING_VOICES = tuple(name for name in VOICES if name not in HELD_OUT_VOICES)

SPEAKING_VOICES = ("alloy",)
"""The training voices that the model is to speak in; it hears all of them. One voice has 14,000 audio codes to
remember, 18 times as many as there are patches of objects: a model for a laptop cannot learn 25."""


def get_voice(name: str) -> Voice:
    """The voice of this name, in any case."""
    voice = VOICES.get(str(name).lower())
    if voice is None:
        raise UserError(f"unknown voice {name!r}.{did_you_mean(name, list(VOICES))}")
    return voice


def synthesize(text: str, voice: str, speed: float = 1.0) -> Audio:
    """Speak a text of up to about 70 words, without silence before and after. `speed` 2 takes half the time."""
    speaker = get_voice(voice)
    if not SPEEDS[0] <= speed <= SPEEDS[1]:
        raise UserError(f"speed must be between {SPEEDS[0]} and {SPEEDS[1]}, got {speed}.")
    phonemes = phonemize(text, speaker)
    if speaker.style is None:
        samples = _hibari().from_phonemes(phonemes, speed=speed, seed=0)
    elif len(phonemes) < SHORT:
        samples = kokoro.speak_after(phonemize(CARRIER, speaker), phonemes, speaker.style, speed)
    else:
        samples = kokoro.speak_phonemes(phonemes, speaker.style, speed).speech
    return trim_silence(Audio(np.clip(samples, -1, 1).astype(np.float32), SAMPLE_RATE))


def trim_silence(audio: Audio) -> Audio:
    """Cut the silence before and after speech; the synthesizer adds about half a second of it."""
    frame = audio.sample_rate // 100
    frames = audio.samples[: len(audio.samples) // frame * frame].reshape(-1, frame)
    loud = np.flatnonzero(np.sqrt(np.square(frames).mean(1)) > _SILENCE_RMS)
    if not len(loud):
        return audio
    margin = int(_MARGIN * audio.sample_rate)
    return Audio(audio.samples[max(0, loud[0] * frame - margin) : (loud[-1] + 1) * frame + margin], audio.sample_rate)


def phonemize(text: str, voice: Voice) -> str:
    """Phonemes of a text in Kokoro's alphabet. A text without a punctuation mark at its end gets a full stop."""
    text = " ".join(text.split())
    if text and text[-1] not in ".?!,":
        text = text.rstrip(";:") + "."
    phonemes = _g2p(voice.accent == "British")(text)
    if not any(character.isalpha() for character in phonemes):
        raise UserError(f"expected a text with words to speak, got {text!r}.")
    if len(phonemes) > kokoro.MAX_PHONEMES:
        raise UserError(
            f"a text of {len(phonemes)} phonemes is too long to speak; at most {kokoro.MAX_PHONEMES}. Split it."
        )
    return phonemes


@cache
def _g2p(is_british: bool) -> Any:
    require("hibari", "data", "speech synthesis")
    return require("hibari.g2p", "data", "speech synthesis").G2P(british=is_british)


@cache
def _hibari() -> Any:
    return require("hibari", "data", "speech synthesis").Hibari(threads=1)


def fetch_all() -> list[str]:
    """Download everything that speech needs. Returns the folders."""
    return [str(fetch(package)) for package in (KOKORO, WHISPER)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m triptych.scenes.voices", description="Speech in many voices.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="download Kokoro's voices and the judge (250 MB in the cache)")
    commands.add_parser("list", help="list the voices")
    say = commands.add_parser("say", help="speak a text")
    say.add_argument("text")
    say.add_argument("--voice", default="heart")
    say.add_argument("--speed", type=float, default=1.0)
    say.add_argument("--out", default="speech.flac")
    options = parser.parse_args(arguments)
    try:
        if options.command == "fetch":
            print("\n".join(fetch_all()))
        elif options.command == "list":
            for voice in VOICES.values():
                held_out = "  held out of training" if voice.name in HELD_OUT_VOICES else ""
                print(f"{voice.name:10} {voice.accent:9} {voice.gender:7}{held_out}".rstrip())
        else:
            print(synthesize(options.text, options.voice, options.speed).save(options.out))
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
