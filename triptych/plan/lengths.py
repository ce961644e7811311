"""Sequence lengths of a few global batches of a run.

They are read from the data if it is on this disk, else drawn to match the paper's totals. FLOPs depend on them through
the attention context, memory and padding through the packing.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from triptych.data.loader import Loader
from triptych.data.pack import Padded
from triptych.data.paper_totals import MEAN_TOKENS, SEQ_LEN
from triptych.data.sequences import PAIR_SPECIALS
from triptych.data.shards import MANIFEST, TokenDataset
from triptych.data.steps import LoaderConfig
from triptych.diffusion.corrupt import CorruptConfig, corrupt
from triptych.errors import UserError
from triptych.tokenizers.bundle import PAPER_TOKENIZERS
from triptych.training.config import RunConfig
from triptych.vocab import Modality, Task, Vocabulary

_MIN_BATCHES, _MIN_SEQUENCES = 4, 1024  # a sample satisfies both
Origin = Literal["measured", "paper", "unknown"]
ORIGINS: dict[Origin, str] = {
    "measured": "measured on the data",
    "paper": "estimated from the paper's totals",
    "unknown": "unknown without the data: every sequence counts as the longest",
}

_PAPER_IMAGE = 1024  # tokens of 256 x 256 pixels
# Assumed, because the paper does not say: caption lengths, and the spread of audio lengths around their mean.
_CAPTION = (10, 120)
_AUDIO_SPREAD = 0.6


@dataclass(frozen=True)
class BatchSample:
    """Sequence lengths of a few global batches, and what is predicted in them."""

    origin: Origin
    lengths: list[np.ndarray]
    """For each batch, the lengths of its sequences."""
    predicted: float
    """Share of the tokens in a view that are masked and predicted."""
    columns: float | None = None
    """Mean number of logits per predicted token; None for the whole vocabulary."""


def task_shares(loader: LoaderConfig) -> dict[str, float]:
    """Share of every task in the sequences, from the mixture weights."""
    weights = {task.label: loader.task_weights.get(task.label, 0.0) for task in Task}
    total = sum(weights.values())
    if min(weights.values()) < 0 or not 0 < total < np.inf:
        raise UserError("loader.task_weights must not be negative nor all 0; give at least one task a weight.")
    return {task: weight / total for task, weight in weights.items()}


def sample_batches(config: RunConfig, vocabulary: Vocabulary) -> BatchSample:
    """Batches of the run's data; without data, the paper's lengths; without either, sequences of full length."""
    if config.data and all((Path(folder) / MANIFEST).exists() for folder in config.data):
        return _measured(config, vocabulary)
    if config.tokenizers == PAPER_TOKENIZERS:
        return _from_paper(config, vocabulary)
    loader = config.loader
    predicted = sum(
        share * predicted_tokens(config, task, _maskable_tokens(loader, task)).sum() / loader.seq_len
        for task, share in zip(Task, task_shares(loader).values())
    )
    return BatchSample("unknown", [np.full(loader.global_batch, loader.seq_len)], float(predicted))


def _measured(config: RunConfig, vocabulary: Vocabulary) -> BatchSample:
    for folder in config.data:
        if TokenDataset(folder).vocabulary != vocabulary:
            raise UserError(
                f"{folder} was made with other tokenizers than {config.tokenizers!r}, so its ids differ. "
                f"Tokenize the data with {config.tokenizers!r}, or set tokenizers=FOLDER."
            )
    count = max(_MIN_BATCHES, -(-_MIN_SEQUENCES // config.loader.global_batch))
    # One row per sequence on one rank: `lay_out_step` arranges them later.
    plain = replace(config.loader, layout=Padded(), num_workers=0, prefetch=0)
    lengths, passed, by_modality = [], 0, np.zeros(len(Modality))
    with Loader(list(config.data), plain, num_steps=count) as loader:
        for step in loader:
            (batch,) = step.micro_batches
            lengths.append(np.bincount(batch.segment_ids.ravel(), minlength=step.num_sequences + 1)[1:])
            if sum(map(len, lengths[:-1])) < _MIN_SEQUENCES:  # masking costs more than reading
                for view in config.views:
                    masked = corrupt(
                        batch, vocabulary, config.corrupt, step=step.index, global_batch=step.num_sequences, view=view
                    )
                    by_modality += np.bincount(batch.modality_ids[masked.predicted], minlength=len(Modality))
                    passed += int(lengths[-1].sum())
    predicted = float(by_modality.sum()) / max(1, passed)
    return BatchSample("measured", lengths, predicted, _mean_columns(config, vocabulary, by_modality))


def _from_paper(config: RunConfig, vocabulary: Vocabulary) -> BatchSample:
    """Lengths with the paper's mean over equal parts: full rows of text, images of one size, and audio for the rest."""
    loader, rng = config.loader, np.random.default_rng(0)
    mean_audio = MEAN_TOKENS * len(Task) - SEQ_LEN - (_PAPER_IMAGE + PAIR_SPECIALS + np.mean(_CAPTION))
    shares = list(task_shares(loader).values())
    lengths, by_modality = [], np.zeros(len(Modality))
    for _ in range(_MIN_BATCHES):
        text, images, audio = rng.multinomial(loader.global_batch, shares)
        captions = rng.integers(*_CAPTION, size=images, endpoint=True)
        audio_lengths = rng.uniform(mean_audio * (1 - _AUDIO_SPREAD), mean_audio * (1 + _AUDIO_SPREAD), size=audio)
        parts = [np.full(text, loader.seq_len), _PAPER_IMAGE + PAIR_SPECIALS + captions, audio_lengths.round()]
        cut = [np.minimum(part, loader.seq_len).astype(np.int64) for part in parts]
        lengths.append(np.concatenate(cut))
        num_captions = (None, captions, np.full(audio, np.mean(_CAPTION)))
        for task, of_task, num_text in zip(Task, cut, num_captions):
            by_modality += predicted_tokens(config, task, _maskable_tokens(loader, task, of_task, num_text))
    predicted = float(by_modality.sum()) / sum(int(of_batch.sum()) for of_batch in lengths)
    return BatchSample("paper", lengths, predicted, _mean_columns(config, vocabulary, by_modality))


