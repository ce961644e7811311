"""Write the toy dataset as ordinary files, in the formats of user data: JSONL and WebDataset tars.

    FOLDER/SPLIT/text/00000.jsonl           one {"text": ...} per line
    FOLDER/SPLIT/image-text/00000.tar       one 000000000.png + .txt per sample
    FOLDER/SPLIT/audio-text/00000.tar       one 000000000.flac + .txt per sample

`triptych tokenize` reads these files. Each file is written atomically, so a stopped run can be resumed.
FOLDER/SPLIT/TASK.json records the preset, the number of samples and the seed; a run with other values is refused.
"""

import io
import json
import multiprocessing
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.errors import UserError
from triptych.scenes.samples import SceneSample, scene_sample
from triptych.scenes.speech import available_voices, has_voices
from triptych.scenes.voice_parts import fingerprint
from triptych.scenes.world import WORLDS, World
from triptych.utils.files import write_atomically
from triptych.utils.json_files import read_json
from triptych.vocab import Task

SAMPLES_PER_FILE = 500


@dataclass(frozen=True)
class _File:
    path: Path
    task: Task
    split: str
    seed: int
    start: int
    stop: int
    world: str
    voices: Path | None


def write_scenes(
    folder: Path,
    split: str,
    tasks: list[Task],
    num_samples: int,
    seed: int,
    workers: int,
    world: World,
    voices: Path | None = None,
) -> Iterator[int]:
    """Write `num_samples` of each task. `voices` is a folder of voices; without it all speech is in one voice.

    Yields first the number of samples that exist already, then the number in each file as it is written.
    """
    files = [
        _File(
            _path(folder, split, task, start),
            task,
            split,
            seed,
            start,
            min(start + SAMPLES_PER_FILE, num_samples),
            world.name,
            voices,
        )
        for task in tasks
        for start in range(0, num_samples, SAMPLES_PER_FILE)
    ]
    for task in tasks:
        plan: dict[str, Any] = {"preset": world.name, "samples": num_samples, "seed": seed}
        if task == Task.AUDIO_TEXT and not world.plain_language:
            plan["voices"] = list(available_voices(voices))
            if voices is not None and has_voices(voices):
                plan["voice_parts"] = fingerprint(voices, plan["voices"])
        _prepare_folder(folder / split, task, plan)
    missing = [file for file in files if not file.path.exists()]
    yield sum(file.stop - file.start for file in files if file not in missing)
    if workers > 1 and len(missing) > 1:
        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            yield from pool.imap_unordered(_write, missing)
    else:
        yield from map(_write, missing)


def _prepare_folder(folder: Path, task: Task, plan: dict[str, Any]) -> None:
    """Create the folder of a task, or resume in it if it was started with the same plan."""
    (folder / task.label).mkdir(parents=True, exist_ok=True)
    path = folder / f"{task.label}.json"
    if path.exists() and read_json(path) != plan:
        raise UserError(
            f"{folder / task.label} was written with {path.read_text().strip()}, not {json.dumps(plan)}; "
            "choose another folder or delete that one."
        )
    write_atomically(path, (json.dumps(plan) + "\n").encode())


def _path(folder: Path, split: str, task: Task, start: int) -> Path:
    ending = "jsonl" if task == Task.TEXT else "tar"
    return folder / split / task.label / f"{start // SAMPLES_PER_FILE:05d}.{ending}"


def _write(file: _File) -> int:
    samples = [
        (i, scene_sample(file.task, file.split, i, file.seed, WORLDS[file.world], file.voices))
        for i in range(file.start, file.stop)
    ]
    if file.task == Task.TEXT:
        content = "".join(json.dumps({"text": sample.text}) + "\n" for _, sample in samples).encode()
    else:
        content = _tar(samples)
    write_atomically(file.path, content)
    return len(samples)


def _tar(samples: list[tuple[int, SceneSample]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for index, sample in samples:
            for ending, content in _members(sample).items():
                info = tarfile.TarInfo(f"{index:09d}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _members(sample: SceneSample) -> dict[str, bytes]:
    media = io.BytesIO()
    if sample.image is not None:
        sample.image.save(media, format="PNG")
        ending = "png"
    else:
        import soundfile

        assert sample.audio is not None
        soundfile.write(media, sample.audio.samples, sample.audio.sample_rate, format="FLAC", subtype="PCM_16")
        ending = "flac"
    return {ending: media.getvalue(), "txt": sample.text.encode()}
