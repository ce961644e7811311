"""Reading image files: every format and mode becomes upright RGB on white; damaged files are one-line errors."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from triptych.errors import DataError
from triptych.utils.media import read_image


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def assert_refused(*arguments, match: str, **options) -> None:
    with pytest.raises(DataError, match=match) as caught:
        read_image(*arguments, **options)
    assert "\n" not in str(caught.value)


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(width: int = 24, height: int = 16) -> Image.Image:
    return Image.fromarray(rng().integers(0, 256, (height, width, 3), dtype=np.uint8))


def png_header(width: int, height: int) -> bytes:
    """A PNG whose header states a size, without pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("kind", "options"),
    [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("WEBP", {"lossless": True}), ("JPEG", {"quality": 98, "subsampling": 0})],
)
def test_formats_keep_their_pixels(tmp_path, kind, options):
    original = noise().resize((48, 32), Image.Resampling.BICUBIC)
    content = encoded(original, kind, **options)
    (tmp_path / "image").write_bytes(content)
    for source in (content, tmp_path / "image", str(tmp_path / "image")):
        opened = read_image(source)
        assert (opened.mode, opened.size) == ("RGB", (48, 32))
        difference = np.abs(np.asarray(opened).astype(int) - np.asarray(original))
        assert difference.mean() < (4 if kind == "JPEG" else 1e-9)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP"])
def test_the_first_frame_is_read(kind):
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("#ff0000", "#00ff00", "#0000ff")]
    options = {"lossless": True} if kind == "WEBP" else {}
    content = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert np.asarray(read_image(content))[0, 0].tolist() == [255, 0, 0]


def test_exif_orientation_is_applied():
    original = noise(6, 4)
    exif = Image.Exif()
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        pixels = np.asarray(original)
        if orientation in (2, 4, 5, 7):
            pixels = pixels[:, ::-1]
        quarter_turns = {1: 0, 2: 0, 3: 2, 4: 2, 5: 1, 6: 3, 7: 3, 8: 1}[orientation]
        expected = np.rot90(pixels, quarter_turns)
        opened = read_image(encoded(original, "PNG", exif=exif))
        np.testing.assert_array_equal(np.asarray(opened), expected, err_msg=str(orientation))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_an_image_with_broken_exif_is_read():
    opened = read_image(encoded(noise(), "PNG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xffgarbage"))
    np.testing.assert_array_equal(np.asarray(opened), np.asarray(noise()))


def test_transparency_becomes_white():
    half = Image.new("RGBA", (4, 4), (255, 0, 0, 128))
    assert np.asarray(read_image(encoded(half)))[0, 0].tolist() == [255, 127, 127]
    clear = Image.new("LA", (4, 4), (0, 0))
    assert np.asarray(read_image(encoded(clear)))[0, 0].tolist() == [255, 255, 255]
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    assert np.asarray(read_image(encoded(palette)))[0, 0].tolist() == [10, 20, 30]
    assert np.asarray(read_image(encoded(palette, transparency=1)))[0, 0].tolist() == [255, 255, 255]
    coloured = Image.new("RGB", (4, 4), (1, 2, 3))
    assert np.asarray(read_image(encoded(coloured, transparency=(1, 2, 3))))[0, 0].tolist() == [255, 255, 255]


def test_16_bit_float_1_bit_and_cmyk_images():
    grey16 = Image.fromarray(np.array([[0, 128 * 257], [65535, 257]], np.uint16))
    expected = [[0, 128], [255, 1]]
    for kind in ("PNG", "TIFF"):
        np.testing.assert_array_equal(np.asarray(read_image(encoded(grey16, kind)))[..., 0], expected)
    floats = Image.fromarray(np.array([[0.0, 0.5], [1.0, np.nan]], np.float32))
    np.testing.assert_array_equal(np.asarray(read_image(encoded(floats, "TIFF")))[..., 0], [[0, 128], [255, 0]])
    one_bit = Image.new("1", (2, 2), 1)
    assert np.asarray(read_image(encoded(one_bit))).min() == 255
    red = Image.new("RGB", (16, 16), (255, 0, 0)).convert("CMYK")
    pixel = np.asarray(read_image(encoded(red, "JPEG", quality=95)))[8, 8].astype(int)
    assert np.abs(pixel - (255, 0, 0)).max() < 12


def test_sizes_are_checked_before_decoding():
    assert_refused(png_header(60_000, 60_000), match="far too many pixels|60000 x 60000")
    assert_refused(png_header(10_000, 8_000), match="10000 x 8000 pixels; expected 1 to 67,108,864")
    assert_refused(png_header(0, 10), match="0 x 10|damaged|not an image")
    assert_refused(encoded(noise()), max_pixels=383, match="24 x 16")
    assert read_image(encoded(noise()), max_pixels=384).size == (24, 16)
    assert read_image(encoded(Image.new("RGB", (1, 10_000)))).size == (1, 10_000)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_truncated_images_are_refused(kind):
    content = encoded(noise(64, 64), kind)
    for part in (0.1, 0.5, 0.8):
        assert_refused(content[: int(len(content) * part)], match="damaged image|not an image")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_bytes_give_an_image_or_one_line():
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        content = encoded(noise(), kind)
        generator = rng(5)
        for _ in range(40):
            damaged = bytearray(content)
            for position in generator.integers(len(content), size=4):
                damaged[position] = generator.integers(256)
            try:
                assert read_image(bytes(damaged), max_pixels=2**20).mode == "RGB"
            except DataError as error:
                assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b'<svg xmlns="http://www.w3.org/2000/svg"/>',
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"\x89HDF\r\n\x1a\n" + bytes(100),
        b"P6 2 2 255 " + bytes(12),
        b"%PDF-1.7\n",
    ],
)
def test_other_formats_are_refused(content):
    assert_refused(content, match="not an image in one of the formats PNG, JPEG, WEBP, GIF, BMP, TIFF")


def test_a_text_bomb_in_a_png_is_refused():
    bomb = zlib.compress(bytes(100 * 2**20), 9)
    data = b"Comment\0\0" + bomb
    chunk = struct.pack(">I", len(data)) + b"zTXt" + data + struct.pack(">I", zlib.crc32(b"zTXt" + data))
    content = encoded(noise())
    assert_refused(content[:33] + chunk + content[33:], match="damaged image")


def test_missing_files_are_named(tmp_path):
    assert_refused(tmp_path / "no.png", match=r"no\.png' cannot be read \(No such file or directory\)")
    assert_refused(tmp_path, match="cannot be read")
    assert_refused("a\0b", match="cannot be read")
