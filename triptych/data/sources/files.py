"""Reading files that may be compressed, with progress and with limits on the size of a document."""

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from triptych.data.sources.base import MAX_TEXT_BYTES, BadSample, too_long
from triptych.errors import require
from triptych.utils.files import open_regular

_PIECE_BYTES = 4096  # of a .zst file that are decompressed at once: at most 128 MiB, from a bomb
_SMALL_PIECE_BYTES = 64
_MUCH = 1 << 20  # decompressed from one piece: the next one is small


class CountedFile(io.BufferedReader):
    """A file that counts how much of it has been read, also when a decompressor reads it."""

    def __init__(self, path: Path):
        super().__init__(io.FileIO(open_regular(path)))
        self.size = max(path.stat().st_size, 1)

    @property
    def fraction(self) -> float:
        return min(self.tell() / self.size, 1.0)


def plain_name(path: Path) -> str:
    """The file name in lower case, without .gz or .zst."""
    return path.name.lower().removesuffix(".gz").removesuffix(".zst")


def decompressed(file: CountedFile, path: Path) -> BinaryIO:
    """The content of a file whose name may end in .gz or .zst."""
    if path.name.lower().endswith((".gz", ".tgz")):
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if path.name.lower().endswith(".zst"):
        return cast(BinaryIO, io.BufferedReader(_ZstdContent(file), buffer_size=1 << 20))
    return cast(BinaryIO, file)


class _ZstdContent(io.RawIOBase):
    """The decompressed content of a .zst file. Unlike the package's own reader, it detects a truncated file."""

    def __init__(self, file: BinaryIO):
        self._zstandard = require("zstandard", "data", "reading .zst files")
        self._file, self._frame, self._ready = file, self._new_frame(), memoryview(b"")
        self._started = False  # whether the current frame has received any bytes
        self._piece = _PIECE_BYTES

    def _new_frame(self) -> Any:
        return self._zstandard.ZstdDecompressor().decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and self._decompress():
            pass
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _decompress(self) -> bool:
        """Decompress the next few bytes. False at the end of the file."""
        compressed = self._file.read(self._piece)
        if not compressed:
            if self._started:
                raise EOFError("the zstd stream ends too early")
            return False
        pieces = []
        while compressed:
            try:
                pieces.append(self._frame.decompress(compressed))
            except self._zstandard.ZstdError as error:
                raise OSError(f"damaged zstd stream ({error})") from error
            self._started, compressed = not self._frame.eof, self._frame.unused_data
            if self._frame.eof:
                self._frame = self._new_frame()
        self._ready = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        self._piece = _SMALL_PIECE_BYTES if len(self._ready) > _MUCH else _PIECE_BYTES
        return True


def read_document(path: Path) -> str | BadSample:
    """The content of a text file as one document."""
    with CountedFile(path) as file, decompressed(file, path) as stream:
        content = stream.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        return BadSample(str(path), too_long())
    return decode_text(content, str(path))


def read_lines(path: Path) -> Iterator[tuple[float, str, str | BadSample]]:
    """The non-blank lines of a text file: fraction read, key, and the text or the reason why it is bad."""
    with CountedFile(path) as file, decompressed(file, path) as stream:
        number = 0
        while line := stream.readline(MAX_TEXT_BYTES):
            number += 1
            key = f"{path}:{number}"
            if len(line) == MAX_TEXT_BYTES and not line.endswith(b"\n"):
                while (rest := stream.readline(MAX_TEXT_BYTES)) and not rest.endswith(b"\n"):
                    pass
                yield file.fraction, key, BadSample(key, too_long())
            elif line.strip():
                yield file.fraction, key, decode_text(line.rstrip(b"\r\n"), key, at_start=number == 1)


def decode_text(content: bytes, key: str, *, at_start: bool = True) -> str | BadSample:
    """Decode UTF-8. A file may start with a byte order mark."""
    try:
        return content.decode("utf-8-sig" if at_start else "utf-8")
    except UnicodeDecodeError as error:
        return BadSample(key, f"not UTF-8: byte 0x{content[error.start]:02x} at {error.start}")
