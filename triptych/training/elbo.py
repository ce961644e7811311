"""The negative ELBO of any model on any data: nats per token by modality and direction, and bits per byte of text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from triptych.data.sequences import PAIR_SPECIALS
from triptych.data.shards import TokenDataset
from triptych.data.steps import LoaderConfig
from triptych.errors import DataError, UserError
from triptych.model.transformer import Transformer
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.validate import NelboEstimate, Validator
from triptych.vocab import Task

_TEXT_PIECE = 256  # tokens of a document that attend to each other, where nothing else is known
_SAMPLED_TEXTS = 512  # that bytes per token are measured on


@dataclass(frozen=True)
class Elbo:
    terms: dict[str, NelboEstimate]
    """By term, as `Validator.estimate` names them."""
    bits_per_byte: dict[str, tuple[float, float]]
    """For each term of text: the value, and half the width of its 95 % interval."""


def evaluate_elbo(
    model: Transformer,
    bundle: TokenizerBundle,
    folders: Sequence[str | Path],
    *,
    sequences: int = 256,
    draws: int = 4,
    seed: int = 0,
    loader: LoaderConfig | None = None,
    held_out: bool = False,
    device: torch.device | None = None,
) -> Elbo:
    """Negative ELBO on datasets that were made with the model's tokenizers.

    `sequences` are drawn from each dataset and masked `draws` times. `loader` cuts the data as in training; without
    one, every document is a sequence, in pieces of 256 tokens. `held_out` takes what that loader holds out.
    """
    datasets = [TokenDataset(folder) for folder in folders]
    if not datasets:
        raise UserError("name the data: --data FOLDER ...")
    for dataset in datasets:
        check_tokenizers(dataset, bundle)
    config = loader or _one_document_per_sequence(datasets)
    validator = Validator(folders, config, sequences, draws, seed, held_out=held_out)
    terms = validator.estimate(model, device or torch.device("cpu"))
    per_token = _bytes_per_token(datasets, bundle, config, seed)
    bits = {}
    for name, value in terms.items():
        if name in per_token:
            scale = 1 / (math.log(2) * per_token[name])
            bits[name] = (value.nats_per_token * scale, value.margin * scale)
    return Elbo(terms, bits)


def check_tokenizers(dataset: TokenDataset, bundle: TokenizerBundle) -> None:
    """Raise an error unless a dataset was made with these tokenizers."""
    if dataset.vocabulary != bundle.vocabulary:
        raise DataError(f"{dataset.folder} has the vocabulary {dataset.vocabulary}, the model has {bundle.vocabulary}.")
    for name, fingerprint in dataset.manifest.tokenizers.items():
        if bundle.fingerprints.get(name) != fingerprint:
            raise DataError(
                f"{dataset.folder} was made with another {name} tokenizer than the model's; tokenize again."
            )


def _one_document_per_sequence(datasets: Sequence[TokenDataset]) -> LoaderConfig:
    longest = max((int(d.lengths.max(initial=0)) for d in datasets if d.task != Task.TEXT), default=0)
    longest = max(longest, *(d.manifest.longest_prompted for d in datasets))
    return LoaderConfig(
        seq_len=max(_TEXT_PIECE, longest + PAIR_SPECIALS),
        global_batch=1,
        document_attention=True,
        mask_text_eos="none",
        task_weights={dataset.task.label: 1.0 for dataset in datasets},
    )


def _bytes_per_token(
    datasets: Sequence[TokenDataset], bundle: TokenizerBundle, config: LoaderConfig, seed: int
) -> dict[str, float]:
    """UTF-8 bytes per predicted token of the texts of each task, under the names of the validation terms."""
    rng = np.random.default_rng(seed)
    measured: dict[str, float] = {}
    for task in {dataset.task for dataset in datasets}:
        texts = []
        for dataset in (each for each in datasets if each.task == task):
            chosen = rng.choice(len(dataset), min(_SAMPLED_TEXTS, len(dataset)), replace=False)
            samples = [dataset[int(index)] for index in chosen]
            texts += [sample.text[sample.prompt :] for sample in samples]
        predicts_eos = config.mask_text_eos == "all" or (config.mask_text_eos == "packed" and task == Task.TEXT)
        tokens = sum(map(len, texts)) + predicts_eos * len(texts)
        if tokens:
            size = sum(len(text.encode()) for text in bundle.text.decode(texts))
            partner = None if task.partner is None else task.partner.name.lower()
            names = ["text"] if partner is None else [f"text of {partner}", f"text|{partner}"]
            measured |= dict.fromkeys(names, size / tokens)
    return measured
