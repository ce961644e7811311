"""How good generated images, speech and texts are, on pairs of validation data.

    image   kid           distance of generated images from other images of the data, by Inception-v3
            judge         toy dataset only: share of images that show exactly what the caption says
    audio   wer           word errors of generated speech, heard by Whisper
            fad           distance of generated speech from other speech of the data, by Whisper's encoder
    text    transcripts   word errors of the model's transcripts
            answers       toy dataset only: share of right answers to questions about images

Speech, images and transcripts are as long as those of the data, so that lengths chosen by the model do not matter.
References are decoded from their tokens: the error of the tokenizers is in both sets, and a perfect model has distance
0. A metric whose network is not installed is left out.

The samples of a metric are divided into parts in their order. Different sampling settings with the same seed have the
same prompts, so their parts are blocks of a paired comparison (`triptych.studies.best_option`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from triptych.data.shards import TokenDataset
from triptych.data.types import TokenSample
from triptych.errors import DataError, UserError
from triptych.eval.audio.features import AudioFeatures, AudioFeatureSpec
from triptych.eval.audio.transcripts import count_errors
from triptych.eval.audio.whisper import Whisper, load_whisper
from triptych.eval.evaluate import evaluate
from triptych.eval.frechet import Gaussian, frechet_score
from triptych.eval.image.inception import find_inception, inception_features, kernel_score
from triptych.eval.scores import Score, ratio_score
from triptych.hub.pipeline import Pipeline
from triptych.sample.canvas import Canvas, known, masked
from triptych.sample.config import SamplingConfig
from triptych.tokenizers.bundle import BUILTIN_TOKENIZERS, TokenizerBundle
from triptych.training.config import RunConfig
from triptych.utils.media import Audio
from triptych.vocab import Modality, Task

NUM_PARTS = 8
_MOST_REFERENCES = {Modality.IMAGE: 128, Modality.AUDIO: 64}
_BATCH = 32  # canvases that are filled at once
_EXAM = {"judge": ("text-to-image", "text to image"), "answers": ("answer", "answer")}  # direction, name of its score


@dataclass(frozen=True)
class QualityMetric:
    name: str
    title: str
    modality: Modality
    """Of what is generated."""
    higher_is_better: bool

    @property
    def axis_label(self) -> str:
        return f"{self.title} {'↑' if self.higher_is_better else '↓'}"


METRICS = {
    metric.name: metric
    for metric in (
        QualityMetric("judge", "images right by the judge", Modality.IMAGE, True),
        QualityMetric("kid", "KID", Modality.IMAGE, False),
        QualityMetric("wer", "WER of speech", Modality.AUDIO, False),
        QualityMetric("fad", "FAD (Whisper encoder)", Modality.AUDIO, False),
        QualityMetric("answers", "answers right", Modality.TEXT, True),
        QualityMetric("transcripts", "WER of transcripts", Modality.TEXT, False),
    )
}
"""By name; the first metric of a modality that is there decides about its settings."""


def metrics_in(scores: Sequence[Mapping[str, Any]]) -> list[QualityMetric]:
    """The metrics that records have, in the order of `METRICS`."""
    measured = {name for each in scores for name in each}
    return [metric for name, metric in METRICS.items() if name in measured]


def need_validation_data(run: RunConfig) -> None:
    """Refuse a run that holds out a part of its data instead."""
    if not run.validation_data:
        raise UserError("prompts and references are pairs of validation data: give --validation-data FOLDER.")


class SampleQuality:
    """Measures models with the same tokenizers on the same validation data.

    Data and networks are opened by `prepare`, which tells `report` what is left out.
    """

    def __init__(self, folders: Sequence[str | Path], bundle: TokenizerBundle, num_images: int, num_clips: int):
        self.bundle, self.num_samples = bundle, {Modality.IMAGE: num_images, Modality.AUDIO: num_clips}
        self.folders = [Path(folder) for folder in folders]
        self._references: dict[Modality, Any] = {}

    def prepare(self, report: Callable[[str], None] = print) -> dict[Modality, list[str]]:
        """The names of the metrics by modality of what is generated; modalities without a metric are left out."""
        names: dict[Modality, list[str]] = {}
        for name, metric in METRICS.items():
            reason = self._obstacle(name)
            if reason is None:
                names.setdefault(metric.modality, []).append(name)
            elif reason:
                report(f"left out: {metric.title}, because {reason}")
        return names

    def _obstacle(self, name: str) -> str | None:
        """Why a metric cannot be computed; empty if that is no surprise, None if it can be computed."""
        if name in _EXAM:
            return None if self.is_toy_dataset and self.pairs[Modality.IMAGE] else ""
        source = Modality.IMAGE if name == "kid" else Modality.AUDIO
        if not self.pairs[source]:
            return f"the validation data have no pairs of {source.name.lower()} and text"
        self._check_number(source)
        try:
            if name == "kid":
                find_inception()
            elif name != "transcripts":
                _ = self.whisper
        except UserError as error:
            return str(error)
        return None

    def measure(
        self, pipe: Pipeline, modality: Modality, names: Sequence[str], config: SamplingConfig, seed: int
    ) -> dict[str, dict[str, Any]]:
        """Generate samples of a modality, and return the scores of some of its metrics as JSON."""
        scores: dict[str, dict[str, Any]] = {}
        for name in names:
            if name in _EXAM:
                scores[name] = self._exam_score(pipe, name, config, seed)
        compute = {Modality.IMAGE: self._images, Modality.AUDIO: self._speech, Modality.TEXT: self._transcripts}
        if remaining := [name for name in names if name not in _EXAM]:
            scores |= compute[modality](pipe, remaining, config, seed)
        return scores

    # -- data ---------------------------------------------------------------------------------------------------------

    @cached_property
    def pairs(self) -> dict[Modality, list[TokenSample]]:
        """Pairs without a prompt, in an order that is random but fixed: references first, then what is asked for."""
        pairs: dict[Modality, list[TokenSample]] = {Modality.IMAGE: [], Modality.AUDIO: []}
        for folder in self.folders:
            dataset = TokenDataset(folder)
            if dataset.task == Task.TEXT:
                continue
            assert dataset.task.partner is not None
            samples = (dataset[index] for index in range(len(dataset)))
            pairs[dataset.task.partner] += [each for each in samples if len(each.text) and not each.prompt]
        rng = np.random.default_rng(0)
        return {modality: [each[i] for i in rng.permutation(len(each))] for modality, each in pairs.items()}

    def _num_references(self, modality: Modality) -> int:
        return min(len(self.pairs[modality]) // 2, _MOST_REFERENCES[modality])

    def _check_number(self, modality: Modality) -> None:
        wanted, available = self.num_samples[modality], len(self.pairs[modality]) - self._num_references(modality)
        if available < max(wanted, 2):
            option = "--images" if modality == Modality.IMAGE else "--clips"
            raise DataError(
                f"the validation data have {available} pairs of {modality.name.lower()} and text besides the "
                f"references, and {wanted} are to be generated: lower {option}, or give more --validation-data."
            )

    def _asked(self, modality: Modality, seed: int) -> list[TokenSample]:
        rest = self.pairs[modality][self._num_references(modality) :]
        order = np.random.default_rng([1, seed]).permutation(len(rest))
        return [rest[i] for i in order[: self.num_samples[modality]]]

    def _decoded_references(self, modality: Modality) -> list[Any]:
        ids = [sample.media for sample in self.pairs[modality][: self._num_references(modality)]]
        return self.bundle[modality].decode(ids)

    @cached_property
    def is_toy_dataset(self) -> bool:
        """Whether the tokenizers are those of the toy dataset, which has a judge of its own."""
        known_bundles = (TokenizerBundle.load(folder).fingerprints for folder in BUILTIN_TOKENIZERS.values())
        return self.bundle.fingerprints in known_bundles

    # -- metrics ------------------------------------------------------------------------------------------------------

    @cached_property
    def whisper(self) -> Whisper:
        return load_whisper()

    @cached_property
    def _audio_features(self) -> AudioFeatures:
        return AudioFeatureSpec.parse("whisper").load()

    @cached_property
    def _image_reference(self) -> np.ndarray:
        return inception_features(self._decoded_references(Modality.IMAGE))

    @cached_property
    def _speech_reference(self) -> Gaussian:
        clips = self._decoded_references(Modality.AUDIO)
        return Gaussian.of_features(np.concatenate([self._audio_features(clip) for clip in clips]))

    def _images(self, pipe: Pipeline, names: Sequence[str], config: SamplingConfig, seed: int) -> dict[str, Any]:
        images = self._generated(pipe, self._asked(Modality.IMAGE, seed), Modality.IMAGE, config, seed)
        score, pseudo = kernel_score(inception_features(images), self._image_reference)
        return {"kid": _as_json(score, pseudo)}

    def _speech(self, pipe: Pipeline, names: Sequence[str], config: SamplingConfig, seed: int) -> dict[str, Any]:
        samples = self._asked(Modality.AUDIO, seed)
        clips = self._generated(pipe, samples, Modality.AUDIO, config, seed)
        scores: dict[str, Any] = {}
        if "wer" in names:
            scores["wer"] = self._word_errors(pipe, samples, self.whisper.transcribe(clips))
        if "fad" in names:
            scores["fad"] = self._speech_distance(clips)
        return scores

    def _speech_distance(self, clips: Sequence[Audio]) -> dict[str, Any]:
        """A clip has a vector, and a pseudo-value, for each of its seconds."""
        vectors = [self._audio_features(clip) for clip in clips]
        score, pseudo = frechet_score(np.concatenate(vectors), self._speech_reference)
        counts = [len(each) for each in vectors]
        sums = [float(part.sum()) for part in np.split(pseudo, np.cumsum(counts)[:-1])]
        return _as_json(score, sums, counts)

    def _transcripts(self, pipe: Pipeline, names: Sequence[str], config: SamplingConfig, seed: int) -> dict[str, Any]:
        samples = self._asked(Modality.AUDIO, seed)
        written = self._generated(pipe, samples, Modality.TEXT, config, seed)
        start = pipe.limits.transcript_prompt
        return {"transcripts": self._word_errors(pipe, samples, [text.removeprefix(start) for text in written])}

    def _generated(
        self, pipe: Pipeline, samples: Sequence[TokenSample], target: Modality, config: SamplingConfig, seed: int
    ) -> list[Any]:
        source = samples[0].task.partner
        assert source is not None
        canvases = []
        for sample in samples:
            if target == Modality.TEXT:
                canvases.append(Canvas(masked(target, len(sample.text)), known(source, sample.media)))
            else:
                text = known(Modality.TEXT, sample.text)
                canvases.append(Canvas(text, masked(target, len(sample.media)), hide_text=True))
        results = []
        for start in range(0, len(canvases), _BATCH):
            batch = canvases[start : start + _BATCH]
            seeds = [1_000_000 * seed + start + i for i in range(len(batch))]
            filled = pipe.fill(batch, config, seeds)
            results += [
                pipe.decode(each.text if target == Modality.TEXT or not each.media else each.media) for each in filled
            ]
        return results

    def _word_errors(self, pipe: Pipeline, samples: Sequence[TokenSample], heard: Sequence[str]) -> dict[str, Any]:
        texts = self.bundle.text.decode([sample.text for sample in samples])
        spoken = [text.removeprefix(pipe.limits.transcript_prompt) for text in texts]
        errors, words = zip(*(count_errors(text, transcript) for text, transcript in zip(spoken, heard)))
        return _as_json(ratio_score(errors, words), errors, words)

    def _exam_score(self, pipe: Pipeline, name: str, config: SamplingConfig, seed: int) -> dict[str, Any]:
        direction, title = _EXAM[name]
        sampling = {each.name: getattr(config, each.name) for each in fields(config)}
        result = evaluate(
            pipe,
            "scenes",
            directions=[direction],
            num_images=self.num_samples[Modality.IMAGE],
            split="validation",
            seed=1_000_000 * seed,
            sampling={direction: sampling},
        )
        hits, counts = zip(*result.samples[title])
        return _as_json(result.scores[title], hits, counts)


def _as_json(score: Score, sums: Sequence[float] | np.ndarray, counts: Sequence[float] | None = None) -> dict[str, Any]:
    """A score, and the quotients of the sums over each part of the samples."""
    top, bottom = np.asarray(sums, float), np.ones(len(sums)) if counts is None else np.asarray(counts, float)
    pieces = np.array_split(np.arange(len(top)), min(NUM_PARTS, len(top)))
    parts = [float(top[piece].sum() / max(bottom[piece].sum(), 1e-12)) for piece in pieces]
    rounded = {name: round(float(getattr(score, name)), 6) for name in ("value", "low", "high")}
    return {**rounded, "n": score.n, "parts": [round(part, 6) for part in parts]}
