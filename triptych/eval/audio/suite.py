"""The audio suite: text to speech and transcription of a model on any recordings with transcripts.

    text-to-speech   the transcripts are spoken by the model, as long as the recordings or as long as it chooses
                     wer, cer        what Whisper hears, against the transcript
                     dnsmos          quality, without a reference
                     audiobox/*      PQ, PC, CE and CU of Audiobox Aesthetics
                     fad             Fréchet distance from the recordings, with CLAP; fad_whisper with Whisper
    transcribe       transcribe_wer, transcribe_cer: the model's transcripts of the recordings

Floors say what the measures give without the model: NAME_reference for the recordings themselves, NAME_reconstructed
for the recordings encoded and decoded by the model's tokenizer, which generated speech cannot beat.

The paper's table: 10,000 clips of LibriSpeech-PC up to 30 s, `durations="reference"`, FAD, WER and Aesthetics.
Speech is kept as OUT/audio/KEY/, one FLAC file per clip, so a stopped evaluation resumes, other judges can be added
later, and people can listen; OUT/audio/KEY/clips.jsonl says what is what.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from triptych.errors import DataError, UserError, did_you_mean
from triptych.eval.audio.aesthetics import AXES
from triptych.eval.audio.data import Clip, SpeechData, choose_speech
from triptych.eval.audio.english import normalizer
from triptych.eval.audio.features import AudioFeatureSpec
from triptych.eval.audio.judges import Embed, Hear, JudgeTask, RateAesthetics, RateSpeech
from triptych.eval.audio.transcripts import Unit, count_errors
from triptych.eval.frechet import Gaussian, frechet_score
from triptych.eval.metrics import Judge, Metric, Missing, Result
from triptych.eval.packing import unpack
from triptych.eval.records import Compute, Record, run_part_in_processes
from triptych.eval.scores import Score, interval_or_nan, ratio_score
from triptych.eval.suite import Evaluation, ModelSource, Outcomes
from triptych.hub.pipeline import Pipeline
from triptych.utils.media import Audio
from triptych.vocab import Modality

DIRECTIONS = ("text-to-speech", "transcribe")
_GENERATED, _RECONSTRUCTED, _REFERENCE = "text-to-speech", "reconstructed", "reference"
_AESTHETICS_HINT = (
    "give its weights, a folder or facebook/audiobox-aesthetics: aesthetics=FOLDER (--aesthetics FOLDER)."
)
_CLAP_HINT = "give the weights of CLAP, such as laion/clap-htsat-unfused: fad=clap=FOLDER (--fad clap=FOLDER)."
_Z = 1.96


@dataclass(frozen=True, kw_only=True)
class AudioSettings:
    """What the audio suite measures, and by which judges."""

    data: tuple[str, ...]
    """Files, folders or patterns of transcribed audio, as `triptych tokenize` reads them."""
    dataset: str | None = None
    """Name of the data in results, such as "librispeech-pc"; None takes that of the first file or folder."""
    num_samples: int | None = 1000
    """Clips, chosen at random; None takes all."""
    max_seconds: float = 30.0
    """Longer clips are left out."""
    text_key: str | None = None
    """Field of the transcript, in formats that have fields."""
    directions: tuple[str, ...] = DIRECTIONS
    durations: Literal["reference", "model"] = "reference"
    """Whether speech is as long as the recording, as in the paper, or as long as the model chooses."""
    speech_sampling: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the preset for text to speech: fields of `SamplingConfig`, or `preset`."""
    text_sampling: Mapping[str, Any] = field(default_factory=dict)
    """The same for transcripts."""
    whisper: str | None = None
    """A Whisper by folder or name; None takes the installed tiny.en."""
    language: str = "en"
    """Of the transcripts, as a code. English is normalised; other languages lose case and punctuation."""
    fad: tuple[str, ...] = ("whisper",)
    """Networks of Fréchet distances: whisper, clap=FOLDER, encoder=FOLDER."""
    dnsmos: bool = True
    aesthetics: str | None = None
    """Folder or hub name of the weights of Audiobox Aesthetics."""
    floors: bool = True
    """Whether the recordings, and their reconstructions, are measured as well."""

    def __post_init__(self) -> None:
        if not self.data:
            raise UserError("the audio suite needs data: files or folders of transcribed audio.")
        if self.num_samples is not None and self.num_samples < 1:
            raise UserError(f"num_samples must be at least 1, got {self.num_samples}.")
        if not self.max_seconds > 0:
            raise UserError(f"max_seconds must be positive, got {self.max_seconds}.")
        if self.durations not in ("reference", "model"):
            raise UserError(f"durations must be 'reference' or 'model', got {self.durations!r}.")
        if not self.directions:
            raise UserError(f"give at least one direction: {', '.join(DIRECTIONS)}.")
        for direction in self.directions:
            if direction not in DIRECTIONS:
                raise UserError(f"no audio direction {direction!r}.{did_you_mean(direction, DIRECTIONS)}")
        specs = [AudioFeatureSpec.parse(text) for text in self.fad]
        if len({spec.kind for spec in specs}) < len(specs):
            raise UserError(f"fad names a kind of network twice: {', '.join(self.fad)}. Use one of each kind.")


