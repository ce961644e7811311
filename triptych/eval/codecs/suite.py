"""What codecs preserve of anyone's images or recordings: the paper's two tables of tokenizers.

    image    codec_rfid, codec_psnr, codec_ssim; codec_code_use, codec_perplexity
    audio    by number of codebooks N: codec_pesq_N, codec_stoi_N, codec_dnsmos_N, codec_wer_N, codec_audiobox/*_N;
             codec_dnsmos_original, codec_wer_original, ... of the recordings; codec_code_use, codec_perplexity

A codec is opened by `open_image_codec` or `open_audio_codec`: tokenizers of this package, and classes of diffusers and
transformers. The facts of the codec (downsampling, vocabulary, tokens) are in the settings of every result.
rFID is the Fréchet distance between images and their own reconstructions, as in the literature.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from scipy.ndimage import correlate1d

from triptych.data.sources.base import IMAGE_SUFFIXES
from triptych.errors import DataError, UserError, require
from triptych.eval.audio.aesthetics import AXES
from triptych.eval.audio.data import Clip, choose, choose_speech, media_files
from triptych.eval.audio.english import normalizer
from triptych.eval.audio.judges import Hear, JudgeTask, Measure, RateAesthetics, RateSpeech
from triptych.eval.audio.quality import pesq, stoi
from triptych.eval.audio.transcripts import count_errors
from triptych.eval.codecs.audio import AudioCodec, open_audio_codec
from triptych.eval.codecs.base import CodecFacts, Encoded
from triptych.eval.codecs.image import ImageCodec, open_image_codec
from triptych.eval.frechet import Gaussian, frechet_score
from triptych.eval.image.features import FeatureExtractor, FeatureSpec, judge_of
from triptych.eval.metrics import Judge, Metric, Missing, Result
from triptych.eval.packing import pack, unpack
from triptych.eval.records import Compute, Progress, Record, RecordStore, run_part_in_processes
from triptych.eval.scores import Score, interval_or_nan, ratio_score
from triptych.tokenizers.pixels import resize_with_white_padding
from triptych.tokenizers.reconstruction import psnr
from triptych.utils.files import files_below
from triptych.utils.media import Audio, read_image

_ORIGINAL = "original"
_AESTHETICS_HINT = "give its weights, a folder or facebook/audiobox-aesthetics: aesthetics=FOLDER."


@dataclass(frozen=True, kw_only=True)
class CodecSettings:
    """Which codec is measured on what."""

    codec: str
    """Built-in tokenizers ("scenes"), a folder of tokenizers, or of a class of diffusers or transformers, or
    OWNER/NAME on the hub."""
    modality: Literal["image", "audio"]
    data: tuple[str, ...]
    """Files or folders of images or recordings; recordings with transcripts, as `triptych tokenize` reads them, give
    word error rates as well."""
    num_samples: int | None = 1000
    """Images or clips, chosen at random; None takes all."""
    dataset: str | None = None
    """Name of the data in results; None takes that of the first file or folder."""
    # images
    resolution: int | None = None
    """Width and height of images; None takes the tokenizer's own, or 256."""
    fit: Literal["crop", "pad"] = "crop"
    """How images become square: cut to the middle, as is usual for rFID, or padded with white, as for training."""
    features: tuple[str, ...] = ("inception",)
    """Networks of rFID: inception, dinov2=FOLDER."""
    # audio
    codebooks: tuple[int, ...] | None = None
    """Numbers of codebooks to decode from; None takes all of them, and 4 as well if there are more."""
    max_seconds: float = 30.0
    text_key: str | None = None
    language: str = "en"
    whisper: str | None = None
    dnsmos: bool = True
    aesthetics: str | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.modality not in ("image", "audio"):
            raise UserError(f"the modality of a codec must be image or audio, got {self.modality!r}.")
        if not self.data:
            raise UserError("a codec needs data: files or folders of images or recordings.")
        if self.num_samples is not None and self.num_samples < 1:
            raise UserError(f"num_samples must be at least 1, got {self.num_samples}.")
        if self.fit not in ("crop", "pad"):
            raise UserError(f"fit must be crop or pad, got {self.fit!r}.")
        if self.codebooks is not None and (not self.codebooks or min(self.codebooks) < 1):
            raise UserError(f"codebooks must be positive numbers, got {self.codebooks}.")
        for text in self.features:
            FeatureSpec.parse(text)

    @property
    def data_name(self) -> str:
        return self.dataset or Path(self.data[0]).stem


