"""The sequences of a few global batches of a run: of its data if they are on this disk, else as the paper's are said
to be.

What they come to depends on them: FLOPs on how many tokens a token sees, memory and padding on how they are packed.
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
from triptych.training.config import RunConfig
from triptych.vocab import Modality, Task, Vocabulary

_LEAST_BATCHES, _LEAST_SEQUENCES = 4, 1024  # as many as it takes for both
Origin = Literal["measured", "paper", "unknown"]
ORIGINS: dict[Origin, str] = {
    "measured": "measured on the data",
    "paper": "estimated from the paper's totals",
    "unknown": "unknown without the data: every sequence counts as the longest",
}

# The paper's 3B run: 1M steps of 3,072 rows of 3,256, a third of them text without padding, 6.4T tokens in all.
_PAPER_SEQUENCES, _PAPER_SEQ_LEN, _PAPER_TOKENS = 3.072e9, 3256, 6.4e12
_PAPER_PICTURE = 1024  # tokens of 256 x 256 pixels
# Not in the paper: how long captions are, and how much the lengths of sounds vary around what is left for them.
_CAPTION = (10, 120)
_SOUND_SPREAD = 0.6


@dataclass(frozen=True)
class Batches:
    """The sequences of a few global batches."""

    origin: Origin
    lengths: list[np.ndarray]
    """Of the sequences of each batch."""
    predicted: float
    """Share of the tokens that is masked and predicted."""
    columns: float | None = None
    """Logits of a predicted token, on average; None for the whole vocabulary."""


def gather(config: RunConfig, vocabulary: Vocabulary) -> Batches:
    """From the data if they are on this disk, else from what the paper says of its own, else of the longest."""
    if config.data and all((Path(folder) / MANIFEST).exists() for folder in config.data):
        return _measured(config, vocabulary)
    if config.tokenizers == "paper":
        return _of_the_paper(config, vocabulary)
    loader = config.loader
    return Batches("unknown", [np.full(loader.global_batch, loader.seq_len)], _masked_share(config))


def _measured(config: RunConfig, vocabulary: Vocabulary) -> Batches:
    for folder in config.data:
        if TokenDataset(folder).vocabulary != vocabulary:
            raise UserError(
                f"{folder} was made with other tokenizers than {config.tokenizers!r}: its ids are others. "
                "Tokenize the data with those, or set tokenizers=FOLDER."
            )
    count = max(_LEAST_BATCHES, -(-_LEAST_SEQUENCES // config.loader.global_batch))
    # A row for each sequence, all in one place: what stands where is `triptych.plan.estimate.deal`'s business.
    plain = replace(config.loader, layout=Padded(), num_workers=0, prefetch=0)
    lengths, seen, by_modality = [], 0, np.zeros(len(Modality))
    with Loader(list(config.data), plain, num_steps=count) as loader:
        for step in loader:
            (batch,) = step.micro_batches
            lengths.append(np.bincount(batch.segment_ids.ravel(), minlength=step.num_sequences + 1)[1:])
            if sum(map(len, lengths[:-1])) < _LEAST_SEQUENCES:  # masking costs more than reading
                masked = corrupt(batch, vocabulary, config.corrupt, step=step.index, global_batch=step.num_sequences)
                by_modality += np.bincount(batch.modality_ids[masked.predicted], minlength=len(Modality))
                seen += int(lengths[-1].sum())
    share = (
        0.5 if config.complementary_masks else float(by_modality.sum()) / max(1, seen)
    )  # two views mask everything once
    return Batches("measured", lengths, share, _columns(config, vocabulary, by_modality))


def _of_the_paper(config: RunConfig, vocabulary: Vocabulary) -> Batches:
    """Lengths whose mean over the paper's mixture is the paper's: full rows of text, pictures of one size, and sounds
    that make up the rest."""
    loader, rng = config.loader, np.random.default_rng(0)
    per_task = _PAPER_SEQUENCES / len(Task)
    sound = _PAPER_TOKENS / per_task - _PAPER_SEQ_LEN - (_PAPER_PICTURE + PAIR_SPECIALS + np.mean(_CAPTION))
    shares = np.array([loader.task_weights.get(task.label, 0.0) for task in Task])
    if shares.min() < 0 or not 0 < shares.sum() < np.inf:
        raise UserError("loader.task_weights must not be negative nor all 0; give at least one task a weight.")
    lengths, by_modality = [], np.zeros(len(Modality))
    for _ in range(_LEAST_BATCHES):
        text, picture, speech = rng.multinomial(loader.global_batch, shares / shares.sum())
        captions = rng.integers(*_CAPTION, size=picture, endpoint=True)
        sounds = rng.uniform(sound * (1 - _SOUND_SPREAD), sound * (1 + _SOUND_SPREAD), size=speech)
        parts = [np.full(text, loader.seq_len), _PAPER_PICTURE + PAIR_SPECIALS + captions, sounds.round()]
        lengths.append(np.minimum(np.concatenate(parts), loader.seq_len).astype(np.int64))
        said = text * loader.seq_len + captions.sum() + speech * np.mean(_CAPTION)
        by_modality += (said, picture * _PAPER_PICTURE, max(0.0, sounds.sum() - speech * np.mean(_CAPTION)))
    return Batches("paper", lengths, _masked_share(config), _columns(config, vocabulary, by_modality))


def _masked_share(config: RunConfig) -> float:
    """What the schedule masks of what may be masked, on average over the times that are drawn."""
    times = torch.linspace(config.corrupt.smallest_time, 1, 1001, dtype=torch.float64)
    masked = float((1 - config.corrupt.schedule.alpha(times)).mean())
    return 0.5 if config.complementary_masks else masked * (1 - config.corrupt.p_one_sided / 2)


def _columns(config: RunConfig, vocabulary: Vocabulary, by_modality: np.ndarray) -> float | None:
    if config.model.softmax_scope == "full" or not by_modality.sum():
        return None
    return float(np.average([vocabulary.data_size(modality) + 2 for modality in Modality], weights=by_modality))
