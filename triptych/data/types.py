"""The types of the data pipeline: raw samples, token samples, batches."""

from dataclasses import dataclass

import numpy as np

from triptych.vocab import Task

# R rows, T tokens in a row, S sequences in the batch


@dataclass(frozen=True)
class RawSample:
    """One sample as a source yields it: media are still encoded, so that decoding runs (and fails) in a worker."""

    key: str
    """Name of the sample in messages: file, and line, row or member."""
    text: str
    """The text, or, after a prompt, the response to it."""
    media: bytes | str | None = None
    """The bytes of an image or audio file, or its path; None for text-only samples."""
    offset_seconds: float = 0.0
    """Start of the audio clip within its file."""
    duration_seconds: float | None = None
    """Length of the audio clip; None for the rest of the file."""
    prompt: str = ""
    """What is given before the text and never predicted; with it, the media are given too."""

    @property
    def response(self) -> str:
        """The text as it follows the prompt: after white space, as it will be generated."""
        is_apart = not self.prompt or self.prompt[-1].isspace() or self.text[:1].isspace()
        return self.text if is_apart else f" {self.text}"

    @property
    def text_bytes(self) -> int:
        """Bytes of the text and the prompt in UTF-8."""
        texts = (self.text, self.prompt)
        return sum(len(each) if each.isascii() else len(each.encode(errors="surrogatepass")) for each in texts)

    @property
    def size(self) -> int:
        """Bytes that the sample holds in memory until it is encoded."""
        return self.text_bytes + (len(self.media) if isinstance(self.media, bytes) else 0)


@dataclass(frozen=True)
class TokenSample:
    """One sample as token ids of its tokenizers (local ids). `media` is empty for text-only samples."""

    task: Task
    media: np.ndarray
    text: np.ndarray
    prompt: int = 0
    """Number of tokens at the beginning of the text that are given and never predicted. If there are any, the media
    are not predicted either."""

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
    """[R, T] int32, ids of the unified vocabulary; PAD in empty positions."""
    positions: np.ndarray
    """[R, T] int32, position within the sequence, from 0."""
    segment_ids: np.ndarray
    """[R, T] int32, 1 + index of the sequence in this batch; 0 for padding."""
    modality_ids: np.ndarray
    """[R, T] uint8, `Modality` of the token; 255 for TASK and padding."""
    maskable: np.ndarray
    """[R, T] bool, whether diffusion may mask the position."""
    sample_ids: np.ndarray
    """[S] int64, identifies the sequence and its dataset; independent of the number of ranks."""
    epochs: np.ndarray
    """[S] int32, number of complete passes over its dataset before this one."""
    slots: np.ndarray
    """[S] int32, index of the sequence in the global batch (stratifies the diffusion time)."""
    tasks: np.ndarray
    """[S] uint8, `Task` of each sequence."""

    @property
    def num_tokens(self) -> int:
        """Positions that are not padding."""
        return int((self.segment_ids > 0).sum())
