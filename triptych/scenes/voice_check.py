"""Check the parts of a voice: Whisper transcribes sentences made of them, and parts that it mishears are replaced.

Single parts are too short to be judged alone. Every part is in at least four sentences: captions and questions, or a
list of parts for those that are in none ("one yes two no"). A part is right if all of its words are heard in at least
half of the sentences that were heard. One that is right the first time is settled; another one is heard up to four
times. A misheard part is spoken again after a carrier sentence, more slowly each time, and dropped if that does not
help.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from triptych.scenes import voice_judge
from triptych.scenes.speech import join_parts
from triptych.scenes.spoken import spoken_caption, spoken_parts
from triptych.scenes.voice_parts import (
    SPEED,
    SilentPart,
    cut,
    dropped_parts,
    held_voice,
    is_checked,
    is_stored,
    read_voice,
    unfinished,
    write_voice,
)
from triptych.scenes.voices import get_voice, synthesize
from triptych.scenes.world import FULL
from triptych.utils.media import Audio

MAX_HEARINGS = 4  # of a part that is not settled; so many sentences are made with each part
_LIST_LENGTH = 4  # parts that are in no caption or question
REPAIR_SPEEDS = (SPEED, 1.15, 1.0)
_REPORT_EVERY = 100  # sentences
Judge = Callable[[Audio], str]
Report = Callable[[str], None]


@dataclass(frozen=True)
class VoiceCheck:
    """What the judge heard of one voice."""

    num_sentences: int
    num_words: int
    num_errors: int
    misheard: tuple[str, ...]
    """Parts that were wrong in most of their sentences."""

    def __str__(self) -> str:
        return (
            f"{self.num_errors} word errors in {self.num_words} words of {self.num_sentences} sentences, "
            f"{len(self.misheard)} parts misheard"
        )


@cache
def covering_sentences(parts: tuple[str, ...], seed: int = 0) -> tuple[tuple[str, ...], ...]:
    """Spoken sentences and lists, as parts, with every part in at least `MAX_HEARINGS`."""
    rng = np.random.default_rng(seed)
    missing = dict.fromkeys(parts, MAX_HEARINGS)
    known = set(parts)
    sentences = []
    for attempt in range(50 * len(parts)):
        if not missing:
            break
        sentence = tuple(spoken_parts(spoken_caption(FULL.sample(rng), rng)))
        wanted = 2 if attempt < 5 * len(parts) else 1  # few sentences first, then the rare parts
        if sum(part in missing for part in sentence) >= wanted and set(sentence) <= known:
            sentences.append(sentence)
            for part in set(sentence) & set(missing):
                missing[part] -= 1
                if not missing[part]:
                    del missing[part]
    return (*sentences, *_lists(missing, parts, rng))


def _lists(missing: dict[str, int], parts: tuple[str, ...], rng: np.random.Generator) -> list[tuple[str, ...]]:
    """Lists with each part so many times; others fill up a list that is too short to be judged."""
    lists = []
    for number in range(max(missing.values(), default=0)):
        wanted = [part for part, count in missing.items() if count > number]
        wanted = [wanted[i] for i in rng.permutation(len(wanted))]
        for start in range(0, len(wanted), _LIST_LENGTH):
            chosen = wanted[start : start + _LIST_LENGTH]
            others = [part for part in parts if part not in chosen]
            for i in rng.permutation(len(others))[: _LIST_LENGTH - len(chosen)]:
                chosen.insert(int(rng.integers(len(chosen) + 1)), others[i])
            lists.append(tuple(chosen))
    return lists


def check_voice(
    clips: dict[str, np.ndarray],
    parts: list[str],
    judge: Judge = voice_judge.transcribe,
    report: Report = lambda line: None,
) -> VoiceCheck:
    """Transcribe sentences that cover the given parts, those with the most open questions first."""
    num_heard, num_right = dict.fromkeys(parts, 0), dict.fromkeys(parts, 0)

    def is_wrong(part: str) -> bool:
        return 2 * num_right[part] < num_heard[part]

    def is_open(part: str) -> bool:
        return part in num_heard and (not num_heard[part] or (is_wrong(part) and num_heard[part] < MAX_HEARINGS))

    num_sentences = num_words = num_errors = 0
    remaining = list(covering_sentences(tuple(clips)))
    while remaining:
        open_parts = [sum(map(is_open, set(sentence))) for sentence in remaining]
        if not max(open_parts):
            break
        sentence = remaining.pop(int(np.argmax(open_parts)))
        transcript = judge(join_parts([clips[part] for part in sentence]))
        num_sentences += 1
        num_words += len(voice_judge.comparable(" ".join(sentence)).split())
        num_errors += voice_judge.count_errors(" ".join(sentence), transcript)
        for part, is_right in zip(sentence, _parts_heard(sentence, transcript)):
            if part in num_heard:
                num_heard[part] += 1
                num_right[part] += is_right
        if num_sentences % _REPORT_EVERY == 0:
            report(f"{num_sentences} sentences heard, {sum(map(is_open, parts))} parts open")
    return VoiceCheck(num_sentences, num_words, num_errors, tuple(part for part in parts if is_wrong(part)))


def _parts_heard(sentence: Sequence[str], transcript: str) -> list[bool]:
    """Whether all words of each part are in a transcript, in their order."""
    expected, heard = voice_judge.comparable_words(" ".join(sentence), transcript)
    is_right = [False] * len(expected)
    for block in difflib.SequenceMatcher(None, expected, heard, autojunk=False).get_matching_blocks():
        is_right[block.a : block.a + block.size] = [True] * block.size
    stops = np.cumsum([len(voice_judge.comparable(part).split()) for part in sentence]).tolist()
    return [all(is_right[start:stop]) for start, stop in zip([0, *stops], stops)]


def repair_voice(folder: Path, voice: str, report: Report = print, judge: Judge = voice_judge.transcribe) -> VoiceCheck:
    """Check a voice, replace what is misheard, check that again, and drop what is still misheard.

    Nothing is written before the end: a stopped repair starts again. Returns the first check. `check_voices` also
    keeps other processes from the voice.
    """

    def named(line: str) -> None:
        report(f"{voice}: {line}")

    clips = read_voice(folder, voice)
    first = check_voice(clips, list(clips), judge, named)
    named(str(first))
    misheard = first.misheard
    # The voice without a style is never cut out of a longer text: at its usual speed nothing would change.
    for speed in REPAIR_SPEEDS if get_voice(voice).style else REPAIR_SPEEDS[1:]:
        if not misheard:
            break
        for part in misheard:
            try:
                clips[part] = cut(synthesize(unfinished(part), voice, speed))
            except SilentPart:
                continue  # the clip of the last attempt was misheard, too
        before, misheard = misheard, check_voice(clips, list(misheard), judge, named).misheard
        named(f"{len(before) - len(misheard)} of {len(before)} misheard parts replaced, at speed {speed:g}")
    if misheard:
        named(f"{len(misheard)} parts dropped: {', '.join(misheard)}")
    clips = {part: clip for part, clip in clips.items() if part not in misheard}
    dropped = (*dropped_parts(folder, voice), *misheard)
    write_voice(folder, voice, clips, checked=True, dropped=dropped)
    return first


def check_voices(
    folder: Path, names: list[str], report: Report = print, judge: Judge = voice_judge.transcribe
) -> list[str]:
    """Check and repair the voices of a folder that were not checked.

    Returns the voices that are checked: all but those that another process is making.
    """
    checked = []
    for voice in names:
        if is_stored(folder, voice) and is_checked(folder, voice):
            checked.append(voice)
            continue
        with held_voice(folder, voice, report) as is_held:
            if is_held:
                if not is_checked(folder, voice):  # another process may have checked it before it was locked
                    repair_voice(folder, voice, report, judge)
                checked.append(voice)
    return checked
