"""Parts of voices: cut, stored, extended, put together to sentences, and checked by what a judge hears."""

import json
from pathlib import Path

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.scenes import speech, voice_check, voice_parts
from triptych.scenes.spoken import all_spoken_parts
from triptych.scenes.voice_parts import RATE, build_parts, cut, read_voice
from triptych.utils.media import Audio

PARTS = ["a cat", "two red", "foxes", "and"]


def _tone(part: str, voice: str) -> np.ndarray:
    """A tone whose length and pitch depend on the part and the voice."""
    length = 1000 + 100 * len(part) + len(voice)
    return (0.3 * np.sin(np.arange(length) * 0.02 * len(part))).astype(np.float32)


def test_silence_and_clicks_are_cut_off() -> None:
    speech = 0.3 * np.sin(np.arange(RATE // 2) * 0.3)
    pause, click = np.zeros(RATE // 4), 0.2 * np.ones(RATE // 50)
    clip = cut(Audio(np.concatenate([pause, speech, pause, click, pause]).astype(np.float32), RATE))
    assert len(clip) / RATE == pytest.approx(0.54, abs=0.03)  # the speech and 20 ms on each side
    with pytest.raises(UserError, match="silent"):
        cut(Audio(np.zeros(RATE, np.float32), RATE))


def test_a_folder_of_voices_is_resumed_and_extended(tmp_path: Path) -> None:
    spoken: list[tuple[str, str]] = []

    def say(part: str, voice: str) -> np.ndarray:
        spoken.append((part, voice))
        return _tone(part, voice)

    build_parts(tmp_path, ["emma", "george"], PARTS[:3], report=lambda line: None, synthesizer=say)
    assert len(spoken) == 6
    build_parts(tmp_path, ["emma", "george", "robin"], PARTS[:3], report=lambda line: None, synthesizer=say)
    assert spoken[6:] == [(part, "robin") for part in PARTS[:3]]
    build_parts(tmp_path, ["emma"], PARTS, report=lambda line: None, synthesizer=say)
    assert spoken[9:] == [(PARTS[3], "emma")]
    clips = read_voice(tmp_path, "emma")
    assert list(clips) == PARTS
    for part in PARTS:
        assert np.abs(clips[part] - _tone(part, "emma")).max() < 1e-3  # 16 bits


def test_a_missing_voice_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no voice 'emma'.*triptych scenes voices"):
        read_voice(tmp_path, "emma")
    with pytest.raises(UserError, match=r"unknown voice 'ema'.*emma"):
        read_voice(tmp_path, "ema")


def test_sentences_are_their_parts_in_whole_frames(tmp_path: Path) -> None:
    build_parts(tmp_path, ["emma"], all_spoken_parts(), report=lambda line: None, synthesizer=_tone)
    audio = speech.synthesize("a cat and two red foxes", np.random.default_rng(0), voice="emma", folder=tmp_path)
    frame = round(speech.FRAME_SECONDS * RATE)
    assert len(audio.samples) % frame == 0
    position = 0
    for part in ("a cat", "and", "two red", "foxes"):
        clip = _tone(part, "emma")
        missing = -len(clip) % frame
        start = position + missing // 2
        assert np.abs(audio.samples[start : start + len(clip)] - clip).max() < 1e-3
        position += len(clip) + missing
    assert len(audio.samples) - position <= speech.MAX_TRAILING_FRAMES * frame
    assert speech.available_voices(tmp_path) == ("emma",)
    assert speech.available_voices(None) == (speech.ALWAYS_AVAILABLE,)


def test_every_part_of_the_language_is_checked_twice() -> None:
    parts = list(all_spoken_parts())
    sentences = voice_check.covering_sentences(parts)
    count = {part: sum(part in sentence for sentence in sentences) for part in parts}
    rare = [part for part, number in count.items() if number < voice_check.MIN_SENTENCES]
    assert rare == ["yes", "no", "one", "two"]  # answers, which are no sentences


def test_misheard_parts_are_replaced_or_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that knows every clip by its content hears "cakes" wrong until it is spoken again, and "owls" always."""
    parts = list(all_spoken_parts())
    codes = {part: 0.1 + 0.8 * number / len(parts) for number, part in enumerate(parts)}

    def clip(level: float) -> np.ndarray:
        return np.full(640, level, np.float32)

    def judge(audio: Audio) -> str:
        levels = audio.samples.reshape(-1, 640)[:, 0]
        heard = []
        for level in levels:
            if abs(level - 0.95) < 1e-3:
                heard.append("cakes")
            elif min(abs(level - codes[part]) for part in ("cakes", "owls")) < 5e-4:
                heard.append("noise")
            else:
                heard.append(min(parts, key=lambda part: abs(codes[part] - level)))
        return " ".join(heard)

    build_parts(tmp_path, ["emma"], parts, report=lambda line: None, synthesizer=lambda part, voice: clip(codes[part]))
    again = {"Cakes,": 0.95, "Owls,": codes["owls"]}
    monkeypatch.setattr(voice_check, "synthesize", lambda text, voice, speed: Audio(clip(again[text]), RATE))
    monkeypatch.setattr(voice_check, "cut", lambda audio: audio.samples)
    check = voice_check.repair_voice(tmp_path, "emma", report=lambda line: None, judge=judge)
    assert set(check.misheard) == {"cakes", "owls"}
    clips = read_voice(tmp_path, "emma")
    assert clips["cakes"][0] == pytest.approx(0.95, abs=1e-3)
    assert "owls" not in clips
    assert json.loads((tmp_path / "emma.json").read_text())["is_checked"] is True
    assert voice_parts.SPEED > 1
