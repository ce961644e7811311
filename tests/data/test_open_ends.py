"""Variable-length training: EOS up to a fixed length, with the configured probability, maskable where repeated."""

import hashlib
import json
import pickle
from dataclasses import fields, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from token_sets import SMALL, pair, random_set, wrapped, write_set

from triptych.data.loader import Loader, LoaderConfig, Step
from triptych.data.pack import Grouped, Packed, Padded
from triptych.data.sequences import NO_OPEN_ENDS, Documents, OpenEnds, Pairs, SequenceSource
from triptych.data.shards import TokenDataset
from triptych.data.types import Batch
from triptych.errors import DataError, UserError
from triptych.tokenizers.text import ByteBPE
from triptych.vocab import Modality, Task, Vocabulary

TEXT_END, AUDIO_END, IMAGE_END = (SMALL.eos(m) for m in (Modality.TEXT, Modality.AUDIO, Modality.IMAGE))
ALWAYS = OpenEnds(probability=1.0, text=24, audio=16)
OFTEN = OpenEnds(probability=0.5, text=24, audio=16)
CONFIG = LoaderConfig(
    seq_len=64,
    global_batch=24,
    seed=5,
    prefetch=0,
    document_attention=True,
    mask_text_eos="none",
    open_ends=OFTEN,
)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[Task, TokenDataset]:
    folder, rng = tmp_path_factory.mktemp("sets"), np.random.default_rng(0)
    return {task: random_set(folder / task.label, task, [30, 0, 11], rng) for task in Task}


def source_of(dataset: TokenDataset, ends: OpenEnds, seq_len: int = 64, seed: int | None = 3) -> SequenceSource:
    make = Documents if dataset.task == Task.TEXT else Pairs
    return make(dataset, seq_len, seed, ends)


def read(source: SequenceSource, index: int, epoch: int = 0) -> list[int]:
    """A sequence. Checks that exactly its positions are written."""
    length = int(source.lengths(np.array([index]), np.array([epoch]))[0])
    buffer = np.full(length + 2, -7, np.int32)
    source.write(index, epoch, buffer[1:-1])
    assert (buffer[1:-1] >= 0).all(), "not every position was written"
    assert buffer[[0, -1]].tolist() == [-7, -7]
    return buffer[1:-1].tolist()


def closed(tokens: list[int]) -> list[int]:
    """The same sequence with every run of EOS shortened to one."""
    shortened = []
    for token, run in groupby(tokens):
        shortened += [token] if token in (TEXT_END, AUDIO_END, IMAGE_END) else list(run)
    return shortened


def run_of(tokens: list[int], end: int) -> int:
    """Number of this EOS. Checks that they are adjacent."""
    places = [place for place, token in enumerate(tokens) if token == end]
    assert places == list(range(places[0], places[0] + len(places)))
    return len(places)


def slow_fill(length: int, room: int, is_open: bool) -> int:
    return room - length if is_open and room - length >= 2 else 1


# -- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ends", [ALWAYS, OFTEN, OpenEnds(probability=1.0, text=24), OpenEnds(probability=1.0)], ids=str
)
@pytest.mark.parametrize("task", list(Task))
def test_nothing_but_the_number_of_eos_changes(sets: dict[Task, TokenDataset], task: Task, ends: OpenEnds) -> None:
    source, plain = source_of(sets[task], ends), source_of(sets[task], NO_OPEN_ENDS)
    assert len(source) == len(plain)
    for epoch in range(3):
        indices = np.arange(len(source))
        lengths = source.lengths(indices, np.full_like(indices, epoch))
        for index in range(len(source)):
            tokens = read(source, index, epoch)
            assert len(tokens) == lengths[index] <= 64
            assert closed(tokens) == read(plain, index, epoch)


