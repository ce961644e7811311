"""The recipe for anyone's data, recipes from files, and resuming without typing settings again."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file
from train_fakes import events, random_pairs, run_it, tiny_run, write_set

from triptych.cli.main import main
from triptych.data.loader import Loader
from triptych.data.shards import Manifest, TokenDataset, write_shard
from triptych.data.tokenize import tokenize
from triptych.data.types import TokenSample
from triptych.errors import UserError
from triptych.hub.export import model_of_run
from triptych.hub.format import write_model
from triptych.recipes import configure
from triptych.training.config import RunConfig
from triptych.training.run import train
from triptych.training.setup import read_run_config
from triptych.utils.config import from_json, to_json
from triptych.vocab import Task


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory, world: Path) -> Path:
    """A folder with a dataset of every task, which say what tokenizers they were made with."""
    folder = tmp_path_factory.mktemp("mine") / "data"
    for task in Task:
        write_set(folder / task.label, task, random_pairs(task, 60, 3))
        say_tokenizers(folder / task.label, str(world / "tokenizers"))
    return folder


def say_tokenizers(folder: Path, name: str) -> None:
    manifest = Manifest.load(folder)
    replace(manifest, settings={"tokenizers": name}).save(folder)


@pytest.mark.parametrize("tasks", [["text"], ["image-text"], ["text", "audio-text"], [t.label for t in Task]])
def test_tasks_and_lengths_follow_the_data(tasks: list[str], mine: Path, world: Path) -> None:
    config = configure("own", ["data=" + ",".join(str(mine / task) for task in tasks)])
    assert config.loader.task_weights == dict.fromkeys(tasks, 1.0)
    assert config.tokenizers == str(world / "tokenizers")
    assert config.prompts.words == ()
    assert config.loader.held_out > 0
    assert config.validation_folders == config.data
    has_pairs = tasks != ["text"]
    assert (config.loader.open_ends.probability > 0) == has_pairs
    assert (config.loader.open_ends.audio > 0) == ("audio-text" in tasks)
    assert (config.corrupt.p_one_sided > 0) == has_pairs


def test_a_folder_of_datasets_is_found_and_changes_apply(mine: Path) -> None:
    config = configure("own", [f"data={mine}", "loader.task_weights.text=3", "num_steps=7"])
    assert config.data == tuple(str(mine / name) for name in ("audio-text", "image-text", "text"))
    assert config.loader.task_weights["text"] == 3
    assert config.num_steps == 7


def test_given_validation_data_replace_the_split(mine: Path, world: Path) -> None:
    given = configure("own", [f"data={mine / 'text'}", f"validation_data={world / 'validation' / 'text'}"])
    assert given.loader.held_out == 0
    both = configure("own", [f"data={mine / 'text'}", f"validation_data={mine / 'audio-text'}", "loader.held_out=0.1"])
    assert both.loader.held_out == 0.1
    without = configure("own", [f"data={mine / 'text'}", "validation_data=none", "loader.held_out=0"])
    assert without.validation_folders == ()


def test_it_trains_validates_and_resumes(mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    sizes = ["model.num_layers=1", "model.width=16", "model.num_heads=2", "model.d_ff=24", "loader.global_batch=6"]
    changes = [f"data={mine}", *sizes, "num_steps=4", "validation.sequences=4", "threads=1"]
    main(["train", "own", *changes, "--out", str(tmp_path / "run"), "--device", "cpu", "--stop-after", "2"])
    main(["train", "--resume", str(tmp_path / "run"), "--device", "cpu"])
    last = events(tmp_path / "run", "validation")[-1]
    assert last["step"] == 4
    assert {"all", "image|text", "text"} <= last["nelbo"].keys()
    assert "resuming at step 2 of 4" in capsys.readouterr().err
    whole = train("own", changes, out=tmp_path / "whole", device="cpu", quiet=True)
    assert events(whole, "validation")[-1]["nelbo"] == last["nelbo"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([], "the recipe 'own' needs your data"),
        (["data=nowhere"], "nowhere"),
        (["data={mine}", "loader.task_weights.image-text=0", "optimiser.lr=1"], "unknown key 'optimiser.lr'"),
    ],
)
def test_mistakes_are_named(changes: list[str], message: str, mine: Path) -> None:
    with pytest.raises(UserError, match=message):
        configure("own", [change.format(mine=mine) for change in changes])


def test_tokenizers_are_found_or_given(tmp_path: Path, world: Path) -> None:
    for name in ("a", "b"):
        write_set(tmp_path / name, Task.TEXT, random_pairs(Task.TEXT, 20, 0))
        replace(Manifest.load(tmp_path / name), tokenizers={"text": name * 64}).save(tmp_path / name)
    with pytest.raises(UserError, match="were made with different text tokenizers"):
        configure("own", [f"data={tmp_path}"])
    with pytest.raises(UserError, match=r"the tokenizers of the data are not known .*set tokenizers=FOLDER"):
        configure("own", [f"data={tmp_path / 'a'}"])
    say_tokenizers(tmp_path / "a", "moved/away")
    with pytest.raises(UserError, match="'moved/away', which does not exist here"):
        configure("own", [f"data={tmp_path / 'a'}"])
    given = configure("own", [f"data={tmp_path / 'a'}", f"tokenizers={world / 'tokenizers'}"])
    assert given.tokenizers == str(world / "tokenizers")


def test_media_that_are_too_long_are_named_with_what_to_do(tmp_path: Path, world: Path) -> None:
    write_set(tmp_path / "long", Task.AUDIO_TEXT, [(np.zeros(3000, int), [1, 2])] * 4)
    say_tokenizers(tmp_path / "long", str(world / "tokenizers"))
    with pytest.raises(UserError, match=r"needs 3011 positions.*--max-seconds"):
        configure("own", [f"data={tmp_path / 'long'}"])
    assert configure("own", [f"data={tmp_path / 'long'}", "loader.seq_len=3011"]).loader.seq_len == 3011


def test_long_captions_are_cut_instead_of_refused(tmp_path: Path, world: Path) -> None:
    write_set(tmp_path / "long", Task.IMAGE_TEXT, [([1] * 4, [2] * 5000)] * 4)
    say_tokenizers(tmp_path / "long", str(world / "tokenizers"))
    config = configure("own", [f"data={tmp_path / 'long'}"])
    assert config.loader.seq_len == 4 + 256 + 5
    assert config.loader.open_ends.text <= config.loader.seq_len - 5


def test_validation_data_below_the_data_are_not_trained_on(tmp_path: Path, world: Path) -> None:
    for name in ("photos", "photos/validation", "more"):
        write_set(tmp_path / "data" / name, Task.TEXT, random_pairs(Task.TEXT, 20, len(name)))
        say_tokenizers(tmp_path / "data" / name, str(world / "tokenizers"))
    held = tmp_path / "data" / "photos" / "validation"
    config = configure("own", [f"data={tmp_path / 'data'}", f"validation_data={held}"])
    assert config.data == (str(tmp_path / "data" / "more"), str(tmp_path / "data" / "photos"))
    assert config.validation_data == (str(held),)


def test_unfinished_datasets_are_not_left_out_silently(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    for name in ("plan.json", "journal.jsonl"):
        (tmp_path / "calls" / name).write_text("{}")
    with pytest.raises(UserError, match="calls is not a finished dataset"):
        configure("own", [f"data={tmp_path}"])
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "manifest.json").write_text('{"format": "triptych-checkpoint"}')
    shutil.rmtree(tmp_path / "calls")
    shutil.copytree(mine / "text", tmp_path / "text")
    assert configure("own", [f"data={tmp_path}"]).data == (str(tmp_path / "text"),)


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_recipe_from_a_file(tmp_path: Path, world: Path) -> None:
    path = tmp_path / "my_recipe.py"
    path.write_text(
        "from dataclasses import replace\nfrom triptych.recipes import recipe as find\n"
        "def recipe():\n    return replace(find('nano'), recipe='mine', num_steps=77)\n"
    )
    assert configure(str(path), ["seed=3"]).num_steps == 77
    assert configure(str(path), ["seed=3"]).seed == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such recipe file"),
        ("def recipe(:", "cannot be run"),
        ("x = 1", r"must define recipe\(\)"),
        ("def recipe():\n    return 3", r"must define recipe\(\)"),
        ("import triptych.nothing", "cannot be run"),
    ],
)
def test_wrong_files_are_one_line(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "r.py").write_text(content)
    with pytest.raises(UserError, match=message) as error:
        configure(str(tmp_path / "r.py"))
    assert "\n" not in str(error.value)


# -- resuming ---------------------------------------------------------------------------------------------------------


def test_a_configuration_survives_json(world: Path, mine: Path) -> None:
    for config in (
        tiny_run(world),
        configure("own", [f"data={mine}"]),
        configure("paper_3b"),
        configure("scenes_full"),
    ):
        assert from_json(RunConfig, json.loads(json.dumps(to_json(config)))) == config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"recipe": "x"}, "lacks a field"),
        ({"recipe": "x", "colour": 1}, "unknown key 'colour'"),
        ([], "must have fields"),
        ({"recipe": "x", "corrupt": {"schedule": {"kind": "square"}}}, "must have a kind of"),
    ],
)
def test_wrong_json_is_one_line(content: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_json(RunConfig, content)


def test_mistakes_of_resume(tmp_path: Path, world: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(UserError, match="holds no run to resume"):
        read_run_config(tmp_path)
    run_it(replace(tiny_run(world), num_steps=1), tmp_path / "run")
    for words, message in (
        (["--resume", str(tmp_path / "run"), "--out", "x"], "leave out --out"),
        ([], "name a recipe, or --resume RUN"),
        (["nano", "--hours", "1"], "are for the recipe own"),
        (["own", "--law", "x.json"], "--law chooses a size for --hours or --budget"),
    ):
        assert main(["train", *words]) == 2
        assert message in capsys.readouterr().err


# -- fine-tuning ------------------------------------------------------------------------------------------------------


def test_a_saved_model_keeps_its_shape_and_limits(mine: Path, world: Path, tmp_path: Path) -> None:
    run = train("own", [f"data={mine}", "num_steps=1", "threads=1"], out=tmp_path / "run", device="cpu", quiet=True)
    write_model(tmp_path / "model", model_of_run(run))
    first = read_run_config(run)
    again = configure("own", [f"data={mine / 'image-text'}", f"init_from={tmp_path / 'model'}", "num_steps=2"])
    assert (again.model.num_layers, again.model.width) == (first.model.num_layers, first.model.width)
    assert again.model.residual_scale == first.resolved.scaled_shape.residual_scale
    assert again.loader.seq_len == first.loader.seq_len
    assert again.loader.open_ends.audio == first.loader.open_ends.audio, "the model can still choose lengths"
    assert again.loader.task_weights == {"image-text": 1.0}
    before = load_file(tmp_path / "model" / "model.safetensors")
    tuned = train(again, ["optimizer.lr=1e-9", "threads=1"], out=tmp_path / "tuned", device="cpu", quiet=True)
    write_model(tmp_path / "after", model_of_run(tuned))
    after = load_file(tmp_path / "after" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(np.allclose(before[name], after[name], atol=1e-5) for name in before), "it starts from the saved weights"


def test_fine_tuning_a_run_is_refused(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match="is a run; export it first"):
        configure("own", [f"data={mine}", f"init_from={tmp_path / 'run'}"])


# -- prompts, responses and replay ------------------------------------------------------------------------------------


def test_responses_without_media_have_an_open_end(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"is {n} odd?", "response": "yes"}) + "\n" for n in range(30)))
    tokenize(rows, tmp_path / "set", progress=False)
    config = configure("own", [f"data={tmp_path / 'set'}"])
    longest = Manifest.load(tmp_path / "set").longest_prompted
    assert config.loader.open_ends.probability > 0
    assert longest < config.loader.open_ends.text <= config.loader.seq_len - 5
    assert config.corrupt.p_one_sided == 0
    run_it(replace(config, num_steps=2, threads=1), tmp_path / "run")
    assert events(tmp_path / "run", "step")[-1]["step"] == 2


def test_replay_mixes_older_data_in_by_share(mine: Path, world: Path, tmp_path: Path) -> None:
    for number, count in enumerate((10, 30)):
        write_set(tmp_path / f"new{number}", Task.IMAGE_TEXT, random_pairs(Task.IMAGE_TEXT, count, 5))
        say_tokenizers(tmp_path / f"new{number}", str(world / "tokenizers"))
    config = configure(
        "own",
        [
            f"data={tmp_path / 'new0'},{tmp_path / 'new1'}",
            f"replay={mine / 'image-text'},{mine / 'text'}",
            "replay_share=0.4",
            "loader.held_out=0",
        ],
    )
    with Loader(config.data, replace(config.loader, prefetch=0)) as loader:
        sources, _ = loader.builder.survey(20_000)
    shares = np.bincount(sources, minlength=4) / 20_000
    assert shares == pytest.approx([0.15, 0.45, 0.2, 0.2], abs=0.002)
    assert [Path(folder).name for folder in config.data] == ["new0", "new1", "image-text", "text"]


def test_wrong_replay_is_one_line(mine: Path) -> None:
    data = f"data={mine / 'text'}"
    for change, message in (
        ("replay_share=0.4", "needs older data"),
        (f"replay={mine / 'text'}", "is in data and in replay"),
        (f"replay={mine / 'nothing'}", "not a finished dataset|no such folder"),
    ):
        with pytest.raises(UserError, match=message):
            configure("own", [data, change])
    for share in ("0", "1", "2", "x", "nan"):
        with pytest.raises(UserError, match="between 0 and 1"):
            configure("own", [data, f"replay={mine / 'image-text'}", f"replay_share={share}"])


def questions(folder: Path, task: Task, length: int, count: int = 40) -> str:
    """Prompts of `length` tokens with a response of three."""
    rng = np.random.default_rng(length)
    media = 0 if task == Task.TEXT else 16
    samples = [
        TokenSample(task, rng.integers(50, size=media).astype(np.int32), rng.integers(50, size=length + 3), length)
        for _ in range(count)
    ]
    write_set(folder, task, [([0] * media, [1, 2, 3])])
    dataset = TokenDataset(folder)
    info = write_shard(folder / dataset.manifest.shards[0].file, samples, dataset.vocabulary)
    replace(dataset.manifest, shards=[info], longest_prompted=media + length + 3).save(folder)
    return str(folder)


@pytest.mark.parametrize("task", [Task.TEXT, Task.IMAGE_TEXT])
@pytest.mark.parametrize("length", [8, 400])
def test_the_ends_of_responses_are_open_however_long_the_prompts(
    task: Task, length: int, tmp_path: Path, world: Path, mine: Path
) -> None:
    folder = questions(tmp_path / "questions", task, length)
    say_tokenizers(Path(folder), str(world / "tokenizers"))
    for others in ([], [f"replay={mine / 'image-text'}"]):  # captions are more and shorter
        config = configure("own", [f"data={folder}", "loader.held_out=0", *others])
        assert config.loader.open_ends.text > length + 3
        with Loader(config.data, replace(config.loader, prefetch=0)) as loader:
            picks = loader.builder.stream[np.arange(400)]
            mine_too = picks.sources == 0
            lengths = loader.builder.sources[0].lengths(picks.indices[mine_too], picks.epochs[mine_too])
        open_share = float((lengths > lengths.min()).mean())
        assert open_share == pytest.approx(0.25, abs=0.07)


def test_no_image_is_drawn_from_a_question(tmp_path: Path) -> None:
    rows = [{"file_name": "a.png", "prompt": f"what is {n}?", "response": "red"} for n in range(30)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Image.new("RGB", (64, 64), "red").save(tmp_path / "a.png")
    tokenize(tmp_path / "rows.jsonl", tmp_path / "set", progress=False)
    assert configure("own", [f"data={tmp_path / 'set'}"]).prompts.examples == ()


def test_replay_leaves_out_validation_data_and_checks_weights(mine: Path) -> None:
    config = configure(
        "own",
        [
            f"data={mine / 'text'}",
            f"replay={mine / 'image-text'},{mine / 'audio-text'}",
            f"validation_data={mine / 'audio-text'}",
        ],
    )
    assert [Path(folder).name for folder in config.data] == ["text", "image-text"]
    with pytest.raises(UserError, match="Did you mean 'image-text'"):
        configure("own", [f"data={mine / 'text'}", f"replay={mine / 'image-text'}", "loader.task_weights.imagetext=3"])
    with pytest.raises(UserError, match="the recipe 'own' needs your data"):
        configure("own", [f"replay={mine / 'image-text'}"])