Outcomes = Iterator[Result | Missing]


def evaluate_codec(
    settings: CodecSettings,
    *,
    out: Path,
    records: RecordStore | None = None,
    progress: Progress = print,
    seed: int = 0,
    nproc: int = 1,
) -> Outcomes:
    """Measure a codec. `out` gets the features of rebuilt images; records of single samples make it resumable."""
    run = _Run(settings, Path(out), records or RecordStore(), progress, seed, nproc)
    if settings.modality == "image":
        yield from _images(run)
    else:
        yield from _audio(run)


@dataclass
class _Run:
    settings: CodecSettings
    out: Path
    records: RecordStore
    progress: Progress
    seed: int
    nproc: int

    def run_part(self, part: str, digest: str, n: int, build: Callable[[], Compute]) -> list[Record]:
        name = f"{part} {digest}"

        def progress(line: str) -> None:
            self.progress(line.replace(name, part))

        return run_part_in_processes(self.records, name, n, build, progress, nproc=self.nproc)


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:12]


# -- images -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rebuilding:
    """Measures of images and their reconstructions. Picklable."""

    settings: CodecSettings
    files: tuple[Path, ...]

    def __call__(self) -> Compute:
        codec = open_image_codec(self.settings.codec, self.settings.resolution, self.settings.device)
        extractors = [FeatureSpec.parse(text).load(self.settings.device) for text in self._usable()]
        return lambda batch: self._measure(codec, extractors, [self.files[index] for index in batch])

    def _usable(self) -> list[str]:
        return [text for text in self.settings.features if not isinstance(_load_features(text, "cpu"), str)]

    def _measure(
        self, codec: ImageCodec, extractors: Sequence[FeatureExtractor], files: Sequence[Path]
    ) -> list[Record]:
        assert codec.facts.resolution is not None
        side, fit = codec.facts.resolution, self.settings.fit
        outcomes: list[tuple[Image.Image, Image.Image, Encoded] | str] = []
        for file in files:
            try:
                original = square_image(read_image(file), side, fit)
                encoded = codec.encode(original)
                outcomes.append((original, codec.decode(encoded), encoded))
            except DataError as error:
                outcomes.append(str(error))
        usable = [each for each in outcomes if not isinstance(each, str)]
        features = []
        for extractor in extractors if usable else ():
            both = extractor([each[0] for each in usable] + [each[1] for each in usable])
            features.append((both[: len(usable)], both[len(usable) :]))
        records: list[Record] = []
        place = 0
        for each in outcomes:
            if isinstance(each, str):
                records.append({"refused": each})
                continue
            original, rebuilt, encoded = each
            record: Record = {"psnr": psnr(original, rebuilt), "ssim": ssim(original, rebuilt)}
            record["features"] = [[pack(before[place]), pack(after[place])] for before, after in features]
            if encoded.codes is not None:
                record["codes"] = pack(encoded.codes.astype(np.int32))
            records.append(record)
            place += 1
        return records


def _load_features(text: str, device: str) -> FeatureExtractor | str:
    """A network, or the reason why it is not there."""
    spec = FeatureSpec.parse(text)
    try:
        return spec.load(device)
    except UserError as error:
        if spec.source:
            raise
        return str(error)


