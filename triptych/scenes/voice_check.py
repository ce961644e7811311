"""Check the parts of a voice: Whisper transcribes sentences made of them, and parts that it mishears are replaced.

Single parts are too short to be judged alone. Every part is in at least two sentences; a part counts as misheard if
none of them has all of its words right. It is spoken again after a carrier sentence, and dropped if it is misheard
again.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triptych.scenes import voice_judge
from triptych.scenes.speech import join_parts
from triptych.scenes.spoken import spoken_caption, spoken_parts
from triptych.scenes.voice_parts import SPEED, cut, read_voice, unfinished, write_voice
from triptych.scenes.voices import synthesize
from triptych.scenes.world import FULL
from triptych.utils.media import Audio

MIN_SENTENCES = 2  # with each part
Judge = Callable[[Audio], str]


@dataclass(frozen=True)
class VoiceCheck:
    """What the judge heard of one voice."""

    num_sentences: int
    num_words: int
    num_errors: int
    misheard: tuple[str, ...]
    """Parts without one right sentence."""

    def __str__(self) -> str:
        names = ", ".join(self.misheard) or "none"
        return f"{self.num_errors} of {self.num_words} words wrong in {self.num_sentences} sentences; misheard: {names}"


def covering_sentences(parts: list[str], seed: int = 0) -> list[list[str]]:
    """Spoken sentences, as lists of parts, with every part in at least two; answers of one word are left out."""
    rng = np.random.default_rng(seed)
    missing = dict.fromkeys(parts, MIN_SENTENCES)
    sentences = []
    for attempt in range(200 * len(parts)):
        if not missing:
            break
        sentence = spoken_parts(spoken_caption(FULL.sample(rng), rng))
        wanted = 2 if attempt < 5 * len(parts) else 1  # few sentences first, then the rare parts
        if sum(part in missing for part in sentence) >= wanted and set(sentence) <= set(parts):
            sentences.append(sentence)
            for part in set(sentence) & set(missing):
                missing[part] -= 1
                if not missing[part]:
                    del missing[part]
    return sentences


def check_voice(clips: dict[str, np.ndarray], parts: list[str], judge: Judge = voice_judge.transcribe) -> VoiceCheck:
    """Transcribe sentences that cover the given parts."""
    num_right = dict.fromkeys(parts, 0)
    num_heard = dict.fromkeys(parts, 0)
    num_words = num_errors = 0
    sentences = [sentence for sentence in covering_sentences(list(clips)) if set(sentence) & set(parts)]
    for sentence in sentences:
        words = [voice_judge.comparable(part).split() for part in sentence]
        heard = voice_judge.comparable(judge(join_parts([clips[part] for part in sentence]))).split()
        expected = [word for of_part in words for word in of_part]
        blocks = difflib.SequenceMatcher(None, expected, heard, autojunk=False).get_matching_blocks()
        is_right = np.zeros(len(expected), bool)
        for block in blocks:
            is_right[block.a : block.a + block.size] = True
        num_words += len(expected)
        num_errors += int((~is_right).sum())
        start = 0
        for part, of_part in zip(sentence, words):
            if part in num_heard:
                num_heard[part] += 1
                num_right[part] += bool(is_right[start : start + len(of_part)].all())
            start += len(of_part)
    misheard = tuple(part for part in parts if num_heard[part] and not num_right[part])
    return VoiceCheck(len(sentences), num_words, num_errors, misheard)


def repair_voice(
    folder: Path, voice: str, report: Callable[[str], None] = print, judge: Judge = voice_judge.transcribe
) -> VoiceCheck:
    """Check a voice, replace what is misheard, check that again, and drop what is still misheard."""
    clips = read_voice(folder, voice)
    first = check_voice(clips, list(clips), judge)
    report(f"{voice}: {first}")
    if first.misheard:
        for part in first.misheard:
            clips[part] = cut(synthesize(unfinished(part), voice, SPEED))
        again = check_voice(clips, list(first.misheard), judge)
        for part in again.misheard:
            del clips[part]
        report(f"{voice}: {len(first.misheard) - len(again.misheard)} parts replaced, {len(again.misheard)} dropped")
    write_voice(folder, voice, clips, is_checked=True)
    return first
