"""What may change between a run and its continuation, checkpoints of earlier versions, and `init_from`."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from train_fakes import (
    CPU,
    assert_same_bits,
    random_pairs,
    run_it,
    tensors_of,
    tiny_run,
    with_loader,
    write_set,
)

from triptych.data.pack import Packed
from triptych.diffusion.corrupt import CorruptConfig
from triptych.errors import CheckpointError, DataError, UserError
from triptych.hub.card import write_card
from triptych.hub.format import Limits, SavedModel, write_model
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training import checkpoint as ckpt
from triptych.training.config import PromptConfig, ValidationConfig
from triptych.training.setup import open_run
from triptych.training.state import Run
from triptych.utils.legacy import RENAMED_KEYS
from triptych.vocab import Task, Vocabulary

LIMITS = Limits(seq_len=20, text_slot=None, audio_slot=None)


# -- what may change --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    run_it(tiny_run(world), folder, stop_after=3)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_changed_configuration_is_refused_with_its_differences(world: Path, stopped: Path) -> None:
    config = tiny_run(world)
    before = content(stopped)
    for changed, message in [
        (replace(config, optimizer=replace(config.optimizer, lr=0.5)), "optimizer.lr was 0.01, is 0.5"),
        (replace(config, model=replace(config.model, width=32)), "model.width was 16, is 32"),
        (replace(config, seed=7), "seed was 0, is 7"),
        (replace(config, ema_decay=None), "ema_decay was 0.9, is None"),
        (replace(config, num_steps=7), "num_steps was 6, is 7"),
        (with_loader(config, global_batch=8), "loader.global_batch was 9, is 8"),
        (replace(config, corrupt=CorruptConfig()), "corrupt.p_one_sided was 0.3, is 0.0"),
    ]:
        with pytest.raises(CheckpointError, match="is of another run") as caught:
            run_it(changed, stopped)
        assert message in str(caught.value)
        assert caught.value.exit_code == 4
    assert content(stopped) == before


def edit_state(folder: Path, edit: Any) -> None:
    """Change `state.json` of the only checkpoint, and its checksum."""
    (path,) = ckpt.list_checkpoints(folder / "checkpoints")
    state = json.loads((path / "state.json").read_text())
    edit(state)
    (path / "state.json").write_text(json.dumps(state))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sha256"]["state.json"] = ckpt.sha256(path / "state.json")
    (path / "manifest.json").write_text(json.dumps(manifest))


def parent_of(config: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    *parents, name = path.split(".")
    for parent in parents:
        config = config[parent]
    return config, name


def forget(folder: Path, *paths: str) -> None:
    """Remove fields from the saved configuration, as if an earlier version had written it."""

    def remove(state: dict[str, Any]) -> None:
        for path in paths:
            branch, name = parent_of(state["config"], path)
            del branch[name]

    edit_state(folder, remove)


@pytest.mark.parametrize(
    ("missing", "now", "answer"),
    [
        (["corrupt.p_text_end"], {}, None),
        (["loader.open_ends.audio_share", "complementary_masks"], {}, None),
        (["loader.open_ends", "prompts", "threads"], {}, None),
        (["corrupt.p_text_end"], {"corrupt": {"p_text_end": 0.25}}, "corrupt.p_text_end was 0.0, is 0.25"),
        (["loader.open_ends"], {"loader": {"p_subsample": 0.5}}, "loader.p_subsample was 0.05, is 0.5"),
        (["optimizer.clip"], {}, "optimizer.clip was None, is 1.0"),
        (["loader.global_batch"], {}, "loader.global_batch was None, is 9"),  # it has no default
        (["prompts"], {"prompts": {"examples": ("a cat",)}}, None),  # does not affect the weights
    ],
    ids=str,
)
def test_missing_fields_had_their_default(
    missing: list[str], now: dict[str, Any], answer: str | None, world: Path, tmp_path: Path
) -> None:
    config = tiny_run(world)
    run_it(config, tmp_path / "parts", stop_after=3)
    forget(tmp_path / "parts", *missing)
    changes = {
        name: replace(getattr(config, name), **value) if isinstance(value, dict) else value
        for name, value in now.items()
    }
    changed = replace(config, **changes)
    if answer is None:
        parts = run_it(changed, tmp_path / "parts")
        assert_same_bits(tensors_of(parts), tensors_of(run_it(config, tmp_path / "uninterrupted")))
        return
    with pytest.raises(CheckpointError, match="is of another run") as caught:
        run_it(changed, tmp_path / "parts")
    assert answer in str(caught.value)


def with_old_keys(state: dict[str, Any]) -> None:
    """Give the configuration in a state the keys of the first version."""
    config = state["config"]
    for old, new in RENAMED_KEYS.items():
        if new is None:
            config[old] = "scenes"
        else:
            branch, name = parent_of(config, new)
            branch[old.rpartition(".")[2]] = branch.pop(name)
    del config["prompts"], config["sampling_preset"]
    state["shape"]["places"] = state["shape"].pop("max_learned_positions")


def test_a_checkpoint_of_an_earlier_version_resumes_exactly(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    run_it(config, tmp_path / "parts", stop_after=3)
    edit_state(tmp_path / "parts", with_old_keys)
    saved = json.loads((tmp_path / "parts/checkpoints/step-00000003/state.json").read_text())
    assert {"world", "antimask", "z_weight", "keep", "begin_with"} <= saved["config"].keys()
    assert "watch" in saved["config"]["parallel"]
    parts = run_it(config, tmp_path / "parts")
    assert_same_bits(tensors_of(parts), tensors_of(run_it(config, tmp_path / "uninterrupted")))
    state = ckpt.read_state(ckpt.list_checkpoints(tmp_path / "parts" / "checkpoints")[0])
    assert state["shape"]["max_learned_positions"] == 0


def test_a_change_is_found_under_an_old_key(world: Path, tmp_path: Path) -> None:
    run_it(tiny_run(world), tmp_path, stop_after=3)
    edit_state(tmp_path, with_old_keys)
    with pytest.raises(CheckpointError, match=r"z_loss_weight was 1e-05, is 0\.5"):
        run_it(tiny_run(world, z_loss_weight=0.5), tmp_path)


def test_fields_that_do_not_affect_the_weights_may_change(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    uninterrupted = run_it(config, tmp_path / "uninterrupted")
    run_it(config, tmp_path / "parts", stop_after=3)
    changed = replace(
        config,
        log_every=5,
        save_every=1,
        keep_last_checkpoints=3,
        threads=1,
        validation=ValidationConfig(every=2),
        validation_data=(),
        prompts=PromptConfig(examples=("a cat",)),
    )
    parts = run_it(changed, tmp_path / "parts")
    assert_same_bits(tensors_of(parts), tensors_of(uninterrupted))
    assert len(ckpt.list_checkpoints(tmp_path / "parts" / "checkpoints")) == 3
    assert json.loads((tmp_path / "parts" / "config.json").read_text())["log_every"] == 5

    # Another layout sums in another order: the same weights up to rounding.
    run_it(config, tmp_path / "packed", stop_after=3)
    packed = run_it(with_loader(config, layout=Packed(row_length=40)), tmp_path / "packed")
    for name, value in packed.state.model.state_dict().items():
        torch.testing.assert_close(value, uninterrupted.state.model.state_dict()[name], atol=1e-4, rtol=1e-3, msg=name)


def test_data_may_move_but_not_change(world: Path, stopped: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    before = content(stopped)
    moved = tuple(write_set(tmp_path / task.label, task, random_pairs(task, 40, 1)) for task in Task)
    other = write_set(tmp_path / "other", Task.TEXT, random_pairs(Task.TEXT, 40, 9))
    with pytest.raises(DataError, match="not the batches of the saved run") as caught:
        run_it(replace(config, data=(other, *config.data[1:])), stopped)
    assert caught.value.exit_code == 3
    assert content(stopped) == before
    assert run_it(replace(config, data=moved), stopped).state.step == 6


@pytest.mark.parametrize("field", ["data", "validation_data"])
def test_data_of_another_vocabulary_is_refused(field: str, world: Path, tmp_path: Path) -> None:
    larger = Vocabulary(text=24, image=11, audio=7)
    folders = tuple(write_set(tmp_path / task.label, task, random_pairs(task, 9, 1), larger) for task in Task)
    with pytest.raises(UserError, match=r"Vocabulary\(text=24.*but the tokenizers.*Vocabulary\(text=23") as caught:
        run_it(replace(tiny_run(world), **{field: folders}), tmp_path / "run")
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_data_of_another_tokenizer_is_refused(world: Path, tmp_path: Path) -> None:
    bundle = TokenizerBundle.load(world / "tokenizers")
    bundle.fingerprints = {"text": "b" * 64}
    config = tiny_run(world)
    with (
        pytest.raises(UserError, match="was made with another text tokenizer"),
        open_run(config, tmp_path / "run", bundle, CPU),
    ):
        pass
    assert not (tmp_path / "run").exists()


def test_other_tokenizers_are_refused(world: Path, stopped: Path, tmp_path: Path) -> None:
    TokenizerBundle(Vocabulary(text=24, image=11, audio=7)).save(tmp_path)
    with pytest.raises(CheckpointError, match=r"content of vocabulary was '[0-9a-f]{64}', is '[0-9a-f]{64}'"):
        run_it(replace(tiny_run(world), tokenizers=str(tmp_path)), stopped)


# -- init_from --------------------------------------------------------------------------------------------------------


def save_model(run: Run, folder: Path) -> str:
    write_model(folder, SavedModel(run.state.eval_model, run.bundle, LIMITS, "scenes", None))
    return str(folder)


def test_a_run_starts_from_the_weights_of_a_saved_model(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    bundle = TokenizerBundle.load(config.tokenizers)
    first = run_it(config, tmp_path / "first")
    following = replace(config, init_from=save_model(first, tmp_path / "saved"), seed=5)
    with open_run(following, tmp_path / "next", bundle, CPU) as run:
        assert run.state.step == 0
        for name, weight in first.state.eval_model.state_dict().items():
            assert torch.equal(run.state.model.state_dict()[name], weight)
            assert torch.equal(run.state.eval_model.state_dict()[name], weight)
    uninterrupted = run_it(following, tmp_path / "next")
    run_it(following, tmp_path / "parts", stop_after=2)
    shutil.rmtree(tmp_path / "saved")  # not needed to resume
    assert_same_bits(tensors_of(run_it(following, tmp_path / "parts")), tensors_of(uninterrupted))
    assert ", starting from the weights of " in write_card(tmp_path / "next", 6, uninterrupted.state.eval_model, LIMITS)
    assert ", starting from" not in write_card(tmp_path / "first", 6, first.state.eval_model, LIMITS)


def test_the_model_card_names_changes_to_the_recipe(world: Path, tmp_path: Path) -> None:
    run = run_it(tiny_run(world), tmp_path, stop_after=1)
    card = write_card(tmp_path, 1, run.state.eval_model, LIMITS)
    assert "`triptych train nano` with changes to the recipe (" in card
    assert "num_steps was 300, is 6" in card
    assert "threads" not in card


def test_init_from_refuses_a_model_of_another_shape(world: Path, tmp_path: Path) -> None:
    config = tiny_run(world)
    bundle = TokenizerBundle.load(config.tokenizers)
    saved = save_model(run_it(config, tmp_path / "first", stop_after=1), tmp_path / "saved")
    wider = replace(config, init_from=saved, model=replace(config.model, d_ff=32))
    others = TokenizerBundle(Vocabulary(text=24, image=11, audio=7))
    for changed, tokenizers, message in [
        (wider, bundle, r"other tokenizers: model\.d_ff was 24, is 32"),
        (replace(config, init_from=saved), others, r"other tokenizers: vocabulary was '[0-9a-f]{64}', is"),
        (replace(config, init_from=str(tmp_path / "first")), bundle, "is a run; export it first: `triptych export"),
    ]:
        with pytest.raises(CheckpointError, match=message), open_run(changed, tmp_path / "next", tokenizers, CPU):
            pass