@pytest.mark.parametrize("task", [Task.IMAGE_TEXT, Task.AUDIO_TEXT])
def test_open_ends_of_pairs_reach_their_length(sets: dict[Task, TokenDataset], task: Task) -> None:
    dataset, source = sets[task], source_of(sets[task], ALWAYS)
    opened = set()
    for index in range(len(source)):
        sample, tokens = dataset[index], read(source, index)
        text = slow_fill(len(sample.text), 24, True)
        media = slow_fill(len(sample.media), 16, task == Task.AUDIO_TEXT)
        assert run_of(tokens, TEXT_END) == text
        assert run_of(tokens, AUDIO_END if task == Task.AUDIO_TEXT else IMAGE_END) == media
        start = tokens.index(SMALL.bos(Modality.TEXT)) + 1
        if text > 1:
            assert len(tokens) - start == 24
        if media > 1:
            assert start - 3 == 16  # between TASK BOS and BOS
        opened.add((text > 1, media > 1))
    assert len(opened) == (4 if task == Task.AUDIO_TEXT else 2)  # all cases occur


def test_room_for_one_eos_is_not_filled(tmp_path: Path) -> None:
    """With room for one EOS a sequence is the same open or closed, so it is not filled; with two it is."""
    dataset = write_set(tmp_path, Task.AUDIO_TEXT, [[([1] * m, [2] * n) for m, n in ((15, 22), (14, 23), (16, 24))]])
    source = Pairs(dataset, 64, 3, ALWAYS)
    runs = [(run_of(t, AUDIO_END), run_of(t, TEXT_END)) for t in (read(source, index) for index in range(3))]
    assert runs == [(1, 2), (2, 1), (1, 1)]


@pytest.mark.parametrize("seq_len", [26, 42, 43, 46])  # both ends take 3 + 16 + 24
def test_sequences_that_would_not_fit_are_not_filled(sets: dict[Task, TokenDataset], seq_len: int) -> None:
    dataset = sets[Task.AUDIO_TEXT]
    source = Pairs(dataset, seq_len, 3, ALWAYS)
    filled = 0
    for index in range(len(source)):
        sample, tokens = dataset[index], read(source, index)
        media, text = slow_fill(len(sample.media), 16, True), slow_fill(len(sample.text), 24, True)
        if 3 + len(sample.media) + media + len(sample.text) + text > seq_len:
            assert tokens == pair(sample, seq_len)
        else:
            assert (run_of(tokens, AUDIO_END), run_of(tokens, TEXT_END)) == (media, text)
            filled += media + text > 2
    assert (filled > 0) == (seq_len >= 43)
    assert filled < len(source)


