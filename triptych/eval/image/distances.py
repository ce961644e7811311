"""Generated images against reference images, and against their prompts: FID, KID, precision, recall, CLIP score."""

import base64
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from triptych.errors import DataError, UserError
from triptych.eval.frechet import Gaussian, extrapolated_score, frechet_score, load_gaussian
from triptych.eval.image.clip import ClipModel
from triptych.eval.image.features import FeatureExtractor, FeatureSpec, judge_of
from triptych.eval.image.inception import kernel_score
from triptych.eval.image.neighbours import DENSITY_K, PRECISION_K, compare_neighbours
from triptych.eval.image.painting import Painter, content_hash, keep_folder, model_of, show_samples, threads
from triptych.eval.image.prompts import Prompts, captions_of, choose_prompts, read_prompt_file
from triptych.eval.image.reference import (
    Framing,
    ImageSet,
    ReferenceFeatures,
    default_cache,
    full_path,
    open_images,
    reference_features,
)
from triptych.eval.image.settings import CLIP_SCORE, ImageSettings, feature_metrics
from triptych.eval.metrics import Judge, Metric, Missing, Result
from triptych.eval.records import Record, run_part_in_processes
from triptych.eval.scores import ratio_score
from triptych.eval.suite import Evaluation, Outcomes
from triptych.utils.files import write_atomically

MOST_SAMPLES = 10_000  # by default; as many as the paper has
_MOST_PAIRS = 10_000  # features of each set in KID, precision and recall, whose cost is quadratic
_FORMAT = 1  # of the records


@dataclass(frozen=True)
class _Judged:
    """Generates images and records their features and CLIP scores. Picklable without the networks."""

    painter: Painter
    specs: tuple[FeatureSpec, ...]
    clip: str | None
    device: str
    loaded: Mapping[str, FeatureExtractor] = field(default_factory=dict)
    loaded_clip: ClipModel | None = None

    def __call__(self) -> Callable[[range], list[Record]]:
        paint = self.painter.start()
        extractors = {spec.kind: self.loaded.get(spec.kind) or spec.load(self.device) for spec in self.specs}
        clip = self.loaded_clip or (ClipModel(self.clip, self.device) if self.clip is not None else None)

        def judge(batch: range) -> list[Record]:
            images = paint(batch)
            records: list[Record] = [{} for _ in batch]
            for kind, extractor in extractors.items():
                rows = np.asarray(extractor(images), np.float32)
                for i, record, row in zip(batch, records, rows):
                    if not np.isfinite(row).all():
                        raise DataError(
                            f"{extractor.name} gives features that are not finite for the generated image number {i} "
                            f"({self.painter.texts[i][:60]!r})."
                        )
                    record[kind] = base64.b64encode(row.tobytes()).decode()
            if clip is not None:
                scores = clip.scores(images, [self.painter.texts[i] for i in batch])
                for record, score in zip(records, scores):
                    record["clip_score"] = float(score)
            return records

        return judge


