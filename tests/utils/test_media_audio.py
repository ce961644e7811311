"""Reading audio files: every format becomes one channel of finite samples; damaged files are one-line errors."""

import io
import math
import struct
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from triptych.errors import DataError, UserError
from triptych.utils import media
from triptych.utils.media import read_audio


def assert_refused(*arguments, match: str, **options) -> None:
    with pytest.raises(DataError, match=match) as caught:
        read_audio(*arguments, **options)
    assert "\n" not in str(caught.value)


def tone(seconds: float = 2.0, rate: int = 8_000, hertz: float = 440.0) -> np.ndarray:
    t = np.arange(round(seconds * rate)) / rate
    return (0.5 * np.sin(2 * math.pi * hertz * t)).astype(np.float32)


def audio_bytes(samples: np.ndarray, rate: int = 8_000, kind: str = "WAV", **options) -> bytes:
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
def test_formats_keep_their_samples(tmp_path, kind, options, tolerance):
    content = audio_bytes(tone(), kind=kind, **options)
    (tmp_path / "audio").write_bytes(content)
    for source in (content, tmp_path / "audio"):
        audio = read_audio(source)
        assert audio.sample_rate == 8_000
        assert audio.samples.dtype == np.float32
        if kind == "MP3":  # its encoder adds silence before and after
            assert abs(audio.seconds - 2) < 0.3
            assert 0.3 < audio.samples.std() < 0.4
        else:
            assert len(audio.samples) == 16_000
            assert np.abs(audio.samples - tone()).max() <= tolerance


def test_a_part_of_a_file():
    content = audio_bytes(tone(), subtype="FLOAT")
    np.testing.assert_array_equal(read_audio(content, 0.5, 1.0).samples, tone()[4_000:12_000])
    np.testing.assert_array_equal(read_audio(content, offset_seconds=1.5).samples, tone()[12_000:])
    np.testing.assert_array_equal(read_audio(content, 1.5, 9.0).samples, tone()[12_000:])
    assert_refused(content, 2.0, match=r"no samples after 2.0 s; it ends at 2\.00 s")
    for wrong in (
        {"offset_seconds": -1},
        {"duration_seconds": 0},
        {"max_seconds": 0},
        {"offset_seconds": math.nan},
        {"too_long": "x"},
    ):
        with pytest.raises(UserError, match=r"reading audio needs|too_long must be"):
            read_audio(content, **wrong)


def test_a_part_reads_only_what_it_needs(monkeypatch):
    """Half a minute out of an hour, without decoding the hour."""
    content = audio_bytes(np.zeros(8_000 * 3_600, np.int16), subtype="PCM_16")

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

    monkeypatch.setattr(media, "io", SimpleNamespace(BytesIO=Counting, SEEK_END=io.SEEK_END))
    audio = read_audio(content, offset_seconds=3_000, duration_seconds=30)
    assert len(audio.samples) == 240_000
    assert 480_000 <= Counting.count < 600_000


def test_channels_are_averaged():
    left, right = tone(), tone(hertz=660)
    audio = read_audio(audio_bytes(np.stack([left, right], axis=1), subtype="FLOAT"))
    np.testing.assert_allclose(audio.samples, (left + right) / 2, atol=1e-7)


def test_long_audio_is_refused_or_cut():
    content = audio_bytes(tone(seconds=31), subtype="FLOAT")
    assert_refused(content, match=r"is 31\.00 s long, the limit is 30\.0 s")
    cut = read_audio(content, too_long="cut")
    np.testing.assert_array_equal(cut.samples, tone(seconds=30))
    assert read_audio(content, duration_seconds=30).seconds == 30
    assert read_audio(content, max_seconds=31).seconds == 31


def test_opus_is_decoded_no_further_than_the_limit():
    content = audio_bytes(np.zeros(8_000 * 60, np.float32), kind="OGG", subtype="OPUS")
    assert len(content) < 50_000
    assert_refused(content, match=r"is 60\.00 s long")
    assert read_audio(content, too_long="cut").seconds == 30


