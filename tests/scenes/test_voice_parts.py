"""Parts of voices: cut, stored, extended, put together to sentences, and checked by what a judge hears."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triptych.cli.main import main
from triptych.errors import UserError
from triptych.scenes import speech, voice_check, voice_parts, voices
from triptych.scenes.spoken import all_spoken_parts
from triptych.scenes.voice_parts import RATE, build_parts, cut, fingerprint, read_voice
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


def test_every_part_of_the_language_can_be_heard_as_often_as_the_check_says() -> None:
    parts = all_spoken_parts()
    sentences = voice_check.covering_sentences(parts)
    count = {part: sum(part in sentence for sentence in sentences) for part in parts}
    assert min(count.values()) >= voice_check.MAX_HEARINGS
    answers = [sentence for sentence in sentences if "yes" in sentence]
    assert all(set(sentence) == {"yes", "no", "one", "two"} for sentence in answers)
    assert len(set(answers)) > 1, "the judge hears the same in the same list"
    known = ("yes", "a cat", "zebras", "hats", "and")
    lists = [sentence for sentence in voice_check.covering_sentences(known) if {"yes", "zebras"} & set(sentence)]
    assert all(len(sentence) == 4 and set(sentence) <= set(known) for sentence in lists)  # none is heard alone
    assert voice_check.covering_sentences(("yes",)) == (("yes",),) * voice_check.MAX_HEARINGS


@pytest.mark.parametrize("part", ["yes", "no", "one", "two"])
def test_answers_are_heard(part: str) -> None:
    clips = {part: _clip(level) for part, level in LEVELS.items()}

    def judge(audio: Audio) -> str:
        return " ".join("noise" if each == part else each for each in _parts_in(audio))

    assert voice_check.check_voice(clips, list(LEVELS), judge).misheard == (part,)


def test_a_part_is_heard_four_times_before_it_is_misheard() -> None:
    clips = {part: _clip(level) for part, level in LEVELS.items()}
    heard: list[str] = []

    def judge(audio: Audio) -> str:
        parts = _parts_in(audio)
        heard.extend(part for part in parts if part == "foxes")
        return " ".join("noise" if part == "foxes" and len(heard) <= num_wrong else part for part in parts)

    for num_wrong, misheard, times in ((4, ("foxes",), 4), (3, ("foxes",), 4), (2, (), 4), (1, (), 2), (0, (), 1)):
        heard.clear()
        assert voice_check.check_voice(clips, ["foxes"], judge).misheard == misheard, num_wrong
        assert len(heard) == times


@pytest.mark.parametrize(
    ("sentence", "transcript", "is_right"),
    [
        (["a snowman", "and", "two red", "hats"], "A snow man and 2 red hats.", [True, True, True, True]),
        (["a snowman", "and", "two red", "hats"], "A snow man and 2 red cats.", [True, True, True, False]),
        (["a polar bear", "on", "a cake"], "a polarbear on a lake", [True, True, False]),
        (["a snowman", "and", "a cat"], "a slow man and a cat", [False, True, True]),
        (["one", "yes"], "", [False, False]),
    ],
)
def test_spaces_are_not_heard(sentence: list[str], transcript: str, is_right: list[bool]) -> None:
    clips = {part: _clip(0.1) for part in sentence}
    assert voice_check._parts_heard(sentence, transcript) == is_right
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(voice_check, "covering_sentences", lambda parts: (tuple(sentence),))
        check = voice_check.check_voice(clips, list(clips), lambda audio: transcript)
    assert check.misheard == tuple(part for part, right in zip(sentence, is_right) if not right)


LEVELS = {part: 0.1 + 0.8 * number / len(all_spoken_parts()) for number, part in enumerate(all_spoken_parts())}
CLEAR = 0.95  # the level of "cakes" when it is spoken again
NEW = 0.05  # the level of "zebras", which are new in the language


def _clip(level: float) -> np.ndarray:
    return np.full(640, level, np.float32)


def _parts_in(audio: Audio) -> list[str]:
    return [min(LEVELS, key=lambda part: abs(LEVELS[part] - level)) for level in audio.samples.reshape(-1, 640)[:, 0]]


class Listener:
    """Knows every part by its level. It hears "cakes" wrong until that is spoken again, and "owls" always."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, audio: Audio) -> str:
        self.num_calls += 1
        heard = []
        for level in audio.samples.reshape(-1, 640)[:, 0]:
            part = min(LEVELS, key=lambda part: abs(LEVELS[part] - level))
            if abs(level - NEW) < 1e-3:
                part = "zebras"
            heard.append("cakes" if abs(level - CLEAR) < 1e-3 else "noise" if part in ("cakes", "owls") else part)
        return " ".join(heard)


