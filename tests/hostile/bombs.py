"""Small files that would fill the memory of a careless reader.

Texts repeat one letter or one word, so that megabytes of bomb take milliseconds to write.
"""

import gzip
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow
import zstandard
from pyarrow import parquet

MIB = 1 << 20
_BLOCK = 512


# -- Parquet ----------------------------------------------------------------------------------------------------------


def _write_shared(path: Path, text: str, rows: int) -> None:
    """Rows that share one string in the dictionary of their column."""
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), [text])
    options = {"dictionary_pagesize_limit": 2**31 - 1, "write_statistics": False, "store_schema": False}
    parquet.write_table(pyarrow.table({"text": column}), path, compression="zstd", **options)


def read_with_damaged_footers(path: str) -> None:
    """Change every byte of the footer of a good file, one at a time, and read the file."""
    rows = {"text": [f"text {n % 7}" for n in range(60)], "more": [[n] * (n % 3) for n in range(60)]}
    stream = io.BytesIO()
    parquet.write_table(pyarrow.table(rows), stream, row_group_size=30)
    good = stream.getvalue()
    size = int.from_bytes(good[-8:-4], "little")
    from triptych.data.sources import open_source
    from triptych.errors import DataError

    outcomes = Counter[str]()
    for place in range(len(good) - 8 - size, len(good)):
        content = bytearray(good)
        content[place] ^= 8
        Path(path).write_bytes(content)
        try:
            outcomes["read"] += len(list(open_source([path]))) > 0
        except DataError:
            outcomes["refused"] += 1
    print(outcomes["read"], outcomes["refused"])


def parquet_large_strings(path: Path) -> None:
    """Rows that share one string of 100 MB, after a short one: some kilobytes on disk."""
    _write_shared(path, "x" * 100_000_000, 4)


def parquet_allowed_strings(path: Path) -> None:
    """Rows that share one string just below the limit of a text."""
    _write_shared(path, "word " * 6_000_000, 4)


def parquet_large_page(path: Path) -> None:
    """A data page of 400 MB of equal strings, without a dictionary."""
    table = pyarrow.table({"text": pyarrow.array(["y" * 10_000_000] * 40, pyarrow.large_string())})
    options = {"use_dictionary": False, "data_page_size": 2**31 - 1, "write_batch_size": 64, "write_statistics": False}
    parquet.write_table(table, path, compression="zstd", **options)


def parquet_prefixes(path: Path) -> None:
    """Strings that are each stored as a prefix of the one before: 6 strings of 10 MB."""
    table = pyarrow.table({"text": pyarrow.array(["z" * 10_000_000] * 6, pyarrow.large_string())})
    options = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}, "write_statistics": False}
    parquet.write_table(table, path, compression="zstd", **options)


def parquet_long_lists(path: Path) -> None:
    """A text column of lists: one row has 100 million numbers."""
    count = 100_000_000
    numbers = pyarrow.Array.from_buffers(pyarrow.int8(), count, [None, pyarrow.py_buffer(bytes(count))])
    lists = pyarrow.ListArray.from_arrays(pyarrow.array([0, count], pyarrow.int32()), numbers)
    parquet.write_table(pyarrow.table({"text": lists, "caption": ["short"]}), path, compression="zstd")


# -- tar --------------------------------------------------------------------------------------------------------------