def predicted_tokens(config: RunConfig, task: Task, maskable: np.ndarray) -> np.ndarray:
    """[M] expected number of predicted tokens in a view, from [M] numbers of maskable tokens of a task's sequences.

    `p_text_end` and `time_mode` change which tokens are masked, but not how many.
    """
    settings = config.corrupt
    eligible = np.ones(len(Modality))
    if task != Task.TEXT:
        eligible -= settings.p_one_sided / 2
        eligible[Modality.TEXT] -= settings.p_prompt_masked
    # Two complementary views predict every eligible token once.
    rates = [0.5 if config.complementary_masks else _mean_mask_rate(settings, modality) for modality in Modality]
    return maskable * eligible * rates


def _mean_mask_rate(settings: CorruptConfig, modality: Modality) -> float:
    """Mask rate of a modality's schedule, averaged over the times that are drawn."""
    drawn = settings.time_range_of(modality)
    middles = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    times = drawn.lowest + (drawn.highest - drawn.lowest) * middles
    return float((1 - settings.schedule_of(modality).alpha(times)).mean())


def _maskable_tokens(
    loader: LoaderConfig, task: Task, lengths: np.ndarray | None = None, num_text: np.ndarray | None = None
) -> np.ndarray:
    """[M] maskable tokens of sequences of a task, of these lengths and with so many text tokens in a pair.

    By default, of one sequence of full length; a pair then has as much text as the mean caption, at most half. A row of
    packed text counts as one document.
    """
    lengths = np.array([loader.seq_len]) if lengths is None else lengths
    counts = np.zeros(len(Modality))
    if task.partner is None:
        specials = 3 if loader.mask_text_eos == "none" else 2
        counts[Modality.TEXT] = (lengths - specials).sum()
        return counts
    data = np.maximum(lengths - PAIR_SPECIALS, 0)
    text = (
        np.minimum(np.full(len(data), np.mean(_CAPTION)), data / 2) if num_text is None else np.minimum(num_text, data)
    )
    counts[task.partner] = (data - text).sum()
    counts[Modality.TEXT] = text.sum() + (len(data) if loader.mask_text_eos == "all" else 0)
    return counts


def _mean_columns(config: RunConfig, vocabulary: Vocabulary, by_modality: np.ndarray) -> float | None:
    if config.model.softmax_scope == "full" or not by_modality.sum():
        return None
    return float(np.average([vocabulary.num_logits(modality) for modality in Modality], weights=by_modality))