@pytest.mark.parametrize(("seq_len", "room"), [(64, 24), (26, 24), (25, 23), (20, 18)])
def test_documents_are_filled_if_they_are_whole_and_there_is_room(
    sets: dict[Task, TokenDataset], seq_len: int, room: int
) -> None:
    dataset = sets[Task.TEXT]
    source = Documents(dataset, seq_len, 3, ALWAYS)
    texts = [dataset[i].text.tolist() for i in range(len(dataset)) if len(dataset[i].text)]
    index, cases = 0, set()
    for text in texts:
        pieces = -(-(len(text) + 2) // (seq_len - 1))
        tokens = [read(source, index + piece) for piece in range(pieces)]
        index += pieces
        assert all(len(piece) <= seq_len for piece in tokens)
        body = [token for piece in tokens for token in piece[1:]]
        fill = slow_fill(len(text), room, pieces == 1)
        assert body == wrapped(text) + [TEXT_END] * (fill - 1)
        cases.add((pieces == 1, fill > 1))
    assert index == len(source)
    assert {(True, True), (True, False)} <= cases or seq_len == 20
    assert (seq_len > 32) or (False, False) in cases


def test_without_a_seed_all_ends_are_closed(sets: dict[Task, TokenDataset]) -> None:
    for dataset in sets.values():
        source, plain = (source_of(dataset, ends, seed=None) for ends in (ALWAYS, NO_OPEN_ENDS))
        assert [read(source, i) for i in range(len(source))] == [read(plain, i) for i in range(len(plain))]


def test_a_text_that_is_cut_at_its_first_eos_is_the_text(tmp_path: Path) -> None:
    texts = ["the cat sat", "on the mat", "", "and the dog lay on the cat and on the mat", "a"]
    tokenizer = ByteBPE.train(texts * 3, 270)
    vocabulary = Vocabulary(text=tokenizer.vocab_size, image=16, audio=16)
    samples = [([3, 4, 5], ids) for ids in tokenizer.encode(texts)]
    eos = vocabulary.eos(Modality.TEXT)
    for task, expected in ((Task.TEXT, [text for text in texts if text]), (Task.AUDIO_TEXT, texts)):
        media_too = task == Task.AUDIO_TEXT
        dataset = write_set(
            tmp_path / task.label,
            task,
            [[(media if media_too else [], text) for media, text in samples]],
            vocabulary=vocabulary,
        )
        source = source_of(dataset, OpenEnds(probability=1.0, text=60, audio=9), seq_len=90)
        for index, text in enumerate(expected):
            tokens = read(source, index)
            start = tokens.index(vocabulary.bos(Modality.TEXT)) + 1
            assert tokens.count(eos) > 1
            ids = np.array(tokens[start : tokens.index(eos)], np.int64)
            assert tokenizer.decode([vocabulary.to_local(Modality.TEXT, ids)]) == [text]
            if media_too:
                audio = np.array(tokens[2 : tokens.index(vocabulary.eos(Modality.AUDIO))])
                assert vocabulary.to_local(Modality.AUDIO, audio).tolist() == [3, 4, 5]


# -- probability -----------------------------------------------------------------------------------------------------


def opened(source: Pairs | Documents, media: int, text: int, epochs: int) -> tuple[np.ndarray, np.ndarray]:
    """Whether the ends of audio and of text are open, for equal samples of many indices and epochs."""
    indices, numbers = np.tile(np.arange(len(source)), epochs), np.repeat(np.arange(epochs), len(source))
    lengths = source.lengths(indices, numbers)
    extra = lengths - lengths.min()
    audio_fill, text_fill = source.open_ends.audio - media - 1, source.open_ends.text - text - 1
    both = audio_fill + text_fill
    assert set(extra.tolist()) <= {0, audio_fill, text_fill, both}
    return np.isin(extra, [audio_fill, both]), np.isin(extra, [text_fill, both])


@pytest.mark.parametrize(("probability", "audio_share"), [(0.15, 1.0), (0.5, 0.3), (0.9, 1.0)])
def test_ends_are_open_with_the_configured_probability_independently(
    tmp_path: Path, probability: float, audio_share: float
) -> None:
    dataset = write_set(tmp_path, Task.AUDIO_TEXT, [[([1] * 4, [2] * 3)] * 200])
    ends = OpenEnds(probability=probability, text=9, audio=20, audio_share=audio_share)
    audio, text = opened(Pairs(dataset, 64, 3, ends), 4, 3, epochs=50)
    margin = 4 * np.sqrt(probability * (1 - probability) / 10_000)
    assert audio.mean() == pytest.approx(probability * audio_share, abs=margin)
    assert text.mean() == pytest.approx(probability, abs=margin)
    assert abs(np.corrcoef(audio, text)[0, 1]) < 0.04  # four deviations
    # They do not depend on the previous sample or epoch either.
    for shift in (1, 200):
        assert abs(np.corrcoef(text, np.roll(text, shift))[0, 1]) < 0.04
    # In every epoch, and for every sample: no sample is always open.
    assert (abs(text.reshape(50, 200).mean(1) - probability) < 5 * np.sqrt(probability * (1 - probability) / 200)).all()
    assert (abs(text.reshape(50, 200).mean(0) - probability) < 5 * np.sqrt(probability * (1 - probability) / 50)).all()


def test_ends_of_documents_are_open_with_the_configured_probability(tmp_path: Path) -> None:
    dataset = write_set(tmp_path, Task.TEXT, [[([], [2] * 5)] * 100, [([], [2] * 5)] * 100])
    source = Documents(dataset, 64, 3, OpenEnds(probability=0.3, text=20))
    lengths = source.lengths(np.tile(np.arange(200), 50), np.repeat(np.arange(50), 200))
    assert set(lengths.tolist()) == {8, 22}
    assert (lengths == 22).mean() == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / 10_000))


