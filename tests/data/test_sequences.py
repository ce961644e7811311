"""Sequences hold every token once, plus special tokens, and their lengths are known before they are read."""

import pickle
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from token_sets import SMALL, pair, random_set, wrapped, write_set

from triptych.data import sequences
from triptych.data.sequences import Documents, PackedText, Pairs, SequenceSource
from triptych.data.shards import TokenDataset
from triptych.errors import DataError
from triptych.vocab import Modality, Task

BOS, EOS, TASK = SMALL.bos(Modality.TEXT), SMALL.eos(Modality.TEXT), SMALL.task(Task.TEXT)


def read(source: SequenceSource, index: int, epoch: int = 0) -> list[int]:
    out = np.full(int(source.lengths(np.array([index]), np.array([epoch]))[0]), -1, np.int32)
    source.write(index, epoch, out)
    assert (out >= 0).all(), "not every position was written"
    return out.tolist()


def documents_in(tokens: list[int]) -> list[tuple[int, ...]]:
    """Split [BOS a EOS BOS b EOS] into (a, b)."""
    documents, current = [], None
    for token in tokens:
        if token == BOS:
            assert current is None
            current = []
        elif token == EOS:
            assert current is not None
            documents.append(tuple(current))
            current = None
        else:
            assert current is not None
            current.append(token)
    assert current is None
    return documents