# -- metrics ----------------------------------------------------------------------------------------------------------


def _metric(name: str, title: str, higher: bool, bounds: tuple[float, float] | None, group: str = _GENERATED) -> Metric:
    suffix = "" if group == _GENERATED else f"_{group}"
    of = "" if group == _GENERATED else f", {group} speech"
    return Metric(f"{name}{suffix}", f"{title}{of}", "audio", higher, bounds, headline=group == _GENERATED)


def _error_metric(name: str, group: str = _GENERATED) -> Metric:
    unit = "WER" if name.endswith("wer") else "CER"
    title = f"{unit} of transcripts" if name.startswith("transcribe") else f"{unit} of speech, heard by Whisper"
    return _metric(name, title, False, (0.0, 1.0), group)


def _dnsmos_metric(group: str) -> Metric:
    return _metric("dnsmos", "DNSMOS overall", True, (1.0, 5.0), group)


_AXIS_TITLES = {
    "PQ": "production quality",
    "PC": "production complexity",
    "CE": "content enjoyment",
    "CU": "content usefulness",
}


def _axis_metric(axis: str, group: str) -> Metric:
    # The paper prefers simple audio.
    title = f"Audiobox, {_AXIS_TITLES[axis]}"
    return _metric(f"audiobox/{axis}", title, axis != "PC", (1.0, 10.0), group)


def _fad_metric(kind: str, title: str, group: str) -> Metric:
    return _metric("fad" if kind == "clap" else f"fad_{kind}", f"FAD ({title})", False, None, group)


# -- recordings and generated clips -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Recordings:
    """Clips of one group by number: recordings of the data, or files that the model made. Picklable."""

    group: str
    clips: tuple[Clip, ...]
    folder: Path

    def path(self, index: int) -> Path:
        return self.folder / self.group / f"{index:06d}.flac"

    def load(self, index: int) -> Audio:
        return self.clips[index].load() if self.group == _REFERENCE else Audio.load(self.path(index))


@dataclass(frozen=True)
class _Making:
    """Makes the clips of a group: speech of the model, or reconstructions by its tokenizer."""

    model: ModelSource | Pipeline
    target: _Recordings
    follows_reference: bool
    sampling: Mapping[str, Any]
    seed: int

    def __call__(self) -> Compute:
        pipe = self.model if isinstance(self.model, Pipeline) else self.model.load()
        make = self._speak if self.target.group == _GENERATED else self._rebuild
        return lambda batch: [self._keep(index, made) for index, made in zip(batch, make(pipe, list(batch)))]

    def _keep(self, index: int, made: Audio | str) -> Record:
        if isinstance(made, Audio) and not (len(made.samples) and np.isfinite(made.samples).all()):
            made = "the generated audio is empty or not finite"
        if isinstance(made, str):
            return {"refused": made}
        made.save(self.target.path(index))
        return {"length": round(made.seconds, 4)}

    def _rebuild(self, pipe: Pipeline, batch: list[int]) -> list[Audio | str]:
        audio = pipe.bundle.audio

        def rebuild(chosen: list[int]) -> list[Audio]:
            return audio.decode(audio.encode([self.target.clips[index].load() for index in chosen]))

        return _each(rebuild, batch)

    def _speak(self, pipe: Pipeline, batch: list[int]) -> list[Audio | str]:
        """Clips of equal length are spoken together."""
        clips, rate = self.target.clips, pipe.bundle.audio.frame_rate
        groups: dict[float | None, list[int]] = {}
        for index in batch:
            frames = max(1, round(clips[index].seconds * rate)) if self.follows_reference else None
            groups.setdefault(None if frames is None else frames / rate, []).append(index)
        made: dict[int, Audio | str] = {}
        for seconds, members in groups.items():

            def synthesize(chosen: list[int], seconds: float | None = seconds) -> list[Audio]:
                seeds = [self.seed + index for index in chosen]
                texts = [clips[index].text for index in chosen]
                return pipe.text_to_speech(texts, seconds, seed=seeds, **self.sampling)

            made |= zip(members, _each(synthesize, members))
        return [made[index] for index in batch]


