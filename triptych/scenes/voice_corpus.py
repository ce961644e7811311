"""A folder of spoken clips, each checked by a judge that writes down what it hears.

    FOLDER/corpus.json         what made the clips
    FOLDER/index.jsonl         one line per clip, accepted or not, in the order of the request
    FOLDER/clips/ID.flac       the accepted clips

A clip counts as right if the judge hears every word. Otherwise it is made once more at another speed, then dropped.
A stopped build continues where it was; the result does not depend on the number of workers.
"""

import io
import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from triptych.errors import DataError, UserError
from triptych.scenes import voice_judge, voices
from triptych.scenes.voice_files import KOKORO
from triptych.utils.files import write_atomically
from triptych.utils.locks import AlreadyLocked, hold_lock
from triptych.utils.media import Audio

Synthesizer = Callable[[str, str, float], Audio]
"""(text, voice, speed) to audio."""
Judge = Callable[[Audio], str]
"""What is heard."""

RETRY_SPEED = 0.93  # slower speech is clearer
REPORT_SECONDS = 30.0
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True)
class Clip:
    """What is asked for: a text in a voice at a speed."""

    id: str
    text: str
    voice: str
    speed: float = 1.0


@dataclass(frozen=True)
class ClipRecord:
    """One line of the index."""

    id: str
    text: str
    voice: str
    requested_speed: float
    speed: float
    """At which it was made: another one if the first attempt was misheard."""
    seconds: float
    transcript: str
    errors: int
    """Words misheard, missing and added."""
    attempts: int
    accepted: bool

    @property
    def clip(self) -> Clip:
        return Clip(self.id, self.text, self.voice, self.requested_speed)


@dataclass(frozen=True)
class CorpusSummary:
    num_accepted: int
    num_dropped: int
    num_retried: int
    seconds: float
    """Of accepted speech."""

    def __str__(self) -> str:
        return (
            f"{self.num_accepted:,} clips, {self.seconds / 3600:.2f} h of speech; "
            f"{self.num_retried:,} made twice, {self.num_dropped:,} dropped"
        )


def build_corpus(
    clips: Iterable[Clip | tuple[str, str, str, float]],
    folder: str | Path,
    workers: int = 1,
    report: Callable[[str], None] = print,
    synthesizer: Synthesizer = voices.synthesize,
    judge: Judge = voice_judge.transcribe,
) -> CorpusSummary:
    """Make the clips that are not yet in the folder. Each worker is a process with one thread.

    Clips of an earlier call that are not asked for again are kept. With several workers, `synthesizer` and `judge` are
    functions of a module.
    """
    wanted = _checked([clip if isinstance(clip, Clip) else Clip(*clip) for clip in clips])
    folder = Path(folder)
    (folder / "clips").mkdir(parents=True, exist_ok=True)
    try:
        lock = hold_lock(folder / "lock", f"process {os.getpid()}")
    except AlreadyLocked as error:
        raise UserError(f"{str(folder)!r} is being written by {error.owner}; wait for it, or stop it.") from None
    with lock:
        _check_origin(folder, synthesizer, judge)
        records = {record.id: record for record in _repaired_index(folder / "index.jsonl")}
        _check_same(wanted, records, folder)
        missing = [clip for clip in wanted if clip.id not in records]
        report(f"{len(wanted) - len(missing):,} of {len(wanted):,} clips are there, {len(missing):,} to make")
        try:
            with open(folder / "index.jsonl", "a") as index:
                for record, flac in _with_progress(_make_all(missing, workers, synthesizer, judge), missing, report):
                    if record.accepted:
                        write_atomically(clip_path(folder, record.id), flac)
                    index.write(json.dumps(asdict(record)) + "\n")
                    index.flush()
                    records[record.id] = record
        except KeyboardInterrupt:
            report(f"stopped: {summarize(records.values())}. The same call continues.")
            raise
        summary = summarize(records[clip.id] for clip in wanted)
        report(f"complete: {summary}")
        return summary


def summarize(records: Iterable[ClipRecord]) -> CorpusSummary:
    records = list(records)
    accepted = [record for record in records if record.accepted]
    return CorpusSummary(
        num_accepted=len(accepted),
        num_dropped=len(records) - len(accepted),
        num_retried=sum(record.attempts > 1 for record in records),
        seconds=sum(record.seconds for record in accepted),
    )


# -- reading ----------------------------------------------------------------------------------------------------------