@pytest.fixture(params=[4, 1024], ids=["many blocks", "one block"])
def texts(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokenDataset:
    monkeypatch.setattr(sequences, "BLOCK", request.param)
    return random_set(tmp_path / "texts", Task.TEXT, [13, 0, 40, 1, 21], np.random.default_rng(1), text=40)


def rings(dataset: TokenDataset, seq_len: int, source: PackedText, epoch: int) -> list[list[int]]:
    """The tokens of each shard's rows, without TASK. Checks that the last row continues with the first document."""
    shards, row = [], 0
    for shard in dataset.manifest.shards:
        length = shard.tokens + 2 * shard.samples
        tokens: list[int] = []
        for _ in range(-(-length // (seq_len - 1))):
            sequence = read(source, row, epoch)
            assert sequence[0] == TASK
            assert len(sequence) == min(seq_len, length + 1)
            tokens += sequence[1:]
            row += 1
        assert tokens[length:] == tokens[: len(tokens) - length]
        shards.append(tokens[:length])
    assert row == len(source)
    return shards


@pytest.mark.parametrize("seq_len", [8, 32, 200])
def test_rows_hold_every_document_once_per_epoch(texts: TokenDataset, seq_len: int) -> None:
    source = PackedText(texts, seq_len, seed=3)
    epochs = [rings(texts, seq_len, source, epoch) for epoch in range(3)]
    for epoch in epochs:
        first = 0
        for ring, shard in zip(epoch, texts.manifest.shards):
            expected = Counter(tuple(texts[first + i].text.tolist()) for i in range(shard.samples))
            assert Counter(documents_in(ring)) == expected
            first += shard.samples
    assert epochs[0] != epochs[1] != epochs[2]  # every epoch has another order
    assert epochs[0] == rings(texts, seq_len, PackedText(texts, seq_len, seed=3), 0)
    assert epochs[0] != rings(texts, seq_len, PackedText(texts, seq_len, seed=4), 0)


def test_without_a_seed_rows_are_in_order_and_the_last_is_short(texts: TokenDataset) -> None:
    source = PackedText(texts, 32, seed=None)
    tokens = [token for row in range(len(source)) for token in read(source, row)[1:]]
    assert tokens == [token for i in range(len(texts)) for token in wrapped(texts[i].text)]


def test_a_small_shard_does_not_repeat_itself_within_a_row(tmp_path: Path) -> None:
    dataset = write_set(tmp_path, Task.TEXT, [[([], [1, 2]), ([], [3])]])
    row = read(PackedText(dataset, 64, seed=0), 0)
    assert Counter(documents_in(row[1:])) == Counter([(1, 2), (3,)])


def test_windows_are_parts_of_their_rows(texts: TokenDataset) -> None:
    whole, windows = PackedText(texts, 24, seed=3), PackedText(texts, 24, seed=3, p_subsample=0.5)
    indices, epochs = np.tile(np.arange(len(whole)), 20), np.repeat(np.arange(20), len(whole))
    lengths = windows.lengths(indices, epochs)
    shorter = lengths < whole.lengths(indices, epochs)
    assert 0.4 < shorter.mean() < 0.6
    assert lengths.min() >= 3
    assert set(lengths.tolist()) == set(range(3, 25))
    for index, epoch in zip(indices[shorter][:100].tolist(), epochs[shorter][:100].tolist()):
        window, row = read(windows, index, epoch), read(whole, index, epoch)
        assert window[0] == TASK
        assert any(window[1:] == row[start : start + len(window) - 1] for start in range(1, len(row)))
    assert read(windows, 0, 0) == read(PackedText(texts, 24, seed=3, p_subsample=0.5), 0, 0)


def test_documents_are_cut_evenly_and_left_out_if_empty(tmp_path: Path) -> None:
    texts = [list(range(n)) for n in (3, 0, 50, 17, 18, 200)]
    dataset = write_set(
        tmp_path, Task.TEXT, [[([], text) for text in texts[:3]], [], [([], text) for text in texts[3:]]]
    )
    source = Documents(dataset, seq_len=20)
    sequences_ = [read(source, index, epoch) for index, epoch in zip(range(len(source)), [0, 1] * 50)]
    assert all(sequence[0] == TASK and len(sequence) <= 20 for sequence in sequences_)
    assert [token for sequence in sequences_ for token in sequence[1:]] == [
        token for text in texts if text for token in wrapped(text)
    ]
    pieces = [len(sequence) for sequence in sequences_]
    assert pieces == [6, 18, 18, 19, 20, 11, 11, *pieces[7:]]  # 52 wrapped tokens in three; 19 in one, 20 in two
    assert min(pieces[7:]) == 19  # 202 in eleven
    assert max(pieces[7:]) == 20


@pytest.mark.parametrize("task", [Task.IMAGE_TEXT, Task.AUDIO_TEXT])
@pytest.mark.parametrize("seq_len", [25, 40, 100])
def test_pairs_keep_their_media_and_cut_their_text(tmp_path: Path, task: Task, seq_len: int) -> None:
    dataset = random_set(tmp_path, task, [9, 0, 6], np.random.default_rng(2))
    source = Pairs(dataset, seq_len)
    assert len(source) == 15
    indices = np.arange(15)[::-1].copy()
    assert source.lengths(indices, indices).tolist() == [len(pair(dataset[i], seq_len)) for i in indices]
    for index in range(15):
        assert read(source, index) == pair(dataset[index], seq_len)


def test_media_that_do_not_fit_are_named_with_a_seq_len_that_works(tmp_path: Path) -> None:
    dataset = write_set(tmp_path, Task.IMAGE_TEXT, [[([1], [])], [([1], [2]), ([3] * 12, [])]])
    with pytest.raises(
        DataError, match=r"shard-00001.safetensors: sample 1 has 12 media tokens.*Use loader.seq_len=17 or more"
    ):
        Pairs(dataset, 16)
    assert len(Pairs(dataset, 17)) == 3


@pytest.mark.parametrize("make", [lambda d: PackedText(d, 24, 3, 0.1), lambda d: Documents(d, 24)])
def test_a_source_can_be_sent_to_a_worker(texts: TokenDataset, make) -> None:
    source = make(texts)
    before = [read(source, index) for index in range(len(source))]
    copy = pickle.loads(pickle.dumps(source))
    assert [read(copy, index) for index in range(len(copy))] == before


def test_a_missing_shard_is_named(texts: TokenDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    (texts.folder / "shard-00002.safetensors").unlink()
    with pytest.raises(DataError, match=r"shard-00002.safetensors is missing"):
        read(PackedText(texts, 32, seed=0), 20)
