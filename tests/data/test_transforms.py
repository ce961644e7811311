import io
import math
import struct
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from PIL import Image, ImageDraw

from triptych.data import transforms
from triptych.data.transforms import paper_transform, random_resized_crop
from triptych.errors import DataError, UserError
from triptych.tokenizers.pixels import resize_with_white_padding
from triptych.utils.media import read_audio, read_image


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def assert_refused(call, *arguments, match: str, **options) -> None:
    with pytest.raises(DataError, match=match) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)


# -- transforms -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def coordinates() -> Image.Image:
    """Red counts columns, green counts rows: a crop can be read off its corners."""
    y, x = np.mgrid[:200, :240]
    return Image.fromarray(np.stack([x, y, 0 * x], axis=-1).astype(np.uint8))


def test_crops_follow_the_rules_of_torchvision(coordinates):
    areas, ratios, lefts = [], [], []
    generator = rng()
    for _ in range(400):
        pixels = np.asarray(random_resized_crop(coordinates, 64, generator)).astype(float)
        assert pixels.shape == (64, 64, 3)
        # From the centre of the first pixel to that of the last there are 63/64 of the box.
        width = np.ptp(pixels[32, :, 0]) * 64 / 63
        height = np.ptp(pixels[:, 32, 1]) * 64 / 63
        areas.append(width * height / (240 * 200))
        ratios.append(width / height)
        lefts.append(pixels[32, 0, 0])
    assert 0.78 < min(areas) < 0.82
    assert 0.96 < max(areas) < 1.02
    assert 0.85 < np.mean(areas) < 0.93
    # The picture's own ratio is 1.2, and 80 % of its area do not fit in below 0.96 or above 1.5.
    assert 0.90 < min(ratios) < 1.05
    assert 1.25 < max(ratios) < 1.37
    assert max(lefts) > 15


def test_small_crops_reach_all_ratios_and_places(coordinates):
    generator = rng(1)
    ratios, centres = [], []
    for _ in range(400):
        pixels = np.asarray(random_resized_crop(coordinates, 64, generator, scale=(0.1, 0.1))).astype(float)
        ratios.append(np.ptp(pixels[32, :, 0]) / np.ptp(pixels[:, 32, 1]))
        centres.append(pixels[32, 32, :2])
    assert abs(np.mean(np.log(ratios))) < 0.03
    assert 0.72 < min(ratios) < 0.79
    assert 1.27 < max(ratios) < 1.38
    assert np.ptp(centres, axis=0).min() > 100


def test_a_sliver_falls_back_to_its_centre():
    sliver = Image.new("RGB", (400, 10), (9, 9, 9))
    ImageDraw.Draw(sliver).rectangle((190, 0, 210, 9), fill=(250, 0, 0))
    pixels = np.asarray(random_resized_crop(sliver, 32, rng()))
    assert (pixels[:, 4:-4, 0] > 200).all()
    assert random_resized_crop(Image.new("RGB", (1, 1000)), 8, rng()).size == (8, 8)


def test_the_papers_mixture(coordinates):
    whole = np.asarray(resize_with_white_padding(coordinates, 32))
    picked = [np.array_equal(np.asarray(paper_transform(coordinates, 32, rng(seed))), whole) for seed in range(400)]
    assert 160 < sum(picked) < 240


def test_the_generator_alone_decides(coordinates):
    once, again, other = (np.asarray(random_resized_crop(coordinates, 32, rng(seed))) for seed in (3, 3, 4))
    assert np.array_equal(once, again)
    assert not np.array_equal(once, other)


# -- pictures ---------------------------------------------------------------------------------------------------------


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(width: int = 24, height: int = 16) -> Image.Image:
    return Image.fromarray(rng().integers(0, 256, (height, width, 3), dtype=np.uint8))