@dataclass
class Samples:
    """Generated images that are compared with a reference, and with their prompts."""

    evaluation: Evaluation
    settings: ImageSettings
    prompts: Prompts
    extractors: dict[FeatureSpec, FeatureExtractor | str]
    """Networks, or why one is not there."""
    images: ImageSet | None
    statistics: Gaussian | None
    reference_sha256: str | None
    """Of the names, sizes and times of the reference images, or of the file of statistics."""
    framing: Framing
    device: str

    @classmethod
    def prepare(cls, evaluation: Evaluation, settings: ImageSettings, device: str) -> "Samples | None":
        data, is_statistics = settings.data, str(settings.data).endswith(".npz")
        if data is None and settings.prompts is None:
            return None
        if is_statistics and settings.prompts is None:
            return None
        statistics = load_gaussian(Path(str(data))) if is_statistics else None
        reference_sha256 = hashlib.sha256(Path(str(data)).read_bytes()).hexdigest() if is_statistics else None
        images = None if data is None or is_statistics else open_images(data)
        if images is not None:
            reference_sha256 = images.fingerprint
        if images is not None and images.size is not None and images.size < 2:
            raise DataError(f"{data} has one image; a reference needs at least 2, and many more to mean anything.")
        if settings.prompts is not None:
            texts, label = read_prompt_file(settings.prompts), str(settings.prompts)
        else:
            assert data is not None
            texts, label = captions_of(data), str(data)
        prompts = choose_prompts(
            texts,
            label,
            settings.num_samples,
            MOST_SAMPLES,
            evaluation.pipe,
            seed=evaluation.seed,
            is_file=settings.prompts is not None,
        )
        if len(prompts.texts) < 2:
            raise DataError(f"{label} has one prompt; a distance between sets of images needs at least 2.")
        if prompts.num_left_out:
            evaluation.progress(f"  {prompts.num_left_out:,} captions left out, which the model does not take")
        extractors: dict[FeatureSpec, FeatureExtractor | str] = {}
        for text in settings.features if images is not None or statistics is not None else ():
            spec = FeatureSpec.parse(text)
            try:
                extractor = spec.load(device)
                if spec.kind == "inception":  # a damaged file is noticed when it is used
                    extractor([Image.new("RGB", (8, 8))])
                extractors[spec] = extractor
            except UserError as error:
                extractors[spec] = str(error)
                continue
            if statistics is not None and spec.kind == "inception" and statistics.dimension != extractor.dimension:
                raise DataError(
                    f"{data} has statistics of {statistics.dimension:,} features, expected {extractor.dimension:,} of "
                    "Inception-v3: give statistics of its last pooling layer, or reference images."
                )
            if settings.extrapolate and len(prompts.texts) < 2 * extractor.dimension:
                evaluation.progress(
                    f"  FID of {spec.title} will not be extrapolated: it needs {2 * extractor.dimension:,} generated "
                    f"samples, and there are {len(prompts.texts):,}"
                )
        framing = Framing(settings.framing, evaluation.pipe.bundle.image.resolution)
        return cls(evaluation, settings, prompts, extractors, images, statistics, reference_sha256, framing, device)

    def outcomes(self, clip: ClipModel | None, clip_problem: str, shared: Mapping[str, Any]) -> Outcomes:
        loaded = {spec: each for spec, each in self.extractors.items() if not isinstance(each, str)}
        if self.statistics is not None:  # they are of Inception-v3
            loaded = {spec: each for spec, each in loaded.items() if spec.kind == "inception"}
        references = {spec: self._reference(spec, extractor) for spec, extractor in loaded.items()}
        records: list[Record] = []
        if loaded or clip is not None:
            records = self._generate(loaded, clip, shared)
        settings = {
            **shared,
            "prompts": full_path(self.prompts.label),
            "prompts_sha256": content_hash(list(self.prompts.texts)),
            "num_samples": len(self.prompts.texts),
            "prompts_left_out": self.prompts.num_left_out,
        }
        yield from self._feature_outcomes(records, references, loaded, settings)
        if clip is None:
            yield Missing(CLIP_SCORE, clip_problem)
        else:
            values = [float(record["clip_score"]) for record in records]
            num_cut = sum(map(clip.is_cut_off, self.prompts.texts))
            yield Result(
                CLIP_SCORE,
                ratio_score(values),
                {**settings, "prompts_cut_off": num_cut},
                Judge(clip.name, clip.sha256),
                [(value, 1.0) for value in values],
            )

    def _reference(self, spec: FeatureSpec, extractor: FeatureExtractor) -> ReferenceFeatures | Gaussian:
        if self.statistics is not None:
            return self.statistics
        assert self.images is not None
        return reference_features(
            self.images,
            spec,
            self.framing,
            cache=Path(self.settings.cache) if self.settings.cache is not None else default_cache(),
            device=self.device,
            nproc=self.evaluation.nproc,
            progress=self.evaluation.progress,
            extractor=extractor,
        )

    def _generate(
        self, loaded: Mapping[FeatureSpec, FeatureExtractor], clip: ClipModel | None, shared: Mapping[str, Any]
    ) -> list[Record]:
        evaluation, texts = self.evaluation, self.prompts.texts
        files = None
        if self.settings.keep_images is not None:
            folder = keep_folder(Path(self.settings.keep_images) / "captions", evaluation, texts, shared)
            files = tuple(folder / f"{i:05d}.png" for i in range(len(texts)))
        is_alone = evaluation.nproc == 1
        key = content_hash([_FORMAT, texts, evaluation.seed, shared])
        shown = show_samples(evaluation.out / "samples" / "image", texts, key)
        sampling = dict(self.settings.sampling)
        painter = Painter(model_of(evaluation), texts, evaluation.seed, sampling, files, shown)
        build = _Judged(
            painter,
            tuple(loaded),
            self.settings.clip if clip is not None else None,
            self.device,
            {spec.kind: extractor for spec, extractor in loaded.items()} if is_alone else {},
            clip if is_alone else None,
        )
        judges = [asdict(judge_of(extractor)) for extractor in loaded.values()] + [clip.sha256 if clip else None]
        part = f"images {content_hash([key, judges])}"
        with threads(evaluation):
            return run_part_in_processes(
                evaluation.records, part, len(texts), build, evaluation.progress, nproc=evaluation.nproc
            )

    def _feature_outcomes(
        self,
        records: Sequence[Record],
        references: Mapping[FeatureSpec, ReferenceFeatures | Gaussian],
        loaded: Mapping[FeatureSpec, FeatureExtractor],
        settings: Mapping[str, Any],
    ) -> Outcomes:
        for text in self.settings.features:
            spec = FeatureSpec.parse(text)
            metrics = feature_metrics(spec, extrapolated=self.settings.extrapolate)
            if spec not in loaded:
                problem = self.extractors.get(spec)
                no_reference = "needs reference images: give data=FOLDER (--data)."
                not_these = f"needs reference images: {self.settings.data} has statistics of Inception-v3 alone."
                reason = problem if isinstance(problem, str) else no_reference if self.images is None else not_these
                if self.statistics is not None and not isinstance(problem, str):
                    reason = not_these
                yield from (Missing(metric, reason) for metric in metrics.values())
                continue
            rows = [np.frombuffer(base64.b64decode(record[spec.kind]), np.float32) for record in records]
            generated = np.stack(rows)
            key = content_hash(
                [self.prompts.texts, self.evaluation.seed, settings["sampling"], asdict(judge_of(loaded[spec]))]
            )
            name = f"image-{spec.kind}-{key}.npy"
            content = io.BytesIO()
            np.save(content, generated)
            self.evaluation.out.mkdir(parents=True, exist_ok=True)
            write_atomically(self.evaluation.out / name, content.getvalue())
            yield from self._compared(generated, references[spec], metrics, judge_of(loaded[spec]), name, settings)

    def _compared(
        self,
        generated: np.ndarray,
        reference: ReferenceFeatures | Gaussian,
        metrics: Mapping[str, Metric],
        judge: Judge,
        name: str,
        shared: Mapping[str, Any],
    ) -> Outcomes:
        gaussian = reference if isinstance(reference, Gaussian) else reference.gaussian
        assert self.settings.data is not None
        settings: dict[str, Any] = {
            **shared,
            "reference": full_path(self.settings.data),
            "reference_sha256": self.reference_sha256,
            "num_reference": gaussian.n,
        }
        if isinstance(reference, ReferenceFeatures):
            settings |= {"framing": self.framing.mode, "reference_unreadable": reference.num_unreadable}
        warning = size_warning(len(generated), gaussian)
        noted = settings | ({"warning": warning} if warning else {})
        if warning:
            self.evaluation.progress(f"  {metrics['fid'].title}: {warning}")
        score, pseudo = frechet_score(generated, gaussian)
        yield Result(metrics["fid"], score, noted, judge, [(float(value), 1.0) for value in pseudo], name)
        if "fid_infinity" in metrics:
            try:
                yield Result(metrics["fid_infinity"], extrapolated_score(generated, gaussian), settings, judge)
            except DataError as error:
                yield Missing(metrics["fid_infinity"], str(error))
        if isinstance(reference, Gaussian):
            for key in ("kid", "precision", "recall", "density", "coverage"):
                yield Missing(metrics[key], f"needs reference images: {self.settings.data} has statistics alone.")
            return
        yield from _pair_outcomes(generated, reference.features, metrics, judge, settings)


