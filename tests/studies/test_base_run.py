"""The base run of a study: any recipe, any data, and the same fields refused as for the proxy."""

from dataclasses import replace
from pathlib import Path

import pytest
from train_fakes import make_world, tiny_run, world_changes

from triptych.cli.main import main
from triptych.errors import DataError, UserError
from triptych.recipes.own import own
from triptych.recipes.proxy import proxy, proxy_of_width, proxy_per_module, scaled_proxy, tuned_shape
from triptych.studies import batch_size, coordinates, gamma, lr_transfer, scaling
from triptych.studies.base import base_run, data_changes, multiples, open_data, read_study
from triptych.utils.trials import TrialRecords

from .test_studies import options


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


# -- recipe and data --------------------------------------------------------------------------------------------------


def test_a_study_runs_on_any_recipe_and_data(folder: Path) -> None:
    study = lr_transfer.STUDY
    assert base_run(study, None, None, None, []) == proxy_per_module()
    tokenizers = f"tokenizers={folder / 'tokenizers'}"
    scenes = base_run(study, "scenes", str(folder), None, [tokenizers])
    assert (scenes.recipe, scenes.model.width) == ("scenes", 192)
    assert {Path(each).parent.name for each in scenes.data} == {"train"}
    assert {Path(each).parent.name for each in scenes.validation_data} == {"validation"}
    assert open_data(scenes).vocabulary.text == 23
    mine = base_run(study, "own", str(folder / "train"), None, [tokenizers])
    assert (mine.recipe, mine.validation_data, mine.loader.held_out) == ("own", (), 0.05)
    assert mine.validation_folders == mine.data
    given = base_run(study, "own", str(folder / "train"), str(folder / "validation"), [tokenizers])
    assert (len(given.data), len(given.validation_data), given.loader.held_out) == (3, 3, 0.0)


def test_data_as_changes(folder: Path) -> None:
    assert data_changes(None, None) == []
    assert data_changes(None, "a") == ["validation_data=a"]
    assert data_changes("a,b", "c") == ["data=a,b", "validation_data=c"]
    assert data_changes("a", None) == ["data=a", "validation_data=none", "loader.held_out=0.05"]
    both = [f"data={folder / 'train'}", f"validation_data={folder / 'validation'}"]
    assert data_changes(str(folder), None) == both


def test_fields_of_studies_are_refused_for_any_recipe(folder: Path) -> None:
    study, tokenizers = lr_transfer.STUDY, f"tokenizers={folder / 'tokenizers'}"
    with pytest.raises(UserError, match=r"model\.width is set by the study"):
        base_run(study, "scenes", None, None, ["model.width=64", "model.num_heads=4"])
    with pytest.raises(UserError, match="num_steps is set by the study"):
        base_run(study, "own", str(folder / "train"), None, [tokenizers, "num_steps=7"])
    # The recipe's own value is no change, and other fields may change.
    assert base_run(study, "scenes", None, None, ["model.width=192", "optimizer.lr=0.5"]).optimizer.lr == 0.5
    with pytest.raises(UserError, match=r"unknown recipe 'sceens'.*'scenes'"):
        base_run(study, "sceens", None, None, [])


def test_data_that_do_not_fit_are_refused(folder: Path) -> None:
    study, world = lr_transfer.STUDY, world_changes(folder)
    with pytest.raises(UserError, match="Tokenize the data with them, or set tokenizers=FOLDER"):
        open_data(base_run(study, None, str(folder), None, []))
    with pytest.raises(UserError, match=r"'image-text' has weight 0\.7 but no dataset"):
        open_data(base_run(study, None, str(folder / "train" / "text"), str(folder / "validation"), [world[0]]))
    with pytest.raises(DataError, match="do not fit seq_len=8"):
        open_data(base_run(study, None, None, None, [*world, "loader.seq_len=8", "loader.layout=padded"]))
    with pytest.raises(UserError, match="a study compares validation losses"):
        open_data(base_run(study, None, None, None, [*world, "validation_data=none"]))


# -- scaling of base runs ---------------------------------------------------------------------------------------------