def _images(run: _Run) -> Outcomes:
    settings = run.settings
    codec = open_image_codec(settings.codec, settings.resolution, settings.device)
    loaded = {text: _load_features(text, settings.device) for text in settings.features}
    extractors = {text: each for text, each in loaded.items() if not isinstance(each, str)}
    for text, each in loaded.items():
        if isinstance(each, str):
            yield Missing(_rfid_metric(text), each)
    files = media_files(settings.data, IMAGE_SUFFIXES)
    chosen = tuple(files[index] for index in choose(len(files), settings.num_samples, run.seed))
    run.progress(f"{codec.facts.name}: {len(chosen)} images")
    data_sha256 = hashlib.sha256(json.dumps([[file.name, _content(file)] for file in chosen]).encode()).hexdigest()
    judges = [each.sha256 for each in extractors.values()]
    digest = _digest(data_sha256, codec.facts.as_json(), _codec_sha(settings.codec), settings.fit, judges)
    records = run.run_part("codec images", digest, len(chosen), _Rebuilding(settings, chosen))
    usable = [record for record in records if "refused" not in record]
    if not usable:
        raise DataError(f"none of the {len(records)} images can be used. The first: {records[0]['refused']}")
    refused = len(records) - len(usable)
    if refused:
        first = next(record["refused"] for record in records if "refused" in record)
        run.progress(f"  {refused} images left out; the first: {first}")
    data = {"data_sha256": data_sha256, "images": len(chosen), "resolution": codec.facts.resolution}
    about = _about(run, codec.facts, {**data, "fit": settings.fit, "refused": refused})
    for place, (text, extractor) in enumerate(extractors.items()):
        yield _rfid(run, _rfid_metric(text), judge_of(extractor), usable, place, about, digest)
    yield _mean(Metric("codec_psnr", "PSNR in dB", "image", True), [each["psnr"] for each in usable], None, about)
    values = [each["ssim"] for each in usable if each["ssim"] is not None]
    metric = Metric("codec_ssim", "SSIM", "image", True, (-1.0, 1.0))
    yield _mean(metric, values, None, about) if values else Missing(metric, "SSIM needs images of at least 11 pixels.")
    if codec.facts.vocabulary is not None:
        yield from _code_use([unpack(each["codes"]) for each in usable], codec.facts, "image", about)


