"""The directions of an exam with speech: transcripts of several groups of voices, and text to speech."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from triptych.eval.audio.speech import normalize_transcript, transcribe, word_errors
from triptych.eval.records import Record, run_part
from triptych.scenes.exam_samples import Exam, Scored, SpokenSentence, spoken_sentence
from triptych.scenes.speech import speakable, synthesize
from triptych.scenes.voice_judge import comparable
from triptych.scenes.voice_recognition import VoiceRecognizer
from triptych.utils.media import Audio

_GENERATED, _RECONSTRUCTED, _REFERENCE = "text-to-speech", "reconstructed speech", "reference speech"
_SUFFIXES = {_GENERATED: "", _RECONSTRUCTED: " of reconstructed reference speech", _REFERENCE: " of reference speech"}
_BARE, _REQUESTED = "bare sentences", "voices by request"
_VOICE_CLIPS, _VOICE_STREAM = 10, 9  # clips of each voice for the classifier of voices, and their random stream


def _named(measure: str, group: str) -> str:
    return f"{measure}, {group}" if group else measure


# -- transcripts ------------------------------------------------------------------------------------------------------


def run_transcribe(exam: Exam, sampling: Mapping[str, Any]) -> None:
    exam.progress(f"  {exam.voices.describe(exam.world)}")
    for group in exam.voices.groups(exam.world):

        def write(batch: range, group: str = group) -> list[Record]:
            spoken = [_sentence(exam, i, group) for i in batch]
            clips = [each.audio for each in spoken]
            transcripts = exam.pipe.transcribe(clips, seed=exam.seed + batch.start, **sampling)
            return [
                {"text": each.text, "voice": each.voice, "transcript": transcript}
                for each, transcript in zip(spoken, transcripts)
            ]

        run_part(exam.records, _named("transcribe", group), exam.num_speech, write, exam.progress, _share_exact)


def _sentence(exam: Exam, index: int, group: str = "") -> SpokenSentence:
    return spoken_sentence(index, exam.split, exam.world, exam.voices, group)


def _exact(records: Sequence[Record]) -> list[bool]:
    return [normalize_transcript(each["text"]) == normalize_transcript(each["transcript"]) for each in records]


def _share_exact(records: Sequence[Record]) -> str:
    return f", {np.mean(_exact(records)):.3f} right"


def score_transcribe(exam: Exam) -> tuple[Scored, dict[str, Any]]:
    scores = Scored()
    for group in exam.voices.groups(exam.world):
        records = exam.records.of(_named("transcribe", group))
        if records:
            texts, transcripts = ([record[name] for record in records] for name in ("text", "transcript"))
            scores.add(_named("transcribe, WER", group), *_errors(texts, transcripts))
            scores.add(_named("transcribe, sentences right", group), _exact(records))
    return scores, _voices(exam)


def _voices(exam: Exam) -> dict[str, Any]:
    if exam.world.plain_language:
        return {}
    voices = exam.voices
    return {"voices": {"folder": voices.label, "training": list(voices.training), "held_out": list(voices.held_out)}}


# -- text to speech ---------------------------------------------------------------------------------------------------


def run_text_to_speech(exam: Exam, sampling: Mapping[str, Any]) -> None:
    """Every other sentence is a request for a voice, if there are any, and a classifier says whose voice it is."""
    audio = exam.pipe.bundle.audio
    judges_voices = not exam.world.plain_language and len(exam.voices.training) > 1
    recognizer = cache(lambda: fit_recognizer(exam))

    def recognized(clips: Sequence[Audio]) -> list[Record]:
        names = recognizer().recognize(clips) if judges_voices else []
        return [{"recognized": name} for name in names] or [{} for _ in clips]

    def generate(batch: range) -> list[Record]:
        spoken = [_sentence_to_say(exam, i) for i in batch]
        is_requested = [_is_request(exam, i) for i in batch]
        voices = [each.voice if requested else None for each, requested in zip(spoken, is_requested)]
        texts = [each.text for each in spoken]
        clips = exam.pipe.text_to_speech(texts, voice=voices, seed=exam.seed + batch.start, **sampling)
        kinds = [_REQUESTED if requested else _BARE for requested in is_requested]
        records = zip(_heard(spoken, clips), recognized(clips), kinds)
        return [{**heard, **voice, "kind": kind} for heard, voice, kind in records]

    def reconstruct(batch: range) -> list[Record]:
        spoken = [_sentence_to_say(exam, i) for i in batch]
        clips = audio.decode(audio.encode([each.audio for each in spoken]))
        return [{**heard, **voice} for heard, voice in zip(_heard(spoken, clips), recognized(clips))]

    def refer(batch: range) -> list[Record]:
        spoken = [_sentence_to_say(exam, i) for i in batch]
        return _heard(spoken, [each.audio for each in spoken])

    for part, compute in ((_GENERATED, generate), (_RECONSTRUCTED, reconstruct), (_REFERENCE, refer)):
        run_part(exam.records, part, exam.num_speech, compute, exam.progress)


def _requestable(exam: Exam) -> tuple[str, ...]:
    """Training voices that the model takes requests for."""
    if exam.world.plain_language:
        return ()
    known = {name.lower() for name in exam.pipe.voices}
    return tuple(name for name in exam.voices.training if name in known)


def _is_request(exam: Exam, index: int) -> bool:
    return index % 2 == 1 and bool(_requestable(exam))


def _sentence_to_say(exam: Exam, index: int) -> SpokenSentence:
    """A bare sentence and a request in turn; voices take turns in both."""
    names = _requestable(exam) if _is_request(exam, index) else exam.voices.training
    voices = replace(exam.voices, training=(names[index // 2 % len(names)],))
    return spoken_sentence(index, exam.split, exam.world, voices)


def fit_recognizer(exam: Exam) -> VoiceRecognizer:
    """A classifier of the training voices as the model's tokenizer reproduces them, from training sentences.

    Generated speech comes no closer to a voice: the accuracy on reconstructed speech is the most to be expected.
    """
    voices, audio = exam.voices, exam.pipe.bundle.audio
    exam.progress(f"  fitting a classifier of {len(voices.training)} voices")
    clips = {}
    for number, name in enumerate(voices.training):
        originals = []
        for index in range(_VOICE_CLIPS):
            rng = np.random.default_rng([_VOICE_STREAM, number, index])
            scene = exam.world.sample(rng, "train")
            _, text, _ = speakable(scene, "train", rng, [name], name, exam.world, voices.folder)
            originals.append(synthesize(text, rng, exam.world, name, voices.folder))
        clips[name] = audio.decode(audio.encode(originals))
    return VoiceRecognizer.fit(clips)


def _heard(spoken: Sequence[SpokenSentence], clips: Sequence[Audio]) -> list[Record]:
    """What Whisper hears in clips."""
    return [
        {"text": each.text, "voice": each.voice, "heard": heard, "length": clip.seconds}
        for each, clip, heard in zip(spoken, clips, transcribe(clips))
    ]


def score_text_to_speech(exam: Exam) -> tuple[Scored, dict[str, Any]]:
    scores = Scored()
    for part, suffix in _SUFFIXES.items():
        records = exam.records.of(part)
        if records:
            scores.add(f"text to speech, Whisper WER{suffix}", *_heard_errors(exam, records))
    generated, references = exam.records.of(_GENERATED), exam.records.of(_REFERENCE)
    if not exam.world.plain_language:
        for kind in (_BARE, _REQUESTED):
            chosen = [record for record in generated if record["kind"] == kind]
            if chosen:
                scores.add(f"text to speech, Whisper WER, {kind}", *_heard_errors(exam, chosen))
    scores.update(_voice_scores(exam))
    if len(references) < exam.num_speech:
        return scores, _voices(exam)
    durations, expected = ([record["length"] for record in records] for records in (generated, references))
    seconds = {
        "mean": float(np.mean(durations)),
        "reference_mean": float(np.mean(expected)),
        "correlation": _correlation(durations, expected),
    }
    return scores, {"speech_seconds": seconds, **_voices(exam)}


def _voice_scores(exam: Exam) -> Scored:
    """How often a requested voice is recognised in generated speech, and the right one in reconstructed speech."""
    scores = Scored()
    for part in (_GENERATED, _RECONSTRUCTED):
        records = [record for record in exam.records.of(part) if record.get("kind") != _BARE and "recognized" in record]
        if records:
            right = [record["recognized"] == record["voice"] for record in records]
            scores.add(f"text to speech, voice right{_SUFFIXES[part]}", right)
    return scores


def _heard_errors(exam: Exam, records: Sequence[Record]) -> tuple[list[int], list[int]]:
    """Two spellings of one sound are no error of the speaker; the preset `small` has none."""
    texts, heard = ([record[name] for record in records] for name in ("text", "heard"))
    if exam.world.plain_language:
        return _errors(texts, heard)
    return _errors(list(map(comparable, texts)), list(map(comparable, heard)))


def _errors(texts: Sequence[str], transcripts: Sequence[str]) -> tuple[list[int], list[int]]:
    """Word errors and reference words of each sentence."""
    pairs = [word_errors(text, transcript) for text, transcript in zip(texts, transcripts)]
    return [errors for errors, _ in pairs], [words for _, words in pairs]


def _correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """None if it is undefined: for fewer than three values, or equal ones."""
    return float(np.corrcoef(a, b)[0, 1]) if len(a) > 2 and np.ptp(a) and np.ptp(b) else None


MEASURES = {
    "transcribe": (run_transcribe, score_transcribe),
    "text-to-speech": (run_text_to_speech, score_text_to_speech),
}