def test_truncated_wav_is_refused_with_numbers():
    for kind in ("WAV", "RF64"):
        content = audio_bytes(tone(), kind=kind, subtype="PCM_16")
        assert_refused(content[:-10_000], match="expected 16000 frames, found 11000")
    stereo = audio_bytes(np.stack([tone(), tone()], axis=1), subtype="PCM_24")
    assert_refused(stereo[:-6_000], match="expected 16000 frames, found 15000")


def test_truncated_flac_is_refused_with_numbers():
    content = audio_bytes(np.random.default_rng(0).uniform(-1, 1, 16_000).astype(np.float32), kind="FLAC")
    assert_refused(content[: len(content) // 2], match="truncated|damaged audio file")


def test_a_wav_written_to_a_pipe_states_no_length():
    content = bytearray(audio_bytes(tone(), subtype="PCM_16"))
    start = content.index(b"data") + 4
    content[start : start + 4] = b"\xff\xff\xff\xff"
    assert len(read_audio(bytes(content)).samples) == 16_000


def test_chunks_before_the_data_are_skipped():
    content = audio_bytes(tone(), subtype="PCM_16")
    start = content.index(b"data")
    odd = b"LIST" + struct.pack("<I", 5) + b"abcde\0"  # chunks are padded to an even size
    longer = content[:start] + odd + content[start:]
    longer = longer[:4] + struct.pack("<I", len(longer) - 8) + longer[8:]
    assert len(read_audio(longer).samples) == 16_000
    assert_refused(longer[:-2], match="expected 16000 frames, found 15999")


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        (22, struct.pack("<H", 0), "damaged audio file|truncated"),  # channels
        (22, struct.pack("<H", 1000), "channels|damaged audio file"),
        (24, struct.pack("<I", 0), "damaged audio file|0 Hz"),  # rate
        (24, struct.pack("<I", 2**31 - 1), "Hz|damaged audio file"),
        (24, struct.pack("<I", 7), "claims 7 Hz"),
        (40, struct.pack("<I", 2**31), "truncated: expected 1073741824 frames, found 16000"),  # bytes of data
        (40, struct.pack("<I", 0), "no samples"),
    ],
)
def test_forged_headers_are_refused(field, value, match):
    content = bytearray(audio_bytes(tone(), subtype="PCM_16"))
    assert content[36:40] == b"data"
    content[field : field + len(value)] = value
    assert_refused(bytes(content), match=match)


def test_a_forged_flac_length_does_not_size_memory():
    content = bytearray(audio_bytes(tone(), kind="FLAC"))
    content[21] |= 0x0F  # the upper bits of the number of samples in STREAMINFO
    content[22:26] = b"\xff\xff\xff\xff"
    assert_refused(bytes(content), match="long, the limit")
    assert_refused(bytes(content), too_long="cut", match="truncated|damaged audio file")


def test_a_flac_written_to_a_pipe_is_refused():
    content = bytearray(audio_bytes(tone(), kind="FLAC"))
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    assert_refused(bytes(content), match="does not state its length")


def test_nan_and_infinite_samples_are_refused():
    for value in (np.nan, np.inf):
        samples = tone()
        samples[99] = value
        assert_refused(audio_bytes(samples, subtype="FLOAT"), match="not numbers")


def test_loud_samples_are_clipped():
    audio = read_audio(audio_bytes(4 * tone(), subtype="FLOAT"))
    assert (audio.samples.min(), audio.samples.max()) == (-1, 1)


@pytest.mark.parametrize("content", [b"", b"hello", bytes(1_000), b"RIFF", b"RIFF\x10\0\0\0WAVE", b"OggS" + bytes(50)])
def test_what_is_not_audio_is_refused(content):
    assert_refused(content, match="not an audio file|damaged audio file|no samples")


def test_empty_audio_and_other_formats_are_refused():
    assert_refused(audio_bytes(np.zeros(0, np.float32)), match="no samples")
    assert_refused(audio_bytes(tone(), kind="AIFF"), match="has the format AIFF; expected one of WAV")


def test_missing_files_are_named(tmp_path):
    assert_refused(tmp_path / "no.wav", match=r"no\.wav' cannot be read \(No such file or directory\)")
    assert_refused("a\0b", match="cannot be read")
