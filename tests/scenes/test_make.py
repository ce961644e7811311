import argparse
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from triptych.cli.main import main
from triptych.cli.scenes import _train_command
from triptych.data.loader import Loader
from triptych.data.shards import Manifest
from triptych.errors import UserError
from triptych.recipes import recipe
from triptych.scenes.make import make_scenes
from triptych.scenes.world import FULL, SMALL
from triptych.utils.config import override
from triptych.vocab import Task


def test_the_recipe_reads_the_datasets(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    counts = {"--text": 6, "--images": 4, "--speech": 3, "--validation": 2, "--workers": 0}
    words = ["--preset", "small", *(str(word) for pair in counts.items() for word in pair)]
    assert main(["scenes", "make", "data/scenes", *words]) == 0
    run = override(recipe("scenes"), ["loader.global_batch=8"])
    with Loader(run.data, run.loader, num_steps=2) as loader:
        tasks = {int(task) for step in loader for batch in step.micro_batches for task in batch.tasks}
    assert tasks == {0, 1, 2}
    assert not (tmp_path / "data/scenes/raw").exists()
    assert main(["scenes", "make", "data/scenes", *words]) == 0
    assert capsys.readouterr().err.count("exists already") == 6


def test_a_second_run_keeps_complete_datasets(tmp_path):
    lines = []
    make_scenes(tmp_path, {Task.TEXT: 5}, 2, world=SMALL, workers=0, report=lines.append)
    shutil.rmtree(tmp_path / "validation")
    lines_of_second_run = []
    make_scenes(tmp_path, {Task.TEXT: 5}, 2, world=SMALL, workers=0, report=lines_of_second_run.append)
    assert any("train, text: exists already, 5 samples" in line for line in lines_of_second_run)
    assert any("validation, text: 2 samples" in line for line in lines_of_second_run)


def made_by_another_tokenizer(manifest):
    return replace(manifest, tokenizers={"text": "0" * 64})


def made_for_another_vocabulary(manifest):
    return replace(manifest, vocabulary=manifest.vocabulary | {"image": 7})


def with_fewer_samples(manifest):
    return replace(manifest, shards=[replace(manifest.shards[0], samples=1)])


DIFFERENCES = {
    made_by_another_tokenizer: "was made with the text tokenizer 000000000000, but [0-9a-f]{12} is requested",
    made_for_another_vocabulary: "has the vocabulary .*'image': 7.*, but .* is requested",
    with_fewer_samples: "holds 1 samples, but 2 are requested",
}


@pytest.mark.parametrize("change", DIFFERENCES)
def test_a_dataset_that_differs_is_refused_or_overwritten(change, tmp_path):
    make_scenes(tmp_path, {Task.TEXT: 5}, 2, world=SMALL, workers=0, report=lambda line: None)
    out = tmp_path / "validation/text"
    original = Manifest.load(out)
    change(original).save(out)
    shutil.rmtree(tmp_path / "train")
    lines = []
    with pytest.raises(UserError, match=f"^{out} {DIFFERENCES[change]}. Delete that folder or choose another one.$"):
        make_scenes(tmp_path, {Task.TEXT: 5}, 2, world=SMALL, workers=0, report=lines.append)
    assert not lines, "something was written before the difference was found"
    assert not (tmp_path / "train").exists()
    make_scenes(tmp_path, {Task.TEXT: 5}, 2, world=SMALL, workers=0, overwrite=True, report=lines.append)
    assert replace(Manifest.load(out), settings={}) == replace(original, settings={})
    lines_of_second_run = []
    make_scenes(tmp_path, {Task.TEXT: 5}, 2, world=SMALL, workers=0, overwrite=True, report=lines_of_second_run.append)
    assert [line.split(",")[1] for line in lines_of_second_run] == [" text: exists already"] * 2


def test_overwrite_replaces_unfinished_datasets(tmp_path):
    make_scenes(tmp_path, {Task.TEXT: 5}, 2, world=SMALL, workers=0, report=lambda line: None)
    out = tmp_path / "train/text"
    (out / "plan.json").write_text("{}")  # as if the run was stopped before the manifest
    (out / "manifest.json").unlink()
    raw = tmp_path / "raw/train"
    raw.mkdir(parents=True)
    (raw / "text.json").write_text('{"preset": "small", "samples": 3, "seed": 0}')
    make_scenes(tmp_path, {Task.TEXT: 5}, 2, world=SMALL, workers=0, overwrite=True, report=lambda line: None)
    assert Manifest.load(out).num_samples == 5


def test_the_full_preset_is_made_with_its_own_tokenizers(tmp_path, full_model):
    counts = {Task.TEXT: 3, Task.IMAGE_TEXT: 2, Task.AUDIO_TEXT: 2}
    tokenizers = str(full_model / "tokenizers")
    make_scenes(tmp_path, counts, 1, world=FULL, workers=0, tokenizers=tokenizers, report=lambda line: None)
    manifest = Manifest.load(tmp_path / "train/image-text")
    assert manifest.num_samples == 2
    assert manifest.num_tokens > 2 * 64
    with pytest.raises(
        UserError, match="the preset full has images of 128 pixels, but the tokenizers 'scenes' take 64"
    ):
        make_scenes(tmp_path / "other", counts, 1, world=FULL, workers=0, report=lambda line: None)


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({}, "triptych train scenes"),
        ({"tokenizers": None}, "triptych train scenes"),
        ({"tokenizers": "mine"}, "triptych train scenes tokenizers=mine"),
        (
            {"folder": Path("x"), "preset": "full", "tokenizers": None},
            "triptych train scenes_full data=x/train/text,x/train/image-text,x/train/audio-text "
            "validation_data=x/validation/text,x/validation/image-text,x/validation/audio-text prompts.voices=robin",
        ),
    ],
)
def test_the_command_that_trains_on_the_dataset_names_what_differs(changes, command, tmp_path):
    (tmp_path / "robin.json").write_text("{}")
    made = {"folder": Path("data/scenes"), "preset": "small", "tokenizers": "scenes", "voices": tmp_path, **changes}
    assert _train_command(argparse.Namespace(**made)) == command