def _content(file: Path) -> str:
    """SHA-256 of a file now; "" if it cannot be read, which is found again when it is measured."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def _rfid_metric(text: str) -> Metric:
    spec = FeatureSpec.parse(text)
    name = "codec_rfid" if spec.kind == "inception" else f"codec_rfid_{spec.kind}"
    return Metric(name, f"rFID, {spec.title}", "image", False)


def _rfid(
    run: _Run, metric: Metric, judge: Judge, records: Sequence[Record], place: int, about: dict[str, Any], digest: str
) -> Result | Missing:
    if len(records) < 2:
        return Missing(metric, f"rFID needs at least 2 images, got {len(records)}; give more.")
    before, after = (np.stack([unpack(each["features"][place][side]) for each in records]) for side in (0, 1))
    score, values = frechet_score(after.astype(np.float64), Gaussian.of_features(before))
    file = f"{metric.name}-{digest}.npy"
    run.out.mkdir(parents=True, exist_ok=True)
    np.save(run.out / file, after)
    # Below as many images as dimensions, FID is mostly the bias of a small sample.
    about = {**about, "dimension": after.shape[1], "is_reliable": len(after) > after.shape[1]}
    return Result(metric, score, about, judge, [(float(value), 1.0) for value in values], file)


def square_image(image: Image.Image, side: int, fit: str) -> Image.Image:
    """An RGB image of `side` x `side` pixels: the middle of it, or all of it on white."""
    if fit == "pad":
        return resize_with_white_padding(image, side)
    image = image.convert("RGB")
    scale = side / min(image.size)
    width, height = (max(side, round(length * scale)) for length in image.size)
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - side) // 2, (height - side) // 2
    return image.crop((left, top, left + side, top + side))


def ssim(one: Image.Image, other: Image.Image) -> float | None:
    """Structural similarity (Wang et al. 2004): mean over pixels and channels; None below 11 pixels.

    Windows are Gaussian, 11 x 11 with a deviation of 1.5, and lie inside the image.
    """
    a, b = (np.asarray(image.convert("RGB"), np.float64) for image in (one, other))
    if min(a.shape[:2]) < 11:
        return None
    taps = np.exp(-np.square(np.arange(-5, 6)) / (2 * 1.5**2))
    taps /= taps.sum()

    def blur(values: np.ndarray) -> np.ndarray:
        return correlate1d(correlate1d(values, taps, axis=0), taps, axis=1)[5:-5, 5:-5]

    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mean_a**2, blur(b * b) - mean_b**2
    covariance = blur(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    numerator = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    return float((numerator / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))).mean())


# -- audio ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Hearing:
    """Measures of clips and their reconstructions from several numbers of codebooks. Picklable."""

    settings: CodecSettings
    clips: tuple[Clip, ...]
    codebooks: tuple[int, ...]
    judges: tuple[JudgeTask, ...]
    measures: tuple[str, ...]
    """Of pesq and stoi, those that are installed."""

    def __call__(self) -> Compute:
        codec = open_audio_codec(self.settings.codec, self.settings.device)
        judges = [task.open() for task in self.judges]
        return lambda batch: [self._measure(codec, judges, self.clips[index]) for index in batch]

    def _measure(self, codec: AudioCodec, judges: Sequence[Measure], clip: Clip) -> Record:
        original = clip.load()
        try:
            encoded = codec.encode(original)
        except UserError as error:
            return {"refused": str(error)}
        record: Record = {_ORIGINAL: _judged(original, judges)}
        for number in self.codebooks:
            rebuilt = codec.decode(encoded, number)
            length = round(original.seconds * rebuilt.sample_rate)  # without the padding of the last frame
            rebuilt = Audio(rebuilt.samples[:length], rebuilt.sample_rate)
            compared = {"pesq": pesq, "stoi": stoi}
            measured = {name: compared[name](original, rebuilt) for name in self.measures}
            record[str(number)] = {**_judged(rebuilt, judges), **measured}
        if encoded.codes is not None:
            record["codes"] = pack(encoded.codes.astype(np.int32))
        return record


def _judged(clip: Audio, judges: Sequence[Measure]) -> Record:
    return {name: value for judge in judges for name, value in judge(clip).items()}


def _audio(run: _Run) -> Outcomes:
    settings = run.settings
    codec = open_audio_codec(settings.codec, settings.device)
    codebooks = _codebooks(settings, codec.facts)
    judges, measures, missing = _open(settings, codebooks)
    data = choose_speech(
        settings.data,
        settings.num_samples,
        max_seconds=settings.max_seconds,
        seed=run.seed,
        text_key=settings.text_key,
        needs_text=False,
    )
    if not any(clip.text.strip() for clip in data.clips) and "hear" in judges:
        del judges["hear"]
        missing += [
            Missing(metric, "a word error rate needs recordings with transcripts, as `triptych tokenize` reads them.")
            for metric in map(_wer_metric, _versions(codebooks))
        ]
    yield from missing
    run.progress(f"{codec.facts.name}: {data.summary}")
    tasks = tuple(judges.values())
    hashes = [task.judge.sha256 for task in tasks]
    decisive = [data.sha256, codec.facts.as_json(), _codec_sha(settings.codec), codebooks, measures, hashes]
    hearing = _Hearing(settings, data.clips, codebooks, tasks, tuple(measures))
    records = run.run_part("codec audio", _digest(*decisive, settings.language), len(data.clips), hearing)
    usable = [(clip, record) for clip, record in zip(data.clips, records) if "refused" not in record]
    if not usable:
        raise DataError(f"the codec takes none of the {len(records)} clips. The first: {records[0]['refused']}")
    extra = {
        "data_sha256": data.sha256,
        "clips": len(data.clips),
        "max_seconds": settings.max_seconds,
        "refused": len(records) - len(usable),
        "left_out": dict(data.left_out),
        "language": settings.language,
    }
    for number in _versions(codebooks):
        yield from _audio_results(run, codec.facts, number, usable, judges, measures, extra)
    if codec.facts.vocabulary is not None:
        codes = [unpack(record["codes"]) for _, record in usable]
        yield from _code_use(codes, codec.facts, "audio", _about(run, codec.facts, extra))


def _codebooks(settings: CodecSettings, facts: CodecFacts) -> tuple[int, ...]:
    most = facts.num_codebooks
    if settings.codebooks is None:
        return (most, 4) if most > 4 else (most,)
    if max(settings.codebooks) > most:
        raise UserError(f"{facts.name} has {most} codebooks, got codebooks={max(settings.codebooks)}.")
    return tuple(dict.fromkeys(settings.codebooks))


def _versions(codebooks: Sequence[int]) -> tuple[int | str, ...]:
    """What the judges hear: the recordings, and what is decoded from each number of codebooks."""
    return (_ORIGINAL, *codebooks)


_BOUNDS = {"pesq": (1.0, 4.65), "stoi": (0.0, 1.0)}
_TITLES = {"pesq": "PESQ, wide band", "stoi": "STOI"}


def _of(number: int | str) -> str:
    return " of the recordings" if number == _ORIGINAL else f", {number} codebook{'s' if number != 1 else ''}"


def _wer_metric(number: int | str) -> Metric:
    return _version_metric("wer", "WER by Whisper", number, False, (0.0, 1.0))


def _version_metric(name: str, title: str, number: int | str, higher: bool, bounds: tuple[float, float]) -> Metric:
    """A metric of one version of the clips. That of the recordings is a baseline."""
    is_headline = number != _ORIGINAL
    return Metric(f"codec_{name}_{number}", f"{title}{_of(number)}", "audio", higher, bounds, is_headline)


def _audio_results(
    run: _Run,
    facts: CodecFacts,
    number: int | str,
    usable: Sequence[tuple[Clip, Record]],
    judges: dict[str, JudgeTask],
    measures: Sequence[str],
    extra: dict[str, Any],
) -> Outcomes:
    about = _about(run, facts, extra)
    if isinstance(number, int):
        about["codebooks"] = number
        frames = (facts.sample_rate or 0) / facts.downsampling
        about["tokens_per_second"] = round(number * frames, 4)
        bits = facts.bits_per_second(number)
        about |= {} if bits is None else {"bits_per_second": round(bits, 2)}
        for name in measures:
            metric = Metric(f"codec_{name}_{number}", f"{_TITLES[name]}{_of(number)}", "audio", True, _BOUNDS[name])
            values = [record[str(number)][name] for _, record in usable]
            kept = [value for value in values if value is not None]
            if kept:
                yield _mean(metric, kept, None, {**about, "without_speech": len(values) - len(kept)})
            else:
                yield Missing(metric, f"{_TITLES[name]} finds no speech in any clip.")
    if "rate" in judges:
        metric = _version_metric("dnsmos", "DNSMOS overall", number, True, (1.0, 5.0))
        yield _mean(metric, [each[str(number)]["dnsmos"][2] for _, each in usable], judges["rate"].judge, about)
    if "aesthetics" in judges:
        for axis in AXES:
            metric = _version_metric(f"audiobox/{axis}", f"Audiobox {axis}", number, axis != "PC", (1.0, 10.0))
            values = [each[str(number)][axis] for _, each in usable]
            yield _mean(metric, values, judges["aesthetics"].judge, about)
    if "hear" in judges:
        normalize = normalizer(run.settings.language)
        said = [(clip.text, each[str(number)]["heard"]) for clip, each in usable if clip.text.strip()]
        counts = [count_errors(text, heard, "words", normalize) for text, heard in said]
        samples = [(float(errors), float(words)) for errors, words in counts]
        if sum(words for _, words in samples):
            score = ratio_score([errors for errors, _ in samples], [words for _, words in samples])
            yield Result(_wer_metric(number), score, about, judges["hear"].judge, samples)
        else:
            yield Missing(_wer_metric(number), "no transcript has words after normalisation; is the language right?")


def _open(settings: CodecSettings, codebooks: Sequence[int]) -> tuple[dict[str, JudgeTask], list[str], list[Missing]]:
    """The judges and measures that are installed, and what is missing. A judge that was chosen must load."""
    judges: dict[str, JudgeTask] = {}
    missing: list[Missing] = []
    wanted: list[tuple[str, JudgeTask, bool, list[Metric]]] = []
    hear = Hear(settings.whisper, settings.language, settings.device)
    every = _versions(codebooks)
    wanted.append(("hear", hear, settings.whisper is not None, [_wer_metric(number) for number in every]))
    if settings.dnsmos:
        metrics = [_version_metric("dnsmos", "DNSMOS overall", number, True, (1.0, 5.0)) for number in every]
        wanted.append(("rate", RateSpeech(), False, metrics))
    if settings.aesthetics is not None:
        wanted.append(("aesthetics", RateAesthetics(settings.aesthetics, settings.device), True, []))
    else:
        for axis in AXES:
            metric = Metric(f"codec_audiobox/{axis}_{codebooks[0]}", f"Audiobox {axis}", "audio", axis != "PC")
            missing.append(Missing(metric, _AESTHETICS_HINT))
    for name, task, is_chosen, metrics in wanted:
        try:
            task.judge  # noqa: B018 (loads it)
            judges[name] = task
        except UserError as error:
            if is_chosen:
                raise
            missing += [Missing(metric, str(error)) for metric in metrics]
    measures = []
    for name, package, extra in (("pesq", "pesq", "pesq"), ("stoi", "pystoi", "eval")):
        try:
            require(package, extra, _TITLES[name])
            measures.append(name)
        except UserError as error:
            for number in codebooks:
                metric = Metric(f"codec_{name}_{number}", f"{_TITLES[name]}{_of(number)}", "audio", True)
                missing.append(Missing(metric, str(error)))
    return judges, measures, missing


# -- both -------------------------------------------------------------------------------------------------------------


def _about(run: _Run, facts: CodecFacts, extra: dict[str, Any]) -> dict[str, Any]:
    return {"data": run.settings.data_name, "codec": facts.as_json(), **extra}


def _mean(metric: Metric, values: Sequence[float], judge: Judge | None, about: dict[str, Any]) -> Result:
    score = interval_or_nan(ratio_score(values))
    return Result(metric, score, about, judge, [(float(value), 1.0) for value in values])


def _code_use(
    codes: Sequence[np.ndarray], facts: CodecFacts, kind: Literal["image", "audio"], about: dict[str, Any]
) -> Iterator[Result]:
    """How many of the codes the data uses, and how evenly: means over codebooks."""
    assert facts.vocabulary is not None
    every = np.concatenate(codes, axis=1)
    counts = [np.bincount(row, minlength=facts.vocabulary) for row in every]
    shares = [float((count > 0).mean()) for count in counts]
    perplexities = [float(np.exp(_entropy(count))) for count in counts]
    about = {**about, "tokens_seen": int(every.size)}
    for name, title, values, bounds in (
        ("codec_code_use", "share of codes used", shares, (0.0, 1.0)),
        ("codec_perplexity", "perplexity of codes", perplexities, (1.0, float(facts.vocabulary))),
    ):
        value = float(np.mean(values))
        # A fact about these codes; more data would use more of them, so there is no interval.
        score = Score(value, math.nan, math.nan, len(codes))
        by_codebook = {"by_codebook": [round(each, 5) for each in values]} if len(values) > 1 else {}
        yield Result(Metric(f"{name}_{kind}", title, kind, True, bounds), score, {**about, **by_codebook})


def _entropy(counts: np.ndarray) -> float:
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def _codec_sha(source: str) -> str:
    """Names the weights of a codec by the sizes and times of its files; hashing gigabytes would take minutes."""
    from triptych.tokenizers.bundle import BUILTIN_TOKENIZERS

    path = BUILTIN_TOKENIZERS.get(source, Path(source))
    files = [each for each in files_below(path) if each.is_file()] if path.is_dir() else [path]
    listed = [[each.name, each.stat().st_size, each.stat().st_mtime_ns] for each in files if each.exists()]
    return _digest(source if not listed else "", listed)
