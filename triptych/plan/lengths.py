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
from triptych.data.sequences import PAIR_SPECIALS
from triptych.data.shards import MANIFEST, TokenDataset
from triptych.diffusion.corrupt import corrupt
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

# The paper's 3B run: 1M steps of 3,072 rows of 3,256, a third of them text without padding, 6.4T tokens in all.
_PAPER_SEQUENCES, _PAPER_SEQ_LEN, _PAPER_TOKENS = 3.072e9, 3256, 6.4e12
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
    """Share of tokens that are masked and predicted."""
    columns: float | None = None
    """Mean number of logits per predicted token; None for the whole vocabulary."""


def sample_batches(config: RunConfig, vocabulary: Vocabulary) -> BatchSample:
    """Batches of the run's data; without data, the paper's lengths; without either, sequences of full length."""
    if config.data and all((Path(folder) / MANIFEST).exists() for folder in config.data):
        return _measured(config, vocabulary)
    if config.tokenizers == PAPER_TOKENIZERS:
        return _from_paper(config, vocabulary)
    loader = config.loader
    return BatchSample("unknown", [np.full(loader.global_batch, loader.seq_len)], _masked_share(config))


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
    lengths, num_tokens, by_modality = [], 0, np.zeros(len(Modality))
    with Loader(list(config.data), plain, num_steps=count) as loader:
        for step in loader:
            (batch,) = step.micro_batches
            lengths.append(np.bincount(batch.segment_ids.ravel(), minlength=step.num_sequences + 1)[1:])
            if sum(map(len, lengths[:-1])) < _MIN_SEQUENCES:  # masking costs more than reading
                masked = corrupt(batch, vocabulary, config.corrupt, step=step.index, global_batch=step.num_sequences)
                by_modality += np.bincount(batch.modality_ids[masked.predicted], minlength=len(Modality))
                num_tokens += int(lengths[-1].sum())
    # Two complementary views mask every token once.
    predicted = 0.5 if config.complementary_masks else float(by_modality.sum()) / max(1, num_tokens)
    return BatchSample("measured", lengths, predicted, _mean_columns(config, vocabulary, by_modality))


def _from_paper(config: RunConfig, vocabulary: Vocabulary) -> BatchSample:
    """Lengths with the paper's mean over its mixture: full rows of text, images of one size, and audio for the rest."""
    loader, rng = config.loader, np.random.default_rng(0)
    per_task = _PAPER_SEQUENCES / len(Task)
    mean_audio = _PAPER_TOKENS / per_task - _PAPER_SEQ_LEN - (_PAPER_IMAGE + PAIR_SPECIALS + np.mean(_CAPTION))
    shares = np.array([loader.task_weights.get(task.label, 0.0) for task in Task])
    if shares.min() < 0 or not 0 < shares.sum() < np.inf:
        raise UserError("loader.task_weights must not be negative nor all 0; give at least one task a weight.")
    lengths, by_modality = [], np.zeros(len(Modality))
    for _ in range(_MIN_BATCHES):
        text, images, audio = rng.multinomial(loader.global_batch, shares / shares.sum())
        captions = rng.integers(*_CAPTION, size=images, endpoint=True)
        audio_lengths = rng.uniform(mean_audio * (1 - _AUDIO_SPREAD), mean_audio * (1 + _AUDIO_SPREAD), size=audio)
        parts = [np.full(text, loader.seq_len), _PAPER_IMAGE + PAIR_SPECIALS + captions, audio_lengths.round()]
        lengths.append(np.minimum(np.concatenate(parts), loader.seq_len).astype(np.int64))
        text_tokens = text * loader.seq_len + captions.sum() + audio * np.mean(_CAPTION)
        audio_tokens = max(0.0, audio_lengths.sum() - audio * np.mean(_CAPTION))
        by_modality += (text_tokens, images * _PAPER_IMAGE, audio_tokens)
    return BatchSample("paper", lengths, _masked_share(config), _mean_columns(config, vocabulary, by_modality))


def _masked_share(config: RunConfig) -> float:
    """Mean share of maskable tokens that the schedule masks, over the times that training draws."""
    times = torch.linspace(config.corrupt.smallest_mask_rate, 1, 1001, dtype=torch.float64)
    masked = float((1 - config.corrupt.schedule.alpha(times)).mean())
    return 0.5 if config.complementary_masks else masked * (1 - config.corrupt.p_one_sided / 2)


def _mean_columns(config: RunConfig, vocabulary: Vocabulary, by_modality: np.ndarray) -> float | None:
    if config.model.softmax_scope == "full" or not by_modality.sum():
        return None
    return float(np.average([vocabulary.num_logits(modality) for modality in Modality], weights=by_modality))
