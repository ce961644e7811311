"""Arguments of the API as images and audio, the `Audio` class, and files that the command line writes."""

import numpy as np
import pytest
import soundfile
from PIL import Image

from triptych.errors import UserError
from triptych.utils.media import Audio, load_audio, load_image

TONE = Audio((0.5 * np.sin(np.arange(4000) / 9)).astype(np.float32), 16_000)
PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
SIXTEEN_BITS = 2**-15


def image(mode="RGB"):
    return Image.fromarray(PIXELS).convert(mode)


# -- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "1"])
def test_images_of_any_mode_become_rgb(mode, tmp_path):
    image(mode).save(tmp_path / "a.png")
    loaded = load_image(tmp_path / "a.png")
    assert (loaded.mode, loaded.size) == ("RGB", (30, 20))
    if mode == "RGB":
        assert loaded.tobytes() == image().tobytes()


def test_a_path_bytes_a_pil_image_and_an_array_are_the_same_image(tmp_path):
    path = tmp_path / "a.png"
    image().save(path)
    for source in (
        path,
        str(path),
        path.read_bytes(),
        image(),
        PIXELS,
        PIXELS / 255,
        (PIXELS / 255).astype(np.float32),
    ):
        np.testing.assert_array_equal(np.asarray(load_image(source)), PIXELS)


def test_arrays_of_one_and_four_channels():
    gray = PIXELS[:, :, 0]
    expected = np.repeat(gray[:, :, None], 3, axis=2)
    for array in (gray, gray[:, :, None], gray / 255, gray[:, :, None] / 255):
        np.testing.assert_array_equal(np.asarray(load_image(array)), expected)
    opaque, clear = (np.dstack([PIXELS, np.full((20, 30), alpha, np.uint8)]) for alpha in (255, 0))
    np.testing.assert_array_equal(np.asarray(load_image(opaque)), PIXELS)
    assert (np.asarray(load_image(clear)) == 255).all()
    assert (np.asarray(load_image(clear / 255)) == 255).all()


def test_every_gray_level_survives_as_a_float():
    levels = np.arange(256, dtype=np.uint8)[None]
    for dtype in (np.float16, np.float32, np.float64):
        loaded = load_image((levels / 255).astype(dtype))
        np.testing.assert_array_equal(np.asarray(loaded)[:, :, 0], levels)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros((3, 8, 8), np.uint8), "got shape [3, 8, 8]; move channels to the end"),
        (np.zeros((1, 8, 8, 3), np.uint8), "got shape [1, 8, 8, 3]"),
        (np.zeros(8, np.uint8), "got shape [8]"),
        (np.zeros((0, 8), np.uint8), "got shape [0, 8]"),
        (np.full((8, 8), 300, np.int64), "uint8, or of floats in [0, 1], got int64 from 300 to 300"),
        (np.full((8, 8), 255.0), "got float64 from 255 to 255"),
        (np.full((8, 8), -0.1, np.float32), "got float32 from -0.1 to -0.1"),
        (np.full((8, 8), np.nan), "got float64 from nan to nan"),
        (np.zeros((8, 8), bool), "got bool"),
        (None, "expected an image (path, bytes, PIL image or array), got NoneType"),
        ([[0, 1]], "got list"),
    ],
)
def test_what_is_not_an_image_is_named(wrong, message):
    assert message in one_line(load_image, wrong)


def one_line(load, argument) -> str:
    with pytest.raises(UserError) as caught:
        load(argument)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    return str(caught.value)


# -- audio ------------------------------------------------------------------------------------------------------------


def test_a_path_bytes_an_audio_and_arrays_are_the_same_audio(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, TONE.samples, TONE.sample_rate, subtype="FLOAT")
    stereo = np.stack([TONE.samples, TONE.samples], axis=1)
    pairs = [(samples, TONE.sample_rate) for samples in (TONE.samples, TONE.samples.astype(np.float64), stereo)]
    for source in (path, str(path), path.read_bytes(), TONE, *pairs, (TONE.samples, np.int64(TONE.sample_rate))):
        loaded = load_audio(source)
        assert (loaded.sample_rate, loaded.samples.dtype) == (TONE.sample_rate, np.float32)
        np.testing.assert_array_equal(loaded.samples, TONE.samples)


def test_stereo_of_any_sample_rate_becomes_one_channel(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.stack([TONE.samples, -TONE.samples], 1), 44_100, subtype="FLOAT")
    loaded = load_audio(str(tmp_path / "a.wav"))
    assert (loaded.sample_rate, loaded.samples.shape) == (44_100, (4000,))
    assert not loaded.samples.any()


