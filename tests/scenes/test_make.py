import argparse
import shutil

from triptych.cli import main
from triptych.data.loader import Loader
from triptych.recipes import recipe
from triptych.scenes.make import SHIPPED, make_scenes
from triptych.train.config import override
from triptych.verbs.scenes import VERBS
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


def test_the_defaults_are_those_of_the_shipped_model():
    parser = argparse.ArgumentParser()
    VERBS["scenes make"].describe(parser)
    args = parser.parse_args(["folder"])
    assert (args.text, args.pictures, args.speech) == tuple(SHIPPED[task] for task in Task)
