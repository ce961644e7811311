"""Shards are read as they were written, and every damaged bit is detected."""

import hashlib
import json
import os
import pickle
import struct
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

from triptych.data.shards import MANIFEST, Manifest, ShardInfo, TokenDataset, UnreadableError, write_shard
from triptych.data.types import TokenSample
from triptych.errors import DataError
from triptych.vocab import Task, Vocabulary, paper_vocabulary

SMALL = Vocabulary(text=300, image=70, audio=10)


def sample(media: list[int], text: list[int]) -> TokenSample:
    return TokenSample(Task.IMAGE_TEXT, np.array(media, np.int32), np.array(text, np.int32))


SAMPLES = [sample([1, 2, 3], [4, 5]), sample([], [6]), sample([7, 8], []), sample([], []), sample([9] * 6, [1] * 5)]


def make(folder: Path, shards: list[list[TokenSample]], vocabulary: Vocabulary = SMALL) -> TokenDataset:
    folder.mkdir(exist_ok=True)
    infos = [
        write_shard(folder / f"shard-{number:05d}.safetensors", samples, vocabulary)
        for number, samples in enumerate(shards)
    ]
    sizes = {"text": vocabulary.text, "image": vocabulary.image, "audio": vocabulary.audio}
    manifest = Manifest(name="set", task="IMAGE_TEXT", vocabulary=sizes, tokenizers={"text": "a" * 64}, shards=infos)
    manifest.save(folder)
    return TokenDataset(folder)


def same(left: TokenSample, right: TokenSample) -> bool:
    return left.media.tolist() == right.media.tolist() and left.text.tolist() == right.text.tolist()


def test_round_trip_over_shards_of_any_size(tmp_path: Path) -> None:
    dataset = make(tmp_path, [SAMPLES[:2], [], SAMPLES[2:]])
    assert len(dataset) == len(SAMPLES)
    assert all(same(dataset[index], expected) for index, expected in enumerate(SAMPLES))
    assert dataset.lengths.tolist() == [expected.num_tokens for expected in SAMPLES]
    assert dataset.manifest.num_tokens == sum(expected.num_tokens for expected in SAMPLES)
    assert dataset.verify() == []
    with pytest.raises(IndexError):
        dataset[len(SAMPLES)]


def test_large_vocabularies_keep_every_id(tmp_path: Path) -> None:
    dataset = make(tmp_path, [[sample([16_383], [100_276, 65_536])]], paper_vocabulary())
    assert dataset[0].text.tolist() == [100_276, 65_536]


ids = st.lists(st.integers(0, 69), max_size=30)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(ids, ids), max_size=8))
def test_round_trip_of_random_samples(tmp_path_factory: pytest.TempPathFactory, content: list) -> None:
    samples = [sample(media, text) for media, text in content]
    dataset = make(tmp_path_factory.mktemp("set"), [samples])
    assert all(same(dataset[index], expected) for index, expected in enumerate(samples))


def test_a_pickled_dataset_opens_its_own_files(tmp_path: Path) -> None:
    dataset = make(tmp_path, [SAMPLES])
    assert len(dataset.lengths) == len(SAMPLES)  # opens the shard
    content = pickle.dumps(dataset)
    assert len(content) < 5000
    assert same(pickle.loads(content)[4], SAMPLES[4])


def regions(path: Path) -> dict[str, range]:
    """The byte range of each part of a shard file."""
    content = path.read_bytes()
    (header_bytes,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + header_bytes])
    ranges = {"length": range(8), "header": range(8, 8 + header_bytes)}
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        ranges[name] = range(8 + header_bytes + start, 8 + header_bytes + stop)
    return ranges


def damage_is_noticed(folder: Path) -> bool:
    """Whether opening the dataset or reading all of it raises DataError."""
    try:
        dataset = TokenDataset(folder)
        for index in range(len(dataset)):
            dataset[index]
    except DataError as error:
        return "shard-00000.safetensors" in str(error)
    return False


