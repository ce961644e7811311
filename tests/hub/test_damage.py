"""Damaged saved models: each is refused when it is loaded, and by `triptych verify`."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from triptych.cli.main import main
from triptych.errors import CheckpointError, DamageWarning
from triptych.hub.format import edit_config, read_model
from triptych.hub.integrity import read_raw_config, write_checksums, write_config
from triptych.hub.pipeline import Limits, Pipeline
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.patch_vq import PatchVQ, PatchVQConfig
from triptych.tokenizers.text import ByteBPE
from triptych.vocab import Vocabulary

WEIGHTS = "model.safetensors"
BPE = "tokenizers/text/bpe.json"
CODEBOOK = "tokenizers/image/codebook.png"
SHAPE = ModelConfig(num_layers=2, width=16, num_heads=2, d_ff=24)
LIMITS = Limits(seq_len=64, text_slot=16, audio_slot=None, caption_prompt="an image of")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = ByteBPE.train(["the cat sat on the mat", "the dog sat on the log"] * 20, 262)
    image = PatchVQ.untrained(PatchVQConfig(resolution=16, patch=8, codes=12))
    vocabulary = Vocabulary(text=text.vocab_size, image=image.vocab_size, audio=7)
    model = Transformer(SHAPE, vocabulary)
    initialise(model, 0)
    bundle = TokenizerBundle(vocabulary, text=text, image=image)
    pipe = Pipeline(model, bundle, LIMITS, card="# a model\n", license="mit")
    return pipe.save_pretrained(tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "model")


def forge(folder: Path, **changes: Any) -> None:
    """Make the checksums those of the files as they are now, as an attacker could."""
    (folder / "tokenizers" / "checksums.json").unlink(missing_ok=True)
    write_checksums(folder, {**read_raw_config(folder), **changes})


def without_checksums(folder: Path) -> None:
    """Make the model one of an earlier version."""
    (folder / "tokenizers" / "checksums.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    del config["files"], config["checksum"]
    (folder / "config.json").write_text(json.dumps(config))


def flip(path: Path, position: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def with_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS)


def one_nan(weights: dict[str, torch.Tensor]) -> None:
    weights[sorted(weights)[3]].view(-1)[-1] = float("nan")


def one_infinity(weights: dict[str, torch.Tensor]) -> None:
    weights[sorted(weights)[0]].view(-1)[0] = float("-inf")


def as_int8(weights: dict[str, torch.Tensor]) -> None:
    for name, tensor in weights.items():
        weights[name] = (tensor * 100).to(torch.int8)


def swap_merges(folder: Path) -> None:
    merges = json.loads((folder / BPE).read_text())["merges"]
    merges[0], merges[1] = merges[1], merges[0]
    (folder / BPE).write_text(json.dumps({"merges": merges}))


def edit_json(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a flipped bit of a weight": (lambda f: flip(f / WEIGHTS, -10), f"{WEIGHTS} is damaged: its SHA-256"),
    "NaN": (lambda f: with_weights(f, one_nan), f"{WEIGHTS} is damaged: its SHA-256"),
    "int8 weights": (lambda f: with_weights(f, as_int8), f"{WEIGHTS} has [0-9]+ bytes, expected [0-9]+"),
    "truncated weights": (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-1]), "bytes, expected"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), f"{WEIGHTS} is missing"),
    "no merges": (lambda f: (f / BPE).unlink(), f"{BPE} is missing"),
    "swapped merges": (swap_merges, f"{BPE} (is damaged|has)"),
    "a flipped bit of the codebook": (lambda f: flip(f / CODEBOOK, -30), f"{CODEBOOK} is damaged"),
    "no tokenizer.json": (
        lambda f: (f / "tokenizers/image/tokenizer.json").unlink(),
        "image/tokenizer.json is missing",
    ),
    "no tokenizers": (lambda f: shutil.rmtree(f / "tokenizers"), "tokenizers/image/codebook.png is missing"),
    "one tokenizer more": (
        lambda f: shutil.copytree(f / "tokenizers/image", f / "tokenizers/video"),
        "tokenizers/video/codebook.png is unexpected",
    ),
    "another limit": (lambda f: edit_json(f / "config.json", '"seq_len": 64', '"seq_len": 65'), "config.json does not"),
    "another prompt": (lambda f: edit_json(f / "config.json", "an image of", "an imagf of"), "config.json does not"),
    "a flipped bit in a key of the checksums": (
        lambda f: edit_json(f / "config.json", '"checksum"', '"checksul"'),
        "config.json does not match its checksum",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_refused(name: str, copy: Path, capsys: pytest.CaptureFixture) -> None:
    damage, expected = DAMAGES[name]
    assert main(["verify", str(copy)]) == 0
    assert capsys.readouterr().out == f"{copy}: a saved model, intact\n"
    damage(copy)
    with pytest.raises(CheckpointError, match=expected) as raised:
        Pipeline.from_pretrained(copy)
    assert str(raised.value).startswith(f"{copy} is damaged: ")
    assert main(["verify", str(copy)]) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"triptych: error: {raised.value}\n"


def test_every_flipped_bit_is_noticed(copy: Path) -> None:
    """A sample of the bits of every file. In config.json a flip may keep the content, as of a space into another."""
    original = logits_of(copy)
    files = [path for path in copy.rglob("*") if path.is_file() and path.name != "README.md"]
    assert len(files) == 8
    rng = np.random.default_rng(0)
    for path in files:
        content = path.read_bytes()
        for position in rng.choice(len(content), size=min(6, len(content)), replace=False):
            flip(path, int(position), int(rng.integers(8)))
            try:
                loaded = logits_of(copy)
            except CheckpointError:
                pass
            else:
                assert path.name == "config.json"
                assert torch.equal(loaded, original)
            path.write_bytes(content)


def logits_of(folder: Path) -> torch.Tensor:
    model = read_model(folder).model
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        return model(tokens, tokens)


FORGERIES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "NaN": (lambda f: with_weights(f, one_nan), "numbers that are not finite, in "),
    "infinity": (lambda f: with_weights(f, one_infinity), "numbers that are not finite, in "),
    "int8 weights": (lambda f: with_weights(f, as_int8), "has the dtype I8, expected one of F32, F16, BF16"),
    "float64 weights": (
        lambda f: with_weights(f, lambda w: w.update({name: t.double() for name, t in w.items()})),
        "has the dtype F64",
    ),
    "one weight more": (
        lambda f: with_weights(f, lambda w: w.update(more=torch.ones(1))),
        r"more is \(1,\), expected N",
    ),
    "one weight less": (lambda f: with_weights(f, lambda w: w.pop("norm.weight")), "norm.weight is None, expected"),
    "another shape": (
        lambda f: with_weights(f, lambda w: w.update({"norm.weight": torch.ones(4, 4)})),
        r"norm.weight is \(4, 4\), expected \(16,\)",
    ),
    "no safetensors": (lambda f: (f / WEIGHTS).write_bytes(b"nothing"), "cannot be read as safetensors"),
    "a header beyond the file": (
        lambda f: (f / WEIGHTS).write_bytes((1 << 62).to_bytes(8, "little") + b"{}"),
        "cannot be read as safetensors",
    ),
}


@pytest.mark.parametrize("has_checksums", [True, False])
@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.filterwarnings("ignore::triptych.errors.DamageWarning")
def test_wrong_contents_with_right_checksums_are_refused(name: str, has_checksums: bool, copy: Path) -> None:
    forgery, expected = FORGERIES[name]
    forgery(copy)
    forge(copy) if has_checksums else without_checksums(copy)
    with pytest.raises(CheckpointError, match=expected) as raised:
        Pipeline.from_pretrained(copy)
    assert str(copy / WEIGHTS) in str(raised.value)
    assert main(["verify", str(copy)]) == 4


@pytest.mark.parametrize("has_checksums", [True, False])
@pytest.mark.filterwarnings("ignore::triptych.errors.DamageWarning")
def test_verify_loads_the_tokenizers(has_checksums: bool, copy: Path, capsys: pytest.CaptureFixture) -> None:
    swap_merges(copy)
    forge(copy) if has_checksums else without_checksums(copy)
    assert main(["verify", str(copy)]) == 4
    assert "the text tokenizer in" in capsys.readouterr().err


@pytest.mark.parametrize(
    "shape",
    [
        {"num_layers": 10**9},
        {"num_layers": 4000},
        {"width": 2**40, "num_heads": 1},
        {"d_ff": 2**62},
        {"d_ff": 10**6},
        {"width": 2**20, "num_heads": 2},
        {"num_heads": 2**70},
        {"max_learned_positions": 2**24},
        {"max_learned_positions": 10**30},
    ],
)
def test_huge_shapes_are_refused_before_anything_is_allocated(shape: dict[str, int], copy: Path) -> None:
    config = read_raw_config(copy)
    forge(copy, model={**config["model"], **shape})
    with pytest.raises(CheckpointError, match=r"must be at most|does not fit its configuration|must be a multiple"):
        read_model(copy)


@pytest.mark.parametrize(
    "limits",
    [
        {"seq_len": 10**18},
        {"seq_len": "64"},
        {"seq_len": 0},
        {"text_slot": -1},
        {"audio_slot": 1.5},
        {"caption_prompt": 5},
    ],
)
def test_impossible_limits_are_refused(limits: dict[str, Any], copy: Path) -> None:
    forge(copy, limits={**read_raw_config(copy)["limits"], **limits})
    with pytest.raises(CheckpointError, match=f"{next(iter(limits))} of a model must be"):
        read_model(copy)


@pytest.mark.parametrize("name", [["scenes"], {"a": 1}, 5, "/etc", "../tokenizers", True])
def test_wrong_names_of_built_in_tokenizers_are_refused(name: Any, copy: Path, tmp_path: Path) -> None:
    forge(copy, builtin_tokenizers=name)
    shutil.rmtree(copy / "tokenizers")
    forge(copy)
    with pytest.raises(CheckpointError, match="there are no built-in tokenizers"):
        read_model(copy)


def test_a_deep_configuration_is_one_line(copy: Path, capsys: pytest.CaptureFixture) -> None:
    for name in ("config.json", "tokenizers/vocab.json", "tokenizers/text/tokenizer.json", BPE):
        before, config = (copy / name).read_bytes(), (copy / "config.json").read_bytes()
        (copy / name).write_text('{"a":' * 50_000 + "1" + "}" * 50_000)
        if name != "config.json":
            forge(copy)
        assert main(["verify", str(copy)]) == 4
        printed = capsys.readouterr().err
        assert "at most 64 levels" in printed
        assert printed.count("\n") == 1
        (copy / "config.json").write_bytes(config)
        (copy / name).write_bytes(before)


def test_a_hostile_list_of_files_reads_nothing_else(copy: Path) -> None:
    config = read_raw_config(copy)
    write_config(copy, {**config, "files": {**config["files"], "../../secret": {"bytes": 1, "sha256": "0"}}})
    with pytest.raises(CheckpointError, match=r"\.\./\.\./secret is missing"):
        read_model(copy)
    for wrong in ("abc", 5, None, {"bytes": "many", "sha256": []}):
        write_config(copy, {**config, "files": {**config["files"], WEIGHTS: wrong}})
        with pytest.raises(CheckpointError, match=r"model\.safetensors has \d+ bytes, expected"):
            read_model(copy)
    write_config(copy, {**config, "files": [1]})
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        read_model(copy)


def test_a_model_of_an_earlier_version_loads_with_a_note(copy: Path, capsys: pytest.CaptureFixture) -> None:
    without_checksums(copy)
    with pytest.warns(DamageWarning, match="has no checksums"):
        Pipeline.from_pretrained(copy)
    assert main(["verify", str(copy)]) == 0
    assert "a saved model without checksums" in capsys.readouterr().out
    assert main(["verify", str(copy), "--update"]) == 0
    assert main(["verify", str(copy)]) == 0
    assert capsys.readouterr().out.endswith("a saved model, intact\n")


def test_edits_by_hand_are_accepted_on_request(copy: Path, capsys: pytest.CaptureFixture) -> None:
    edit_json(copy / "config.json", "an image of", "a drawing of")
    assert main(["verify", str(copy)]) == 4
    assert f"`triptych verify {copy} --update`" in capsys.readouterr().err
    assert main(["verify", str(copy), "--update"]) == 0
    assert Pipeline.from_pretrained(copy).limits.caption_prompt == "a drawing of"
    with_weights(copy, one_nan)
    assert main(["verify", str(copy), "--update"]) == 4  # a broken model is not accepted
    assert main(["verify", str(copy)]) == 4


def test_edited_tokenizers_are_accepted_on_request(copy: Path) -> None:
    path = copy / "tokenizers" / "text" / "tokenizer.json"
    path.write_text(path.read_text() + "\n")
    assert main(["verify", str(copy)]) == 4
    assert main(["verify", str(copy), "--update"]) == 0
    assert main(["verify", str(copy)]) == main(["verify", str(copy / "tokenizers")]) == 0


def test_the_card_may_be_edited(copy: Path, capsys: pytest.CaptureFixture) -> None:
    (copy / "README.md").write_text("# a better card\n")
    assert Pipeline.from_pretrained(copy).card == "# a better card\n"
    assert main(["verify", str(copy)]) == 0
    assert "README.md was edited after the model was saved" in capsys.readouterr().out
    (copy / "README.md").unlink()
    (copy / ".gitattributes").write_text("of a hub\n")
    (copy / "tokenizers" / ".DS_Store").write_text("of a system\n")
    (copy / "sample.png").write_text("of the user\n")
    assert Pipeline.from_pretrained(copy).card is None


def test_the_card_may_be_anything(copy: Path) -> None:
    card = copy / "README.md"
    card.write_bytes(b"# caf\xe9\n")
    assert Pipeline.from_pretrained(copy).card == "# caf\ufffd\n"
    card.unlink()
    os.mkfifo(card)
    assert Pipeline.from_pretrained(copy).card is None


@pytest.mark.parametrize("has_checksums", [True, False])
@pytest.mark.filterwarnings("ignore::triptych.errors.DamageWarning")
def test_weights_that_are_a_pipe_are_refused_at_once(has_checksums: bool, copy: Path) -> None:
    (copy / WEIGHTS).unlink()
    os.mkfifo(copy / WEIGHTS)
    forge(copy) if has_checksums else without_checksums(copy)
    with pytest.raises(CheckpointError, match=r"is missing|not a regular file"):
        read_model(copy)


def test_checksums_without_the_weights_are_refused(copy: Path) -> None:
    (copy / WEIGHTS).unlink()
    forge(copy)
    with pytest.raises(CheckpointError, match=r"is damaged: model\.safetensors is missing"):
        read_model(copy)


def test_settings_change_with_their_checksum(copy: Path) -> None:
    edit_config(copy, {"presets": "scenes"})
    assert read_model(copy).preset == "scenes"
    flip(copy / WEIGHTS, -10)
    edit_config(copy, {"presets": "paper"})
    with pytest.raises(CheckpointError, match="is damaged"):  # an edit does not accept damage of other files
        read_model(copy)


def test_the_built_in_model_is_verified(capsys: pytest.CaptureFixture) -> None:
    assert main(["verify", "scenes"]) == 0
    assert capsys.readouterr().out == "scenes: a saved model, intact\n"
