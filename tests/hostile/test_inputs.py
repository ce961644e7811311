"""Pipes, folders without access, strange patterns, names and numbers: each is answered in one line, at once."""

import argparse
import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import bombs
import data_fakes
import limited
import numpy as np
import pytest

from triptych.cli import info, study
from triptych.cli.damage import printed_damage
from triptych.cli.main import main
from triptych.cli.unusual import printed_warnings
from triptych.data.shards import ShardInfo, TokenDataset, find_dataset_folders
from triptych.data.show import find_datasets
from triptych.data.sources import BadSample, open_source
from triptych.data.tokenize import run as run_module
from triptych.data.tokenize import tokenize
from triptych.data.tokenize.folder import Journal, read_journal
from triptych.errors import CheckpointError, DamageWarning, DataError, UnusualInputWarning, UserError
from triptych.eval.audio.data import media_files
from triptych.eval.codecs.run import codec_info, guess_modality
from triptych.eval.geneval.prompts import read_prompts
from triptych.eval.image.prompts import read_prompt_file
from triptych.eval.image.reference import open_images
from triptych.hub.pipeline import Pipeline
from triptych.sample.config import SamplingConfig
from triptych.serve.auth import read_keys
from triptych.studies import base, inference
from triptych.training import checkpoint as ckpt
from triptych.training.checkpointer import _prepare
from triptych.training.config import ParallelConfig
from triptych.utils.arguments import check_path
from triptych.utils.checksums import sha256
from triptych.utils.files import open_regular
from triptych.utils.media import read_audio, read_image
from triptych.utils.terminal import one_line, printable
from triptych.utils.trials import TrialRecords
from triptych.utils.workers import map_in_order

# -- Parquet ----------------------------------------------------------------------------------------------------------


def test_a_damaged_footer_does_not_end_the_process(tmp_path: Path) -> None:
    outcome = limited.call(bombs.read_with_damaged_footers, str(tmp_path / "a.parquet"))
    assert outcome.code == 0, outcome
    read, refused = map(int, outcome.out.split())
    assert min(read, refused) > 20


# -- files that are none ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.tar", "a.parquet", "a.json"])
def test_a_pipe_as_input_is_refused_at_once(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="a pipe, a socket or a device"):
        open_source([str(tmp_path / name)])