def read_index(folder: str | Path) -> list[ClipRecord]:
    """All records of a corpus, also of dropped clips. An incomplete last line is left out."""
    path = Path(folder) / "index.jsonl"
    if not path.is_file():
        raise UserError(f"there is no corpus of clips in {str(folder)!r}: index.jsonl is missing.")
    records = []
    for number, line in enumerate(path.read_text().split("\n")[:-1], start=1):
        try:
            records.append(ClipRecord(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise DataError(f"line {number} of {str(path)!r} is not a record of a clip ({error}).") from error
    return records


def clip_path(folder: str | Path, clip_id: str) -> Path:
    """The file of an accepted clip."""
    return Path(folder) / "clips" / f"{clip_id}.flac"


def _repaired_index(path: Path) -> list[ClipRecord]:
    """Records so far; a line that a crash cut in half is removed from the file."""
    if not path.exists():
        return []
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if complete != content:
        write_atomically(path, complete)
    return read_index(path.parent)


# -- checks -----------------------------------------------------------------------------------------------------------


def _checked(clips: list[Clip]) -> list[Clip]:
    ids = set()
    for clip in clips:
        if not _ID.fullmatch(clip.id):
            raise UserError(f"the id of a clip is up to 100 letters, digits, '-' and '_', got {clip.id!r}.")
        if clip.id in ids:
            raise UserError(f"two clips have the id {clip.id!r}; ids must differ.")
        ids.add(clip.id)
        voices.get_voice(clip.voice)
    return clips


def _check_origin(folder: Path, synthesizer: Synthesizer, judge: Judge) -> None:
    """Refuse to mix clips of two synthesizers or judges in one folder."""
    origin = {
        "synthesizer": _name(synthesizer, voices.synthesize, f"{KOKORO.name} {KOKORO.version}, hibari-tts"),
        "judge": _name(judge, voice_judge.transcribe, voice_judge.NAME),
        "retry_speed": RETRY_SPEED,
    }
    path = folder / "corpus.json"
    if not path.exists():
        write_atomically(path, (json.dumps(origin, indent=1) + "\n").encode())
    elif json.loads(path.read_text()) != origin:
        raise UserError(
            f"{str(folder)!r} was made with {' '.join(path.read_text().split())}, not {json.dumps(origin)}; "
            "choose another folder."
        )


def _name(function: Callable, usual: Callable, usual_name: str) -> str:
    return usual_name if function is usual else f"{function.__module__}.{function.__qualname__}"


def _check_same(wanted: list[Clip], records: dict[str, ClipRecord], folder: Path) -> None:
    for clip in wanted:
        made = records[clip.id].clip if clip.id in records else clip
        if made != clip:
            raise UserError(
                f"clip {clip.id!r} in {str(folder)!r} is {made.text!r} by {made.voice} at speed {made.speed}, "
                f"not {clip.text!r} by {clip.voice} at {clip.speed}; use other ids or another folder."
            )


# -- making -----------------------------------------------------------------------------------------------------------


def make_clip(clip: Clip, synthesizer: Synthesizer, judge: Judge) -> tuple[ClipRecord, bytes]:
    """A clip as FLAC (16 bits) and its record. The judge hears what the file holds."""
    attempts = 0
    for speed in (clip.speed, round(clip.speed * RETRY_SPEED, 4)):
        attempts += 1
        audio = synthesizer(clip.text, clip.voice, speed)
        flac = _encode(audio)
        transcript = judge(Audio.load(flac))
        errors = voice_judge.count_errors(clip.text, transcript)
        if not errors:
            break
    record = ClipRecord(
        id=clip.id,
        text=clip.text,
        voice=clip.voice,
        requested_speed=clip.speed,
        speed=speed,
        seconds=round(audio.seconds, 3),
        transcript=transcript,
        errors=errors,
        attempts=attempts,
        accepted=not errors,
    )
    return record, flac


def _encode(audio: Audio) -> bytes:
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, audio.samples, audio.sample_rate, format="FLAC", subtype="PCM_16")
    return buffer.getvalue()


def _make_all(
    clips: list[Clip], workers: int, synthesizer: Synthesizer, judge: Judge
) -> Iterator[tuple[ClipRecord, bytes]]:
    if workers <= 1 or len(clips) <= 1:
        for clip in clips:
            yield make_clip(clip, synthesizer, judge)
        return
    spawn = multiprocessing.get_context("spawn")  # forked copies of threads of onnxruntime hang
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_prepare_worker)
    try:
        yield from pool.map(make_clip, clips, [synthesizer] * len(clips), [judge] * len(clips))
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare_worker() -> None:
    """Ctrl-C is for the main process; a worker whose main process was killed ends, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _with_progress(
    results: Iterator[tuple[ClipRecord, bytes]], clips: list[Clip], report: Callable[[str], None]
) -> Iterator[tuple[ClipRecord, bytes]]:
    """Report speed and remaining time now and then. The first clip, which waits for the models to load, is not timed.

    Time is estimated by letters of text.
    """
    letters_left = sum(len(clip.text) for clip in clips)
    letters_done, speech, dropped = 0, 0.0, 0
    start = last = 0.0
    for done, (record, flac) in enumerate(results, start=1):
        yield record, flac
        now = time.monotonic()
        letters_left, dropped = letters_left - len(record.text), dropped + (not record.accepted)
        if done == 1:
            start = last = now
            continue
        letters_done, speech = letters_done + len(record.text), speech + record.seconds
        if now - last >= REPORT_SECONDS:
            last, elapsed = now, max(now - start, 1e-9)
            minutes = letters_left * elapsed / max(letters_done, 1) / 60
            report(
                f"{done:,} of {len(clips):,} clips, {speech / 60:.1f} min of speech, {dropped:,} dropped, "
                f"{speech / elapsed:.2f} x real time, {int(minutes // 60)} h {int(minutes % 60):02d} min left"
            )
