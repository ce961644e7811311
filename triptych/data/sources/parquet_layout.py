"""Where the columns of a Parquet file are and how large their pages, from its footer and the headers of the pages.

A page of some bytes may decompress to gigabytes, and every row may refer to one huge entry of a dictionary. Arrow
allocates what a header says, so headers are read first. The footer is read here, too: if its statistics are damaged,
Arrow's functions that describe a column end the process, by a C++ exception that nothing catches. Both are structures
in Thrift's compact protocol, of which this reads numbers and lists of structures, and skips the rest.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_FIRST_READ, _LONGEST_HEADER = 256, 16 << 20
_MOST_NESTED = 32
_MAGIC = b"PAR1"
_ENTRY_BYTES = 16  # that Arrow keeps for an entry of a dictionary, besides its text
_LEAST_ENTRY_BYTES = 4  # of an entry in a page: the length of a string, or a number

# Types of Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 6, 7, 8, 9, 10, 12


class BadPage(ValueError):
    """A footer or page header that cannot be read, or contradicts itself."""


class _Short(Exception):
    """The bytes that were read end within the structure."""


@dataclass(frozen=True)
class ChunkPlace:
    """Where one column of a row group is."""

    start: int
    length: int


@dataclass(frozen=True)
class ChunkSizes:
    """What reading one column of a row group takes, in bytes."""

    dictionary: int
    """Of the dictionary, as Arrow keeps it."""
    page: int
    """Of the largest data page, decompressed."""
    compressed: int
    """Of both as they are in the file."""

    @property
    def memory(self) -> int:
        return self.dictionary + self.page

    @property
    def value(self) -> int:
        """No value is larger."""
        return max(self.dictionary, self.page)


def chunk_places(file: BinaryIO) -> list[list[ChunkPlace]]:
    """Of every row group, where its columns are, in the order of the schema."""
    end = file.seek(0, 2)
    file.seek(max(0, end - 8))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > end - 8:
        raise BadPage("the footer cannot be read")
    file.seek(end - 8 - length)
    try:
        footer = _Compact(file.read(length)).structure()
    except _Short:
        raise BadPage("the footer is cut off") from None
    return [[_place_of(column, end) for column in _structures(group, 1)] for group in _structures(footer, 4)]


def _structures(of: dict[int, Any], field: int) -> list[dict[int, Any]]:
    structures = of.get(field, [])
    if not isinstance(structures, list) or not all(isinstance(each, dict) for each in structures):
        raise BadPage("the footer has no row groups or columns")
    return structures


def _place_of(column: dict[int, Any], end: int) -> ChunkPlace:
    described = column.get(3)
    if not isinstance(described, dict):  # it is encrypted
        raise BadPage("the footer does not describe a column")
    length, start, dictionary = (_number(described, field) for field in (7, 9, 11))
    if 0 < dictionary < start:
        start = dictionary
    if not (0 < start <= end and 0 <= length <= end - start):
        raise BadPage("a column lies outside of the file")
    return ChunkPlace(start, length)


def _number(of: dict[int, Any], field: int) -> int:
    """A field that is a number; 0, which no column starts at, if it is missing."""
    value = of.get(field, 0)
    if type(value) is not int:
        raise BadPage("the footer describes a column without numbers")
    return value


def chunk_sizes(file: BinaryIO, place: ChunkPlace) -> ChunkSizes:
    """The sizes of the pages of a column of a row group."""
    dictionary = page = compressed_dictionary = compressed_page = 0
    for kind, size, compressed, entries in _pages(file, place.start, place.start + place.length):
        if kind == _DICTIONARY_PAGE:
            if entries * _LEAST_ENTRY_BYTES > size:
                raise BadPage(f"a dictionary of {entries:,} entries in {size:,} bytes")
            dictionary, compressed_dictionary = size + entries * _ENTRY_BYTES, compressed
        elif kind in (_DATA_PAGE, _DATA_PAGE_V2) and size > page:
            page, compressed_page = size, compressed
    return ChunkSizes(dictionary, page, compressed_dictionary + compressed_page)


def _pages(file: BinaryIO, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Kind, size, compressed size and number of entries of every page."""
    place = start
    while place < stop:
        header, length = _read_header(file, place)
        kind, size, compressed = (header.get(field, -1) for field in (1, 2, 3))
        inner = header.get(7 if kind == _DICTIONARY_PAGE else 5, {})
        entries = inner.get(1, 0) if isinstance(inner, dict) else -1
        if not all(isinstance(n, int) and n >= 0 for n in (kind, size, compressed, entries)):
            raise BadPage("a page header without sizes")
        yield kind, size, compressed, entries
        place += length + compressed


def _read_header(file: BinaryIO, place: int) -> tuple[dict[int, Any], int]:
    """The fields of a page header by their numbers, and its length."""
    size = _FIRST_READ
    while True:
        file.seek(place)
        content = file.read(size)
        reader = _Compact(content)
        try:
            return reader.structure(), reader.place
        except _Short:
            if len(content) < size or size >= _LONGEST_HEADER:
                raise BadPage("a page header is cut off") from None
            size *= 16


class _Compact:
    """Reads one structure of the compact protocol.

    Numbers, structures and lists of structures are kept, everything else is skipped.
    """

    def __init__(self, content: bytes):
        self._content, self.place = content, 0

    def structure(self, depth: int = 0) -> dict[int, Any]:
        if depth > _MOST_NESTED:
            raise BadPage("structures are nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._signed()
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_BYTE, _TRUE, _FALSE):  # one byte each in a list
            return self._byte()
        if _BYTE < kind <= _I64:
            return self._signed()
        if kind == _STRUCT:
            return self.structure(depth + 1)
        if kind in (_DOUBLE, _BINARY):
            self._skip(8 if kind == _DOUBLE else self._varint())
        elif kind in (_LIST, _SET):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            is_kept = head & 15 == _STRUCT
            kept = []
            for _ in range(count):
                value = self._value(head & 15, depth + 1)
                if is_kept:
                    kept.append(value)
            return kept
        else:
            raise BadPage(f"a field has the unknown type {kind}")
        return None

    def _byte(self) -> int:
        if self.place >= len(self._content):
            raise _Short
        self.place += 1
        return self._content[self.place - 1]

    def _skip(self, count: int) -> None:
        if self.place + count > len(self._content):
            raise _Short
        self.place += count

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise BadPage("a number has more than 64 bits")

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