def test_ends_are_a_function_of_seed_epoch_and_index(sets: dict[Task, TokenDataset]) -> None:
    for dataset in sets.values():
        source = source_of(dataset, OFTEN)
        indices = np.arange(len(source))

        def lengths(other: SequenceSource, epoch: int, indices: np.ndarray = indices) -> list[int]:
            return other.lengths(indices, np.full_like(indices, epoch)).tolist()

        first = lengths(source, 0)
        assert first == lengths(source_of(dataset, OFTEN), 0)
        assert first == lengths(pickle.loads(pickle.dumps(source)), 0)
        assert first == lengths(source, 0, indices[::-1].copy())[::-1]
        assert first == [lengths(source, 0, indices[i : i + 1])[0] for i in indices]
        assert first != lengths(source, 1)
        assert first != lengths(source_of(dataset, OFTEN, seed=4), 0)
        assert read(source, 0, 5) == read(source_of(dataset, OFTEN), 0, 5)


# -- in batches -------------------------------------------------------------------------------------------------------


def steps(sets: dict[Task, TokenDataset], number: int, config: LoaderConfig = CONFIG, **options) -> list[Step]:
    with Loader(list(sets.values()), config, num_steps=number, **options) as loader:
        return list(loader)


def sequences_of(batch: Batch) -> dict[int, list[list[int]]]:
    """By slot: tokens, maskable positions and position ids."""
    return {
        slot: [
            getattr(batch, name)[batch.segment_ids == n + 1].tolist() for name in ("tokens", "maskable", "positions")
        ]
        for n, slot in enumerate(batch.slots.tolist())
    }


def digest(parts: list[Step]) -> str:
    sequences: dict[int, list] = {}
    for part in parts:
        for batch in part.micro_batches:
            sequences |= sequences_of(batch)
    assert sorted(sequences) == list(range(parts[0].num_sequences))
    return hashlib.sha256(json.dumps(sorted(sequences.items())).encode()).hexdigest()


@pytest.mark.parametrize("layout", [Padded(), Packed(row_length=200), Grouped(max_tokens=300)], ids=str)
@pytest.mark.parametrize("rule", ["none", "packed", "all"])
def test_repeated_eos_may_be_masked_and_single_ones_follow_mask_text_eos(
    sets: dict[Task, TokenDataset], layout, rule
) -> None:
    kinds = set()
    for step in steps(sets, 6, replace(CONFIG, layout=layout, mask_text_eos=rule)):
        for batch in step.micro_batches:
            assert not batch.maskable[batch.segment_ids == 0].any()
            for number, (tokens, maskable, _) in enumerate(sequences_of(batch).values()):
                task = int(batch.tasks[number])
                single = {TEXT_END: rule == "all" or (rule == "packed" and task == Task.TEXT)}
                expected = []
                for token, run in groupby(tokens):
                    size = len(list(run))
                    if token in (TEXT_END, AUDIO_END, IMAGE_END):
                        expected += [size > 1 or single.get(token, False)] * size
                        kinds.add((token, size > 1))
                    else:
                        expected += [any(token in SMALL.data_ids(m) for m in Modality)] * size
                assert maskable == expected
    wanted = {(end, is_open) for end in (TEXT_END, AUDIO_END) for is_open in (True, False)}
    assert kinds == wanted | {(IMAGE_END, False)}