@pytest.fixture
def spoken_again(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """What is spoken again, and how fast. "Cakes," is clear at the second speed."""
    calls: list[tuple[str, float]] = []

    def say(text: str, voice: str, speed: float) -> Audio:
        calls.append((text, speed))
        is_clear = text == "Cakes," and speed < voice_parts.SPEED
        return Audio(_clip(CLEAR if is_clear else LEVELS[text[:-1].lower()]), RATE)

    monkeypatch.setattr(voice_check, "synthesize", say)
    monkeypatch.setattr(voice_check, "cut", lambda audio: audio.samples)
    return calls


def _build(folder: Path, voices: list[str], parts: list[str] | None = None) -> None:
    build_parts(folder, voices, parts or LEVELS, lambda line: None, lambda part, voice: _clip(LEVELS[part]))


def _index(folder: Path, voice: str = "emma") -> dict[str, Any]:
    index: dict[str, Any] = json.loads((folder / f"{voice}.json").read_text())
    return index


def test_misheard_parts_are_replaced_or_dropped(tmp_path: Path, spoken_again: list[tuple[str, float]]) -> None:
    _build(tmp_path, ["emma"])
    lines: list[str] = []
    check = voice_check.repair_voice(tmp_path, "emma", lines.append, Listener())
    assert set(check.misheard) == {"cakes", "owls"}
    clips = read_voice(tmp_path, "emma")
    assert clips["cakes"][0] == pytest.approx(CLEAR, abs=1e-3)
    assert set(LEVELS) - set(clips) == {"owls"}
    assert _index(tmp_path)["dropped"] == ["owls"]
    assert "emma: 1 parts dropped: owls" in lines
    first, second, third = voice_check.REPAIR_SPEEDS
    cakes, owls = ([speed for text, speed in spoken_again if text == name] for name in ("Cakes,", "Owls,"))
    assert (cakes, owls) == ([first, second], [first, second, third])
    for part, clip in clips.items():
        if part != "cakes":
            assert clip[0] == pytest.approx(LEVELS[part], abs=1e-3), "another part was changed"


def test_dropped_parts_are_not_added_again_and_checked_voices_are_not_checked_again(
    tmp_path: Path, spoken_again: list[tuple[str, float]]
) -> None:
    judge = Listener()
    _build(tmp_path, ["emma", "george"])
    voice_check.check_voices(tmp_path, ["emma"], lambda line: None, judge)
    assert [voice_parts.is_checked(tmp_path, name) for name in ("emma", "george")] == [True, False]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    _build(tmp_path, ["emma", "george"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before, "nothing is missing"
    calls = judge.num_calls
    voice_check.check_voices(tmp_path, ["emma"], lambda line: None, judge)
    assert judge.num_calls == calls
    # A part that is new in the language makes the voice unchecked; what was dropped stays dropped.
    build_parts(tmp_path, ["emma"], [*LEVELS, "zebras"], lambda line: None, lambda part, voice: _clip(NEW))
    assert not voice_parts.is_checked(tmp_path, "emma")
    assert voice_parts.dropped_parts(tmp_path, "emma") == ("owls",)
    voice_check.check_voices(tmp_path, ["emma"], lambda line: None, judge)
    assert voice_parts.is_checked(tmp_path, "emma")
    assert voice_parts.dropped_parts(tmp_path, "emma") == ("owls",)


def test_a_stopped_check_changes_nothing(tmp_path: Path, spoken_again: list[tuple[str, float]]) -> None:
    judge = Listener()

    def stop(audio: Audio) -> str:
        if judge.num_calls == 150:
            raise KeyboardInterrupt
        return judge(audio)

    _build(tmp_path, ["emma"])
    before = (tmp_path / "emma.flac").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        voice_check.check_voices(tmp_path, ["emma"], lambda line: None, stop)
    assert (tmp_path / "emma.flac").read_bytes() == before
    assert not voice_parts.is_checked(tmp_path, "emma")


def test_a_part_that_is_right_is_not_heard_again() -> None:
    """Few sentences settle a clear voice. A part may be wrong in half of its sentences, but not in more."""
    clips = {part: _clip(level) for part, level in LEVELS.items()}
    sentences = voice_check.covering_sentences(tuple(LEVELS))

    def check(share_wrong: float) -> voice_check.VoiceCheck:
        heard = {"foxes": 0.0, "and": 0.0}

        def judge(audio: Audio) -> str:
            words = []
            for level in audio.samples.reshape(-1, 640)[:, 0]:
                part = min(LEVELS, key=lambda part: abs(LEVELS[part] - level))
                if part in heard:
                    heard[part] += share_wrong
                    if heard[part] >= 1:
                        heard[part] -= 1
                        part = "noise"
                words.append(part)
            return " ".join(words)

        return voice_check.check_voice(clips, list(LEVELS), judge)

    clear = check(0.0)
    assert clear.misheard == ()
    assert clear.num_errors == 0
    assert clear.num_sentences < 0.6 * len(sentences)
    assert check(0.45).misheard == ()
    assert set(check(1.0).misheard) == {"foxes", "and"}
    assert check(1.0).num_sentences < clear.num_sentences + 2 * voice_check.MAX_HEARINGS


def test_a_silent_part_is_dropped(tmp_path: Path) -> None:
    def say(part: str, voice: str) -> np.ndarray:
        return cut(Audio(np.zeros(RATE, np.float32), RATE)) if part == "and" else _tone(part, voice)

    for _ in range(2):
        build_parts(tmp_path, ["emma"], PARTS, report=lambda line: None, synthesizer=say)
        assert list(read_voice(tmp_path, "emma")) == ["a cat", "two red", "foxes"]
        assert voice_parts.dropped_parts(tmp_path, "emma") == ("and",)


def test_a_kill_while_a_voice_is_written_never_leaves_a_wrong_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_parts(tmp_path, ["emma"], PARTS[:2], report=lambda line: None, synthesizer=_tone)
    write = voice_parts.write_atomically

    def killed(path: Path, content: bytes) -> None:
        if path.suffix == ".json":
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(voice_parts, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        build_parts(tmp_path, ["emma"], [PARTS[3], *PARTS[:2]], report=lambda line: None, synthesizer=_tone)
    with pytest.raises(UserError, match="has no voice 'emma'"):
        read_voice(tmp_path, "emma")


# -- several processes, and broken files ------------------------------------------------------------------------------


def test_voices_without_a_hash_are_read(tmp_path: Path) -> None:
    """Voices of an earlier version stay valid and checked, with the same fingerprint."""
    clips = {part: _tone(part, "emma") for part in PARTS}
    voice_parts.write_voice(tmp_path, "emma", clips, checked=True, dropped=["owls"])
    before, index = fingerprint(tmp_path, ["emma"]), _index(tmp_path)
    assert len(index.pop("audio_sha256")) == 16
    (tmp_path / "emma.json").write_text(json.dumps(index))
    assert voice_parts.is_checked(tmp_path, "emma")
    assert list(read_voice(tmp_path, "emma")) == PARTS
    assert fingerprint(tmp_path, ["emma"]) == before
    voice_parts.write_voice(tmp_path, "emma", clips | {"and": -clips["and"]}, checked=True, dropped=["owls"])
    index = _index(tmp_path)
    del index["audio_sha256"]
    (tmp_path / "emma.json").write_text(json.dumps(index))
    assert fingerprint(tmp_path, ["emma"]) != before, "a part was replaced by one of equal length"


def test_a_voice_that_changes_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice_parts, "_REREAD_SECONDS", 0.0)
    old, new = ({part: np.full(800, level, np.float32) for part in PARTS} for level in (0.1, 0.2))
    voice_parts.write_voice(tmp_path, "emma", old)
    read, index = voice_parts._read_index, (tmp_path / "emma.json").read_text()

    def replaced_after(folder: Path, voice: str) -> dict[str, Any]:
        result = read(folder, voice)
        monkeypatch.setattr(voice_parts, "_read_index", read)
        voice_parts.write_voice(folder, voice, new)
        return result

    monkeypatch.setattr(voice_parts, "_read_index", replaced_after)
    assert read_voice(tmp_path, "emma")["and"] == pytest.approx(new["and"], abs=1e-3)
    (tmp_path / "emma.json").write_text(index)
    with pytest.raises(UserError, match=r"emma\.flac is not the file that emma\.json belongs to") as error:
        read_voice(tmp_path, "emma")
    assert "\n" not in str(error.value)


def test_a_voice_of_another_process_is_skipped(
    tmp_path: Path, spoken_again: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    with voice_parts.held_voice(tmp_path, "emma", lines.append) as is_held:
        assert is_held
        made = build_parts(tmp_path, ["emma", "george"], PARTS, lines.append, _tone)
    assert made == ["george"]
    assert not (tmp_path / "emma.json").exists()
    assert re.fullmatch(r"emma: skipped, process \d+ on .* is making it", lines[0])
    _build(tmp_path, ["lewis"])
    judge = Listener()
    with voice_parts.held_voice(tmp_path, "lewis", lines.append):
        assert voice_check.check_voices(tmp_path, ["lewis"], lines.append, judge) == []
    assert judge.num_calls == 0
    assert lines[-1].startswith("lewis: skipped, process ")
    assert build_parts(tmp_path, ["emma"], PARTS, lines.append, _tone) == ["emma"]
    # What is complete needs no lock, so the folder may be one that cannot be written.
    monkeypatch.setattr(voice_parts, "hold_lock", lambda path, owner: pytest.fail("locked"))
    assert build_parts(tmp_path, ["emma"], PARTS, lines.append, _tone) == ["emma"]


def test_a_voice_is_locked_while_it_is_made(tmp_path: Path, spoken_again: list[tuple[str, float]]) -> None:
    lines: list[str] = []

    def say(part: str, voice: str) -> np.ndarray:
        with voice_parts.held_voice(tmp_path, voice, lines.append) as is_held:
            assert not is_held
        return _tone(part, voice)

    build_parts(tmp_path, ["george"], PARTS, lambda line: None, say)
    assert len(lines) == len(PARTS)
    _build(tmp_path, ["emma"])
    judge = Listener()

    def listen(audio: Audio) -> str:
        with voice_parts.held_voice(tmp_path, "emma", lambda line: None) as is_held:
            assert not is_held
        return judge(audio)

    assert voice_check.check_voices(tmp_path, ["emma"], lambda line: None, listen) == ["emma"]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"parts": []}', '{"parts": {"a cat": 3}}', "\xff"])
def test_a_broken_index_is_one_line(content: str, tmp_path: Path) -> None:
    build_parts(tmp_path, ["emma"], PARTS, lambda line: None, _tone)
    (tmp_path / "emma.json").write_bytes(content.encode("latin-1"))
    uses: list[Callable[[], object]] = [
        lambda: read_voice(tmp_path, "emma"),
        lambda: voice_parts.is_checked(tmp_path, "emma"),
        lambda: fingerprint(tmp_path, ["emma"]),
        lambda: build_parts(tmp_path, ["emma"], PARTS, lambda line: None, _tone),
    ]
    for use in uses:
        with pytest.raises(UserError, match=r"emma\.json is broken.*`triptych scenes voices .*` makes") as error:
            use()
        assert "\n" not in str(error.value)


def test_a_damaged_built_in_voice_is_installed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_parts(tmp_path, ["emma"], PARTS, lambda line: None, _tone)
    monkeypatch.setattr(voice_parts, "BUILT_IN_VOICES", tmp_path)
    monkeypatch.setattr(voice_parts, "_REREAD_SECONDS", 0)
    content = (tmp_path / "emma.flac").read_bytes()
    (tmp_path / "emma.flac").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="install triptych again") as error:
        read_voice(tmp_path, "emma")
    assert "scenes voices" not in str(error.value)


def test_a_libsndfile_without_opus_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = {part: _tone(part, "emma") for part in PARTS}
    voice_parts.write_voice(tmp_path, "emma", clips, packed_from="0" * 16)
    monkeypatch.setattr("soundfile.available_subtypes", lambda format: {"VORBIS": "Vorbis"})
    with pytest.raises(UserError, match="this libsndfile has no Opus"):
        read_voice(tmp_path, "emma")


def test_broken_samples_and_a_voice_without_parts_are_one_line(tmp_path: Path) -> None:
    build_parts(tmp_path, ["emma"], PARTS, lambda line: None, _tone)
    index = _index(tmp_path)
    del index["audio_sha256"]
    (tmp_path / "emma.json").write_text(json.dumps(index))
    (tmp_path / "emma.flac").write_bytes(b"noise")
    with pytest.raises(UserError, match=r"emma\.flac is no audio file"):
        read_voice(tmp_path, "emma")
    (tmp_path / "emma.flac").unlink()
    with pytest.raises(UserError, match=r"emma\.flac cannot be read"):
        read_voice(tmp_path, "emma")
    with pytest.raises(UserError, match=r"george\.flac cannot be written: the voice 'george' says none"):
        voice_parts.write_voice(tmp_path, "george", {})


@pytest.mark.parametrize("names", ["", ",", "emma,", " "])
def test_empty_names_are_refused(
    names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(voices, "fetch_all", lambda: pytest.fail("nothing is to be made"))
    assert main(["scenes", "voices", str(tmp_path), "--only", names]) == 2
    assert f"--only takes names of voices, separated by commas, got {names!r}" in capsys.readouterr().err


def test_the_help_says_how_long_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    for command, times in (("fit", ["a minute", "ten minutes", "half an hour"]), ("voices", ["hours"])):
        with pytest.raises(SystemExit):
            main(["scenes", command, "--help"])
        text = " ".join(capsys.readouterr().out.lower().split())
        assert all(time in text for time in times)
        assert "two hours" not in text


def test_the_command_builds_and_checks_each_voice_in_turn(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoken_again: list[tuple[str, float]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(voices, "fetch_all", lambda: [])
    monkeypatch.setattr(voice_parts.build_parts, "__defaults__", (print, lambda part, voice: _clip(LEVELS[part])))
    monkeypatch.setattr(voice_check.check_voices, "__defaults__", (print, Listener()))
    words = ["scenes", "voices", str(tmp_path), "--only", "emma,George"]
    assert main([*words, "--no-check"]) == 0
    assert [voice_parts.is_checked(tmp_path, name) for name in ("emma", "george")] == [False, False]
    assert "misheard" not in capsys.readouterr().out
    assert main(words) == 0  # what was built earlier is checked now
    assert [voice_parts.is_checked(tmp_path, name) for name in ("emma", "george")] == [True, True]
    assert "george: 1 parts dropped: owls" in capsys.readouterr().out
    assert main(words) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 2 voices; `--voices {tmp_path}` uses them\n"
    assert main(["scenes", "voices", str(tmp_path), "--only", "ema"]) == 2
    assert "unknown voice 'ema'. Did you mean 'emma'" in capsys.readouterr().err


def test_checked_voices_are_packed_once_and_read_like_others(tmp_path: Path) -> None:
    made, packed = tmp_path / "made", tmp_path / "packed"
    build_parts(made, ["emma", "george"], PARTS, report=lambda line: None, synthesizer=_tone)
    clips = read_voice(made, "emma")
    voice_parts.write_voice(made, "emma", clips, checked=True, dropped=["and"])
    assert voice_parts.pack_voices(made, packed, ["emma", "george", "lily"]) == ["emma"]  # george is not checked
    assert sorted(path.name for path in packed.iterdir()) == ["emma.json", "emma.opus"]
    assert voice_parts.is_checked(packed, "emma")
    assert voice_parts.dropped_parts(packed, "emma") == ("and",)
    for part, clip in read_voice(packed, "emma").items():
        assert len(clip) == len(clips[part])
        assert np.corrcoef(clip, clips[part])[0, 1] > 0.98
    before = (packed / "emma.opus").read_bytes()
    voice_parts.pack_voices(made, packed, ["emma"])
    assert (packed / "emma.opus").read_bytes() == before
    voice_parts.write_voice(made, "emma", {**clips, "a cat": clips["foxes"]}, checked=True)
    voice_parts.pack_voices(made, packed, ["emma"])
    assert len(read_voice(packed, "emma")["a cat"]) == len(clips["foxes"])
    # A packed voice can be extended: it becomes a FLAC again.
    build_parts(packed, ["emma"], [*PARTS, "owl"], report=lambda line: None, synthesizer=_tone)
    assert sorted(path.name for path in packed.glob("emma.*")) == ["emma.flac", "emma.json"]


def test_the_built_in_voices_are_whole_and_checked() -> None:
    names = speech.available_voices(speech.BUILT_IN_VOICES)
    held_out = speech.available_voices(speech.BUILT_IN_VOICES, held_out=True)
    assert {*names, *held_out} == set(voices.VOICES)
    for name in (*names, *held_out):
        clips = read_voice(speech.BUILT_IN_VOICES, name)
        assert voice_parts.is_checked(speech.BUILT_IN_VOICES, name)
        assert {*clips, *voice_parts.dropped_parts(speech.BUILT_IN_VOICES, name)} == set(all_spoken_parts())
        assert len(clips) > 0.9 * len(all_spoken_parts())
        assert all(np.abs(clip).max() > 0.02 for clip in clips.values())


def test_packing_deletes_nothing_and_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, packed = tmp_path / "made", tmp_path / "packed"
    pack = ["scenes", "voices", str(made), "--pack"]
    assert main([*pack, str(made)])
    assert "--pack takes another folder" in capsys.readouterr().err
    build_parts(made, ["emma", "george"], PARTS, report=lambda line: None, synthesizer=_tone)
    assert main([*pack, str(packed)])
    assert "has no finished voice" in capsys.readouterr().err
    assert not packed.exists()
    voice_parts.write_voice(made, "emma", read_voice(made, "emma"), checked=True)
    assert main([*pack, str(packed), "--only", "emma,george"]) == 0
    assert capsys.readouterr().out == f"{packed}: 1 voices; not finished: george\n"
    build_parts(packed, ["emma"], [*PARTS, "owl"], report=lambda line: None, synthesizer=_tone)
    assert main([*pack, str(packed), "--only", "emma"])
    assert "without loss; pack into another folder" in capsys.readouterr().err
    assert (packed / "emma.flac").exists()
