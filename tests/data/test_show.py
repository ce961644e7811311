"""Inspecting datasets, through the functions and through the command line."""

import io
import json
import subprocess
import sys
from pathlib import Path

import data_fakes
import numpy as np
import pytest
import soundfile
from data_fakes import png, wav
from PIL import Image
from rich.console import Console

from triptych.data import show as show_module
from triptych.data.show import find_datasets, open_tokenizers, render, show, verify
from triptych.data.tokenize import TokenizeConfig, build_dataset
from triptych.errors import DataError, UserError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three datasets: texts, images, audio."""
    folder = tmp_path_factory.mktemp("show")
    sources = {name: folder / "raw" / name for name in ("texts", "images", "audio")}
    for source in sources.values():
        source.mkdir(parents=True)
    lines = [json.dumps({"text": "word " * 3**n + f"[red]{n}[/]"}) for n in range(6)]
    (sources["texts"] / "a.jsonl").write_text("\n".join([*lines, "{"]))
    for n in range(5):
        (sources["images"] / f"{n}.png").write_bytes(png(40 * n))
        (sources["audio"] / f"{n}.wav").write_bytes(wav(n / 5))
        for name in ("images", "audio"):
            (sources[name] / f"{n}.txt").write_text(f"{name} {n}")
    for name, source in sources.items():
        config = TokenizeConfig(inputs=(str(source),), tokenizers="fakes", samples_per_shard=3)
        build_dataset(config, folder / "sets" / name, load=data_fakes.load)
    return folder / "sets"


@pytest.fixture(autouse=True)
def _fake_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show_module.TokenizerBundle, "load", data_fakes.load)


def printed(*folders: Path, **options) -> str:
    output = io.StringIO()
    show(find_datasets(folders), Console(file=output, width=100), **options)
    return output.getvalue()


def test_facts_of_a_dataset(data: Path) -> None:
    text = printed(data / "texts")
    lengths = [5 * 3**n + 9 for n in range(6)]
    for expected in (
        "texts",
        "samples            6",
        f"tokens             {sum(lengths):,}",
        f"min 14, median {np.median(lengths):.0f}, mean {np.mean(lengths):,.1f}, max {max(lengths):,}",
        "shards             3",
        "bad samples        1",
        "text " + data_fakes.Bytes.fingerprint[:12],
        "text 256, image 256, audio 101",
        "#0: word [red]0[/]",  # text of the dataset is not markup
    ):
        assert expected in text
    assert sum(int(line.split()[-1]) for line in text.splitlines() if " to " in line) == 6


def test_a_parent_folder_shows_all_datasets(data: Path) -> None:
    text = printed(data)
    places = [text.index(name) for name in ("audio", "images", "texts")]
    assert places == sorted(places)
    assert "[16 image tokens] images 0" in text
    assert "[3 audio tokens] audio 4" in text
    assert "(image 67%, text 33%)" in text


def test_render_writes_what_was_stored(data: Path, tmp_path: Path) -> None:
    for dataset in find_datasets([data]):
        render(dataset, tmp_path, count=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "audio-000000.txt", "audio-000000.wav", "audio-000004.txt", "audio-000004.wav",
        "images-000000.png", "images-000000.txt", "images-000004.png", "images-000004.txt",
        "texts-000000.txt", "texts-000005.txt",
    ]  # fmt: skip
    assert (tmp_path / "images-000004.txt").read_text() == "images 4"
    assert Image.open(tmp_path / "images-000004.png").getpixel((1, 1)) == (160, 160, 160)
    samples, rate = soundfile.read(tmp_path / "audio-000004.wav")
    assert rate == 8000
    np.testing.assert_allclose(samples, 0.8, atol=1e-3)


def test_other_tokenizers_are_refused(data: Path) -> None:
    (dataset,) = find_datasets([data / "texts"])
    with pytest.raises(DataError, match="made with another text tokenizer"):
        open_tokenizers(dataset, "other")


def test_without_tokenizers_the_facts_are_still_shown(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise UserError("gone")

    monkeypatch.setattr(show_module.TokenizerBundle, "load", fail)
    assert "(examples are not shown: " in printed(data / "texts")
    assert "gone" in printed(data / "texts")
    with pytest.raises(UserError, match="gone"):
        printed(data / "texts", tokenizers="elsewhere")


def test_folders_without_datasets_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no finished dataset"):
        find_datasets([tmp_path])
    with pytest.raises(DataError, match="no such folder"):
        find_datasets([data, tmp_path / "nowhere"])


def test_verify_names_every_damaged_file(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    import shutil

    copy = shutil.copytree(data, tmp_path / "copy")
    verify(find_datasets([copy]))
    assert capsys.readouterr().out.count("intact") == 3
    damaged = copy / "texts" / "shard-00001.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    (copy / "audio" / "shard-00000.safetensors").unlink()
    command = [sys.executable, "-m", "triptych", "verify", str(copy)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 3
    assert "texts/shard-00001.safetensors: SHA-256 is" in result.stderr
    assert "audio/shard-00000.safetensors: No such file or directory" in result.stderr
    assert "images" not in result.stderr


def test_datasets_with_one_name_get_unique_names(data: Path, tmp_path: Path) -> None:
    import shutil

    folders = [shutil.copytree(data / "texts", tmp_path / split / "v1.0") for split in ("train", "test")]
    datasets = find_datasets(folders)
    names = show_module.names_of(datasets)
    assert names == ["train-v1.0", "test-v1.0"]
    for name, dataset in zip(names, datasets):
        render(dataset, tmp_path / "files", name=name, count=2)
    assert len(list((tmp_path / "files").iterdir())) == 4
