"""The unified vocabulary: a range of ids per modality, with its special tokens, and one task token per kind of sample.

    [ text: data | BOS EOS MASK PAD ][ TASK x 3 ][ image: data | BOS EOS MASK ][ audio: data | BOS EOS MASK ]

The three TASK ids follow the text range, so that the embedding blocks (text with PAD and TASK, image, audio) are three
contiguous slices. TASK ids belong to no modality.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path

import numpy as np

from triptych.errors import CheckpointError, UserError
from triptych.utils.arguments import shown
from triptych.utils.json_files import read_json


class Modality(IntEnum):
    """The modality of a token. The values are stored in shards and batches: never renumber them."""

    TEXT = 0
    IMAGE = 1
    AUDIO = 2


class Task(IntEnum):
    """The kind of a sequence. Its token is the first of the sequence and is never masked."""

    TEXT = 0
    IMAGE_TEXT = 1
    AUDIO_TEXT = 2

    @property
    def partner(self) -> Modality | None:
        """The modality that precedes the text; None for text-only sequences."""
        return {Task.TEXT: None, Task.IMAGE_TEXT: Modality.IMAGE, Task.AUDIO_TEXT: Modality.AUDIO}[self]

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


NOT_A_MODALITY = 255  # returned by `modality_of` for TASK ids

_BOS, _EOS, _MASK, _PAD = 0, 1, 2, 3  # offsets after the data ids; only the text range has PAD


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The unified vocabulary, defined by the vocabulary sizes of the three tokenizers."""

    text: int
    """Number of text tokenizer ids (cl100k_base: 100,277)."""
    image: int
    """Number of image codes (MoVQ: 16,384)."""
    audio: int
    """Number of audio codes (Higgs, ids shared by all codebooks: 1,024)."""

    def __post_init__(self) -> None:
        for name, size in asdict(self).items():
            if not isinstance(size, int) or isinstance(size, bool) or not 0 < size < 2**30:
                raise UserError(f"vocabulary size of {name} must be an integer between 1 and 2**30, got {shown(size)}.")

    # -- ranges ---------------------------------------------------------------------------------------------------

    def data_size(self, modality: Modality) -> int:
        """Number of data ids of a modality, without special tokens."""
        return (self.text, self.image, self.audio)[modality]

    @cached_property
    def _starts(self) -> tuple[int, int, int]:
        image = self.text + 4 + len(Task)
        return 0, image, image + self.image + 3

    def ids(self, modality: Modality) -> range:
        """All ids of a modality: its data, then BOS, EOS, MASK (and PAD for text)."""
        specials = 4 if modality == Modality.TEXT else 3
        start = self._starts[modality]
        return range(start, start + self.data_size(modality) + specials)

    def data_ids(self, modality: Modality) -> range:
        """The ids of a modality without special tokens."""
        start = self._starts[modality]
        return range(start, start + self.data_size(modality))

    @property
    def size(self) -> int:
        """Total number of ids: 117,698 with the paper's tokenizers."""
        return self.ids(Modality.AUDIO).stop

    @property
    def embedding_blocks(self) -> tuple[range, range, range]:
        """The three contiguous slices with their own hyperparameters: text with PAD and TASK, image, audio."""
        image, audio = self.ids(Modality.IMAGE), self.ids(Modality.AUDIO)
        return range(0, image.start), image, audio

    # -- special tokens ---------------------------------------------------------------------------------------------

    def _special(self, modality: Modality, offset: int) -> int:
        return self._starts[modality] + self.data_size(modality) + offset

    def bos(self, modality: Modality) -> int:
        return self._special(modality, _BOS)

    def eos(self, modality: Modality) -> int:
        return self._special(modality, _EOS)

    def mask(self, modality: Modality) -> int:
        return self._special(modality, _MASK)

    @cached_property
    def mask_ids(self) -> np.ndarray:
        """int64 [3]: the MASK id of every modality, indexed by `Modality`."""
        return np.array([self.mask(modality) for modality in Modality], np.int64)

    @property
    def pad(self) -> int:
        return self._special(Modality.TEXT, _PAD)

    def task(self, task: Task) -> int:
        return self.text + 4 + task

    # -- logits -------------------------------------------------------------------------------------------------------

    def num_logits(self, modality: Modality) -> int:
        """Columns of a modality's logits: its data ids, then BOS, then EOS. MASK and PAD are never predicted."""
        return self.data_size(modality) + 2

    def eos_column(self, modality: Modality) -> int:
        """The column of EOS in a modality's logits: the last one."""
        return self.data_size(modality) + 1

    # -- global and local ids ---------------------------------------------------------------------------------------

    def to_global(self, modality: Modality, local: np.ndarray) -> np.ndarray:
        """A tokenizer's own ids -> ids of the unified vocabulary."""
        local = np.asarray(local, dtype=np.int64)
        size = self.data_size(modality)
        if local.size and (local.min() < 0 or local.max() >= size):
            raise UserError(
                f"{modality.name.lower()} token ids must be in [0, {size}), got {local.min()} to {local.max()}; "
                "were they made with another tokenizer?"
            )
        return local + self._starts[modality]

    def to_local(self, modality: Modality, ids: np.ndarray) -> np.ndarray:
        """Ids of the unified vocabulary -> the tokenizer's own ids. All must be data ids of this modality."""
        ids = np.asarray(ids, dtype=np.int64)
        known = self.data_ids(modality)
        if ids.size and (ids.min() < known.start or ids.max() >= known.stop):
            raise UserError(
                f"expected only {modality.name.lower()} data ids in [{known.start}, {known.stop}), "
                f"got {ids.min()} to {ids.max()}; drop special tokens first."
            )
        return ids - known.start

    @cached_property
    def modality_table(self) -> np.ndarray:
        """uint8 of length `size`: the modality of every id, NOT_A_MODALITY for TASK ids."""
        table = np.full(self.size, NOT_A_MODALITY, dtype=np.uint8)
        for modality in Modality:
            ids = self.ids(modality)
            table[ids.start : ids.stop] = modality
        return table

    def modality_of(self, ids: np.ndarray) -> np.ndarray:
        """The modality of each id (NOT_A_MODALITY for TASK ids)."""
        return self.modality_table[ids]

    # -- saved with a model -------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> str:
        """Changes when the meaning of any id changes."""
        return hashlib.sha256(json.dumps(self._as_json(), sort_keys=True).encode()).hexdigest()

    def _as_json(self) -> dict:
        return {"format": "triptych-vocabulary", "version": 1, **asdict(self)}

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self._as_json(), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        try:
            fields = read_json(path)
            if fields.pop("format") != "triptych-vocabulary" or fields.pop("version") != 1:
                raise KeyError("format")
            return cls(**fields)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is not a Triptych vocabulary of version 1 ({error!r}).") from error


def paper_vocabulary() -> Vocabulary:
    """cl100k_base, SBER-MoVQGAN and Higgs Audio v2: 117,698 ids."""
    return Vocabulary(text=100_277, image=16_384, audio=1_024)