@dataclass(frozen=True)
class _Writing:
    """Transcripts of the recordings by the model."""

    model: ModelSource | Pipeline
    clips: tuple[Clip, ...]
    sampling: Mapping[str, Any]
    seed: int

    def __call__(self) -> Compute:
        pipe = self.model if isinstance(self.model, Pipeline) else self.model.load()

        def write(chosen: list[int]) -> list[str]:
            audio = [self.clips[index].load() for index in chosen]
            return pipe.transcribe(audio, seed=[self.seed + index for index in chosen], **self.sampling)

        def compute(batch: range) -> list[Record]:
            written = _each(write, list(batch))
            return [{"refused": str(each)} if isinstance(each, _Refused) else {"heard": each} for each in written]

        return compute


class _Refused(str):
    """Why a model did not take an input."""


def _each(function: Callable[[list[int]], list[Any]], members: list[int]) -> list[Any]:
    """The results for all members at once; one by one if the model refuses any of them."""
    try:
        return function(members)
    except UserError as error:
        if len(members) == 1:
            return [_Refused(error)]
        return [result for member in members for result in _each(function, [member])]


@dataclass(frozen=True)
class _Judging:
    """A judge on the clips of one group."""

    task: JudgeTask
    source: _Recordings
    indices: tuple[int, ...]

    def __call__(self) -> Compute:
        measure = self.task.open()
        return lambda batch: [measure(self.source.load(self.indices[place])) for place in batch]


# -- the suite --------------------------------------------------------------------------------------------------------


def audio_suite(evaluation: Evaluation, settings: AudioSettings) -> Outcomes:
    """Measure a model on recordings. A judge that is not installed is `Missing`; one that was asked for must load."""
    run = _Run.prepare(evaluation, settings)
    yield from run.missing
    if "text-to-speech" in settings.directions:
        yield from run.text_to_speech()
    if "transcribe" in settings.directions:
        yield from run.transcribe()


