"""Small token datasets on disk, and a slow reference for their sequences."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from triptych.data.shards import Manifest, TokenDataset, write_shard
from triptych.data.types import TokenSample
from triptych.vocab import Modality, Task, Vocabulary

SMALL = Vocabulary(text=500, image=70, audio=40)


def write_set(
    folder: Path,
    task: Task,
    shards: Sequence[Sequence[tuple[Sequence[int], Sequence[int]]]],
    *,
    vocabulary: Vocabulary = SMALL,
    name: str | None = None,
    tokenizer: str = "a" * 64,
) -> TokenDataset:
    """Shards of (media, text) pairs of local ids."""
    folder.mkdir(parents=True, exist_ok=True)
    infos = [
        write_shard(
            folder / f"shard-{number:05d}.safetensors",
            [TokenSample(task, np.array(media, np.int32), np.array(text, np.int32)) for media, text in samples],
            vocabulary,
        )
        for number, samples in enumerate(shards)
    ]
    sizes = {"text": vocabulary.text, "image": vocabulary.image, "audio": vocabulary.audio}
    Manifest(
        name=name or task.label, task=task.name, vocabulary=sizes, tokenizers={"text": tokenizer}, shards=infos
    ).save(folder)
    return TokenDataset(folder)


def random_set(
    folder: Path,
    task: Task,
    counts: Sequence[int],
    rng: np.random.Generator,
    *,
    media: int = 20,
    text: int = 30,
    **options,
) -> TokenDataset:
    """Shards of random samples of up to `media` and `text` tokens."""

    def sample() -> tuple[list[int], list[int]]:
        size = 0 if task.partner is None else int(rng.integers(1, media + 1))
        ids = SMALL.data_size(task.partner) if task.partner is not None else 1
        return rng.integers(ids, size=size).tolist(), rng.integers(SMALL.text, size=rng.integers(text + 1)).tolist()

    return write_set(folder, task, [[sample() for _ in range(count)] for count in counts], **options)


def wrapped(text: Sequence[int], vocabulary: Vocabulary = SMALL) -> list[int]:
    return [vocabulary.bos(Modality.TEXT), *map(int, text), vocabulary.eos(Modality.TEXT)]


def pair(sample: TokenSample, seq_len: int, vocabulary: Vocabulary = SMALL) -> list[int]:
    """An image or audio clip and its text; the text is cut to fit."""
    modality = sample.task.partner
    assert modality is not None
    start = vocabulary.data_ids(modality).start
    media = [vocabulary.bos(modality), *(int(token) + start for token in sample.media), vocabulary.eos(modality)]
    room = seq_len - 1 - len(media) - 2
    return [vocabulary.task(sample.task), *media, *wrapped(sample.text[:room])]
