"""A saved model's own changes to its sampling preset."""

import json
from pathlib import Path

import pytest
from train_fakes import tiny_run

from triptych.errors import CheckpointError, UserError
from triptych.eval.records import model_fingerprint
from triptych.hub.format import Limits, SavedModel, read_model, store_sampling, write_model
from triptych.hub.pipeline import Pipeline
from triptych.sample.config import SAMPLING_PRESETS
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.step import build_model
from triptych.vocab import Modality

OWN = {"image": {"temperature": 0.5, "num_steps": 7}, "caption": {"best_of": 2}}


@pytest.fixture
def folder(world: Path, tmp_path: Path) -> Path:
    run = tiny_run(world)
    bundle = TokenizerBundle.load(run.tokenizers)
    limits = Limits(seq_len=20, text_slot=None, audio_slot=None)
    write_model(tmp_path / "model", SavedModel(build_model(run, bundle.vocabulary), bundle, limits, "scenes"))
    return tmp_path / "model"


def test_changes_are_stored_and_apply_to_their_target_alone(folder: Path) -> None:
    preset = SAMPLING_PRESETS["scenes"]
    before = Pipeline.from_pretrained(folder)
    assert before.sampling_config(Modality.IMAGE) == preset[Modality.IMAGE]
    store_sampling(folder, OWN)
    pipe = Pipeline.from_pretrained(folder)
    image = pipe.sampling_config(Modality.IMAGE)
    assert (image.temperature, image.num_steps) == (0.5, 7)
    assert image.sampler == preset[Modality.IMAGE].sampler
    assert pipe.sampling_config(Modality.TEXT, "caption").best_of == 2
    assert pipe.sampling_config(Modality.TEXT) == preset[Modality.TEXT]
    assert pipe.sampling_config(Modality.AUDIO) == preset[Modality.AUDIO]
    assert model_fingerprint(pipe) != model_fingerprint(before), "results of both are not the same"


def test_arguments_come_after_the_changes_and_a_named_preset_is_without_them(folder: Path) -> None:
    store_sampling(folder, OWN)
    pipe = Pipeline.from_pretrained(folder)
    assert pipe.sampling_config(Modality.IMAGE, temperature=0.9).temperature == 0.9
    assert pipe.sampling_config(Modality.IMAGE, temperature=0.9).num_steps == 7
    assert pipe.sampling_config(Modality.IMAGE, preset="scenes") == SAMPLING_PRESETS["scenes"][Modality.IMAGE]


def test_changes_are_kept_when_a_model_is_saved_again(folder: Path, tmp_path: Path) -> None:
    store_sampling(folder, OWN)
    Pipeline.from_pretrained(folder).save_pretrained(tmp_path / "copy")
    assert read_model(tmp_path / "copy").sampling == OWN
    store_sampling(folder, {})
    assert read_model(folder).sampling == {}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"image": {"heat": 1}}, "unknown argument 'heat'"),
        ({"image": {"temperature": -1}}, "temperature must be"),
        ({"video": {"temperature": 1}}, "fields for some of text, image, audio, caption"),
        ({"image": 3}, "fields for some of"),
    ],
)
def test_wrong_changes_are_refused_and_change_nothing(folder: Path, wrong: dict, message: str) -> None:
    before = (folder / "config.json").read_bytes()
    with pytest.raises(UserError, match=message):
        store_sampling(folder, wrong)
    assert (folder / "config.json").read_bytes() == before


def test_a_wrong_config_is_no_model(world: Path, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"sampling": {"image": {"top_p": 2}}}
    for key in ("files", "checksum"):
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="top_p must be"):
        read_model(folder)