@dataclass
class _Run:
    """One run of the suite: the data, the judges that are there, and the settings of every result."""

    evaluation: Evaluation
    settings: AudioSettings
    data: SpeechData
    digest: str
    """Of the data and of what decides the generated speech: names its files and records."""
    judges: dict[str, JudgeTask]
    missing: list[Missing]
    sampling: dict[str, Any]

    @classmethod
    def prepare(cls, evaluation: Evaluation, settings: AudioSettings) -> "_Run":
        """Everything that can be wrong is found here, before the model works."""
        pipe = evaluation.pipe
        sampling = {
            "text-to-speech": asdict(pipe.sampling_config(Modality.AUDIO, **settings.speech_sampling)),
            "transcribe": asdict(pipe.sampling_config(Modality.TEXT, **settings.text_sampling)),
        }
        for modality in (Modality.TEXT, Modality.AUDIO):
            pipe.bundle[modality]  # an error if the model has no tokenizer for it
        judges, missing = _open_judges(settings, "cuda" if pipe.device.type == "cuda" else "cpu")
        evaluation.progress("audio: choosing clips")
        data = choose_speech(
            settings.data,
            settings.num_samples,
            max_seconds=settings.max_seconds,
            seed=evaluation.seed,
            text_key=settings.text_key,
        )
        evaluation.progress(f"audio: {data.summary}")
        decisive = [
            data.sha256,
            settings.durations,
            sampling,
            evaluation.seed,
        ]
        digest = hashlib.sha256(json.dumps(decisive, sort_keys=True, default=str).encode()).hexdigest()[:12]
        return cls(evaluation, settings, data, digest, judges, missing, sampling)

    @property
    def folder(self) -> Path:
        return self.evaluation.out / "audio" / self.digest

    # -- text to speech -----------------------------------------------------------------------------------------------

    def text_to_speech(self) -> Iterator[Result | Missing]:
        generated = self._make(_GENERATED)
        yield from self._judge(_GENERATED, generated)
        if self.settings.durations == "model":
            yield self._duration_ratio(generated)
        if self.settings.floors:
            yield from self._judge(_RECONSTRUCTED, self._make(_RECONSTRUCTED))
            yield from self._judge(_REFERENCE, [{} for _ in self.data.clips])
        self._list_clips()

    def _recordings(self, group: str) -> _Recordings:
        return _Recordings(group, self.data.clips, self.folder)

    def _make(self, group: str) -> list[Record]:
        target = self._recordings(group)
        part = f"audio {group} {self.digest}"
        lost = [i for i, known in enumerate(self._records(part)) if "length" in known and not target.path(i).is_file()]
        if lost:
            raise DataError(
                f"{target.path(lost[0])} is gone, but the records of the evaluation say that it was made: remove the "
                "folder of the records, or give another one."
            )
        evaluation, settings = self.evaluation, self.settings
        follows = settings.durations == "reference"
        making = _Making(_model_of(evaluation), target, follows, settings.speech_sampling, evaluation.seed)
        records = self._run_part(part, making, len(self.data.clips))
        if refused := [record["refused"] for record in records if "refused" in record]:
            evaluation.progress(f"  {group}: {len(refused)} clips not made; the first: {refused[0]}")
            if len(refused) == len(records):
                raise DataError(f"the model takes none of the {len(records)} clips. The first: {refused[0]}")
        return records

    def _judge(self, group: str, made: Sequence[Record]) -> Iterator[Result | Missing]:
        """Every judge on the clips of a group that exist."""
        indices = tuple(index for index, record in enumerate(made) if "refused" not in record)
        extra = {"refused": len(made) - len(indices)}
        if "hear" in self.judges:
            records = self._heard(group, "hear", indices)
            pairs = [(self.data.clips[i].text, each["heard"]) for i, each in zip(indices, records)]
            yield from self._error_rates(pairs, "", group, self.judges["hear"].judge, extra)
        if "rate" in self.judges:
            records = self._heard(group, "rate", indices)
            ratings = [record["dnsmos"][2] for record in records]
            parts = np.mean([record["dnsmos"] for record in records], axis=0)
            shares = {"signal": round(float(parts[0]), 4), "background": round(float(parts[1]), 4)}
            yield self._mean(_dnsmos_metric(group), ratings, self.judges["rate"].judge, extra | shares)
        if "aesthetics" in self.judges:
            records = self._heard(group, "aesthetics", indices)
            for axis in AXES:
                values = [record[axis] for record in records]
                yield self._mean(_axis_metric(axis, group), values, self.judges["aesthetics"].judge, extra)
        for name, task in self.judges.items():
            if isinstance(task, Embed) and group != _REFERENCE:
                yield self._frechet(group, name, task, indices, extra)

    def _heard(self, group: str, name: str, indices: tuple[int, ...]) -> list[Record]:
        """Records of one judge on one group. The judge is part of their name, so records of two never mix."""
        task = self.judges[name]
        part = f"audio {group} {name} {self.digest} {task.judge.sha256[:8]}"
        if isinstance(task, Hear):
            part += f" {task.language}"
        return self._run_part(part, _Judging(task, self._recordings(group), indices), len(indices))

    def _frechet(
        self, group: str, name: str, task: Embed, indices: tuple[int, ...], extra: dict[str, Any]
    ) -> Result | Missing:
        metric = _fad_metric(task.features.kind, task.features.title, group)
        every = tuple(range(len(self.data.clips)))
        reference = np.concatenate([unpack(each["vectors"]) for each in self._heard(_REFERENCE, name, every)])
        vectors = [unpack(each["vectors"]) for each in self._heard(group, name, indices)]
        generated = np.concatenate(vectors)
        if min(len(reference), len(generated)) < 2:
            return Missing(metric, "a Fréchet distance needs at least 2 s of audio on each side; give more clips.")
        _, values = frechet_score(generated.astype(np.float64), Gaussian.of_features(reference))
        edges = np.cumsum([len(each) for each in vectors])[:-1]
        samples = [(float(each.sum()), float(len(each))) for each in np.split(values, edges)]
        file = f"{metric.name}-{self.digest}.npy"
        self.evaluation.out.mkdir(parents=True, exist_ok=True)
        np.save(self.evaluation.out / file, generated)
        dimension = generated.shape[1]
        settings = {
            "vectors": len(generated),
            "reference_vectors": len(reference),
            "dimension": dimension,
            "vectors_per_second": 1,
            # With fewer vectors than dimensions a distance is mostly the bias of a small sample.
            "is_reliable": min(len(generated), len(reference)) > dimension,
        }
        score = _score_of_quotient(samples)
        return Result(metric, score, self._about(_GENERATED, extra | settings), task.judge, samples, file)

    def _duration_ratio(self, generated: Sequence[Record]) -> Result:
        """Seconds of the generated speech per second of the recordings."""
        samples = [(each["length"], clip.seconds) for each, clip in zip(generated, self.data.clips) if "length" in each]
        metric = Metric("duration_ratio", "duration, generated / recorded", "audio", True)
        return Result(metric, _ratio(samples), self._about(_GENERATED, {}), None, samples)

    def _list_clips(self) -> None:
        """Write clips.jsonl: what was said by whom, for people and reports."""
        made = {group: self._records(f"audio {group} {self.digest}") for group in (_GENERATED, _RECONSTRUCTED)}
        lines = []
        for index, clip in enumerate(self.data.clips):
            line: dict[str, Any] = {"key": clip.key, "text": clip.text, "seconds": round(clip.seconds, 3)}
            if isinstance(clip.media, str):
                line["recording"] = clip.media
            for group, records in made.items():
                if index < len(records) and "length" in records[index]:
                    line[group] = str(self._recordings(group).path(index).relative_to(self.folder))
            lines.append(json.dumps(line, ensure_ascii=False))
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "clips.jsonl").write_text("\n".join(lines) + "\n")

    # -- transcripts --------------------------------------------------------------------------------------------------

    def transcribe(self) -> Iterator[Result | Missing]:
        evaluation = self.evaluation
        writing = _Writing(_model_of(evaluation), self.data.clips, self.settings.text_sampling, evaluation.seed)
        records = self._run_part(f"audio transcribe {self.digest}", writing, len(self.data.clips))
        refused = [record["refused"] for record in records if "refused" in record]
        if len(refused) == len(records):
            raise DataError(f"the model transcribes none of the {len(records)} clips. The first: {refused[0]}")
        if refused:
            evaluation.progress(f"  transcribe: {len(refused)} clips not transcribed; the first: {refused[0]}")
        pairs = [(clip.text, each["heard"]) for clip, each in zip(self.data.clips, records) if "heard" in each]
        yield from self._error_rates(pairs, "transcribe_", _GENERATED, None, {"refused": len(refused)})

    # -- results ------------------------------------------------------------------------------------------------------

    def _error_rates(
        self,
        pairs: Sequence[tuple[str, str]],
        prefix: str,
        group: str,
        judge: Judge | None,
        extra: dict[str, Any],
    ) -> Iterator[Result | Missing]:
        units: tuple[tuple[str, Unit], ...] = (("wer", "words"), ("cer", "characters"))
        for name, unit in units:
            metric = _error_metric(prefix + name, group)
            normalize = normalizer(self.settings.language)
            samples = [_floats(count_errors(text, heard, unit, normalize)) for text, heard in pairs]
            if not sum(length for _, length in samples):
                yield Missing(metric, f"no transcript has {unit} after normalisation; is the language right?")
                continue
            about = self._about("transcribe" if prefix else _GENERATED, extra)
            yield Result(metric, _ratio(samples), about, judge, samples)

    def _mean(self, metric: Metric, values: Sequence[float], judge: Judge, extra: dict[str, Any]) -> Result:
        about = self._about(_GENERATED, extra)
        return Result(metric, interval_or_nan(ratio_score(values)), about, judge, [(value, 1.0) for value in values])

    def _about(self, direction: str, extra: Mapping[str, Any]) -> dict[str, Any]:
        """What a value depends on."""
        settings = self.settings
        return {
            "data": settings.dataset or Path(settings.data[0]).stem,
            "data_sha256": self.data.sha256,
            "clips": len(self.data.clips),
            "left_out": dict(self.data.left_out),
            "max_seconds": settings.max_seconds,
            "durations": settings.durations,
            "language": settings.language,
            "sampling": self.sampling[direction],
            **extra,
        }

    # -- records ------------------------------------------------------------------------------------------------------

    def _records(self, part: str) -> list[Record]:
        return self.evaluation.records.of(part)

    def _run_part(self, part: str, build: Callable[[], Compute], n: int) -> list[Record]:
        evaluation = self.evaluation
        label = re.sub(r" [0-9a-f]{8,12}\b", "", part)  # without hashes, which mean nothing to people

        def progress(line: str) -> None:
            evaluation.progress(line.replace(part, label))

        return run_part_in_processes(evaluation.records, part, n, build, progress, nproc=evaluation.nproc)