def _header(name: bytes, size: int, kind: bytes) -> bytes:
    """A header in the ustar format; sizes above 8 GiB in base 256."""
    number = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    block = bytearray(_BLOCK)
    for start, field in ((0, name), (100, b"0000644\0"), (124, number), (156, kind), (257, b"ustar\x0000")):
        block[start : start + len(field)] = field
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _write_zeros(file: BinaryIO, count: int, letter: bytes = b"a") -> None:
    piece = (letter * MIB)[:MIB]
    for _ in range(count // MIB):
        file.write(piece)
    file.write(piece[: count % MIB])
    file.write(bytes(-count % _BLOCK))


def _pair(file: BinaryIO, name: bytes, text: bytes) -> None:
    for suffix, content in ((b".png", b"P"), (b".txt", text)):
        file.write(_header(name + suffix, len(content), b"0"))
        file.write(content + bytes(-len(content) % _BLOCK))


def tar_long_name(path: Path, kind: bytes = b"L", size: int = 1200 * MIB) -> None:
    """A name of 1.2 GB before the second sample."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        _pair(file, b"0001", b"first")
        file.write(_header(b"././@LongLink", size, kind))
        _write_zeros(file, size)
        _pair(file, b"0002", b"second")
        file.write(bytes(2 * _BLOCK))


def tar_pax(path: Path) -> None:
    """A PAX header of 1.2 GB."""
    tar_long_name(path, b"x")


def tar_many_global_headers(path: Path) -> None:
    """300 global PAX headers of 1 MB, each with a name of its own."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for number in range(300):
            record = b"1000000 key%06d=" % number
            file.write(_header(b"global", 1_000_000, b"g"))
            file.write(record + b"v" * (1_000_000 - len(record) - 1) + b"\n" + bytes(-1_000_000 % _BLOCK))
        _pair(file, b"0001", b"first")
        file.write(bytes(2 * _BLOCK))


def tar_chain_of_headers(path: Path) -> None:
    """3,000 long names before one member: each is read by a call of its own."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(3000):
            file.write(_header(b"././@LongLink", 4, b"L") + b"name" + bytes(_BLOCK - 4))
        _pair(file, b"0001", b"first")
        file.write(bytes(2 * _BLOCK))


def tar_many_members(path: Path) -> None:
    """One sample with 6 images of 100 MB."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for number in range(6):
            file.write(_header(b"0001.%d.png" % number, 100 * MIB, b"0"))
            _write_zeros(file, 100 * MIB)
        file.write(_header(b"0001.txt", 4, b"0") + b"text" + bytes(_BLOCK - 4))
        file.write(bytes(2 * _BLOCK))


def tar_large_texts(path: Path) -> None:
    """Texts of 200 MB."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for number in range(2):
            file.write(_header(b"%04d.txt" % number, 200 * MIB, b"0"))
            _write_zeros(file, 200 * MIB, b"word ")
        file.write(_header(b"9999.txt", 4, b"0") + b"text" + bytes(_BLOCK - 4))
        file.write(bytes(2 * _BLOCK))


# -- lines ------------------------------------------------------------------------------------------------------------


def _lines_zst(path: Path, lines: Iterator[bytes]) -> None:
    with open(path, "wb") as raw, zstandard.ZstdCompressor(level=1).stream_writer(raw) as file:
        for line in lines:
            file.write(line)


def jsonl_long_lines(path: Path) -> None:
    """Documents of 30 MB: each is allowed."""
    line = json.dumps({"text": "the cat sat on a mat " * 1_500_000}).encode() + b"\n"
    _lines_zst(path, (line for _ in range(3)))


def jsonl_many_values(path: Path) -> None:
    """A line of 31 MB of empty lists beside a text: as objects, 30 times as much."""
    line = b'{"text": "short", "more": [' + b"[]," * 10_000_000 + b"[]]}\n"
    _lines_zst(path, (line for _ in range(2)))


def csv_long_row(path: Path) -> None:
    """A row of 20 quoted fields of 15 MB: no single one is too long."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"text,other\n")
        for _ in range(20):
            file.write(b'"')
            file.write(b"word " * 3_000_000)
            file.write(b'\n",')
        file.write(b'"end"\nshort,row\n')


def zst_of_zeros(path: Path) -> None:
    """A document of 2 GB in some kilobytes."""
    piece = bytes(64 * MIB)
    _lines_zst(path, (piece for _ in range(32)))


# -- images -----------------------------------------------------------------------------------------------------------


def _png(width: int, height: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 6, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def png_allowed(path: Path) -> None:
    """Images of 8,192 x 8,192 pixels, just allowed, in one folder with captions."""
    path.mkdir()
    compressor = zlib.compressobj(1)
    rows = b"".join(compressor.compress(bytes(1 + 4 * 8192)) for _ in range(8192)) + compressor.flush()
    for number in range(3):
        (path / f"{number}.png").write_bytes(_png(8192, 8192, rows))
        (path / f"{number}.txt").write_text("a black square")


def png_claims_much(path: Path) -> None:
    """An image that claims 60,000 x 60,000 pixels, beside a good one."""
    path.mkdir()
    (path / "0.png").write_bytes(_png(60_000, 60_000, zlib.compress(bytes(1000))))
    (path / "0.txt").write_text("none")
    (path / "1.png").write_bytes(_png(1, 1, zlib.compress(bytes(5))))
    (path / "1.txt").write_text("a pixel")


def webp_sparse(path: Path) -> None:
    """An image whose file has 1.5 GB, of which the disk holds some bytes."""
    size = 1_500_000_000
    start = b"RIFF" + (size - 8).to_bytes(4, "little") + b"WEBPVP8L" + (20).to_bytes(4, "little") + b"\x2f" + bytes(19)
    path.write_bytes(start)
    os.truncate(path, size)


BOMBS: dict[str, Callable[[Path], None]] = {
    "large-strings.parquet": parquet_large_strings,
    "allowed-strings.parquet": parquet_allowed_strings,
    "large-page.parquet": parquet_large_page,
    "prefixes.parquet": parquet_prefixes,
    "long-lists.parquet": parquet_long_lists,
    "long-name.tar.gz": tar_long_name,
    "pax.tar.gz": tar_pax,
    "global-headers.tar.gz": tar_many_global_headers,
    "chain.tar.gz": tar_chain_of_headers,
    "many-members.tar.gz": tar_many_members,
    "large-texts.tar.gz": tar_large_texts,
    "long-lines.jsonl.zst": jsonl_long_lines,
    "many-values.jsonl.zst": jsonl_many_values,
    "long-row.csv.gz": csv_long_row,
    "zeros.txt.zst": zst_of_zeros,
    "allowed-images": png_allowed,
    "claiming-images": png_claims_much,
    "sparse.webp": webp_sparse,
}
"""By the name of the file or folder that a function writes."""


def read_all(path: Path) -> None:
    """Print how often each category of bad sample, or each beginning of a text, occurs."""
    from triptych.data.sources import BadSample, open_source
    from triptych.vocab import Task

    counts: Counter[str] = Counter()
    task = Task.IMAGE_TEXT if path.name.startswith(("long-name", "pax", "global", "chain", "many-m")) else Task.TEXT
    for item in open_source([str(path)], task=task):
        counts[item.category if isinstance(item, BadSample) else item.text[:4]] += 1
    print(json.dumps(counts))


def read_reference(path: Path) -> None:
    """Print how often each category of bad image occurs in reference images, or `image` for one that can be read."""
    from triptych.data.sources import BadSample
    from triptych.eval.image.reference import _tar_images

    counts = Counter(each.category if isinstance(each, BadSample) else "image" for _, each in _tar_images(path))
    print(json.dumps(counts))


def read_one_image(path: Path) -> None:
    """Print why an image is refused."""
    from triptych.errors import DataError
    from triptych.utils.media import read_image

    try:
        read_image(path)
    except DataError as error:
        print(str(error).removeprefix(str(path)))


def take_memory(size: int) -> None:
    content = bytearray(size)
    content[::4096] = b"x" * len(range(0, size, 4096))
