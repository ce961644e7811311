"""Lines of JSON with checksums: no change of a value passes, and damage costs one line."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.errors import DamageWarning, DataError
from triptych.utils.json_lines import damage_of, parse_line, read_lines, to_line, warn_of_damage

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
RECORDS = st.dictionaries(st.text().filter(lambda key: key != "crc32"), JSON, max_size=4)


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record: dict) -> None:
    line = to_line(record)
    assert line.count("\n") == 1
    assert parse_line(line) == record
    assert parse_line(line.encode()) == record
    assert parse_line(json.dumps(json.loads(line), indent=1)) == record  # a tool may write other spaces
    assert parse_line(json.dumps(record)) == record  # of an earlier version


@given(RECORDS, st.data())
def test_no_flipped_bit_changes_a_value(record: dict, data: st.DataObject) -> None:
    line = bytearray(to_line(record).encode())
    line[data.draw(st.integers(0, len(line) - 2))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        parsed = parse_line(bytes(line))
    except DataError:
        return
    assert {**parsed, **record} == parsed  # a flip in the name of the checksum: it looks like one more key
    assert len(parsed) <= len(record) + 1


@pytest.mark.parametrize(
    "record", ["[1]", "5", "null", "{", "", '{"a": 1, "crc32": "00000000"}', '{"a": 1, "crc32": 5}']
)
def test_what_is_no_record_is_refused(record: str) -> None:
    with pytest.raises(DataError):
        parse_line(record)


def test_a_file_keeps_its_other_lines(tmp_path: Path) -> None:
    path, lines = tmp_path / "records.jsonl", [to_line({"n": n}) for n in range(4)]
    path.write_text("".join(lines))
    assert read_lines(path) == ({n + 1: {"n": n} for n in range(4)}, [])
    path.write_text(lines[0] + "\n" + lines[1].replace("1", "2", 1) + "x\n" + lines[3][:-9])
    assert read_lines(path) == ({1: {"n": 0}}, [3, 4])  # an empty line and an incomplete last line are no damage
    path.write_text(lines[0] + lines[1][:-1])
    assert read_lines(path) == ({1: {"n": 0}, 2: {"n": 1}}, [])
    path.write_text("")
    assert read_lines(path) == ({}, [])


def test_the_warning_counts_and_names_lines(tmp_path: Path) -> None:
    assert damage_of(Path("a"), [7]) == "a: line 7 is damaged and left out"
    assert damage_of(Path("a"), [1, 2]) == "a: 2 lines are damaged and left out (lines 1, 2)"
    assert damage_of(Path("a"), list(range(1, 9))).endswith(
        "8 lines are damaged and left out (lines 1, 2, 3, 4, 5, ...)"
    )
    warn_of_damage(Path("a"), [])
    with pytest.warns(DamageWarning, match="line 1 is"):
        warn_of_damage(Path("a"), [1])