def test_loud_arrays_are_clipped():
    samples = load_audio((4 * TONE.samples, 8_000)).samples
    assert (samples.min(), samples.max()) == (-1, 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((np.zeros((2, 16_000)), 16_000), "expected samples [n] or [n, channels], got shape [2, 16000]"),
        ((np.zeros((1, 2, 3)), 16_000), "got shape [1, 2, 3]"),
        ((np.zeros(0), 16_000), "got shape [0]"),
        ((np.full(9, 7, np.int16), 16_000), "expected samples as floats in [-1, 1], got int16 from 7 to 7"),
        ((np.array([0.0, np.nan]), 16_000), "expected finite samples, got NaN or infinity"),
        ((np.zeros(9), 7), "expected a sample rate of 1000 to 384000 Hz, got 7"),
        ((np.zeros(9), 16_000.5), "got 16000.5"),
        ((16_000, np.zeros(9)), "(path, bytes, Audio or (samples, sample_rate)), got tuple"),
        (np.zeros(9), "got ndarray"),
        (None, "got NoneType"),
    ],
)
def test_what_is_not_audio_is_named(wrong, message):
    assert message in one_line(load_audio, wrong)


@pytest.mark.parametrize("name", ["tone.wav", "tone.flac", "new/folder/tone.WAV"])
def test_saved_audio_comes_back_to_sixteen_bits(name, tmp_path):
    path = TONE.save(tmp_path / name)
    assert path == tmp_path / name
    loaded = Audio.load(path)
    assert (loaded.sample_rate, loaded.seconds) == (TONE.sample_rate, TONE.seconds)
    assert np.abs(loaded.samples - TONE.samples).max() <= SIXTEEN_BITS
    again = loaded.save(tmp_path / f"again{path.suffix}")
    np.testing.assert_array_equal(Audio.load(again).samples, loaded.samples)


def test_ogg_is_close(tmp_path):
    loaded = Audio.load(TONE.save(tmp_path / "tone.ogg"))
    assert len(loaded.samples) == len(TONE.samples)
    assert np.abs(loaded.samples - TONE.samples).max() < 0.1


def test_audio_files_of_more_than_half_a_minute(tmp_path):
    path = Audio(np.zeros(31 * 8_000, np.float32), 8_000).save(tmp_path / "long.wav")
    assert Audio.load(path).seconds == 31
    assert "is 31.00 s long, the limit is 30.0 s" in one_line(load_audio, path)
    with pytest.raises(UserError, match="the limit is 9 s"):
        Audio.load(path, max_seconds=9)


def test_audio_that_cannot_be_saved_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for name, message in (
        ("tone.mp3", ".wav, .flac, .ogg, got"),
        ("tone", "got"),
        ("file/tone.wav", "cannot be written"),
    ):
        assert message in one_line(TONE.save, tmp_path / name)


# -- files that cannot be read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "name", "message"),
    [
        (load_image, "a.wav", "a.wav is not an image in one of the formats PNG, JPEG"),
        (load_image, "a.txt", "a.txt is not an image in one of the formats PNG, JPEG"),
        (load_image, "cut.png", "cut.png is a damaged image"),
        (load_image, "none.png", "there is no file '"),
        (load_image, "", "is a folder: expected the file of an image or audio."),
        (load_audio, "a.png", "a.png is not an audio file in one of the formats WAV, FLAC, OGG, MP3."),
        (load_audio, "a.txt", "a.txt is not an audio file in one of the formats WAV, FLAC, OGG, MP3."),
        (load_audio, "cut.wav", "cut.wav is truncated: expected 4000 frames"),
        (load_audio, "none.wav", "there is no file '"),
        (load_audio, "", "is a folder: expected the file of an image or audio."),
    ],
)
def test_files_that_cannot_be_read_are_one_line(load, name, message, tmp_path):
    soundfile.write(tmp_path / "a.wav", TONE.samples, TONE.sample_rate)
    image().save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("a cat")
    for intact, cut in (("a.png", "cut.png"), ("a.wav", "cut.wav")):
        content = (tmp_path / intact).read_bytes()
        (tmp_path / cut).write_bytes(content[: len(content) // 2])
    assert message in one_line(load, tmp_path / name)


def test_bytes_that_cannot_be_read_are_one_line():
    assert "the given file is not an image" in one_line(load_image, b"hello")
    assert "the given file is not an audio file" in one_line(load_audio, b"hello")
