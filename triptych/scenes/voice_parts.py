"""The parts of spoken sentences in every voice: synthesized once, kept in a folder, put together to sentences.

    FOLDER/VOICE.flac    all parts of a voice, one after the other, at 16 kHz; VOICE.opus in a packed folder
    FOLDER/VOICE.json    where each part is, and what the check has found (voice_check.py):
                         {"parts": {"two red": [first sample, last sample + 1], ...}, "is_checked": true, "dropped": [],
                          "audio_sha256": "first 16 digits"}; older files lack the hash
    FOLDER/.VOICE.lock   held by the process that builds or repairs the voice

docs/decisions/0013 says why sentences are made of parts. A stopped build continues with the voices that are missing;
parts that a voice lacks are added to it, but for those that the check has dropped.
"""

import hashlib
import io
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from triptych.errors import DataError, UserError, require
from triptych.scenes import kokoro
from triptych.scenes.voices import get_voice, phonemize, synthesize
from triptych.tokenizers.audio import resample
from triptych.utils.files import write_atomically
from triptych.utils.json_files import read_json
from triptych.utils.locks import AlreadyLocked, hold_lock
from triptych.utils.media import Audio

BUILT_IN_VOICES = Path(__file__).parent.parent / "assets" / "voices"
RATE = 16_000
SPEED = 1.3  # isolated phrases are spoken slowly
_QUIET = 0.008  # root mean square over 10 ms of what is not speech (-42 dB)
_LONGEST_PAUSE = 0.1  # seconds inside a part; what follows a longer one at its end is a click of the synthesizer
_MARGIN = 0.02  # seconds kept around speech
_HASH, _SOURCE = "audio_sha256", "packed_from"
# libsndfile: 24 kbit/s, a seventh of FLAC. The positions of samples stay the same.
_OPUS = {"format": "OGG", "subtype": "OPUS", "compression_level": 0.93}
_FLAC = {"format": "FLAC", "subtype": "PCM_16"}
_REREAD_SECONDS = 0.5  # before a voice that changed while it was read is read again


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
) -> list[str]:
    """Synthesize what is missing in the folder. A part that a voice does not say is dropped.

    Returns the voices that are complete: all but those that another process is making.
    """
    parts, complete = list(parts), []
    folder.mkdir(parents=True, exist_ok=True)
    for voice in voices:
        if not _missing(folder, voice, parts):
            complete.append(voice)
            continue
        with held_voice(folder, voice, report) as is_held:
            if is_held:
                _build(folder, voice, parts, report, synthesizer)
                complete.append(voice)
    return complete


def _missing(folder: Path, voice: str, parts: Iterable[str]) -> list[str]:
    known: set[str] = set()
    if is_stored(folder, voice):
        known = {*_read_index(folder, voice)["parts"], *dropped_parts(folder, voice)}
    return [part for part in parts if part not in known]


def _build(
    folder: Path,
    voice: str,
    parts: Iterable[str],
    report: Callable[[str], None],
    synthesizer: Callable[[str, str], np.ndarray],
) -> None:
    missing = _missing(folder, voice, parts)  # another process may have added some before the voice was locked
    if not missing:
        return
    exists = is_stored(folder, voice)
    clips = read_voice(folder, voice) if exists else {}
    dropped = dropped_parts(folder, voice) if exists else ()
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


@contextmanager
def held_voice(folder: Path, voice: str, report: Callable[[str], None]) -> Iterator[bool]:
    """Lock a voice of a folder. False, and a line that says so, if another process holds it."""
    path = folder / f".{get_voice(voice).name}.lock"
    try:
        file = hold_lock(path, f"process {os.getpid()} on {socket.gethostname()}")
    except AlreadyLocked as error:
        report(f"{voice}: skipped, {error.owner or 'another process'} is making it")
        yield False
        return
    except OSError as error:
        raise UserError(f"{path} cannot be locked ({error.strerror}); choose another folder.") from error
    with file:
        yield True


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
    folder: Path,
    voice: str,
    clips: dict[str, np.ndarray],
    *,
    checked: bool = False,
    dropped: Iterable[str] = (),
    packed_from: str | None = None,
) -> None:
    """Replace a voice. A process that others may run beside holds its lock (`held_voice`).

    `packed_from`, the hash of its samples in another folder, compresses it with loss: for a voice that is finished.
    """
    soundfile = require("soundfile", "data", "writing speech")
    if packed_from:
        _need_opus()
    path, other = folder / f"{get_voice(voice).name}.flac", folder / f"{get_voice(voice).name}.opus"
    if packed_from:
        path, other = other, path
    if not clips:
        raise UserError(f"{path} cannot be written: the voice {voice!r} says none of the parts clearly.")
    stops = np.cumsum([len(clip) for clip in clips.values()]).tolist()
    starts = [0, *stops[:-1]]
    content = io.BytesIO()
    soundfile.write(content, np.concatenate(list(clips.values())), RATE, **(_OPUS if packed_from else _FLAC))
    index = {
        "rate": RATE,
        "speed": SPEED,
        "is_checked": checked,
        "dropped": list(dropped),
        "parts": dict(zip(clips, zip(starts, stops))),
        _HASH: _hash(content.getvalue()),
        **({_SOURCE: packed_from} if packed_from else {}),
    }
    # A kill between the two files leaves a voice without an index, which is made again, and never a wrong index.
    _index_path(folder, voice).unlink(missing_ok=True)
    write_atomically(path, content.getvalue())
    other.unlink(missing_ok=True)
    write_atomically(_index_path(folder, voice), (json.dumps(index) + "\n").encode())