@pytest.mark.parametrize("region", ["length", "header", "tokens", "offsets", "splits", "crc32"])
def test_every_flipped_bit_is_noticed_on_read(tmp_path: Path, region: str) -> None:
    make(tmp_path, [SAMPLES])
    path = tmp_path / "shard-00000.safetensors"
    content = path.read_bytes()
    for place in regions(path)[region]:
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            assert damage_is_noticed(tmp_path), f"bit {bit} of byte {place}"


def test_damage_after_opening_is_noticed_too(tmp_path: Path) -> None:
    dataset = make(tmp_path, [SAMPLES])
    dataset[4]
    path = tmp_path / "shard-00000.safetensors"
    with open(path, "r+b") as file:  # in place, under the memory map
        file.seek(-3, os.SEEK_END)
        byte = file.read(1)
        file.seek(-3, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(DataError, match="sample 4 does not match its checksum"):
        dataset[4]
    assert same(dataset[0], SAMPLES[0])


@pytest.mark.parametrize("size", [0, 4, 8, 100, -1])
def test_a_truncated_shard_is_noticed(tmp_path: Path, size: int) -> None:
    make(tmp_path, [SAMPLES])
    path = tmp_path / "shard-00000.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert damage_is_noticed(tmp_path)
    assert "shard-00000" in TokenDataset(tmp_path).verify()[0]


def test_a_missing_or_exchanged_shard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make(tmp_path, [SAMPLES[:2], SAMPLES[2:]])
    first, second = (tmp_path / info.file for info in dataset.manifest.shards)
    content = first.read_bytes()
    first.unlink()
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(DataError, match=r"shard-00000\.safetensors is missing"):
        TokenDataset(tmp_path)[0]
    first.write_bytes(second.read_bytes())
    with pytest.raises(DataError, match=r"shard-00000\.safetensors does not match manifest\.json"):
        TokenDataset(tmp_path)[0]
    first.write_bytes(content)
    assert TokenDataset(tmp_path).verify() == []


def test_hostile_headers_are_refused(tmp_path: Path) -> None:
    make(tmp_path, [SAMPLES])
    path = tmp_path / "shard-00000.safetensors"
    for header in (
        {"tokens": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}},
        {"tokens": {"dtype": "U16", "shape": [2**62], "data_offsets": [0, 2**63]}},
        {"tokens": {"dtype": "U16", "shape": [-1], "data_offsets": [2, 0]}},
        {"tokens": {"dtype": "U16", "shape": [1, 1], "data_offsets": [0, 2]}},
        {"tokens": {"dtype": "U16"}},
        {"tokens": 3},
        [],
    ):
        content = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(content)) + content + bytes(64))
        assert damage_is_noticed(tmp_path), header
    path.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    assert damage_is_noticed(tmp_path)


def test_an_edited_manifest_is_refused(tmp_path: Path) -> None:
    make(tmp_path, [SAMPLES])
    path = tmp_path / MANIFEST
    content = json.loads(path.read_text())
    for change in ({"task": "TEXT"}, {"version": 2}, {"task": "NOISE"}, {"shards": 3}, {"more": 1}):
        path.write_text(json.dumps(content | change))
        with pytest.raises(DataError, match="manifest"):
            TokenDataset(tmp_path)
    path.write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        TokenDataset(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="not a finished dataset"):
        TokenDataset(tmp_path)


def test_a_manifest_cannot_point_outside(tmp_path: Path) -> None:
    inside = tmp_path / "set"
    dataset = make(inside, [SAMPLES])
    write_shard(tmp_path / "outside.safetensors", SAMPLES, SMALL)
    info = dataset.manifest.shards[0]
    shards = [ShardInfo("../outside.safetensors", info.sha256, info.samples, info.tokens)]
    Manifest(**{**vars(dataset.manifest), "shards": shards}).save(inside)
    with pytest.raises(DataError, match="outside its folder"):
        TokenDataset(inside)[0]


def test_no_more_files_are_open_than_a_process_may_have(tmp_path: Path) -> None:
    dataset = make(tmp_path / "set", [[sample([n % 70], [n % 300])] for n in range(400)])
    for index in [*range(400), *range(0, 400, 7)]:
        assert dataset[index].text.tolist() == [index % 300]
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert 0 < sum(link.startswith(str(tmp_path)) for link in links) <= 300


