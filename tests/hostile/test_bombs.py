"""Small files that decompress to gigabytes: bounded memory, and the rest of the input is read."""

import json
from pathlib import Path

import bombs
import limited
import pytest

# Memory that reading may take: what a process has after its imports (about 350 MB), one sample and its copies.
MOST = 1_300_000_000
# What is read from each: categories of bad samples, or the first letters of texts.
EXPECTED = {
    "large-strings.parquet": {"text too long": 4},
    "allowed-strings.parquet": {"word": 4},
    "large-page.parquet": {"rest of the file unreadable": 1},
    "prefixes.parquet": {"zzzz": 6},
    "long-lists.parquet": {"shor": 1},
    "long-name.tar.gz": {"rest of the file unreadable": 1},
    "pax.tar.gz": {"rest of the file unreadable": 1},
    "global-headers.tar.gz": {"rest of the file unreadable": 1},
    "chain.tar.gz": {"rest of the file unreadable": 1},
    "many-members.tar.gz": {"file too large": 1},
    "large-texts.tar.gz": {"text too long": 2, "text": 1},
    "long-lines.jsonl.zst": {"the ": 3},
    "many-values.jsonl.zst": {"bad JSON": 2},
    "long-row.csv.gz": {"bad CSV": 19, "shor": 1},
    "zeros.txt.zst": {"text too long": 1},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_reading_takes_bounded_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    bombs.BOMBS[name](path)
    assert path.stat().st_size < 12_000_000
    outcome = limited.call(bombs.read_all, path)
    assert outcome.fault == "", outcome.err[-1000:]
    assert json.loads(outcome.out) == EXPECTED[name]
    assert outcome.peak < MOST


def test_a_long_text_is_encoded_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"text": "the cat sat on a mat " * 500_000}) + "\n")  # ten megabytes
    outcome = limited.run(["tokenize", path, "--out", tmp_path / "out", "--workers", "0", "--quiet"])
    assert (outcome.code, outcome.fault) == (0, ""), outcome.err[-1000:]
    assert outcome.peak < 800_000_000


@pytest.mark.parametrize(("name", "images"), [("allowed-images", 3), ("claiming-images", 1)])
def test_large_images_are_decoded_one_at_a_time(name: str, images: int, tmp_path: Path) -> None:
    bombs.BOMBS[name](tmp_path / "in")
    outcome = limited.run(["tokenize", tmp_path / "in", "--out", tmp_path / "out", "--workers", "0"])
    assert outcome.fault == "", outcome.err[-1000:]
    assert f"{images} image-text samples" in outcome.out
    assert outcome.peak < 2_400_000_000


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, {"rest of the file unreadable": 1}) for name in ("long-name.tar.gz", "pax.tar.gz", "chain.tar.gz")),
        ("global-headers.tar.gz", {"rest of the file unreadable": 1}),
        ("many-members.tar.gz", {"image": 6}),
    ],
)
def test_reference_images_of_tars_take_bounded_memory(name: str, expected: dict[str, int], tmp_path: Path) -> None:
    bombs.BOMBS[name](tmp_path / name)
    outcome = limited.call(bombs.read_reference, tmp_path / name)
    assert outcome.fault == "", outcome.err[-1000:]
    found = json.loads(outcome.out)
    assert {key: found[key] for key in expected} == expected
    assert outcome.peak < MOST


def test_an_image_file_is_bounded_before_it_is_decoded(tmp_path: Path) -> None:
    bombs.BOMBS["sparse.webp"](tmp_path / "sparse.webp")
    outcome = limited.call(bombs.read_one_image, tmp_path / "sparse.webp")
    assert outcome.out == " has 1430 MiB; expected at most 256 MiB.\n", outcome.err[-1000:]
    assert outcome.peak < MOST


def test_the_limit_is_a_limit() -> None:
    """The harness itself: a process that takes more than it may is stopped, and its peak is measured."""
    assert limited.call(bombs.take_memory, 500_000_000).peak > 500_000_000
    assert limited.call(bombs.take_memory, 2 * limited.ADDRESS_SPACE).fault == "traceback"