def _how_to_replace(folder: Path, *files: Path) -> str:
    if folder.resolve() == BUILT_IN_VOICES.resolve():
        return "It is part of the package: install triptych again."
    names = " and ".join(file.name for file in files)
    return f"Delete {names}; `triptych scenes voices {folder}` makes the voice again."


def _need_opus() -> None:
    if "OPUS" not in require("soundfile", "data", "speech").available_subtypes("OGG"):
        raise UserError("this libsndfile has no Opus; install the wheel of soundfile, which brings its own.")


def _index_path(folder: Path, voice: str) -> Path:
    return folder / f"{get_voice(voice).name}.json"


def is_stored(folder: Path, voice: str) -> bool:
    return _index_path(folder, voice).exists()


def _audio_path(folder: Path, voice: str) -> Path:
    flac, opus = (folder / f"{get_voice(voice).name}.{ending}" for ending in ("flac", "opus"))
    return opus if opus.exists() and not flac.exists() else flac


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _read_index(folder: Path, voice: str) -> dict[str, Any]:
    path = _index_path(folder, voice)
    try:
        index: dict[str, Any] = read_json(path)
        for start, stop in index["parts"].values():
            if not 0 <= start <= stop:
                raise ValueError
        tuple(index.get("dropped", ()))
    except FileNotFoundError:
        raise UserError(f"{folder} has no voice {voice!r}; `triptych scenes voices` makes it.") from None
    except (ValueError, KeyError, TypeError, AttributeError):  # no JSON, or not that of a voice
        raise DataError(
            f"{path} is broken: it does not say where each part is. {_how_to_replace(folder, path)}"
        ) from None
    return index


def _read_audio(folder: Path, voice: str) -> bytes:
    path = _audio_path(folder, voice)
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}). {_how_to_replace(folder, path, _index_path(folder, voice))}"
        ) from error


def fingerprint(folder: Path, names: Iterable[str]) -> str:
    """Changes when a part of these voices is added, replaced or dropped."""
    voices = {}
    for name in names:
        index = _read_index(folder, name)
        voices[name] = (index.get(_HASH) or _hash(_read_audio(folder, name)), index["parts"])
    return hashlib.sha256(json.dumps(voices).encode()).hexdigest()[:12]


def is_checked(folder: Path, voice: str) -> bool:
    """Whether all parts of a voice were checked."""
    return bool(_read_index(folder, voice).get("is_checked"))


def dropped_parts(folder: Path, voice: str) -> tuple[str, ...]:
    """Parts that a voice does not say clearly."""
    return tuple(_read_index(folder, voice).get("dropped", ()))


def read_voice(folder: Path, voice: str) -> dict[str, np.ndarray]:
    """The samples of every part of a voice."""
    clips = _read_clips(folder, voice)
    if clips is None:  # another process has just replaced it
        time.sleep(_REREAD_SECONDS)
        clips = _read_clips(folder, voice)
    if clips is None:
        audio, index = _audio_path(folder, voice), _index_path(folder, voice)
        raise DataError(
            f"{audio} is not the file that {index.name} belongs to: another process is changing the voice, or a file "
            f"is damaged. {_how_to_replace(folder, audio, index)}"
        )
    return clips


def _read_clips(folder: Path, voice: str) -> dict[str, np.ndarray] | None:
    """None if index and samples do not belong together."""
    index, content = _read_index(folder, voice), _read_audio(folder, voice)
    if _HASH in index and index[_HASH] != _hash(content):
        return None
    path = _audio_path(folder, voice)
    if path.suffix == ".opus":
        _need_opus()
    try:
        samples = Audio.load(content).samples
    except DataError as error:
        raise DataError(f"{path} is no audio file: {error}") from error
    if len(samples) != max((stop for _, stop in index["parts"].values()), default=0):
        return None
    return {part: samples[start:stop] for part, (start, stop) in index["parts"].items()}


def pack_voices(source: Path, target: Path, names: Iterable[str], report: Callable[[str], None] = print) -> list[str]:
    """Copy the voices of a folder that are checked into another one, compressed. Returns their names.

    Voices that were packed before and have not changed stay as they are: the same samples give other bytes each time.
    """
    packed = []
    for name in names:
        if not is_stored(source, name):
            continue
        if (target / f"{name}.flac").exists():
            raise UserError(f"{target} has the voice {name!r} without loss; pack into another folder.")
        with held_voice(source, name, report) as is_held:
            if not is_held or not is_checked(source, name):
                continue
            version = _hash(_read_audio(source, name) + _index_path(source, name).read_bytes())
            if not is_stored(target, name) or _read_index(target, name).get(_SOURCE) != version:
                target.mkdir(parents=True, exist_ok=True)
                dropped = dropped_parts(source, name)
                write_voice(target, name, read_voice(source, name), checked=True, dropped=dropped, packed_from=version)
        packed.append(name)
    return packed