def _model_of(evaluation: Evaluation) -> ModelSource | Pipeline:
    """What processes that compute samples get: the model itself if there is only this one."""
    return evaluation.pipe if evaluation.nproc == 1 else evaluation.model


def _floats(pair: tuple[int, int]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


def _ratio(samples: Sequence[tuple[float, float]]) -> Score:
    return interval_or_nan(ratio_score([top for top, _ in samples], [bottom for _, bottom in samples]))


def _score_of_quotient(samples: Sequence[tuple[float, float]]) -> Score:
    """The quotient of sums with its interval by the delta method over clips, which need not be independent inside."""
    top, bottom = (np.array(each) for each in zip(*samples))
    value = float(top.sum() / bottom.sum())
    residuals = top - value * bottom
    n = len(samples)
    spread = float(np.sqrt(np.square(residuals).sum() * n / max(n - 1, 1)) / bottom.sum())
    return interval_or_nan(
        Score(max(value, 0.0), max(value - _Z * spread, 0.0), max(value + _Z * spread, 0.0), n),
    )


def _open_judges(settings: AudioSettings, device: str) -> tuple[dict[str, JudgeTask], list[Missing]]:
    """Load the judges. One that was chosen must load; one that is taken by default may be missing."""
    judges: dict[str, JudgeTask] = {}
    missing: list[Missing] = []

    def add(name: str, task: JudgeTask, metrics: Sequence[Metric], *, is_chosen: bool) -> None:
        try:
            task.judge  # noqa: B018 (loads it)
        except UserError as error:
            if is_chosen:
                raise
            missing.extend(Missing(metric, str(error)) for metric in metrics)
        else:
            judges[name] = task

    if "text-to-speech" not in settings.directions:
        return judges, missing
    hear = Hear(settings.whisper, settings.language, device)
    errors = [_error_metric("wer"), _error_metric("cer")]
    add("hear", hear, errors, is_chosen=settings.whisper is not None or settings.language != "en")
    if settings.dnsmos:
        add("rate", RateSpeech(), [_dnsmos_metric(_GENERATED)], is_chosen=False)
    axes = [_axis_metric(axis, _GENERATED) for axis in AXES]
    if settings.aesthetics is not None:
        add("aesthetics", RateAesthetics(settings.aesthetics, device), axes, is_chosen=True)
    else:
        missing.extend(Missing(metric, _AESTHETICS_HINT) for metric in axes)
    for text in settings.fad:
        spec = AudioFeatureSpec.parse(text)
        metric = _fad_metric(spec.kind, "Whisper encoder", _GENERATED)
        add(f"fad {spec.kind}", Embed(spec, device), [metric], is_chosen=bool(spec.source))
    if not any(text.startswith("clap=") for text in settings.fad):
        missing.append(Missing(_fad_metric("clap", "CLAP", _GENERATED), _CLAP_HINT))
    return judges, missing
