import json
import tarfile

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.scenes import write
from triptych.scenes.samples import scene_sample
from triptych.scenes.spoken import all_spoken_parts
from triptych.scenes.voice_parts import build_parts, write_voice
from triptych.scenes.world import FULL, SMALL
from triptych.scenes.write import write_scenes
from triptych.utils.media import read_audio, read_image
from triptych.vocab import Task

pytest.importorskip("hibari", reason="the data extra, with the speech synthesizer, is not installed")


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(write, "SAMPLES_PER_FILE", 3)


def members(path):
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


@pytest.mark.parametrize("world", [FULL, SMALL], ids=lambda world: world.name)
def test_the_files_hold_the_samples(tmp_path, world):
    counts = list(write_scenes(tmp_path, "test", list(Task), num_samples=4, seed=0, workers=1, world=world))
    assert sum(counts) == 12
    lines = (tmp_path / "test/text/00001.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == [scene_sample(Task.TEXT, "test", 3, world=world).text]
    images = members(tmp_path / "test/image-text/00000.tar")
    assert list(images) == [f"00000000{i}.{ending}" for i in range(3) for ending in ("png", "txt")]
    expected = scene_sample(Task.IMAGE_TEXT, "test", 2, world=world)
    assert images["000000002.txt"].decode() == expected.text
    assert (np.asarray(read_image(images["000000002.png"])) == np.asarray(expected.image)).all()
    speech = members(tmp_path / "test/audio-text/00001.tar")
    spoken = scene_sample(Task.AUDIO_TEXT, "test", 3, world=world)
    audio = read_audio(speech["000000003.flac"])
    assert speech["000000003.txt"].decode() == spoken.text
    assert audio.sample_rate == spoken.audio.sample_rate
    np.testing.assert_allclose(audio.samples, spoken.audio.samples, atol=1e-4)


def test_a_second_run_writes_only_missing_files(tmp_path):
    list(write_scenes(tmp_path, "train", [Task.TEXT], 9, seed=0, workers=1, world=FULL))
    first, second = tmp_path / "train/text/00000.jsonl", tmp_path / "train/text/00001.jsonl"
    before = second.read_bytes()
    second.unlink()
    first.write_text("existing")
    assert list(write_scenes(tmp_path, "train", [Task.TEXT], 9, seed=0, workers=1, world=FULL)) == [6, 3]
    assert second.read_bytes() == before
    assert first.read_text() == "existing"


def test_a_run_with_another_plan_is_refused(tmp_path):
    list(write_scenes(tmp_path, "train", [Task.TEXT], 4, seed=0, workers=1, world=FULL))
    for samples, seed, world in ((9, 0, FULL), (4, 1, FULL), (4, 0, SMALL)):
        with pytest.raises(UserError, match=r'written with \{"preset": "full", "samples": 4, "seed": 0\}'):
            list(write_scenes(tmp_path, "train", [Task.TEXT], samples, seed=seed, workers=1, world=world))


def test_a_run_with_other_voices_is_refused(tmp_path):
    voices = tmp_path / "voices"
    build_parts(voices, ["emma"], all_spoken_parts(FULL), lambda line: None, lambda *_: np.full(900, 0.1, np.float32))
    list(write_scenes(tmp_path, "train", [Task.AUDIO_TEXT], 2, seed=0, workers=1, world=FULL, voices=voices))
    with pytest.raises(UserError, match=r'"voices": \["emma"\].*not .*"voices": \["robin"\]'):
        list(write_scenes(tmp_path, "train", [Task.AUDIO_TEXT], 2, seed=0, workers=1, world=FULL))
    # The same voice after a repair has other parts.
    write_voice(voices, "emma", {part: np.full(800, 0.1, np.float32) for part in all_spoken_parts(FULL)}, checked=True)
    with pytest.raises(UserError, match="choose another folder or delete that one"):
        list(write_scenes(tmp_path, "train", [Task.AUDIO_TEXT], 2, seed=0, workers=1, world=FULL, voices=voices))
