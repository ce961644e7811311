import numpy as np
import pytest
import soundfile
from PIL import Image

from triptych.errors import UserError
from triptych.utils.media import Audio, load_audio, load_image, with_ending, write_media

TONE = Audio((0.5 * np.sin(np.arange(4000) / 9)).astype(np.float32), 16_000)


def picture(mode="RGB"):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "1"])
def test_pictures_of_any_mode_become_rgb(mode, tmp_path):
    picture(mode).save(tmp_path / "a.png")
    found = load_image(tmp_path / "a.png")
    assert (found.mode, found.size) == ("RGB", (30, 20))
    if mode == "RGB":
        assert found.tobytes() == picture().tobytes()


def test_a_stereo_sound_of_any_rate_becomes_one_channel(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.stack([TONE.samples, -TONE.samples], 1), 44_100, subtype="FLOAT")
    found = load_audio(str(tmp_path / "a.wav"))
    assert (found.rate, found.samples.shape) == (44_100, (4000,))
    assert not found.samples.any()


@pytest.mark.parametrize(
    ("read", "name", "message"),
    [
        (load_image, "a.wav", "a.wav is not a picture in one of the formats PNG, JPEG"),
        (load_image, "a.txt", "a.txt is not a picture in one of the formats PNG, JPEG"),
        (load_image, "cut.png", "cut.png is a damaged picture"),
        (load_image, "none.png", "there is no file '"),
        (load_image, "", "there is no file '"),
        (load_audio, "a.png", "a.png is not a sound in one of the formats WAV, FLAC, OGG, MP3."),
        (load_audio, "a.txt", "a.txt is not a sound in one of the formats WAV, FLAC, OGG, MP3."),
        (load_audio, "cut.wav", "cut.wav is truncated: expected 4000 frames"),
        (load_audio, "none.wav", "there is no file '"),
        (load_audio, "", "there is no file '"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(read, name, message, tmp_path):
    soundfile.write(tmp_path / "a.wav", TONE.samples, TONE.rate)
    picture().save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("a cat")
    for whole, cut in (("a.png", "cut.png"), ("a.wav", "cut.wav")):
        content = (tmp_path / whole).read_bytes()
        (tmp_path / cut).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError) as caught:
        read(tmp_path / name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


# -- writing ----------------------------------------------------------------------------------------------------------


def test_a_picture_comes_back_to_the_pixel(tmp_path):
    path = write_media(picture(), tmp_path / "new" / "folder" / "cat.PNG", "image", None)
    assert path == tmp_path / "new" / "folder" / "cat.PNG"
    assert load_image(path).tobytes() == picture().tobytes()


def test_a_sound_comes_back_to_sixteen_bits(tmp_path):
    path = write_media(TONE, tmp_path / "tone.wav", "speech", None)
    found = load_audio(path)
    assert found.rate == TONE.rate
    assert np.abs(found.samples - TONE.samples).max() <= 2**-15


def test_names_of_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(write_media(picture(), None, "fill-image", None)) == "fill-image.png"
    assert str(write_media(TONE, None, "speech", 2)) == "speech-2.wav"
    assert write_media(picture(), tmp_path / "cats", "image", 0) == tmp_path / "cats-0.png"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cats-0.png", "fill-image.png", "speech-2.wav"]


def test_another_ending_is_an_error_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match=r"this makes a \.png file, got --out .*cat\.jpg"):
        write_media(picture(), tmp_path / "cat.jpg", "image", None)
    with pytest.raises(UserError, match=r"this makes a \.wav file, got --out .*cat\.png"):
        with_ending(tmp_path / "cat.png", ".wav")
    assert not list(tmp_path.iterdir())
