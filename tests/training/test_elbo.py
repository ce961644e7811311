"""The negative ELBO of a model on any data, against a model whose loss is known."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from train_fakes import TINY, make_world, run_it, tiny_run, write_set

from triptych.cli.main import main
from triptych.data.shards import Manifest
from triptych.errors import DataError, UserError
from triptych.model.transformer import ModelConfig, Transformer
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.text import ByteBPE
from triptych.training.elbo import evaluate_elbo
from triptych.vocab import Modality, Task, Vocabulary


@pytest.fixture(scope="module")
def bundle() -> TokenizerBundle:
    text = ByteBPE.train(["the cat sat on the mat and the dog lay on the cat"] * 3, 280)
    return TokenizerBundle(Vocabulary(text=text.vocab_size, image=16, audio=16), text=text)


def uniform_model(vocabulary: Vocabulary) -> Transformer:
    """A model whose logits are all 0."""
    model = Transformer(ModelConfig(num_layers=1, width=16, num_heads=2, d_ff=24, softmax_scope="modality"), vocabulary)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.zeros_like(parameter) if "unembed" in name else 0.1 * torch.ones_like(parameter))
    return model


def dataset(folder: Path, bundle: TokenizerBundle, task: Task, texts: list[str]) -> Path:
    ids = bundle.text.encode(texts)
    media = [] if task == Task.TEXT else [1, 2, 3]
    write_set(folder, task, [(media, row) for row in ids], bundle.vocabulary)

    replace(Manifest.load(folder), tokenizers=bundle.fingerprints).save(folder)
    return folder


def test_a_uniform_model_has_the_entropy_of_its_vocabulary(bundle: TokenizerBundle, tmp_path: Path) -> None:
    texts = ["the cat sat", "a dog lay on the mat", "übermäßig"] * 4
    folders = [
        dataset(tmp_path / "text", bundle, Task.TEXT, texts),
        dataset(tmp_path / "pairs", bundle, Task.IMAGE_TEXT, texts),
    ]
    result = evaluate_elbo(uniform_model(bundle.vocabulary), bundle, folders, sequences=8, draws=3)
    of_text = math.log(bundle.vocabulary.num_logits(Modality.TEXT))
    of_image = math.log(bundle.vocabulary.num_logits(Modality.IMAGE))
    for name, value in result.terms.items():
        if name != "all":
            assert value.nats_per_token == pytest.approx(of_image if name.startswith("image") else of_text, rel=1e-5)
    size = sum(len(text.encode()) for text in texts) / sum(map(len, bundle.text.encode(texts)))
    assert result.bits_per_byte.keys() == {"text", "text of image", "text|image"}
    for bits, _ in result.bits_per_byte.values():
        assert bits == pytest.approx(of_text / math.log(2) / size, rel=1e-5)


def test_data_of_other_tokenizers_are_refused(bundle: TokenizerBundle, tmp_path: Path) -> None:
    model = uniform_model(bundle.vocabulary)
    with pytest.raises(UserError, match="name the data"):
        evaluate_elbo(model, bundle, [])
    write_set(tmp_path / "other", Task.TEXT, [([], [1, 2])])
    with pytest.raises(DataError, match="has the vocabulary"):
        evaluate_elbo(model, bundle, [tmp_path / "other"])
    write_set(tmp_path / "similar", Task.TEXT, [([], [1, 2])], bundle.vocabulary)
    with pytest.raises(DataError, match="was made with another text tokenizer"):
        evaluate_elbo(model, bundle, [tmp_path / "similar"])


def test_the_command_takes_the_validation_data_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokenizers without weights have no fingerprints, so the world of the training tests gets a text tokenizer."""
    monkeypatch.chdir(tmp_path)  # results go to out/eval
    folder = make_world(tmp_path / "world")
    text = ByteBPE([])
    vocabulary = Vocabulary(text=text.vocab_size, image=TINY.image, audio=TINY.audio)
    bundle = TokenizerBundle(vocabulary, text=text)
    bundle.save(folder / "tokenizers")
    rng = np.random.default_rng(0)
    for split in ("train", "validation"):
        words = ["".join(rng.choice(list("abcd"), size=6)) for _ in range(12)]
        dataset(folder / split / "text", bundle, Task.TEXT, words)
    config = tiny_run(
        folder,
        data=(str(folder / "train" / "text"),),
        validation_data=(str(folder / "validation" / "text"),),
        num_steps=2,
    )

    run_it(replace(config, loader=replace(config.loader, task_weights={"text": 1.0})), tmp_path / "run")
    assert main(["eval", "elbo", str(tmp_path / "run"), "--sequences", "6", "--json", str(tmp_path / "e.json")]) == 0
    assert "bits per byte" in capsys.readouterr().out
    terms = json.loads((tmp_path / "e.json").read_text())["terms"]
    per_byte = terms["text"]["nats_per_token"] * 7 / 6 / math.log(2)  # six bytes, and EOS, which is predicted too
    assert terms["text"]["bits_per_byte"] == pytest.approx(per_byte, rel=1e-6)
    assert main(["eval", "elbo", "scenes"]) == 2
    assert "has no validation data: add --data" in capsys.readouterr().err
