"""Tokenizing gives the same bytes with any workers and interruptions, lists every bad sample, survives any kill."""

import copy
import errno
import fcntl
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import data_fakes
import numpy as np
import pytest
import soundfile
from data_fakes import png, wav
from PIL import Image

from triptych.data.shards import MANIFEST, Manifest, TokenDataset
from triptych.data.tokenize import TokenizeConfig, TokenizeFailed, build_dataset, tokenize
from triptych.errors import DataError, UserError
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.workers import map_in_order, one_thread

TEXT = data_fakes.Bytes()


def run(inputs: Path | str, out: Path, **options) -> Manifest:
    """Tokenize with the fakes; `options` are fields of the configuration, or arguments of `build_dataset`."""
    arguments = {name: options.pop(name) for name in ("workers", "max_bad", "overwrite", "load") if name in options}
    config = TokenizeConfig(**{"inputs": (str(inputs),), "tokenizers": "fakes", "samples_per_shard": 20} | options)
    return build_dataset(config, out, **{"load": data_fakes.load} | arguments)


def content_of(folder: Path) -> dict[str, bytes]:
    """Every file of a dataset but the lock."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def bad_of(folder: Path) -> dict[str, str]:
    """Reasons by the last part of the key."""
    lines = map(json.loads, (folder / "bad.jsonl").read_text().splitlines())
    return {line["key"].rpartition("/")[2]: line["reason"] for line in lines}


def stored_texts(folder: Path) -> list[str]:
    dataset = TokenDataset(folder)
    return TEXT.decode([dataset[index].text for index in range(len(dataset))])


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """105 documents, two of them bad: five full shards and one of five samples."""
    path = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": f"document {n} " + "x" * (n % 17)}) for n in range(105)]
    lines[33], lines[70] = "{broken", json.dumps({"text": " \n"})
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for n in range(50):
        pixels = np.random.default_rng(n).integers(0, 256, (9, 14, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{n:03d}.png")
        (folder / f"{n:03d}.txt").write_text(f"image {n}\n")
    return folder


# -- content ---------------------------------------------------------------------------------------------------------


def test_text_dataset(texts: Path, tmp_path: Path) -> None:
    manifest = run(texts, tmp_path / "out")
    expected = [f"document {n} " + "x" * (n % 17) for n in range(105) if n not in (33, 70)]
    assert stored_texts(tmp_path / "out") == expected
    assert [shard.samples for shard in manifest.shards] == [20, 19, 20, 19, 20, 5]
    assert (manifest.name, manifest.task, manifest.bad_samples) == ("out", "TEXT", 2)
    assert manifest.tokenizers == {"text": TEXT.fingerprint}
    assert bad_of(tmp_path / "out") == {
        "texts.jsonl:34": "bad JSON: not JSON "
        "(Expecting property name enclosed in double quotes: line 1 column 2 (char 1)).",
        "texts.jsonl:71": "empty text",
    }
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".lock", "bad.jsonl", "manifest.json", *(f"shard-{n:05d}.safetensors" for n in range(6)),
    ]  # fmt: skip


def test_a_very_long_document_is_stored_whole(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 400_000)
    run(tmp_path / "long.txt", tmp_path / "out")
    assert stored_texts(tmp_path / "out") == ["word " * 400_000]


def test_whole_images_on_white(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.png").write_bytes(png(40, (8, 4)))
    (tmp_path / "in/a.txt").write_text(" a wide one \n")
    manifest = run(tmp_path / "in", tmp_path / "out")
    assert set(manifest.tokenizers) == {"text", "image"}
    (sample,) = TokenDataset(tmp_path / "out")
    gray = sample.media.reshape(4, 4)
    assert (gray[0] == 255).all()
    assert (gray[1:3] == 40).all()
    assert TEXT.decode([sample.text]) == ["a wide one"]


def test_views_differ_and_depend_on_seed_and_number_only(images: Path, tmp_path: Path) -> None:
    def views(name: str, inputs: Path = images, **options) -> list[list[int]]:
        run(inputs, tmp_path / name, image_transform="paper", views=3, **options)
        return [sample.media.tolist() for sample in TokenDataset(tmp_path / name)]

    first = views("a")
    assert len(first) == 150
    assert len({tuple(view) for view in first}) > 75  # half of the views are whole images, which are equal
    assert views("b", samples_per_shard=7) == first
    assert views("c", seed=1) != first
    with pytest.raises(UserError, match="--image-transform paper"):
        run(images, tmp_path / "d", views=2)


def test_audio_clips_cut_and_skipped(tmp_path: Path) -> None:
    for name, content in (("a", wav(0.2, 0.5)), ("b", wav(0.4, 2.5)), ("c", wav(0.6, 2.0))):
        (tmp_path / f"{name}.wav").write_bytes(content)
    soundfile.write(tmp_path / "d.flac", np.linspace(0, 1, 8000, endpoint=False), 8000)
    rows = [{"audio_filepath": f"{name}.wav", "text": f"clip {name}"} for name in "abc"]
    rows += [
        {"audio_filepath": "d.flac", "text": "part", "offset": 0.5, "duration": 0.2},
        {"audio_filepath": "e.wav", "text": "x"},
    ]
    table = tmp_path / "m.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))

    run(table, tmp_path / "skip", max_seconds=2.0, too_long="skip")
    assert [sample.media.tolist() for sample in TokenDataset(tmp_path / "skip")] == [[20] * 5, [60] * 20, [60, 70]]
    assert {key: reason.partition(": ")[0] for key, reason in bad_of(tmp_path / "skip").items()} == {
        "m.jsonl:2": "audio too long", "m.jsonl:5": "missing file",
    }  # fmt: skip
    run(table, tmp_path / "cut", max_seconds=2.0)  # as in the paper
    assert [sample.media.tolist() for sample in TokenDataset(tmp_path / "cut")][1] == [40] * 20
    assert [TEXT.decode([sample.text]) for sample in TokenDataset(tmp_path / "cut")][1] == ["clip b"]
    assert list(bad_of(tmp_path / "cut")) == ["m.jsonl:5"]
    with pytest.raises(DataError, match="too_long was cut, now skip"):
        run(table, tmp_path / "cut", max_seconds=2.0, too_long="skip")


def test_settings_of_audio_do_not_matter_to_other_datasets(images: Path, tmp_path: Path) -> None:
    """So that datasets made when recordings were skipped by default stay complete."""
    before = run(images, tmp_path / "out", too_long="skip", max_seconds=20.0)
    assert run(images, tmp_path / "out") == before


def test_a_tar_of_images(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for n in range(30):
            for name, content in ((f"{n}.png", png(n)), (f"{n}.txt", f"gray {n}".encode())):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    run(tmp_path / "a.tar", tmp_path / "out")
    assert [sample.media[0] for sample in TokenDataset(tmp_path / "out")] == list(range(30))


# -- bad samples ------------------------------------------------------------------------------------------------------


def huge_png() -> bytes:
    """A small file whose header states 60,000 x 60,000 pixels."""
    content = bytearray(png(1))
    content[16:24] = (60_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    return bytes(content)


def test_bad_images_are_listed_and_the_run_continues(images: Path, tmp_path: Path) -> None:
    (images / "003.png").write_bytes(png(1)[:40])
    (images / "007.png").write_bytes(b"not an image")
    (images / "011.png").write_bytes(huge_png())
    (images / "013.txt").write_text(" \n ")
    (images / "017.txt").unlink()
    (images / "019.txt").write_bytes(b"\xff\xfe")
    manifest = run(images, tmp_path / "out")
    assert (manifest.num_samples, manifest.bad_samples) == (44, 6)
    assert stored_texts(tmp_path / "out") == [f"image {n}" for n in range(50) if n not in (3, 7, 11, 13, 17, 19)]
    bad = bad_of(tmp_path / "out")
    assert {key: reason.partition(": ")[0] for key, reason in bad.items()} == {
        "003.png": "bad image",
        "007.png": "bad image",
        "011.png": "bad image",
        "013.png": "empty caption",
        "017.png": "no caption",
        "019.txt": "not UTF-8",
    }
    assert "too many pixels" in bad["011.png"]


def test_bad_audio_files_are_listed_and_the_run_continues(tmp_path: Path) -> None:
    folder = tmp_path / "audio"
    folder.mkdir()
    contents = {"cut": wav(0.5)[:1000], "empty": b"", "text": b"not audio", "good": wav(0.5), "silent": wav(0, 0)}
    for name, content in contents.items():
        (folder / f"{name}.wav").write_bytes(content)
        (folder / f"{name}.txt").write_text(name)
    run(folder, tmp_path / "out")
    assert stored_texts(tmp_path / "out") == ["good"]
    bad = bad_of(tmp_path / "out")
    assert {key: reason.partition(": ")[0] for key, reason in bad.items()} == {
        f"{name}.wav": "bad audio" for name in ("cut", "empty", "silent", "text")
    }
    assert "truncated" in bad["cut.wav"]


def test_one_text_that_cannot_be_encoded_affects_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(['{"text": "before"}', '{"text": "half \\ud800"}', '{"text": "after"}']))
    run(path, tmp_path / "out")
    assert stored_texts(tmp_path / "out") == ["before", "after"]
    assert bad_of(tmp_path / "out") == {"a.jsonl:2": "text cannot be encoded: a lone surrogate"}


def test_too_many_bad_samples_stop_the_run(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(['{"text": "good"}'] * 50 + ["{"] * 20 + ['{"text": "good"}'] * 30))
    with pytest.raises(
        DataError, match=r"20 of 76 samples are bad, more than --max-bad 0\.01 .*bad JSON.*bad\.jsonl"
    ) as caught:
        run(path, tmp_path / "out")
    assert caught.value.exit_code == 3
    assert len(bad_of(tmp_path / "out")) == 20
    assert {"shard-00000.safetensors", "shard-00001.safetensors"} <= set(content_of(tmp_path / "out"))
    assert MANIFEST not in content_of(tmp_path / "out")
    manifest = run(path, tmp_path / "out", max_bad=0.5)  # resumes: max_bad has no effect on the content
    assert (manifest.num_samples, manifest.bad_samples) == (80, 20)


def test_zero_allows_no_bad_sample(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(['{"text": "good"}'] * 9 + ["{"]))
    assert run(path, tmp_path / "lenient").bad_samples == 1  # ten are always allowed
    with pytest.raises(DataError, match=r"1 of 10 samples are bad, more than --max-bad 0 allows"):
        run(path, tmp_path / "strict", max_bad=0)


def test_nothing_usable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" ")
    with pytest.raises(DataError, match=r"all 1 samples are bad \(1 empty text\)"):
        run(tmp_path / "a.txt", tmp_path / "out")
    (tmp_path / "b.txt").write_text("\n")
    with pytest.raises(DataError, match="it is empty"):
        run(tmp_path / "b.txt", tmp_path / "out2", per_line=True)


# -- workers and kills ------------------------------------------------------------------------------------------------


def test_workers_do_not_change_a_byte(texts: Path, images: Path, tmp_path: Path) -> None:
    for name, inputs, options in (("t", texts, {}), ("p", images, {"image_transform": "paper", "views": 2})):
        run(inputs, tmp_path / "a" / name, **options)
        run(inputs, tmp_path / "b" / name, workers=2, **options)
        assert content_of(tmp_path / "a" / name) == content_of(tmp_path / "b" / name)


def die_at(call: int, when: str) -> None:
    """Kill this process at its n-th write to disk: before, after, or in the middle of it."""
    seen = 0

    def deadly(function: Callable) -> Callable:
        def wrapped(*args, **kwargs):
            nonlocal seen
            seen += 1
            if seen == call and when == "torn" and function is os_fsync:
                os.ftruncate(args[0], os.fstat(args[0]).st_size // 2)
            if seen == call and when != "after":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                function(*args, **kwargs)
            finally:
                if seen == call:
                    os.kill(os.getpid(), signal.SIGKILL)

        return wrapped

    os_fsync = os.fsync
    os.fsync, os.replace, os.unlink = deadly(os.fsync), deadly(os.replace), deadly(os.unlink)


def in_a_child(function: Callable[[], object]) -> int:
    """Run a function in a forked process: 0 if it returns, minus the signal if it is killed."""
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("when", ["before", "after", "torn"])
def test_killed_at_every_write_and_resumed(texts: Path, tmp_path: Path, when: str) -> None:
    run(texts, tmp_path / "uninterrupted" / "out", samples_per_shard=50)
    uninterrupted = content_of(tmp_path / "uninterrupted" / "out")
    for call in range(1, 100):
        out = tmp_path / f"{call}" / "out"

        def killed(call: int = call, out: Path = out) -> None:
            die_at(call, when)
            run(texts, out, samples_per_shard=50)

        if in_a_child(killed) == 0:
            break
        run(texts, out, samples_per_shard=50)
        assert content_of(out) == uninterrupted, f"killed {when} write {call}"
    assert call > 20  # plan, journal, four per shard, bad samples, manifest


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_overwriting(texts: Path, tmp_path: Path, when: str) -> None:
    """The old dataset is complete or gone, and a new one is never mixed with it."""
    run(texts, tmp_path / "uninterrupted" / "out", samples_per_shard=60)
    uninterrupted = content_of(tmp_path / "uninterrupted" / "out")
    kills = {"old": 0, "new": 0}
    for call in range(1, 100):
        out = tmp_path / f"{call}" / "out"
        run(texts, out, samples_per_shard=40)

        def killed(call: int = call, out: Path = out) -> None:
            die_at(call, when)
            run(texts, out, samples_per_shard=60, overwrite=True)

        if in_a_child(killed) == 0:
            break
        if (out / MANIFEST).exists() and len(TokenDataset(out).manifest.shards) == 3:
            kills["old"] += 1
            assert TokenDataset(out).verify() == []
            run(texts, out, samples_per_shard=60, overwrite=True)
        else:
            kills["new"] += 1
            run(texts, out, samples_per_shard=60)
        assert content_of(out) == uninterrupted, f"killed {when} write {call}"
    assert kills["old"] > 2
    assert kills["new"] > 10


def test_killed_repeatedly(texts: Path, tmp_path: Path) -> None:
    """Every run makes progress, and never repeats a finished shard."""
    run(texts, tmp_path / "uninterrupted" / "out")
    out = tmp_path / "out"

    def killed() -> None:
        die_at(12, "before")
        run(texts, out)

    kills = 0
    times: dict[str, int] = {}
    while in_a_child(killed) != 0:
        kills += 1
        assert kills < 50
        now = {path.name: path.stat().st_mtime_ns for path in out.glob("shard-*")}
        journal = [json.loads(line)["number"] for line in (out / "journal.jsonl").read_text().splitlines()]
        finished = {name: now[name] for name in (f"shard-{n:05d}.safetensors" for n in journal)}
        assert times.items() <= now.items()
        times = finished
    assert kills >= 3
    assert content_of(out) == content_of(tmp_path / "uninterrupted" / "out")


SLOW_RUN = """
import sys, time, data_fakes
from triptych.data.tokenize import TokenizeConfig, build_dataset

