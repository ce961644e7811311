"""Clips of an evaluation: the choice, what is left out, and LibriSpeech-PC's manifests."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from triptych.data.sources import open_source
from triptych.errors import DataError, UserError
from triptych.eval.audio.data import choose, choose_speech, media_files
from triptych.eval.paper_suite import paper_jobs


def write(path: Path, seconds: float = 1.0, level: float = 0.3, rate: int = 16_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = level * np.sin(np.arange(round(seconds * rate)) / 20)
    soundfile.write(path, samples, rate)
    return path


@pytest.fixture
def librispeech_pc(tmp_path) -> Path:
    """The layout of OpenSLR 145 beside OpenSLR 12."""
    rows = []
    for index, seconds in enumerate((1.0, 2.5, 40.0, 1.5)):
        name = f"test-clean/1089/134686/1089-134686-{index:04d}.flac"
        if index != 3:
            write(tmp_path / "LibriSpeech" / name, seconds)
        text = f"Sentence number {index}, isn't it?"
        rows.append({"audio_filepath": name, "duration": seconds, "text": text, "text_raw": f"RAW {index}"})
    manifest = tmp_path / "manifests" / "test-clean.json"
    manifest.parent.mkdir()
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return manifest


def test_librispeech_pc_has_texts_durations_and_files(librispeech_pc):
    source = open_source([str(librispeech_pc)])
    samples = list(source)
    assert source.task.label == "audio-text"
    assert [sample.text for sample in samples] == [f"Sentence number {i}, isn't it?" for i in range(4)]
    assert [sample.duration_seconds for sample in samples] == [1.0, 2.5, 40.0, 1.5]
    assert all(Path(sample.media).is_file() for sample in samples[:3])
    raw = choose_speech([str(librispeech_pc)], None, text_key="text_raw")
    assert [clip.text for clip in raw.clips] == ["RAW 0", "RAW 1"]
    assert raw.left_out == {"longer than 30 s": 1, "unreadable": 1}
    assert [clip.seconds for clip in raw.clips] == [1.0, 2.5]
    assert "1 left out, longer than 30 s" in raw.summary


@pytest.mark.parametrize("name", ["LibriSpeech/{}", "/LibriSpeech/{}", "../LibriSpeech/{}"])
def test_paths_of_a_manifest_may_start_elsewhere(librispeech_pc, name):
    rows = [json.loads(line) for line in librispeech_pc.read_text().splitlines()]
    for row in rows:
        row["audio_filepath"] = name.format(row["audio_filepath"])
    librispeech_pc.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [clip.seconds for clip in choose_speech([str(librispeech_pc)], None).clips] == [1.0, 2.5]


def test_audio_of_a_manifest_may_be_converted(librispeech_pc):
    folder = librispeech_pc.parent.parent / "LibriSpeech" / "test-clean" / "1089" / "134686"
    (folder / "1089-134686-0000.flac").unlink()
    write(folder / "1089-134686-0000.wav")
    assert [Path(clip.media).suffix for clip in choose_speech([str(librispeech_pc)], None).clips] == [".wav", ".flac"]


def test_other_json_files_are_no_manifests(tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1}')
    (tmp_path / "b.json").write_text("[1, 2]\n")
    (tmp_path / "c.json").write_bytes(b"\xff" * 100)
    (tmp_path / "d.json").write_text('{"audio_filepath": "x.wav", "text": "a"' + " " * 100_000)
    with pytest.raises(DataError, match="found no samples"):
        open_source([str(tmp_path)])


def test_the_choice_depends_on_the_seed_alone(tmp_path):
    for index in range(8):
        write(tmp_path / f"{index}.wav", 0.5).with_suffix(".txt").write_text(f"text {index}")
    first = choose_speech([str(tmp_path)], 4, seed=1)
    assert first == choose_speech([str(tmp_path)], 4, seed=1)
    assert first.sha256 == choose_speech([str(tmp_path)], 4, seed=1).sha256
    assert len(first.clips) == 4
    assert [clip.key for clip in first.clips] == sorted(clip.key for clip in first.clips)
    assert any(choose_speech([str(tmp_path)], 4, seed=seed).clips != first.clips for seed in range(2, 6))
    # A smaller choice is a part of a larger one.
    assert set(choose_speech([str(tmp_path)], 2, seed=1).clips) <= set(first.clips)
    assert choose(10, None, 0) == list(range(10))


def test_clips_of_a_tar_are_the_same_clips(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for index in range(6):
            audio = write(tmp_path / "x" / f"{index}.wav", 0.25 * (index + 1)).read_bytes()
            for suffix, content in ((".wav", audio), (".txt", f"text {index}".encode())):
                member = tarfile.TarInfo(f"{index}{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    data = choose_speech([str(tmp_path / "a.tar")], 2, seed=3)
    assert len(data.clips) == 2
    assert all(clip.load().seconds == clip.seconds == 0.25 * (int(clip.text[-1]) + 1) for clip in data.clips)


def test_what_cannot_be_used_is_left_out_and_counted(tmp_path):
    for name, seconds, level in (("good", 1.0, 0.3), ("silent", 1.0, 0.0), ("long", 31.0, 0.3), ("mute", 1.0, 0.3)):
        write(tmp_path / f"{name}.wav", seconds, level).with_suffix(".txt").write_text(name if name != "mute" else " ")
    soundfile.write(tmp_path / "nan.wav", np.full(16_000, np.nan, np.float32), 16_000, subtype="FLOAT")
    (tmp_path / "nan.txt").write_text("not a number")
    (tmp_path / "torn.wav").write_bytes(b"RIFF")
    (tmp_path / "torn.txt").write_text("torn")
    data = choose_speech([str(tmp_path)], None)
    assert [clip.text for clip in data.clips] == ["good"]
    assert data.left_out == {"silent": 1, "longer than 30 s": 1, "without a text": 1, "unreadable": 2}
    (tmp_path / "good.wav").unlink()
    with pytest.raises(DataError, match=r"there is no usable clip in .* For example: \S+\.wav "):
        choose_speech([str(tmp_path)], None)


def test_bare_recordings_do_where_no_text_is_needed(tmp_path):
    write(tmp_path / "deep" / "a.wav")
    write(tmp_path / ".hidden" / "b.wav")
    assert [clip.text for clip in choose_speech([str(tmp_path)], None, needs_text=False).clips] == [""]
    with pytest.raises(DataError, match="found no samples"):
        choose_speech([str(tmp_path)], None)
    assert [path.name for path in media_files([str(tmp_path)], (".wav",))] == ["a.wav"]


def test_the_digest_follows_the_audio(tmp_path):
    """Other recordings of the same names, texts and lengths are other data."""
    digests = []
    for level in (0.3, 0.2):
        write(tmp_path / "a.wav", 0.5, level).with_suffix(".txt").write_text("text")
        digests.append(choose_speech([str(tmp_path)], None).sha256)
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    "changes", [{"duration": 0}, {"audio_filepath": ""}, {"audio_filepath": None}, {"audio_filepath": "x" * 5000}]
)
def test_a_bad_row_of_a_manifest_is_one_bad_sample(librispeech_pc, changes):
    rows = [json.loads(line) for line in librispeech_pc.read_text().splitlines()]
    rows.insert(1, {**rows[0], **changes})
    librispeech_pc.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = choose_speech([str(librispeech_pc)], None)
    assert [clip.seconds for clip in data.clips] == [1.0, 2.5]
    assert sum(data.left_out.values()) == 3


def test_a_table_with_a_length_of_zero_leaves_one_clip_out(tmp_path):
    write(tmp_path / "a.wav")
    rows = [{"audio_filepath": "a.wav", "text": "text", "duration": seconds} for seconds in (0, 1.0)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = choose_speech([str(tmp_path / "t.jsonl")], None)
    assert (len(data.clips), data.left_out) == (1, {"unreadable": 1})


def test_names_of_a_manifest_never_start_at_the_current_directory(librispeech_pc, tmp_path, monkeypatch):
    write(tmp_path / "here" / "test-clean/1089/134686/1089-134686-0003.flac", 1.5)
    monkeypatch.chdir(tmp_path / "here")
    assert [clip.seconds for clip in choose_speech([str(librispeech_pc)], None).clips] == [1.0, 2.5]


def test_the_paper_suite_names_its_speech_by_the_folder(librispeech_pc):
    folder = librispeech_pc.parent.rename(librispeech_pc.parent.with_name("librispeech-pc"))
    (folder / "notes.json").write_text('{"a": 1}')
    jobs, _ = paper_jobs(folder.parent)
    (job,) = [each for each in jobs if each.suite == "audio"]
    assert job.settings.dataset == "librispeech-pc"
    assert [Path(each).name for each in job.settings.data] == ["test-clean.json"]


def test_wrong_inputs_are_one_line(tmp_path):
    with pytest.raises(UserError, match="give the data of the evaluation"):
        choose_speech([], None)
    with pytest.raises(DataError, match="no such file or folder"):
        media_files([str(tmp_path / "nothing")])
    write(tmp_path / "a.wav")
    with pytest.raises(DataError, match=r"a\.wav is not one of the formats \.bmp"):
        media_files([str(tmp_path / "a.wav")])