def test_the_longest_media_is_in_the_manifest(tmp_path: Path) -> None:
    dataset = make(tmp_path / "set", [SAMPLES[:2], SAMPLES[2:], []])
    assert [info.longest_media for info in dataset.manifest.shards] == [3, 6, 0]


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3},
        {"settings": None},
        {"bad_samples": "x"},
        {"shards": [{"file": 5, "sha256": "", "samples": 1, "tokens": 1}]},
        {"shards": [{"file": "a", "sha256": "", "samples": -5, "tokens": 1}]},
        {"shards": [{"file": "a", "sha256": "", "samples": 1, "tokens": 10**30}]},
    ],
)
def test_a_manifest_with_implausible_values_is_one_clear_line(tmp_path: Path, change: dict) -> None:
    make(tmp_path / "set", [SAMPLES])
    path = tmp_path / "set" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match="is not a Triptych manifest") as caught:
        TokenDataset(tmp_path / "set")
    assert "\n" not in str(caught.value)


def test_verify_reports_a_manifest_that_does_not_match(tmp_path: Path) -> None:
    dataset = make(tmp_path / "set", [SAMPLES])
    (info,) = dataset.manifest.shards
    wrong = Manifest(
        name="set",
        task="IMAGE_TEXT",
        vocabulary=dataset.manifest.vocabulary,
        tokenizers=dataset.manifest.tokenizers,
        shards=[ShardInfo(info.file, info.sha256, info.samples + 1, info.tokens)],
    )
    wrong.save(tmp_path / "set")
    (problem,) = TokenDataset(tmp_path / "set").verify()
    assert "it holds 5 samples" in problem


@pytest.mark.parametrize("name", [MANIFEST, "shard-00000.safetensors"])
def test_deeply_nested_json_is_refused(tmp_path: Path, name: str) -> None:
    make(tmp_path / "set", [SAMPLES])
    nested = b"[" * 200_000
    content = nested if name == MANIFEST else struct.pack("<Q", len(nested)) + nested
    (tmp_path / "set" / name).write_bytes(content)
    with pytest.raises(DataError):
        _ = TokenDataset(tmp_path / "set")[0]


def test_only_files_that_cannot_be_read_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, [SAMPLES])
    path = tmp_path / "shard-00000.safetensors"
    content, pauses = path.read_bytes(), []
    monkeypatch.setattr(time, "sleep", pauses.append)
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match="the file is truncated"):
        TokenDataset(tmp_path)[0]
    assert pauses == []
    path.unlink()
    with pytest.raises(DataError, match="is missing"):
        TokenDataset(tmp_path)[0]
    assert len(pauses) == 3

    def comes_back(seconds: float) -> None:
        path.write_bytes(content)

    monkeypatch.setattr(time, "sleep", comes_back)
    path.unlink(missing_ok=True)
    assert same(TokenDataset(tmp_path)[0], SAMPLES[0])


# -- right checksums, wrong contents ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forged", "expected"),
    [
        (sample([1, 70], [2]), "has the image id 70, but its vocabulary has 70 of them"),
        (sample([1, 2], [300]), "has the text id 300, but its vocabulary has 300 of them"),
        (sample([65_535], []), "has the image id 65535"),
        (TokenSample(Task.IMAGE_TEXT, np.array([1]), np.array([2, 1000]), 1), "has the text id 1000"),
    ],
)
def test_ids_beyond_their_modality_are_refused(forged: TokenSample, expected: str, tmp_path: Path) -> None:
    """They would fall into the range of special tokens or of another modality."""
    dataset = make(tmp_path, [SAMPLES, [*SAMPLES, forged]])
    dataset = with_manifest(tmp_path, longest_prompted=9)
    assert same(dataset[0], SAMPLES[0])
    assert same(dataset[9], SAMPLES[4])
    with pytest.raises(DataError, match=expected) as raised:
        _ = dataset[10]
    assert "shard-00001.safetensors" in str(raised.value)
    (problem,) = dataset.verify()
    assert expected in problem


def with_manifest(folder: Path, **changes: object) -> TokenDataset:
    replace(Manifest.load(folder), **changes).save(folder)  # type: ignore[arg-type]
    return TokenDataset(folder)