def size_warning(n: int, reference: Gaussian) -> str:
    """What FID of few samples means; empty if there are enough."""
    d = reference.dimension
    few = [
        f"{count:,} {what}" for count, what in ((n, "generated"), (reference.n, "reference")) if count and count <= d
    ]
    if not few:
        return ""
    return (
        f"{' and '.join(few)} images for {d:,} features: the covariance is singular and the distance much too large; "
        "compare it only with values at the same numbers of images, and look at KID"
    )


def _pair_outcomes(
    generated: np.ndarray,
    reference: np.ndarray,
    metrics: Mapping[str, Metric],
    judge: Judge,
    settings: Mapping[str, Any],
) -> Outcomes:
    """Metrics over pairs of samples, on at most 10,000 of each set."""
    kid, pseudo = kernel_score(generated[:_MOST_PAIRS], _subset(reference, _MOST_PAIRS))
    pairs_of = [min(len(generated), _MOST_PAIRS), min(len(reference), _MOST_PAIRS)]
    samples = [(float(value), 1.0) for value in pseudo]
    yield Result(metrics["kid"], kid, {**settings, "pairs_of": pairs_of}, judge, samples)
    # Radii shrink with the number of samples, so both sets have equally many.
    count = min(len(generated), len(reference), _MOST_PAIRS)
    if count <= max(PRECISION_K, DENSITY_K):
        reason = f"needs more than {max(PRECISION_K, DENSITY_K)} generated and reference images, got {count}."
        yield from (Missing(metrics[key], reason) for key in ("precision", "recall", "density", "coverage"))
        return
    comparison = compare_neighbours(generated[:count], _subset(reference, count))
    for key, k in (
        ("precision", PRECISION_K),
        ("recall", PRECISION_K),
        ("density", DENSITY_K),
        ("coverage", DENSITY_K),
    ):
        values = getattr(comparison, key).tolist()
        yield Result(
            metrics[key],
            ratio_score(values),
            {**settings, "k": k, "pairs_of": [count, count]},
            judge,
            [(value, 1.0) for value in values],
        )


def _subset(features: np.ndarray, count: int) -> np.ndarray:
    """The same random rows for every model."""
    if len(features) <= count:
        return np.asarray(features)
    return np.asarray(features[np.sort(np.random.default_rng(0).permutation(len(features))[:count])])


def missing_outcomes(settings: ImageSettings) -> Outcomes:
    if settings.data is None:
        reason = "needs reference images with captions: give data=FOLDER (--data), or data and prompts."
    else:
        reason = (
            f"needs prompts: {settings.data} has statistics alone; give prompts=FILE with one per line (--prompts)."
        )
    for text in settings.features:
        for metric in feature_metrics(FeatureSpec.parse(text), extrapolated=settings.extrapolate).values():
            yield Missing(metric, reason)
    yield Missing(CLIP_SCORE, "needs prompts: give data=FOLDER with captions (--data), or prompts=FILE (--prompts).")
