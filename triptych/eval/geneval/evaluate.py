"""GenEval of a model: generates the images of the prompts, finds their objects, judges them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triptych.errors import UserError
from triptych.eval.geneval.colors import ColorClassifier, with_colors
from triptych.eval.geneval.detection import ObjectDetector
from triptych.eval.geneval.detectors import load_detector
from triptych.eval.geneval.prompts import CATEGORIES, GenEvalPrompt, read_prompts, sample_prompts
from triptych.eval.geneval.scoring import OFFICIAL_RULES, judge_objects, select_objects
from triptych.eval.geneval.summary import summarise
from triptych.eval.image.clip import ClipModel
from triptych.eval.image.painting import Painter, content_hash, keep_folder, model_of, threads
from triptych.eval.image.prompts import refusals
from triptych.eval.image.settings import OFFICIAL, ImageSettings, geneval_metric
from triptych.eval.metrics import Judge, Missing, Result
from triptych.eval.records import Record, run_part_in_processes
from triptych.eval.scores import Score
from triptych.eval.suite import Evaluation, Outcomes
from triptych.hub.pipeline import Pipeline
from triptych.utils.files import write_atomically

_FORMAT = 1  # of the records


@dataclass(frozen=True)
class _Inspected:
    """Generates images and judges their objects. Picklable without the networks."""

    painter: Painter
    prompts: tuple[GenEvalPrompt, ...]
    """Of every image."""
    detector: str | ObjectDetector
    clip: str | None
    device: str
    loaded_clip: ClipModel | None = None

    def __call__(self) -> Callable[[range], list[Record]]:
        paint = self.painter.start()
        detect = load_detector(self.detector, self.device) if isinstance(self.detector, str) else self.detector
        clip = self.loaded_clip or (ClipModel(self.clip, self.device) if self.clip is not None else None)
        classifier = ColorClassifier(clip) if clip is not None else None

        def inspect(batch: range) -> list[Record]:
            images = paint(batch)
            records: list[Record] = []
            for i, image, detected in zip(batch, images, detect(images)):
                prompt = self.prompts[i]
                objects = with_colors(select_objects(detected, prompt.category), prompt, image, classifier)
                verdict = judge_objects(objects, prompt)
                shown = [
                    [each.name, each.color, round(each.score, 3), [round(edge) for edge in each.box]]
                    for same in objects.values()
                    for each in same
                ]
                records.append({"right": verdict.is_right, "reason": verdict.reason, "objects": shown})
            return records

        return inspect


@dataclass
class GenEval:
    """GenEval, as far as its judges are there."""

    evaluation: Evaluation
    settings: ImageSettings
    prompts: list[GenEvalPrompt]
    """Those that can be judged."""
    problems: dict[str, str]
    """Why a category, or "overall", cannot be judged."""
    detector: ObjectDetector | None
    clip: ClipModel | None
    device: str

    @classmethod
    def prepare(
        cls,
        evaluation: Evaluation,
        settings: ImageSettings,
        clip: ClipModel | None,
        clip_problem: str,
        device: str,
    ) -> "GenEval":
        if settings.geneval is None:
            return cls(evaluation, settings, [], {}, None, None, device)
        prompts = _geneval_prompts(settings.geneval)
        names = [*dict.fromkeys(prompt.category for prompt in prompts), "overall"]
        detector, problem = _load_detector(settings, device)
        if detector is not None:
            problem = _unsuitable(prompts, detector, evaluation.pipe)
        if problem or detector is None:
            return cls(evaluation, settings, [], dict.fromkeys(names, problem), None, None, device)
        problems: dict[str, str] = {}
        if clip is None and not detector.names_colors:
            colored = {prompt.category for prompt in prompts if prompt.needs_color}
            problems = {name: clip_problem for name in names if name in colored or (colored and name == "overall")}
            prompts = [prompt for prompt in prompts if prompt.category not in colored]
        return cls(evaluation, settings, prompts, problems, detector, clip, device)

    def outcomes(self, shared: Mapping[str, Any]) -> Outcomes:
        if self.prompts:
            yield from self._results(shared)
        for name, problem in self.problems.items():
            yield Missing(geneval_metric(name), problem)

    def _results(self, shared: Mapping[str, Any]) -> Iterator[Result]:
        assert self.detector is not None
        evaluation, per_prompt = self.evaluation, self.settings.images_per_prompt
        repeated = tuple(prompt for prompt in self.prompts for _ in range(per_prompt))
        texts = tuple(prompt.text for prompt in repeated)
        files = None
        if self.settings.keep_images is not None:
            folder = keep_folder(Path(self.settings.keep_images) / "geneval", evaluation, texts, shared)
            files = tuple(self._file(folder, i) for i in range(len(texts)))
            for number, prompt in enumerate(self.prompts):
                metadata = folder / f"{number:05d}" / "metadata.jsonl"
                metadata.parent.mkdir(exist_ok=True)
                write_atomically(metadata, json.dumps(prompt.as_json).encode())
        painter = Painter(model_of(evaluation), texts, evaluation.seed, dict(self.settings.sampling), files)
        is_alone = evaluation.nproc == 1
        source = self.settings.detector
        assert source is not None
        build = _Inspected(
            painter,
            repeated,
            self.detector if is_alone or not isinstance(source, str) else source,
            self.settings.clip if self.clip is not None else None,
            self.device,
            self.clip if is_alone else None,
        )
        judge = Judge(self.detector.name, self.detector.sha256)
        color_judge = None
        if self.clip is not None and not self.detector.names_colors and any(p.needs_color for p in self.prompts):
            color_judge = asdict(Judge(self.clip.name, self.clip.sha256))
        what = [_FORMAT, [prompt.as_json for prompt in repeated], evaluation.seed, shared, asdict(judge), color_judge]
        with threads(evaluation):
            records = run_part_in_processes(
                evaluation.records,
                f"geneval {content_hash(what)}",
                len(texts),
                build,
                evaluation.progress,
                lambda known: f", {np.mean([record['right'] for record in known]):.3f} right",
                nproc=evaluation.nproc,
            )
        right = [bool(record["right"]) for record in records]
        grouped = [right[start : start + per_prompt] for start in range(0, len(right), per_prompt)]
        settings = {
            **shared,
            "prompts": self._prompts_label,
            "prompts_sha256": content_hash([prompt.as_json for prompt in self.prompts]),
            "num_prompts": len(self.prompts),
            "images_per_prompt": per_prompt,
            "rules": asdict(OFFICIAL_RULES),
            "colors_by": color_judge,
        }
        for name, summary in summarise(self.prompts, grouped).items():
            if name not in self.problems:
                yield Result(geneval_metric(name), summary.score, settings, judge, summary.samples)

    @property
    def _prompts_label(self) -> str:
        chosen = self.settings.geneval
        return str(chosen) if isinstance(chosen, str | Path) else "own"

    def _file(self, folder: Path, i: int) -> Path:
        """As the official evaluation reads them."""
        number, repetition = divmod(i, self.settings.images_per_prompt)
        return folder / f"{number:05d}" / "samples" / f"{repetition:04d}.png"


def _geneval_prompts(chosen: str | Path | Sequence[GenEvalPrompt]) -> list[GenEvalPrompt]:
    if isinstance(chosen, str | Path):
        return sample_prompts() if str(chosen) == OFFICIAL else read_prompts(chosen)
    if not chosen:
        raise UserError(
            "geneval must be 'official', a file or a list of prompts that is not empty; None leaves it out."
        )
    return list(chosen)


def _load_detector(settings: ImageSettings, device: str) -> tuple[ObjectDetector | None, str]:
    if settings.detector is None:
        return None, (
            "needs an object detector: give detector=FOLDER or a hub name such as "
            "facebook/mask2former-swin-small-coco-instance (--detector)."
        )
    if not isinstance(settings.detector, str):
        return settings.detector, ""
    try:
        return load_detector(settings.detector, device), ""
    except UserError as error:
        return None, str(error)


def _unsuitable(prompts: Sequence[GenEvalPrompt], detector: ObjectDetector, pipe: Pipeline) -> str:
    """Why these prompts cannot be judged with this detector and model; empty if they can."""
    unknown = sorted(set().union(*(prompt.classes for prompt in prompts)) - detector.classes)
    if unknown:
        return (
            f"the detector {detector.name} does not find {len(unknown)} of the classes in the prompts, such as "
            f"{unknown[0]!r}: give another detector or other prompts (geneval=FILE, --geneval)."
        )
    refusal = refusals(pipe)
    refused = [reason for prompt in prompts if (reason := refusal(prompt.text)) is not None]
    if refused:
        return (
            f"the model does not take {len(refused)} of the {len(prompts)} prompts, such as: {refused[0].rstrip('.')}. "
            "Give prompts of its own (geneval=FILE, --geneval)."
        )
    return ""


def geneval_table(results: Sequence[Result]) -> dict[str, Score]:
    """The scores of GenEval by category, in the official order, with "overall" last."""
    scores = {result.metric.name: result.score for result in results}
    names = [(name, f"geneval/{name}") for name in CATEGORIES] + [("overall", "geneval")]
    return {name: scores[key] for name, key in names if key in scores}