def test_the_largest_ids_are_accepted(tmp_path: Path) -> None:
    largest = sample([69, 0], [299, 0])
    dataset = make(tmp_path, [[largest]])
    assert same(dataset[0], largest)
    assert dataset.verify() == []


def test_media_in_a_text_dataset_are_refused(tmp_path: Path) -> None:
    make(tmp_path, [[sample([0, 1], [2])]])
    dataset = with_manifest(tmp_path, task="TEXT")
    with pytest.raises(DataError, match="has the media id 1, but its vocabulary has 0 of them"):
        _ = dataset[0]
    assert len(dataset.verify()) == 1


@pytest.mark.parametrize("name", ["tokens", "offsets", "splits", "crc32", "prompts"])
def test_an_array_of_another_dtype_is_refused(name: str, tmp_path: Path) -> None:
    """Of signed tokens, negative ids would pass as small ones."""
    with_prompt = TokenSample(Task.IMAGE_TEXT, np.array([1]), np.array([2, 3]), 1)
    (info,) = make(tmp_path, [[with_prompt]]).manifest.shards
    arrays = load_file(tmp_path / info.file)
    other = np.int32 if name in ("tokens", "offsets", "crc32") else np.int64
    content = save({**arrays, name: arrays[name].astype(other)})
    (tmp_path / info.file).write_bytes(content)
    forged = replace(info, sha256=hashlib.sha256(content).hexdigest())
    dataset = with_manifest(tmp_path, shards=[forged], longest_prompted=3)
    with pytest.raises(DataError, match=f"its array '{name}' has the dtype"):
        _ = dataset[0]


@pytest.mark.parametrize(
    "sizes", [{"text": 10}, {"text": "many", "image": 1, "audio": 1}, {"text": -1, "image": 1, "audio": 1}]
)
def test_a_vocabulary_that_is_none_is_one_line(sizes: dict, tmp_path: Path) -> None:
    make(tmp_path, [SAMPLES])
    with pytest.raises(ValueError, match=r"is not a Triptych manifest|vocabulary size of text") as raised:
        with_manifest(tmp_path, vocabulary=sizes)
    assert "\n" not in str(raised.value)


def test_a_shard_that_is_truncated_while_it_is_open_is_named(tmp_path: Path) -> None:
    """Through a memory map, reading it would kill the process by SIGBUS."""
    dataset = make(tmp_path / "set", [[sample([], [n % 300] * 9) for n in range(2000)]])
    path = dataset.folder / dataset.manifest.shards[0].file
    last = dataset[len(dataset) - 1].text.tolist()
    content = path.read_bytes()
    os.truncate(path, 4096)
    with pytest.raises(DataError, match=r"shard-00000.safetensors was truncated after it was opened") as caught:
        dataset[len(dataset) - 1]
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3
    path.write_bytes(content)  # in place
    assert dataset[len(dataset) - 1].text.tolist() == last


def test_a_read_that_fails_is_tried_again_and_then_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make(tmp_path / "set", [[sample([], [5, 6, 7])]])
    expected, read = dataset[0].text.tolist(), os.pread
    waited: list[float] = []
    failures = iter([True] * 1000)

    def unreliable(handle: int, size: int, start: int) -> bytes:
        if next(failures, False):
            raise OSError(5, "Input/output error")
        return read(handle, size, start)

    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(os, "pread", unreliable)
    reopened = TokenDataset(dataset.folder)
    with pytest.raises(UnreadableError, match=r"cannot be read \(Input/output error\)"):
        reopened.shard(0)
    failures = iter([False])
    assert reopened[0].text.tolist() == expected
    waited.clear()
    failures = iter([True, True])
    assert reopened[0].text.tolist() == expected
    assert waited == [0.1]


def test_large_reads_are_put_together_from_several_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reads at most two GB at once."""
    tokens = [n % 300 for n in range(20_000)]
    dataset, read = make(tmp_path / "set", [[sample([], tokens)]]), os.pread
    monkeypatch.setattr(os, "pread", lambda handle, size, start: read(handle, min(size, 5000), start))
    assert TokenDataset(dataset.folder)[0].text.tolist() == tokens