def png_header(width: int, height: int) -> bytes:
    """A PNG that says how large it is and holds nothing."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("kind", "options"),
    [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("WEBP", {"lossless": True}), ("JPEG", {"quality": 98, "subsampling": 0})],
)
def test_formats(tmp_path, kind, options):
    original = noise().resize((48, 32), Image.Resampling.BICUBIC)
    content = encoded(original, kind, **options)
    (tmp_path / "picture").write_bytes(content)
    for source in (content, tmp_path / "picture", str(tmp_path / "picture")):
        opened = read_image(source)
        assert (opened.mode, opened.size) == ("RGB", (48, 32))
        difference = np.abs(np.asarray(opened).astype(int) - np.asarray(original))
        assert difference.mean() < (4 if kind == "JPEG" else 1e-9)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG", "WEBP"])
def test_only_the_first_frame_counts(kind):
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("#ff0000", "#00ff00", "#0000ff")]
    options = {"lossless": True} if kind == "WEBP" else {}
    content = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert np.asarray(read_image(content))[0, 0].tolist() == [255, 0, 0]


def test_exif_orientation():
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
def test_broken_exif_is_no_reason_to_lose_a_picture():
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


def test_deep_and_odd_modes():
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
    assert_refused(read_image, png_header(60_000, 60_000), match="far too many pixels|60000 x 60000")
    assert_refused(read_image, png_header(10_000, 8_000), match="10000 x 8000 pixels; expected 1 to 67,108,864")
    assert_refused(read_image, png_header(0, 10), match="0 x 10|damaged|not a picture")
    assert_refused(read_image, encoded(noise()), max_pixels=383, match="24 x 16")
    assert read_image(encoded(noise()), max_pixels=384).size == (24, 16)
    assert read_image(encoded(Image.new("RGB", (1, 10_000)))).size == (1, 10_000)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_truncated_pictures_are_refused(kind):
    content = encoded(noise(64, 64), kind)
    for part in (0.1, 0.5, 0.8):
        assert_refused(read_image, content[: int(len(content) * part)], match="damaged picture|not a picture")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_flipped_bytes_never_escape():
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
    assert_refused(read_image, content, match="not a picture in one of the formats PNG, JPEG, WEBP, GIF, BMP, TIFF")


def test_a_text_bomb_in_a_png_is_refused():
    bomb = zlib.compress(bytes(100 * 2**20), 9)
    data = b"Comment\0\0" + bomb
    chunk = struct.pack(">I", len(data)) + b"zTXt" + data + struct.pack(">I", zlib.crc32(b"zTXt" + data))
    content = encoded(noise())
    assert_refused(read_image, content[:33] + chunk + content[33:], match="damaged picture")


def test_missing_files_are_named(tmp_path):
    assert_refused(read_image, tmp_path / "no.png", match=r"no\.png' cannot be read")
    assert_refused(read_audio, tmp_path / "no.wav", match=r"no\.wav' cannot be read")
    assert_refused(read_image, tmp_path, match="cannot be read")
    assert_refused(read_audio, "a\0b", match="cannot be read")


# -- sounds -----------------------------------------------------------------------------------------------------------


def tone(seconds: float = 2.0, rate: int = 8_000, hertz: float = 440.0) -> np.ndarray:
    t = np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(2 * math.pi * hertz * t)).astype(np.float32)


def sound_bytes(samples: np.ndarray, rate: int = 8_000, kind: str = "WAV", **options) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("kind", "options", "tolerance"),
    [
        ("WAV", {"subtype": "PCM_16"}, 1e-4),
        ("WAV", {"subtype": "FLOAT"}, 0),
        ("WAV", {"subtype": "PCM_U8"}, 1e-2),
        ("WAVEX", {"subtype": "PCM_24"}, 1e-6),
        ("RF64", {"subtype": "PCM_16"}, 1e-4),
        ("FLAC", {}, 1e-4),
        ("OGG", {"subtype": "VORBIS"}, 0.1),
        ("OGG", {"subtype": "OPUS"}, 0.1),
        ("MP3", {}, 0.1),
    ],
)
def test_sound_formats(tmp_path, kind, options, tolerance):
    content = sound_bytes(tone(), kind=kind, **options)
    (tmp_path / "sound").write_bytes(content)
    for source in (content, tmp_path / "sound"):
        sound = read_audio(source)
        assert sound.rate == 8_000
        assert sound.samples.dtype == np.float32
        if kind == "MP3":  # its encoder adds silence before and after
            assert abs(sound.seconds - 2) < 0.3
            assert 0.3 < sound.samples.std() < 0.4
        else:
            assert len(sound.samples) == 16_000
            assert np.abs(sound.samples - tone()).max() <= tolerance


def test_parts():
    content = sound_bytes(tone(), subtype="FLOAT")
    np.testing.assert_array_equal(read_audio(content, 0.5, 1.0).samples, tone()[4_000:12_000])
    np.testing.assert_array_equal(read_audio(content, offset_seconds=1.5).samples, tone()[12_000:])
    np.testing.assert_array_equal(read_audio(content, 1.5, 9.0).samples, tone()[12_000:])
    assert_refused(read_audio, content, 2.0, match=r"no samples after 2.0 s; it ends at 2\.00 s")
    for wrong in (
        {"offset_seconds": -1},
        {"duration_seconds": 0},
        {"max_seconds": 0},
        {"offset_seconds": math.nan},
        {"too_long": "x"},
    ):
        with pytest.raises(UserError, match=r"a part of a sound needs|too_long must be"):
            read_audio(content, **wrong)


def test_a_part_reads_only_what_it_needs(monkeypatch):
    """Half a minute out of an hour, without decoding the hour."""
    content = sound_bytes(np.zeros(8_000 * 3_600, np.int16), subtype="PCM_16")

    class Counting(io.BytesIO):
        count = 0

        def read(self, size=-1):
            data = super().read(size)
            Counting.count += len(data)
            return data

        def readinto(self, buffer):
            size = super().readinto(buffer)
            Counting.count += size
            return size

    monkeypatch.setattr(transforms, "io", SimpleNamespace(BytesIO=Counting, SEEK_END=io.SEEK_END))
    sound = read_audio(content, offset_seconds=3_000, duration_seconds=30)
    assert len(sound.samples) == 240_000
    assert 480_000 <= Counting.count < 600_000


def test_channels_are_mixed():
    left, right = tone(), tone(hertz=660)
    sound = read_audio(sound_bytes(np.stack([left, right], axis=1), subtype="FLOAT"))
    np.testing.assert_allclose(sound.samples, (left + right) / 2, atol=1e-7)


def test_long_sounds():
    content = sound_bytes(tone(seconds=31), subtype="FLOAT")
    assert_refused(read_audio, content, match=r"is 31\.00 s long, the limit is 30\.0 s")
    cut = read_audio(content, too_long="cut")
    np.testing.assert_array_equal(cut.samples, tone(seconds=30))
    assert read_audio(content, duration_seconds=30).seconds == 30
    assert read_audio(content, max_seconds=31).seconds == 31


def test_opus_is_decoded_no_further_than_the_limit():
    content = sound_bytes(np.zeros(8_000 * 60, np.float32), kind="OGG", subtype="OPUS")
    assert len(content) < 50_000
    assert_refused(read_audio, content, match=r"is 60\.00 s long")
    assert read_audio(content, too_long="cut").seconds == 30


def test_truncated_wav_is_refused_with_numbers():
    for kind in ("WAV", "RF64"):
        content = sound_bytes(tone(), kind=kind, subtype="PCM_16")
        assert_refused(read_audio, content[:-10_000], match="expected 16000 frames, found 11000")
    stereo = sound_bytes(np.stack([tone(), tone()], axis=1), subtype="PCM_24")
    assert_refused(read_audio, stereo[:-6_000], match="expected 16000 frames, found 15000")


def test_truncated_flac_is_refused_with_numbers():
    content = sound_bytes(rng().uniform(-1, 1, 16_000).astype(np.float32), kind="FLAC")
    assert_refused(read_audio, content[: len(content) // 2], match="truncated|not a sound")


def test_a_wav_written_to_a_pipe_promises_no_length():
    content = bytearray(sound_bytes(tone(), subtype="PCM_16"))
    start = content.index(b"data") + 4
    content[start : start + 4] = b"\xff\xff\xff\xff"
    assert len(read_audio(bytes(content)).samples) == 16_000


def test_chunks_before_the_data_are_skipped():
    content = sound_bytes(tone(), subtype="PCM_16")
    start = content.index(b"data")
    odd = b"LIST" + struct.pack("<I", 5) + b"abcde\0"  # chunks are padded to an even size
    longer = content[:start] + odd + content[start:]
    longer = longer[:4] + struct.pack("<I", len(longer) - 8) + longer[8:]
    assert len(read_audio(longer).samples) == 16_000
    assert_refused(read_audio, longer[:-2], match="expected 16000 frames, found 15999")


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        (22, struct.pack("<H", 0), "not a sound|truncated"),  # channels
        (22, struct.pack("<H", 1000), "channels|not a sound"),
        (24, struct.pack("<I", 0), "not a sound|0 Hz"),  # rate
        (24, struct.pack("<I", 2**31 - 1), "Hz|not a sound"),
        (24, struct.pack("<I", 7), "claims 7 Hz"),
        (40, struct.pack("<I", 2**31), "truncated: expected 1073741824 frames, found 16000"),  # bytes of data
        (40, struct.pack("<I", 0), "no samples"),
    ],
)
def test_forged_headers_are_refused(field, value, match):
    content = bytearray(sound_bytes(tone(), subtype="PCM_16"))
    assert content[36:40] == b"data"
    content[field : field + len(value)] = value
    assert_refused(read_audio, bytes(content), match=match)


def test_a_forged_flac_length_does_not_size_memory():
    content = bytearray(sound_bytes(tone(), kind="FLAC"))
    content[21] |= 0x0F  # the upper bits of the number of samples in STREAMINFO
    content[22:26] = b"\xff\xff\xff\xff"
    assert_refused(read_audio, bytes(content), match="long, the limit")
    assert_refused(read_audio, bytes(content), too_long="cut", match="truncated|not a sound")


def test_a_flac_written_to_a_pipe_is_refused():
    content = bytearray(sound_bytes(tone(), kind="FLAC"))
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    assert_refused(read_audio, bytes(content), match="does not say how long it is")


def test_samples_that_are_no_numbers_are_refused():
    for value in (np.nan, np.inf):
        samples = tone()
        samples[99] = value
        assert_refused(read_audio, sound_bytes(samples, subtype="FLOAT"), match="not numbers")


def test_loud_samples_are_clipped():
    sound = read_audio(sound_bytes(4 * tone(), subtype="FLOAT"))
    assert (sound.samples.min(), sound.samples.max()) == (-1, 1)


@pytest.mark.parametrize("content", [b"", b"hello", bytes(1_000), b"RIFF", b"RIFF\x10\0\0\0WAVE", b"OggS" + bytes(50)])
def test_what_is_no_sound_is_refused(content):
    assert_refused(read_audio, content, match="not a sound|no samples")


def test_empty_sounds_and_other_formats_are_refused():
    assert_refused(read_audio, sound_bytes(np.zeros(0, np.float32)), match="no samples")
    assert_refused(read_audio, sound_bytes(tone(), kind="AIFF"), match="has the format AIFF; expected one of WAV")
