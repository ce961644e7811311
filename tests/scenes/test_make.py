import shutil
from dataclasses import replace

import pytest

from triptych.cli.main import main
from triptych.data.loader import Loader
from triptych.data.shards import Manifest
from triptych.errors import UserError
from triptych.recipes import recipe
from triptych.scenes.make import make_scenes
from triptych.training.config import override
from triptych.vocab import Task


def test_the_data_sets_are_what_the_recipe_reads(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--text", "6", "--pictures", "4", "--speech", "3", "--validation", "2", "--workers", "0"]
    assert main(["scenes", "make", "data/scenes", *words]) == 0
    run = override(recipe("scenes"), ["loader.global_batch=8"])
    with Loader(run.data, run.loader, num_steps=2) as loader:
        tasks = {int(task) for step in loader for batch in step.micro_batches for task in batch.tasks}
    assert tasks == {0, 1, 2}
    assert not (tmp_path / "data/scenes/raw").exists()
    assert main(["scenes", "make", "data/scenes", *words]) == 0
    assert capsys.readouterr().err.count("is there already") == 6


def test_it_goes_on_where_it_was(tmp_path):
    said = []
    make_scenes(tmp_path, {Task.TEXT: 5}, 2, workers=0, report=said.append)
    shutil.rmtree(tmp_path / "validation")
    again = []
    make_scenes(tmp_path, {Task.TEXT: 5}, 2, workers=0, report=again.append)
    assert any("train, text: is there already, 5 samples" in line for line in again)
    assert any("validation, text: 2 samples" in line for line in again)


def made_by_another_tokenizer(manifest):
    return replace(manifest, tokenizers={"text": "0" * 64})


def made_for_another_vocabulary(manifest):
    return replace(manifest, vocabulary=manifest.vocabulary | {"image": 7})


def with_fewer_samples(manifest):
    return replace(manifest, shards=[replace(manifest.shards[0], samples=1)])


OTHERWISE = {
    made_by_another_tokenizer: "was made with the text tokenizer 000000000000, not with [0-9a-f]{12} as asked",
    made_for_another_vocabulary: "has the vocabulary .*'image': 7.*, not .* as asked",
    with_fewer_samples: "holds 1 samples, not 2 as asked",
}


@pytest.mark.parametrize("otherwise", OTHERWISE)
def test_what_is_there_but_not_what_is_asked_is_refused_or_made_anew(otherwise, tmp_path):
    make_scenes(tmp_path, {Task.TEXT: 5}, 2, workers=0, report=lambda line: None)
    out = tmp_path / "validation/text"
    asked = Manifest.load(out)
    otherwise(asked).save(out)
    shutil.rmtree(tmp_path / "train")
    said = []
    with pytest.raises(UserError, match=f"^{out} {OTHERWISE[otherwise]}. Delete that folder or name another one.$"):
        make_scenes(tmp_path, {Task.TEXT: 5}, 2, workers=0, report=said.append)
    assert not said, "something was made before the difference was found"
    assert not (tmp_path / "train").exists()
    make_scenes(tmp_path, {Task.TEXT: 5}, 2, workers=0, renew=True, report=said.append)
    assert replace(Manifest.load(out), settings={}) == replace(asked, settings={})
    again = []
    make_scenes(tmp_path, {Task.TEXT: 5}, 2, workers=0, renew=True, report=again.append)
    assert [line.split(",")[1] for line in again] == [" text: is there already"] * 2


def test_what_a_stop_left_is_no_hindrance_to_making_anew(tmp_path):
    make_scenes(tmp_path, {Task.TEXT: 5}, 2, workers=0, report=lambda line: None)
    out = tmp_path / "train/text"
    (out / "plan.json").write_text("{}")  # as when the run was stopped before the manifest
    (out / "manifest.json").unlink()
    raw = tmp_path / "raw/train"
    raw.mkdir(parents=True)
    (raw / "text.json").write_text('{"samples": 3, "seed": 0}')
    make_scenes(tmp_path, {Task.TEXT: 5}, 2, workers=0, renew=True, report=lambda line: None)
    assert Manifest.load(out).num_samples == 5