def test_a_base_run_at_its_own_size_is_the_recipe(folder: Path) -> None:
    """Also if its hyperparameters were tuned at another size and batch."""
    mine = own([str(folder / "train" / "text")], str(folder / "tokenizers"))
    assert tuned_shape(mine) == (64, 2)
    scaled = scaled_proxy(mine, batch=mine.loader.global_batch)
    assert (scaled.model, scaled.transfer, scaled.num_steps) == (mine.model, mine.transfer, mine.num_steps)
    assert scaled.resolved.kappa == mine.resolved.kappa
    assert scaled_proxy(mine).resolved.ratios == mine.resolved.ratios == (2, 2, 1)


def test_a_width_of_a_base_run_warms_up_for_its_share(folder: Path) -> None:
    mine = own([str(folder / "train" / "text")], str(folder / "tokenizers"))
    wide = proxy_of_width(mine, 256)
    assert (wide.model.width, wide.model.num_layers) == (256, 8)
    assert wide.warmup_steps / wide.num_steps == pytest.approx(mine.warmup_steps / mine.num_steps, rel=0.02)
    assert proxy_of_width(proxy(), 128).optimizer == proxy().optimizer


def test_options_follow_the_base_run(folder: Path) -> None:
    run = tiny_run(folder)  # one layer of width 16 with two heads, batches of 9
    assert multiples(16, [0.25, 0.5, 1, 2], 8) == [8, 16, 32]
    shapes = {(t.settings["width"], t.settings["layers"]) for t in lr_transfer.trials(options(lr_transfer), run)}
    assert shapes == {(16, 1), (64, 1), (16, 4)}
    rates = {trial.settings["lr"] for trial in lr_transfer.trials(options(lr_transfer), run)}
    assert (min(rates), max(rates)) == (run.optimizer.lr / 16, run.optimizer.lr * 8)
    widths = {trial.settings["width"] for trial in coordinates.trials(options(coordinates), run)}
    assert widths == {16, 32, 64, 128}
    batches = {trial.settings["batch"] for trial in batch_size.trials(options(batch_size), run)}
    assert (min(batches), max(batches)) == (1, 144)
    virtual = {trial.settings["virtual_batch"] for trial in gamma.trials(options(gamma), run)}
    assert (min(virtual), max(virtual)) == (9 / 8, 36)
    assert scaling.multiples(64, scaling._WIDTHS, 16) == [16, 32, 48, 64, 80, 96, 112, 128, 144, 160]


def test_virtual_batches_count_sequences_of_the_tuned_run(folder: Path) -> None:
    """Real batches are never larger than virtual ones, also where sequences are longer or come in two masked copies."""
    run = tiny_run(folder, complementary_masks=True)
    longer = replace(run, transfer=replace(run.transfer, base_batch=9, base_steps=6, base_seq_len=10))
    for trial in gamma.trials(options(gamma), longer):
        kappa = gamma.configure(trial, longer).resolved.kappa
        assert kappa <= 1 or gamma.configure(trial, longer).loader.global_batch == 1


# -- the command ------------------------------------------------------------------------------------------------------


def test_a_study_of_ones_own_recipe_and_data_from_command_to_figure(folder: Path, tmp_path: Path, capsys) -> None:
    out, recipe = tmp_path / "study", tmp_path / "mine.py"
    recipe.write_text(
        "from pathlib import Path\nfrom train_fakes import tiny_run\n\n\ndef recipe():\n"
        f"    return tiny_run(Path({str(folder)!r}), num_steps=2)\n"
    )
    words = ["study", "lr-transfer", "--out", str(out), "--recipe", str(recipe), "--data", str(folder)]
    words += ["--widths", "32", "--depths", "1", "--rates", "1e-3,4e-3", "--rules", "completed_p"]
    assert main(words) == 0
    assert "completed_p, width 32, 1 layers: best learning rate" in capsys.readouterr().out
    assert len(list(TrialRecords(out))) == 8
    saved = read_study(out)
    assert saved["config"]["data"] == [str(folder / "train" / task) for task in ("audio-text", "image-text", "text")]
    assert main([*words[:4], "--plot-only"]) == 0
    assert main([*words, "--data", str(tmp_path / "nowhere")]) == 2
    assert "holds no dataset" in capsys.readouterr().err
    assert main(["study", "lr-transfer", "--out", str(tmp_path / "new"), "--recipe", "nothing"]) == 2
    assert "unknown recipe 'nothing'" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
