"""Measures of generated samples, with networks and a model whose answers are known."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from train_fakes import TINY, random_pairs, write_set

from triptych.errors import DataError, UserError
from triptych.sample.canvas import MASKED, Canvas
from triptych.sample.config import SamplingConfig
from triptych.studies import sample_quality
from triptych.studies.sample_quality import METRICS, NUM_PARTS, SampleQuality, metrics_in
from triptych.utils.media import Audio
from triptych.vocab import Modality, Task

RATE = 16_000


class _Tokenizers:
    """An image is an image of one pixel per token, audio has a sample per token, a text a word per token."""

    def __init__(self) -> None:
        self.fingerprints = {"text": "a", "image": "b", "audio": "c"}

    def __getitem__(self, modality: Modality) -> SimpleNamespace:
        return SimpleNamespace(decode=lambda rows: [self.one(modality, np.asarray(row)) for row in rows])

    @property
    def text(self) -> SimpleNamespace:
        return self[Modality.TEXT]

    def one(self, modality: Modality, ids: np.ndarray) -> object:
        if modality == Modality.TEXT:
            return " ".join("qx" + chr(97 + token) for token in ids)
        if modality == Modality.IMAGE:
            return Image.fromarray((20 * ids[None]).astype(np.uint8))
        return Audio(np.repeat(ids / 10, RATE // 2).astype(np.float32), RATE)


class _Model:
    """Fills canvases with what the validation data have, or with one and the same token."""

    def __init__(self, quality: SampleQuality, knows: bool):
        self.bundle, self.knows, self.limits = quality.bundle, knows, SimpleNamespace(transcript_prompt="")
        every = [pair for pairs in quality.pairs.values() for pair in pairs]
        self.media = {(s.task, len(s.media), tuple(s.text)): s.media for s in every}
        self.texts = {(s.task, len(s.text), tuple(s.media)): s.text for s in every}
        self.seeds: list[int] = []

    def fill(self, canvases: list[Canvas], config: SamplingConfig, seeds: list[int]) -> list[Canvas]:
        self.seeds += seeds
        return [self._filled(canvas) for canvas in canvases]

    def _filled(self, canvas: Canvas) -> Canvas:
        assert canvas.media is not None
        if (canvas.media.ids == MASKED).all():
            assert canvas.hide_text, "guidance needs a text to hide"
            known, span = self.media[canvas.task, len(canvas.media.ids), tuple(canvas.text.ids)], canvas.media
        else:
            known, span = self.texts[canvas.task, len(canvas.text.ids), tuple(canvas.media.ids)], canvas.text
        assert len(known) == len(span.ids), "samples are as long as those of the data"
        return canvas.with_span(replace(span, ids=known if self.knows else np.zeros_like(known)))

    def decode(self, span) -> object:
        return self.bundle.one(span.modality, span.ids)


class _Whisper:
    def transcribe(self, clips: list[Audio]) -> list[str]:
        """Only clips that are not silent are understood, as one wrong word each."""
        return ["nothing" if not np.any(clip.samples) else "word" for clip in clips]


@pytest.fixture
def quality(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SampleQuality:
    for task in Task:
        write_set(tmp_path / task.label, task, random_pairs(task, 60, 3))
    monkeypatch.setattr(sample_quality, "find_inception", lambda: Path())
    monkeypatch.setattr(sample_quality, "inception_features", _image_features)
    monkeypatch.setattr(sample_quality, "load_whisper", _Whisper)
    monkeypatch.setattr(sample_quality.AudioFeatureSpec, "load", lambda spec: _audio_features)
    folders = [tmp_path / task.label for task in Task]
    return SampleQuality(folders, _Tokenizers(), num_images=24, num_clips=16)  # type: ignore[arg-type]


def _image_features(images: list[Image.Image]) -> np.ndarray:
    pixels = [np.asarray(image, np.float32) for image in images]
    return np.array([[each.mean(), each.std(), each.max()] for each in pixels], np.float32) / 100


def _audio_features(clip: Audio) -> np.ndarray:
    seconds = np.array_split(clip.samples, max(1, int(clip.seconds)))
    return np.array([[part.mean(), part.std()] for part in seconds], np.float32)


def measured(quality: SampleQuality, knows: bool, modality: Modality, *names: str, seed: int = 0) -> dict:
    return quality.measure(_Model(quality, knows), modality, names, SamplingConfig(), seed)  # type: ignore[arg-type]


def test_distances_tell_a_good_model_from_a_bad_one(quality: SampleQuality) -> None:
    good, bad = (measured(quality, knows, Modality.IMAGE, "kid")["kid"] for knows in (True, False))
    assert abs(good["value"]) < 0.2 * bad["low"], "the data themselves are near distance 0"
    good, bad = (measured(quality, knows, Modality.AUDIO, "fad")["fad"] for knows in (True, False))
    assert bad["value"] > 2 * good["value"]


def test_parts_average_to_the_value(quality: SampleQuality) -> None:
    score = measured(quality, True, Modality.IMAGE, "kid")["kid"]
    assert (len(score["parts"]), score["n"]) == (NUM_PARTS, 24)
    assert np.mean(score["parts"]) == pytest.approx(score["value"], abs=1e-5)


def test_word_errors_count_words(quality: SampleQuality) -> None:
    speech = measured(quality, True, Modality.AUDIO, "wer")["wer"]
    assert speech["value"] == 1.0, "one wrong word for each of them, and all others missing"
    assert measured(quality, True, Modality.TEXT, "transcripts")["transcripts"]["value"] == 0.0
    assert measured(quality, False, Modality.TEXT, "transcripts")["transcripts"]["value"] > 0.5


def test_prompts_are_those_of_the_seed_and_no_references(quality: SampleQuality) -> None:
    first, again, other = (quality._asked(Modality.IMAGE, seed) for seed in (0, 0, 1))
    assert first == again
    assert [id(each) for each in first] != [id(each) for each in other]
    references = quality.pairs[Modality.IMAGE][: quality._num_references(Modality.IMAGE)]
    assert not {id(each) for each in first} & {id(each) for each in references}
    model = _Model(quality, True)
    quality.measure(model, Modality.IMAGE, ["kid"], SamplingConfig(), 2)  # type: ignore[arg-type]
    assert len(set(model.seeds)) == len(model.seeds) == 24


def test_what_is_missing_is_left_out_and_said(quality: SampleQuality, monkeypatch: pytest.MonkeyPatch) -> None:
    assert quality.prepare() == {
        Modality.IMAGE: ["kid"],
        Modality.AUDIO: ["wer", "fad"],
        Modality.TEXT: ["transcripts"],
    }

    def missing() -> None:
        raise UserError("speech evaluation needs faster_whisper.")

    monkeypatch.setattr(sample_quality, "load_whisper", missing)
    quality.folders = [folder for folder in quality.folders if folder.name != Task.IMAGE_TEXT.label]
    del quality.__dict__["pairs"], quality.__dict__["whisper"]
    lines: list[str] = []
    assert quality.prepare(lines.append) == {Modality.TEXT: ["transcripts"]}
    assert lines == [
        "left out: KID, because the validation data have no pairs of image and text",
        "left out: WER of speech, because speech evaluation needs faster_whisper.",
        "left out: FAD (Whisper encoder), because speech evaluation needs faster_whisper.",
    ]


def test_too_few_pairs_are_refused(quality: SampleQuality) -> None:
    quality.num_samples[Modality.IMAGE] = 1000
    with pytest.raises(DataError, match="have 30 pairs of image and text besides the references, and 1000 are to be"):
        quality.prepare()


def test_metrics_keep_their_order() -> None:
    assert [metric.name for metric in metrics_in([{"wer": {}}, {"kid": {}, "judge": {}}])] == ["judge", "kid", "wer"]
    assert {name: metric.name for name, metric in METRICS.items()} == {name: name for name in METRICS}


def test_tiny_vocabulary_has_all_modalities() -> None:
    assert min(TINY.text, TINY.image, TINY.audio) > 0