encode = data_fakes.Bytes.encode
def slow(self, items):
    time.sleep(0.1)
    return encode(self, items)
data_fakes.Bytes.encode = slow

if __name__ == "__main__":
    config = TokenizeConfig(inputs=(sys.argv[1],), tokenizers="fakes", samples_per_shard=20)
    build_dataset(config, sys.argv[2], workers=int(sys.argv[3]), load=data_fakes.load)
"""


@pytest.fixture
def start(tmp_path: Path, texts: Path) -> Callable[..., subprocess.Popen]:
    """Start a real process that tokenizes slowly into `out`."""
    script = tmp_path / "slow_run.py"
    script.write_text(SLOW_RUN)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}

    def starter(out: Path, workers: int) -> subprocess.Popen:
        command = [sys.executable, str(script), str(texts), str(out), str(workers)]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    return starter


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def children_of(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("shards", [0, 2])
def test_a_killed_process_leaves_no_workers_and_can_be_resumed(
    start: Callable[..., subprocess.Popen], texts: Path, tmp_path: Path, shards: int
) -> None:
    out = tmp_path / "out"
    process = start(out, 2)
    wait_for(lambda: len(list(out.glob("shard-*"))) >= shards and len(children_of(process.pid)) >= 2)
    workers = children_of(process.pid)
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(alive, workers)))
    assert not (out / MANIFEST).exists()
    run(texts, out)
    run(texts, tmp_path / "uninterrupted" / "out")
    assert content_of(out) == content_of(tmp_path / "uninterrupted" / "out")


def test_a_killed_worker_is_an_error_not_a_hang(start: Callable[..., subprocess.Popen], tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(out, 2)
    wait_for(lambda: len(list(out.glob("shard-*"))) >= 1)
    *_, worker = children_of(process.pid)
    os.kill(worker, signal.SIGKILL)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "WorkerDied: a worker process died (exit code -9)" in errors


def test_errors_of_workers_are_raised(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be loaded in a worker") as caught:
        run(texts, tmp_path / "out", workers=1, load=data_fakes.LoadOnlyIn(os.getpid()))
    assert "in __call__" in caught.value.__notes__[0]


# -- resuming --------------------------------------------------------------------------------------------------------


def test_a_complete_data_set_is_left_alone(texts: Path, tmp_path: Path) -> None:
    first = run(texts, tmp_path / "out")
    before = content_of(tmp_path / "out")
    (tmp_path / "out" / "journal.jsonl").write_text("left by a kill")
    assert run(texts, tmp_path / "out") == first
    assert content_of(tmp_path / "out") == before


def test_another_configuration_or_input_is_refused_in_one_line(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(texts, out)
    before = content_of(out)
    for options, difference in (
        ({"samples_per_shard": 7}, "samples_per_shard was 20, now 7"),
        ({"tokenizers": "other"}, "fingerprints.text was .*, now 0000.*; tokenizers was fakes, now other"),
    ):
        with pytest.raises(
            DataError, match=f"was started with another configuration: {difference}.*--overwrite"
        ) as caught:
            run(texts, out, **options)
        assert "\n" not in str(caught.value)
    os.utime(texts, (1, 1))
    with pytest.raises(DataError, match="an input file has changed"):
        run(texts, out)
    with open(texts, "a") as file:
        file.write('\n{"text": "more"}')
    with pytest.raises(DataError, match=r"input_files\.bytes was \d+, now \d+"):
        run(texts, out)
    assert content_of(out) == before
    assert run(texts, out, overwrite=True).num_samples == 104
    assert len(list(out.glob("shard-*"))) == 6


def test_a_plan_without_finished_shards_can_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(['{"text": "here"}'] * 12))
    with pytest.raises(DataError, match="12 no image"):
        run(path, tmp_path / "out", task="image-text")
    assert run(path, tmp_path / "out").num_samples == 12


def test_overwriting_leaves_no_old_shard(texts: Path, tmp_path: Path) -> None:
    run(texts, tmp_path / "out", samples_per_shard=5)
    (tmp_path / "out" / "notes.md").write_text("mine")
    run(texts, tmp_path / "out", samples_per_shard=50, overwrite=True)
    assert len(list((tmp_path / "out").glob("shard-*"))) == 3
    assert (tmp_path / "out" / "notes.md").read_text() == "mine"


def test_a_folder_with_other_files_is_refused(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"not empty \(it holds thesis\.tex\)"):
            run(texts, tmp_path / "out", overwrite=overwrite)
    with pytest.raises(UserError, match="is a file"):
        run(texts, tmp_path / "out" / "thesis.tex")


def test_output_inside_the_input_is_refused(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is inside the input"):
        run(tmp_path, tmp_path / "out")


def test_a_second_run_on_a_folder_is_refused(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with open(tmp_path / "out" / ".lock", "w") as file:
        file.write("4711")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"another run \(process 4711\) is using"):
            run(texts, tmp_path / "out")
    run(texts, tmp_path / "out")


@pytest.mark.parametrize("after", [0, 5])
def test_a_full_disk_is_one_line_and_running_again_resumes(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    calls, fsync = 0, os.fsync

    def full(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TokenizeFailed, match=r"No space left on device.*run the same command again"):
        run(texts, tmp_path / "out")
    monkeypatch.undo()
    run(texts, tmp_path / "out")
    run(texts, tmp_path / "uninterrupted" / "out")
    assert content_of(tmp_path / "out") == content_of(tmp_path / "uninterrupted" / "out")


def test_a_missing_tokenizer_is_reported_before_any_work(images: Path, tmp_path: Path, text_bundle: Path) -> None:
    config = TokenizeConfig(inputs=(str(images),), tokenizers=str(text_bundle))
    with pytest.raises(UserError, match="the input needs a tokenizer for image"):
        build_dataset(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"inputs": ()},
        {"views": 0},
        {"samples_per_shard": 0},
        {"max_seconds": float("nan")},
        {"too_long": "no"},
        {"task": "x"},
        {"seed": -1},
    ],
)
def test_wrong_values_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        TokenizeConfig(**{"inputs": ("x",), "tokenizers": "y"} | wrong)


# -- processes --------------------------------------------------------------------------------------------------------


def test_results_come_in_order_and_the_source_is_not_read_far_ahead() -> None:
    taken = itertools.count()
    batches = (next(taken) for _ in range(200))
    results = map_in_order(data_fakes.slow_square, batches, 2)
    for index, result in enumerate(results):
        assert result == index * index
        assert next(copy.copy(taken)) - index <= 20
    assert index == 199


def test_one_thread_restores_the_environment() -> None:
    before = dict(os.environ)
    with one_thread():
        assert os.environ["OMP_NUM_THREADS"] == "1"
    assert dict(os.environ) == before


# -- the public function ----------------------------------------------------------------------------------------------


def test_tokenize_takes_one_path_or_many(tmp_path: Path, text_bundle: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"the cat {name}\nthe dog {name}\n")
    one = tokenize(tmp_path / "a.txt", tmp_path / "one", tokenizers=text_bundle, progress=False)
    assert (one.num_samples, one.task) == (1, "TEXT")
    both = [tmp_path / "a.txt", str(tmp_path / "b.txt")]
    lines = tokenize(both, str(tmp_path / "lines"), tokenizers=text_bundle, per_line=True, progress=False)
    assert lines.num_samples == 4
    text = TokenizerBundle.load(text_bundle).text
    stored = TokenDataset(tmp_path / "lines")
    assert text.decode([sample.text for sample in stored]) == ["the cat a", "the dog a", "the cat b", "the dog b"]


def test_tokenize_uses_the_demo_tokenizers_by_default(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "a.txt").write_text("a red hat\nand an owl")
    manifest = tokenize(str(tmp_path / "a.txt"), tmp_path / "out")
    demo = TokenizerBundle.load("scenes")
    assert manifest.tokenizers == {"text": demo.fingerprints["text"]}
    assert demo.text.decode([TokenDataset(tmp_path / "out")[0].text]) == ["a red hat\nand an owl"]
    tokenize(str(tmp_path / "a.txt"), tmp_path / "out")
    assert "out is already complete." in capsys.readouterr().err


def test_an_unknown_argument_of_tokenize_gets_a_suggestion(tmp_path: Path) -> None:
    for wrong, suggestion in (("textkey", "text_key"), ("worker", "workers"), ("max_second", "max_seconds")):
        with pytest.raises(UserError, match=f"tokenize has no argument '{wrong}'. Did you mean '{suggestion}'"):
            tokenize("a.txt", tmp_path / "out", **{wrong: 1})
    with pytest.raises(UserError, match="views must be at least 1"):
        tokenize("a.txt", tmp_path / "out", views=0)