def test_a_pipe_in_a_folder_is_no_sample(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text('{"text": "read"}')
    assert [item.text for item in open_source([str(tmp_path)])] == ["read"]


def test_a_pipe_as_image_or_audio_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    for read in (read_image, read_audio):
        with pytest.raises(DataError, match=r"a\.png' cannot be read \(not a regular file\)"):
            read(tmp_path / "a.png")
    with pytest.raises(OSError, match="Is a directory"):
        open_regular(tmp_path)


def test_numbers_are_not_files() -> None:
    with pytest.raises(UserError, match="expected a file as its path or its bytes, got int"):
        read_image(1)  # type: ignore[arg-type]  # would close standard output


def test_pipes_and_devices_in_the_place_of_any_other_file_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    for path in (tmp_path / "a.jsonl", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            sha256(path)
        for read in (read_prompt_file, read_prompts):
            with pytest.raises(DataError, match=r"cannot be read as .*prompts .*not a regular file"):
                read(path)
        with pytest.raises(UserError, match=r"--api-key-file .* cannot be read .*not a regular file"):
            read_keys([], str(path), {})


def test_verify_reads_no_shard_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one")
    manifest = tokenize(tmp_path / "in.txt", tmp_path / "data", progress=False)
    (shard,) = manifest.shards
    os.mkfifo(tmp_path / "data" / "fifo")
    outside = "outside its folder"
    for file, message in (("/dev/zero", outside), ("../in.txt", outside), ("fifo", "fifo: not a regular file")):
        replace(manifest, shards=[replace(shard, file=file)]).save(tmp_path / "data")
        (problem,) = TokenDataset(tmp_path / "data").verify()
        assert message in problem


# -- folders without access -------------------------------------------------------------------------------------------


@pytest.fixture
def locked_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text, and a sub-folder that nobody may list, the user root included."""
    (tmp_path / "in" / "locked").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text("read")
    scandir = os.scandir

    def refusing(path: str) -> object:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    return tmp_path / "in"


def test_a_folder_without_access_is_counted_and_named(locked_folder: Path) -> None:
    items = list(open_source([str(locked_folder)]))
    assert items[0] == BadSample(str(locked_folder / "locked"), "no access: Permission denied")
    assert items[1].text == "read"


def test_tokenize_reports_a_folder_without_access(
    locked_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["tokenize", str(locked_folder), "--out", str(tmp_path / "out"), "--workers", "0"]) == 0
    assert "Left out 1 bad samples (1 no access)" in " ".join(capsys.readouterr().err.split())
    assert "locked" in json.loads((tmp_path / "out" / "bad.jsonl").read_text())["key"]
    words = ["tokenize", str(locked_folder), "--out", str(tmp_path / "strict"), "--workers", "0", "--max-bad", "0"]
    assert main(words) == 3


def test_an_input_without_access_is_an_error(locked_folder: Path) -> None:
    with pytest.raises(DataError, match="locked cannot be read: Permission denied"):
        open_source([str(locked_folder / "locked")])


def test_every_reader_of_folders_counts_and_names_those_without_access(locked_folder: Path) -> None:
    tokenize(locked_folder / "a.txt", locked_folder / "set", progress=False)
    (locked_folder / "a.png").touch()
    for read in (
        lambda: find_datasets([locked_folder]),
        lambda: find_dataset_folders([str(locked_folder)]),
        lambda: media_files([str(locked_folder)]),
        lambda: guess_modality([str(locked_folder)]),
        lambda: codec_info(str(locked_folder)),
    ):
        with pytest.warns(DamageWarning, match=r"^1 folders are left out: .*locked \(Permission denied\)$"):
            assert read()
    first = next(iter(open_images(locked_folder)))[1]
    assert first == BadSample(str(locked_folder / "locked"), "no access: Permission denied")


# -- patterns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("{0..9999999999}.txt", "stands for more than 1,000,000 names"),
        ("{0..999}{0..999}{0..999}", "stands for more than 1,000,000 names"),
        ("{a,b}" * 200, "stands for more than 1,000,000 names"),
        ("{0.." + "9" * 5000 + "}", "has more than 18 digits"),
        ("{9..1}", r"the range \{9..1\} in .* is empty"),
        ("x" * 5000, "no such file or folder: x{1000}$"),
    ],
)
def test_patterns_are_bounded(pattern: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_source([pattern])


# -- budgets of tokenize ----------------------------------------------------------------------------------------------


def test_shards_and_batches_end_early_if_texts_are_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_SHARD_TEXT_BYTES", 1000)
    monkeypatch.setattr(run_module, "_BATCH_BYTES", 300)
    lengths = np.random.default_rng(0).integers(1, 700, 40)
    texts = ["é" * int(n) if n % 2 else "e" * int(n) for n in lengths]
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    manifest = tokenize(tmp_path / "in.jsonl", tmp_path / "out", samples_per_shard=6, progress=False)
    assert manifest.num_samples == 40
    assert 40 / 6 < len(manifest.shards) < 40
    assert all(shard.samples <= 6 for shard in manifest.shards)
    first, total = 0, [len(text.encode()) for text in texts]
    for shard in manifest.shards:
        assert sum(total[first : first + shard.samples]) <= 1000 or shard.samples == 1
        first += shard.samples
    again = tokenize(tmp_path / "in.jsonl", tmp_path / "again", samples_per_shard=6, workers=2, progress=False)
    assert [shard.sha256 for shard in again.shards] == [shard.sha256 for shard in manifest.shards]


def test_batches_are_not_read_far_ahead_of_their_results() -> None:
    taken: list[int] = []

    def batches() -> object:
        for number in range(30):
            taken.append(number)
            yield number

    for number, _ in enumerate(
        map_in_order(data_fakes.slow_square, batches(), 2, size_of=lambda batch: 10, max_ahead=25)
    ):
        assert len(taken) <= number + 5


def test_what_files_choose_is_cut() -> None:
    sample = BadSample("k" * 10**6, "missing file: " + "m" * 10**6)
    assert len(sample.key) == len(sample.reason) == 500
    assert sample.category == "missing file"


# -- names ------------------------------------------------------------------------------------------------------------


def test_escape_sequences_and_line_breaks_in_names_stay_off_the_terminal(capsys: pytest.CaptureFixture) -> None:
    assert main(["tokenize", "a\x1b]0;title\x07\nerror: none\x9b31m", "--out", "o"]) == 3
    err = capsys.readouterr().err
    assert err == "triptych: error: no such file or folder: a\\x1b]0;title\\x07\\nerror: none\\x9b31m\n"


def test_names_and_licences_of_others_stay_off_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "in.txt").write_text("one")
    tokenize(tmp_path / "in.txt", tmp_path / "data" / "a\x1b[31mb\nc", progress=False)
    assert main(["verify", str(tmp_path / "data")]) == 0
    good = capsys.readouterr()
    (tmp_path / "data" / "a\x1b[31mb\nc" / "shard-00000.safetensors").write_text("no")
    assert main(["verify", str(tmp_path / "data")]) == 3
    bad = capsys.readouterr()
    facts = info._facts("scenes", Pipeline.from_pretrained("scenes", device="cpu"))
    info._print({**facts, "license": "mit\x1b]0;x\x07", "voices": ["a\x9b"], "examples": ["\x1b"]})
    with printed_damage(), printed_warnings():
        warnings.warn("a\x1b[31m.jsonl is damaged", DamageWarning, stacklevel=1)
        warnings.warn(UnusualInputWarning("\x1b[31m is unusual", SimpleNamespace(as_json={})), stacklevel=1)
    printed = capsys.readouterr()
    for text in (good.out, bad.out, bad.err, printed.out, printed.err):
        assert text
        assert printable(text) == text
    assert bad.err.splitlines()[-1].startswith("  Restore these files")
    assert "\\nRestore" not in bad.err
    assert bad.err.count("a\\x1b[31mb\\nc") == good.out.count("a\\x1b[31mb\\nc") == 1


def test_lists_in_errors_keep_their_lines() -> None:
    assert one_line("looked for:\n  a\n  b\nc\x1b") == "looked for:\n  a\n  b\\nc\\x1b"
    assert printable("tab\tline\nend \u202eabc é 🙂 \udcff") == "tab\tline\nend \\u202eabc é 🙂 \\udcff"


@pytest.mark.parametrize("words", [["train", "nano", "--out", "a\udcff"], ["tokenize", "a", "--out", "o\udcff"]])
def test_names_that_are_not_utf8_are_refused_before_any_work(words: list[str], capsys: pytest.CaptureFixture) -> None:
    assert main(words) == 2
    assert "must be UTF-8" in capsys.readouterr().err
    with pytest.raises(UserError, match="out must be UTF-8"):
        tokenize("a.txt", "o\udcff", progress=False)


@pytest.mark.parametrize(
    ("path", "message"), [("a\0b", "holds a NUL"), ("", "empty text"), ("\ud800", "must be UTF-8")]
)
def test_paths(path: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_path("out", path)
    check_path("out", "été/日本")


# -- runs and datasets ------------------------------------------------------------------------------------------------


def test_files_and_links_with_the_name_of_a_partial_checkpoint_are_removed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / f"{ckpt.PARTIAL}x").write_text("a file")
    (folder / f"{ckpt.PARTIAL}y").symlink_to(tmp_path / "outside")
    (folder / f"{ckpt.PARTIAL}z").mkdir()
    assert _prepare(folder, folder / f"{ckpt.PARTIAL}step-00000001") == ""
    assert [path.name for path in folder.iterdir()] == [f"{ckpt.PARTIAL}step-00000001"]
    assert (tmp_path / "outside" / "kept").exists()


def test_links_to_checkpoints_are_not_followed_and_not_renamed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "step-00000001").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ckpt.CheckpointUnavailable, match="is a link"):
        ckpt.newest_valid(folder)
    assert (folder / "step-00000001").is_symlink()


def test_links_to_shards_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one")
    tokenize(tmp_path / "in.txt", tmp_path / "data", progress=False)
    shard = tmp_path / "data" / "shard-00000.safetensors"
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    dataset = TokenDataset(tmp_path / "data")
    with pytest.raises(DataError, match="is a link"):
        dataset[0]
    assert "is a link" in dataset.verify()[0]


@pytest.mark.parametrize("name", ["records.jsonl", "claims", "claims/key", "claims/.lock"])
def test_links_in_a_folder_of_trials_are_not_followed(name: str, tmp_path: Path) -> None:
    folder, outside = tmp_path / "study", tmp_path / "outside"
    (folder / "claims").mkdir(parents=True)
    if name == "claims":
        (folder / "claims").rmdir()
        outside.mkdir()
    else:
        outside.write_text("kept")
        os.utime(outside, (0, 0))  # a claim that has expired
    (folder / name).symlink_to(outside)
    with pytest.raises(UserError, match=f"{name} is a link"), TrialRecords(folder).claim("key"):
        pass
    assert list(outside.iterdir()) == [] if outside.is_dir() else outside.read_text() == "kept"


@pytest.mark.parametrize("step", [-5, 10**30, True, 1.5, "1", None])
def test_impossible_steps_of_a_checkpoint_are_refused(step: object, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"step": step}))
    with pytest.raises(CheckpointError, match="is not the state of a run"):
        ckpt.read_state(tmp_path)


def test_damaged_lines_of_a_journal_are_counted_and_named(tmp_path: Path) -> None:
    shard, journal = ShardInfo("shard-00000.safetensors", "0", 1, 1), Journal(tmp_path)
    (tmp_path / shard.file).touch()
    journal.add(0, shard, 1, [])
    path = tmp_path / "journal.jsonl"
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"read": 1', b'"read": 9') + b"\xff\n" + b'{"number": "x"}\n' + good + good[:20])
    with pytest.warns(DamageWarning, match=r"journal\.jsonl: 3 lines are damaged and left out \(lines 1, 2, 3\)"):
        assert list(read_journal(tmp_path)) == [0]
    path.write_bytes(good + good[:20])  # of a process that was stopped while it wrote
    assert list(read_journal(tmp_path)) == [0]


@pytest.mark.parametrize("content", ["[]", "{", "[" * 10**5, '{"fingerprint": 1}'])
def test_a_damaged_model_of_a_study_is_one_line(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "model_fingerprint", lambda pipe: "f")
    inference._check_model(tmp_path, "scenes", None)  # type: ignore[arg-type]
    inference._check_model(tmp_path, "scenes", None)  # type: ignore[arg-type]
    (tmp_path / "model.json").write_text(content)
    TrialRecords(tmp_path).add({"key": "a"})
    with pytest.raises(UserError, match=r"does not describe the model of a study|are of another model"):
        inference._check_model(tmp_path, "scenes", None)  # type: ignore[arg-type]


def test_a_study_that_others_have_not_finished_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    records = TrialRecords(tmp_path)
    records.add({"key": "a", "seconds": 60.0})
    fake = SimpleNamespace(
        check=id, needs_data=False, fixed_options=id, missing_runs=lambda *_: [], run=lambda *_: False
    )
    monkeypatch.setattr(study, "study_of", lambda name: fake)
    monkeypatch.setattr(base, "base_run", lambda *_: SimpleNamespace(tokenizers="scenes"))
    monkeypatch.setattr(base, "join", lambda *_: None)
    with records.claim("b"):
        args = SimpleNamespace(plot_only=False, threads=1, recipe=None, data=None, validation_data=None, changes=[])
        with pytest.raises(UserError, match=r"is not finished: the other runs are claimed by .*process") as caught:
            study._run("gamma", argparse.Namespace(**vars(args), out=tmp_path))
    assert caught.value.exit_code == 1
    assert "1 records in" in capsys.readouterr().out


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "text-to-image", "x", "-n", "10000000"],
        ["generate", "text-to-image", "x", "-n", "9" * 5000],
        ["generate", "text-to-image", "x", "--best-of", "100000"],
        ["generate", "text-to-image", "x", "--steps", "1e9"],
        ["generate", "text-to-image", "x", "--steps", "10000000000"],
        ["generate", "text-to-image", "x", "--temperature", "1e300"],
        ["generate", "text-to-image", "x", "--temperature", "nan"],
        ["generate", "text-to-image", "x", "--guidance-scale", "inf"],
        ["generate", "text-to-image", "x", "--guidance-scale", "1e200"],
        ["generate", "text-to-image", "x", "--seed", "99999999999999999999999"],
        ["tokenize", "x", "--out", "o", "--views", "1000000000"],
        ["tokenize", "x", "--out", "o", "--workers", "1000000000"],
        ["tokenize", "x", "--out", "o", "--max-seconds", "1e300"],
        ["train", "nano", "parallel.watch=1e-9"],
        ["train", "nano", "parallel.hang_timeout=1e-9", "--print-config"],
        ["train", "nano", "threads=5000", "--print-config"],
        ["train", "nano", "model.width=1000000000000", "--print-config"],
        ["train", "nano", "loader.global_batch=1000000000000", "--print-config"],
        ["train", "nano", "loader.seq_len=1000000000000", "--print-config"],
        ["train", "nano", "num_steps=1e400", "--print-config"],
        ["train", "nano", "validation.draws=1000000000", "--print-config"],
        ["train", "aspect_" + "9" * 5000, "--print-config"],
        ["train", "nano", "--stop-after", "9" * 5000],
        ["train", "nano", "--nproc", "10000000000"],
        ["train", "nano", "--nnodes", "10000000000", "--rdzv-endpoint", "127.0.0.1:1"],
        ["sweep", "none", "--nproc", "10000000000"],
        ["serve", "--replicas", "10000000000"],
        ["eval", "text", "scenes", "--nproc", "10000000000"],
        ["eval", "tokenizers", "scenes", "--nproc", "10000000000"],
        ["scenes", "make", "o", "--workers", "10000000000"],
        ["scenes", "write", "o", "--workers", "10000000000"],
        ["plan", "grid", "nano", "--low", "1e11", "--high", "2e13", "--budgets", "10000000000"],
        ["plan", "grid", "nano", "--low", "1e11", "--high", "2e13", "--sizes", "10000000000"],
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_large_and_strange_numbers_are_one_line(words: list[str], capsys: pytest.CaptureFixture) -> None:
    assert main(words) in (2, 3)
    err = capsys.readouterr().err
    assert err.startswith("triptych: error: ")
    assert err.count("\n") == 1
    assert len(err) < 600


@pytest.mark.parametrize(
    "fields",
    [
        {"num_steps": 10**30}, {"best_of": 10**9}, {"num_score_passes": 10**9}, {"temperature": 1e-300},
        {"temperature": 1e300}, {"guidance_scale": 1e300}, {"num_steps": 10**5000},
    ],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
def test_sampling_numbers_are_bounded(fields: dict[str, float]) -> None:
    with pytest.raises(UserError) as error:
        SamplingConfig(**fields)
    assert len(str(error.value)) < 300


def test_a_watchdog_needs_a_second() -> None:
    with pytest.raises(UserError, match="at least 1 second"):
        ParallelConfig(hang_timeout=1e-9)
    assert ParallelConfig(hang_timeout=1.0).hang_timeout == 1


def test_far_more_threads_than_cpus_are_refused() -> None:
    from triptych.training.run import threads_to_use

    assert threads_to_use(2) == 2
    with pytest.raises(UserError, match="far more than the"):
        threads_to_use(100 * (os.cpu_count() or 1))
