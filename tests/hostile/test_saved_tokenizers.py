"""Forged tokenizers: settings of any size and type, weights that are none and changes by hand are one line at once."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from triptych.cli.main import main
from triptych.errors import CheckpointError, UserError
from triptych.tokenizers.bundle import BUILTIN_TOKENIZERS, TokenizerBundle
from triptych.tokenizers.image import MoVQ
from triptych.tokenizers.mel_rvq import MelRVQ
from triptych.vocab import Modality

MOVQ, OTHERS = BUILTIN_TOKENIZERS["scenes"], BUILTIN_TOKENIZERS["scenes-full"]
SETTINGS: list[tuple[Path, str, str, dict[str, Any]]] = [
    *((OTHERS, "audio/tokenizer.json", "decoder", each) for each in ({"blocks": 10**6}, {"blocks": 10**9})),
    *((OTHERS, "audio/tokenizer.json", "decoder", each) for each in ({"width": 2**40}, {"blocks": "x"}, {"width": 0})),
    *((OTHERS, "audio/tokenizer.json", "mel", {"hop": each}) for each in (0, -1, 10**9, 1, None)),
    *((OTHERS, "audio/tokenizer.json", "mel", {"rate": each}) for each in ("x", 0, 10**30, 16000.5, True)),
    *((OTHERS, "audio/tokenizer.json", "mel", {"bands": each}) for each in (10**9, 0, [])),
    *((OTHERS, "audio/tokenizer.json", "mel", {name: 10**9}) for name in ("fft", "window", "top_hz", "more")),
    (OTHERS, "audio/tokenizer.json", "", {"codebook_offsets": 3}),
    (OTHERS, "audio/tokenizer.json", "", {"mel": 3}),
    *((OTHERS, "image/tokenizer.json", "shape", {"codes": each}) for each in (10**12, "x", 8256)),
    *((OTHERS, "image/tokenizer.json", "shape", {name: 10**9}) for name in ("patch", "resolution")),
    (OTHERS, "image/tokenizer.json", "shape", {"patch": 0}),
    (OTHERS, "image/tokenizer.json", "shape", {"patch": 10**9, "resolution": 10**9}),
    *((MOVQ, "image/config.json", "", {"layers_per_block": each}) for each in (10**7, 10**12, "x")),
    *((MOVQ, "image/config.json", "", {name: 10**12}) for name in ("in_channels", "num_vq_embeddings")),
    (MOVQ, "image/config.json", "", {"block_out_channels": [64] * 10**5}),
    *((MOVQ, "image/tokenizer.json", "", {"resolution": each}) for each in (2**40, 0, "x", True)),
    (MOVQ, "image/tokenizer.json", "", {"local": "x"}),
]


def forged(source: Path, target: Path) -> Path:
    """A copy as an earlier version wrote it, without checksums."""
    shutil.copytree(source, target)
    (target / "checksums.json").unlink()
    return target


@pytest.mark.parametrize(("source", "file", "key", "changes"), SETTINGS, ids=lambda each: str(each)[-60:])
def test_impossible_settings_are_refused_at_once(
    source: Path, file: str, key: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = forged(source, tmp_path / "bundle")
    content = json.loads((folder / file).read_text())
    (content[key] if key else content).update(changes)
    (folder / file).write_text(json.dumps(content))
    started = time.monotonic()
    with pytest.raises(UserError) as caught:
        _ = TokenizerBundle.load(folder)[Modality[file.split("/")[0].upper()]]
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("name", ["mean", "codebooks", "decoder.enter.bias"])
def test_weights_of_an_audio_tokenizer_that_are_not_finite_are_refused(name: str, tmp_path: Path) -> None:
    folder = forged(OTHERS, tmp_path / "bundle")
    path = folder / "audio" / "mel_rvq.safetensors"
    weights = load_file(path)
    weights[name].view(-1)[-1] = torch.nan
    save_file(weights, path)
    with pytest.raises(CheckpointError, match=r"numbers that are not finite, in "):
        MelRVQ.load(folder / "audio")
    assert main(["verify", str(folder)]) == 4


def test_weights_of_an_image_tokenizer_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    folder = forged(MOVQ, tmp_path / "bundle")
    path = folder / "image" / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    weights[min(weights)].view(-1)[0] = torch.inf
    save_file(weights, path)
    with pytest.raises(CheckpointError, match="numbers that are not finite, in "):
        MoVQ.load(folder / "image")


@pytest.mark.parametrize("name", ["mean", "basis", "codebooks", "decoder.leave.weight"])
def test_weights_of_another_shape_are_refused(name: str, tmp_path: Path) -> None:
    folder = forged(OTHERS, tmp_path / "bundle")
    path = folder / "audio" / "mel_rvq.safetensors"
    weights = load_file(path)
    save_file({**weights, name: weights[name][:-1].contiguous()}, path)
    wrong = "do not fit|is not the one that was saved"  # fewer codebooks are another tokenizer
    with pytest.raises(CheckpointError, match=wrong):
        TokenizerBundle.load(folder).verify()


@pytest.mark.parametrize(
    "name",
    [
        "audio/mel_rvq.safetensors",
        "image/codebook.png",
        "image/names.safetensors",
        "text/bpe.json",
        "text/tokenizer.json",
    ],
)
def test_pipes_in_the_place_of_files_are_refused_at_once(name: str, tmp_path: Path) -> None:
    folder = forged(OTHERS, tmp_path / "bundle")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError):
        _ = TokenizerBundle.load(folder)[Modality[name.split("/")[0].upper()]]


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("vocab.json", '"version": 1', '"version":  1'),
        ("audio/tokenizer.json", '"top_hz": 8000.0', '"top_hz": 4000.0'),
        ("image/tokenizer.json", '"resolution": 64', '"resolution": 32'),
        ("image/config.json", '"scaling_factor": 0.18215', '"scaling_factor": 0.5'),
        ("image/config.json", '"act_fn": "silu"', '"act_fn": "gelu"'),
    ],
)
def test_every_change_of_saved_tokenizers_is_noticed_by_verify(file: str, old: str, new: str, tmp_path: Path) -> None:
    TokenizerBundle.load(forged(MOVQ, tmp_path / "earlier")).save(tmp_path / "saved")
    TokenizerBundle.load(tmp_path / "saved").save(tmp_path / "copy")
    folder = tmp_path / "copy"
    assert main(["verify", str(folder)]) == 0
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    assert main(["verify", str(folder)]) == 4
    TokenizerBundle.load(folder).save(tmp_path / "again")  # a copy does not make it good
    assert main(["verify", str(tmp_path / "again")]) == 4