def test_a_probability_of_zero_changes_nothing(sets: dict[Task, TokenDataset]) -> None:
    never = replace(CONFIG, open_ends=OpenEnds(probability=0.0, text=24, audio=16))
    before = replace(CONFIG, open_ends=NO_OPEN_ENDS)
    for left, right in zip(steps(sets, 4, never), steps(sets, 4, before), strict=True):
        for a, b in zip(left.micro_batches, right.micro_batches, strict=True):
            assert all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(Batch))
            for tokens, maskable, _ in sequences_of(a).values():
                assert tokens == closed(tokens)
                assert not any(m for t, m in zip(tokens, maskable) if t in (TEXT_END, AUDIO_END, IMAGE_END))
    loaders = [Loader(list(sets.values()), config) for config in (never, before)]
    assert loaders[0].fingerprint == loaders[1].fingerprint
    assert "open_ends" not in loaders[0].fingerprint  # runs of versions without open ends can be resumed


def test_open_ends_do_not_change_the_order_of_samples(sets: dict[Task, TokenDataset]) -> None:
    for left, right in zip(steps(sets, 4), steps(sets, 4, replace(CONFIG, open_ends=NO_OPEN_ENDS)), strict=True):
        a, b = ({s: t for x in step.micro_batches for s, t in sequences_of(x).items()} for step in (left, right))
        assert {slot: closed(tokens) for slot, (tokens, *_) in a.items()} == {slot: t for slot, (t, *_) in b.items()}
        assert a != b


def test_ranks_layouts_and_workers_see_the_same_ends(sets: dict[Task, TokenDataset]) -> None:
    expected = [digest([step]) for step in steps(sets, 5)]
    assert len(set(expected)) == 5
    for ranks, layout in ((2, Packed()), (2, Grouped(max_tokens=256)), (3, Padded())):
        config = replace(CONFIG, layout=layout)
        parts = [steps(sets, 5, config, rank=rank, world_size=ranks) for rank in range(ranks)]
        assert [digest(list(step)) for step in zip(*parts)] == expected
    for step in steps(sets, 5):
        assert step.num_tokens == sum(batch.num_tokens for batch in step.micro_batches)


def test_evaluation_has_no_open_ends(sets: dict[Task, TokenDataset]) -> None:
    dataset = sets[Task.AUDIO_TEXT]
    with Loader([dataset], replace(CONFIG, open_ends=ALWAYS, global_batch=100), one_pass=True) as loader:
        (step,) = list(loader)
    sequences = {s: t for batch in step.micro_batches for s, t in sequences_of(batch).items()}
    assert [sequences[slot][0] for slot in range(len(dataset))] == [pair(dataset[i], 64) for i in range(len(dataset))]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (replace(OFTEN, probability=0.4), r"open_ends\.probability was 0\.5, is 0\.4\."),
        (replace(OFTEN, text=23), r"open_ends\.text was 24, is 23\."),
        (replace(OFTEN, audio=17), r"open_ends\.audio was 16, is 17\."),
        (NO_OPEN_ENDS, r"open_ends was \{'probability': 0.5, 'text': 24, 'audio': 16, .*\}, is None\."),
    ],
)
def test_a_run_with_other_open_ends_is_not_resumed(
    sets: dict[Task, TokenDataset], changed: OpenEnds, message: str
) -> None:
    state = json.loads(json.dumps(Loader(list(sets.values()), CONFIG).state()))
    Loader(list(sets.values()), CONFIG).restore(state)
    other = Loader(list(sets.values()), replace(CONFIG, open_ends=changed))
    with pytest.raises(DataError, match=message):
        other.restore(state)


@pytest.mark.parametrize(
    "wrong", [{"probability": -0.1}, {"probability": 1.1}, {"text": -1}, {"audio": -2}, {"audio_share": 2}]
)
def test_wrong_open_ends_are_refused(wrong: dict) -> None:
    with pytest.raises(UserError, match="open_ends needs probabilities between 0 and 1 and lengths"):
        OpenEnds(**wrong)


def test_open_ends_must_fit_a_sequence():
    with pytest.raises(UserError, match="leave room for 5 special tokens in seq_len=32"):
        replace(CONFIG, seq_len=32, open_ends=replace(OFTEN, text=28))
