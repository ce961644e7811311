"""The parts of spoken sentences in every voice: synthesized once, kept in a folder, put together to sentences.

    FOLDER/VOICE.flac    all parts of a voice, one after the other, at 16 kHz
    FOLDER/VOICE.json    where each part is, and what the check has found (voice_check.py):
                         {"parts": {"two red": [first sample, last sample + 1], ...}, "is_checked": true, "dropped": []}

docs/decisions/0013 says why sentences are made of parts. A stopped build continues with the voices that are missing;
parts that a voice lacks are added to it, but for those that the check has dropped.
"""

import hashlib
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from triptych.errors import UserError, require
from triptych.scenes import kokoro
from triptych.scenes.voices import get_voice, phonemize, synthesize
from triptych.tokenizers.audio import resample
from triptych.utils.files import write_atomically
from triptych.utils.media import Audio

RATE = 16_000
SPEED = 1.3  # isolated phrases are spoken slowly
_QUIET = 0.008  # root mean square over 10 ms of what is not speech (-42 dB)
_LONGEST_PAUSE = 0.1  # seconds inside a part; what follows a longer one at its end is a click of the synthesizer
_MARGIN = 0.02  # seconds kept around speech


class SilentPart(UserError):
    """A voice does not say a part."""


def speak_part(part: str, voice: str) -> np.ndarray:
    """A part at 16 kHz, with the intonation of an unfinished sentence."""
    speaker = get_voice(voice)
    if speaker.style is None:
        return cut(synthesize(unfinished(part), voice, SPEED))
    # Alone, not after a carrier sentence: parts are to sound the same wherever they are put.
    spoken = kokoro.speak_phonemes(phonemize(unfinished(part), speaker), speaker.style, SPEED)
    return cut(Audio(spoken.samples, kokoro.SAMPLE_RATE))


def unfinished(part: str) -> str:
    """As it is written for the synthesizer: the comma says that the sentence is not finished."""
    return part[0].upper() + part[1:] + ","


def build_parts(
    folder: Path,
    voices: Iterable[str],
    parts: Iterable[str],
    report: Callable[[str], None] = print,
    synthesizer: Callable[[str, str], np.ndarray] = speak_part,
) -> None:
    """Synthesize what is missing in the folder. A part that a voice does not say is dropped."""
    parts = list(parts)
    folder.mkdir(parents=True, exist_ok=True)
    for voice in voices:
        exists = _index_path(folder, voice).exists()
        clips = read_voice(folder, voice) if exists else {}
        dropped = dropped_parts(folder, voice) if exists else ()
        missing = [part for part in parts if part not in clips and part not in dropped]
        if not missing:
            continue
        for number, part in enumerate(missing, 1):
            try:
                clips[part] = synthesizer(part, voice)
            except SilentPart:
                dropped = (*dropped, part)
            if number % 100 == 0:
                report(f"{voice}: {number} of {len(missing)} parts")
        write_voice(folder, voice, clips, dropped=dropped)
        seconds = sum(map(len, clips.values())) / RATE
        report(f"{voice}: {len(clips)} parts, {seconds:.0f} s")


def cut(audio: Audio) -> np.ndarray:
    """The speech of a part at 16 kHz, without silence and clicks around it."""
    samples = resample(audio, RATE).samples.astype(np.float32)
    frame = RATE // 100
    frames = samples[: len(samples) // frame * frame].reshape(-1, frame)
    loud = np.flatnonzero(np.sqrt(np.square(frames).mean(1)) > _QUIET)
    if not len(loud):
        raise SilentPart("a part is silent: another voice or text is needed.")
    runs = np.split(loud, np.flatnonzero(np.diff(loud) > 100 * _LONGEST_PAUSE) + 1)
    speech = max(runs, key=len)
    margin = int(_MARGIN * RATE)
    return samples[max(0, speech[0] * frame - margin) : (speech[-1] + 1) * frame + margin]


def write_voice(
    folder: Path, voice: str, clips: dict[str, np.ndarray], *, checked: bool = False, dropped: Iterable[str] = ()
) -> None:
    soundfile = require("soundfile", "data", "writing speech")
    stops = np.cumsum([len(clip) for clip in clips.values()]).tolist()
    starts = [0, *stops[:-1]]
    content = io.BytesIO()
    soundfile.write(content, np.concatenate(list(clips.values())), RATE, format="FLAC", subtype="PCM_16")
    index = {
        "rate": RATE,
        "speed": SPEED,
        "is_checked": checked,
        "dropped": list(dropped),
        "parts": dict(zip(clips, zip(starts, stops))),
    }
    # A kill between the two files leaves a voice without an index, which is made again, and never a wrong index.
    _index_path(folder, voice).unlink(missing_ok=True)
    write_atomically(folder / f"{get_voice(voice).name}.flac", content.getvalue())
    write_atomically(_index_path(folder, voice), (json.dumps(index) + "\n").encode())


def _index_path(folder: Path, voice: str) -> Path:
    return folder / f"{get_voice(voice).name}.json"


def _read_index(folder: Path, voice: str) -> dict[str, Any]:
    path = _index_path(folder, voice)
    if not path.exists():
        raise UserError(f"{folder} has no voice {voice!r}; `triptych scenes voices` makes it.")
    index: dict[str, Any] = json.loads(path.read_text())
    return index


def fingerprint(folder: Path, names: Iterable[str]) -> str:
    """Changes when a part of these voices is added, replaced or dropped."""
    parts = {name: _read_index(folder, name)["parts"] for name in names}
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def is_checked(folder: Path, voice: str) -> bool:
    """Whether all parts of a voice were checked."""
    return bool(_read_index(folder, voice).get("is_checked"))


def dropped_parts(folder: Path, voice: str) -> tuple[str, ...]:
    """Parts that a voice does not say clearly."""
    return tuple(_read_index(folder, voice).get("dropped", ()))


def read_voice(folder: Path, voice: str) -> dict[str, np.ndarray]:
    """The samples of every part of a voice."""
    index = _read_index(folder, voice)
    samples = Audio.load(folder / f"{get_voice(voice).name}.flac").samples
    return {part: samples[start:stop] for part, (start, stop) in index["parts"].items()}
