"""What flows through the data pipeline: raw samples, token samples, batches."""

from dataclasses import dataclass

import numpy as np

from triptych.vocab import Task

# R rows, T tokens in a row, S sequences in the batch


@dataclass(frozen=True)
class RawSample:
    """One sample as a source yields it: still encoded, so that decoding happens (and fails) in a worker.

    `media` is the bytes of an image or sound file, or the path of one; None for text-only samples.
    """

    key: str
    """Names the sample in messages: file, and line, row or member."""
    text: str
    media: bytes | str | None = None
    offset_seconds: float = 0.0
    duration_seconds: float | None = None


@dataclass(frozen=True)
class TokenSample:
    """One sample as local token ids. `media` is empty for text-only samples."""

    task: Task
    media: np.ndarray
    text: np.ndarray

    @property
    def num_tokens(self) -> int:
        return len(self.media) + len(self.text)


@dataclass(frozen=True)
class Batch:
    """Sequences laid out in rows. Sequence s of the batch is where `segment_ids == s + 1`; 0 is padding.

    Segment ids are unique within the batch, so a per-sequence sum is one `bincount`, and two positions of a row may
    attend to each other exactly if their segment ids are equal and not 0.
    """

    tokens: np.ndarray
    """[R, T] int32, ids of the unified vocabulary; PAD where nothing stands."""
    positions: np.ndarray
    """[R, T] int32, position within the sequence, from 0."""
    segment_ids: np.ndarray
    """[R, T] int32, 1 + index of the sequence in this batch; 0 for padding."""
    modality_ids: np.ndarray
    """[R, T] uint8, `Modality` of the token; 255 for TASK and padding."""
    maskable: np.ndarray
    """[R, T] bool, whether diffusion may mask the position."""
    sample_ids: np.ndarray
    """[S] int64, which sequence of which source: the same pair, or text row by number, on any number of ranks."""
    epochs: np.ndarray
    """[S] int32, how often its source had been read before."""
    slots: np.ndarray
    """[S] int32, place of the sequence in the global batch (stratifies the diffusion time)."""
    tasks: np.ndarray
    """[S] uint8, `Task` of each sequence."""

    @property
    def num_tokens(self) -> int:
        """Positions that are not padding."""
        return int((self.segment_ids > 0).sum())
