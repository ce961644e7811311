"""Quality of the demo model against NFE: every sampler in every direction, and the choice of the preset `fast`.

    python bench/fewer_steps.py [--only DIRECTION ...] [--images 480] [--speech 150] [--split validation]
    python bench/fewer_steps.py --plot-only        the figure and the table, from stored measurements

NFE counts forward passes per sequence, including those for guidance, length selection and candidate scoring, divided by
the number of requests. All settings of a direction are measured on the same requests. Each measurement is appended to
a file as one line, and stored measurements are not repeated.

The preset `fast` of a direction is the setting with the lowest NFE within one percentage point of the best score.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from triptych.errors import require
from triptych.eval.audio.speech import transcribe, wer_score
from triptych.eval.scores import Score
from triptych.hub.pipeline import Pipeline
from triptych.scenes.exam import evaluate
from triptych.scenes.exam_samples import Voices, spoken_sentence, world_of

POINT = 0.01
RECORDS, FIGURE = Path("bench/results/fewer_steps.jsonl"), Path("docs/images/fewer-steps.png")
Settings = dict[str, Any]  # fields of SamplingConfig
Record = dict[str, Any]


@dataclass(frozen=True)
class Direction:
    """What is measured in a direction."""

    score: str
    """Name of the score in the result of `evaluate`."""
    sign: int
    """1 if higher is better, -1 for error rates."""
    base: Settings
    """Settings that all measurements share."""
    num_steps: dict[str, tuple[int | None, ...]]
    """Numbers of steps to measure, by sampler; None for one token per step."""
    others: tuple[Settings, ...] = ()
    """Further settings, on top of `base`."""
    share: float = 1.0
    """Share of the requested number of samples to use: less than 1 for expensive directions."""


def _adaptive(values: dict[str, tuple[float, ...]], **settings: Any) -> tuple[Settings, ...]:
    names = {"threshold": "threshold", "entropy_bounded": "gamma"}
    return tuple(
        {"sampler": sampler, "options": {names[sampler]: value}, **settings}
        for sampler, choices in values.items()
        for value in choices
    )


def _num_steps(**by_sampler: tuple[int | None, ...]) -> dict[str, tuple[int | None, ...]]:
    return {name: by_sampler.get(name, by_sampler["others"]) for name in FIXED_STEPS}


FIXED_STEPS = ("random_order", "low_confidence", "maskgit", "ancestral", "remdm")
ADAPTIVE = {"threshold": (0.3, 0.5, 0.7, 0.9), "entropy_bounded": (0.03, 0.1, 0.3, 1.0, 3.0)}
SINGLE_PASS = {"sampler": "random_order", "single_pass": True}
DIRECTIONS = {
    "text-to-image": Direction(
        "text to image",
        1,
        {"temperature": 0.7, "guidance_scale": 1.5},
        _num_steps(others=(1, 2, 3, 4, 6, 8, None)),
        (
            *_adaptive(ADAPTIVE),
            *({"sampler": "maskgit", "num_steps": n, "guidance_scale": 1.0} for n in (3, 4, 6)),
            *_adaptive({"entropy_bounded": (0.01, 0.03, 0.1, 0.2, 0.3, 0.5)}, guidance_scale=1.0),
            # No temperature below 0.7: the images of one text would be nearly identical.
            *_adaptive({"entropy_bounded": (0.03, 0.1)}, guidance_scale=1.0, temperature=1.0),
            *({"sampler": sampler, "guidance_scale": 1.0} for sampler in ("low_confidence", "maskgit")),
            *_adaptive({"entropy_bounded": (0.01, 0.03, 0.1)}, guidance_scale=2.0),
        ),
    ),
    "caption": Direction(
        "caption",
        1,
        {"temperature": 0.7, "length": "draw", "best_of": 8},
        _num_steps(random_order=(2, 4, None), low_confidence=(4, None), others=(3,)),
        (
            *_adaptive({"threshold": (0.7,), "entropy_bounded": (0.1, 0.3, 1.0)}),
            *({**settings, "best_of": n} for n in (4, 2) for settings in _adaptive({"entropy_bounded": (0.3,)})),
            *_adaptive({"entropy_bounded": (0.1,)}, num_score_passes=4),
            *_adaptive({"entropy_bounded": (0.1,)}, num_score_passes=4, best_of=4),
            *_adaptive({"entropy_bounded": (0.1,)}, num_score_passes=4, best_of=6),
            *_adaptive({"entropy_bounded": (0.1,)}, num_score_passes=6, best_of=6),
            {"sampler": "random_order", "best_of": 1},
            SINGLE_PASS,
            {"sampler": "low_confidence", "best_of": 1, "temperature": 0.0, "length": "mode"},
        ),
        share=0.3125,
    ),
    "answer": Direction(
        "answer",
        1,
        {"temperature": 0.0, "length": "mode"},
        _num_steps(random_order=(1, None), low_confidence=(1, None), others=(2,)),
        (*_adaptive({"threshold": (0.5, 0.9), "entropy_bounded": (0.1,)}), SINGLE_PASS),
    ),
    "transcribe": Direction(
        "transcribe, WER",
        -1,
        {"temperature": 0.0, "length": "mode"},
        _num_steps(random_order=(1, 2, 4, None), low_confidence=(1, 2, 3, 4, 6, None), others=(2, 4)),
        (*_adaptive(ADAPTIVE), SINGLE_PASS),
    ),
    "text-to-speech": Direction(
        "text to speech, Whisper WER",
        -1,
        {"temperature": 0.0, "guidance_scale": 1.5, "length": "median"},
        _num_steps(random_order=(4, 8), low_confidence=(4, 8, None), others=(8,)),
        (
            *_adaptive({"threshold": (0.9,), "entropy_bounded": (0.3, 1.0)}),
            {"sampler": "random_order", "num_steps": 8, "guidance_scale": 1.0},
        ),
    ),
}


def settings_of(direction: Direction) -> Iterator[Settings]:
    for sampler, choices in direction.num_steps.items():
        for num_steps in choices:
            if num_steps is None and sampler in ("ancestral", "remdm"):  # measured only with a number of steps
                continue
            yield {**direction.base, "sampler": sampler, "num_steps": num_steps}
    for other in direction.others:
        yield {**direction.base, **other}


# -- measuring --------------------------------------------------------------------------------------------------------


@contextmanager
def counted_passes(pipe: Pipeline) -> Iterator[list[int]]:
    """A list whose one number is the forward passes so far, each sequence of a batch counted."""
    num_passes = [0]
    hidden_states = pipe.model.hidden_states

    def count(tokens: torch.Tensor, *inputs: Any, **options: Any) -> torch.Tensor:
        num_passes[0] += len(tokens)
        return hidden_states(tokens, *inputs, **options)

    with mock.patch.object(pipe.model, "hidden_states", count):
        yield num_passes


def score_of(pipe: Pipeline, name: str, split: str, num_images: int, num_speech: int, settings: Settings) -> Score:
    if name == "text-to-speech":  # without Whisper's errors on reference speech, which are the same for all settings
        world, voices = world_of(pipe), Voices.find(None)
        texts = [spoken_sentence(index, split, world, voices).text for index in range(num_speech)]
        return wer_score(texts, transcribe(pipe.text_to_speech(texts, **settings)))
    result = evaluate(
        pipe,
        directions=[name],
        num_images=num_images,
        num_speech=num_speech,
        split=split,
        sampling={name: settings},
    )
    return result.scores[DIRECTIONS[name].score]


def measure(name: str, split: str, num_images: int, num_speech: int, path: Path, match: list[str]) -> None:
    direction = DIRECTIONS[name]
    num_images, num_speech = round(num_images * direction.share), round(num_speech * direction.share)
    num_requests = num_speech if name in ("transcribe", "text-to-speech") else num_images
    pipe = Pipeline.from_pretrained("scenes")
    stored = {_key(record) for record in read(path)}
    to_measure = [
        settings
        for settings in settings_of(direction)
        if _key({"direction": name, "split": split, "settings": settings}) not in stored
        and any(text in label(settings) for text in match)
    ]
    for number, settings in enumerate(to_measure, start=1):
        with counted_passes(pipe) as num_passes:
            score = score_of(pipe, name, split, num_images, num_speech, settings)
        nfe = num_passes[0] / num_requests
        record = {"direction": name, "split": split, "settings": settings, "nfe": nfe, **score.as_json}
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{name}, {number} of {len(to_measure)}: {label(settings)}: {score}, NFE {nfe:.1f}", flush=True)


def read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _key(record: Record) -> str:
    return json.dumps([record["direction"], record["split"], record["settings"]], sort_keys=True)


def label(settings: Settings) -> str:
    words = [settings["sampler"]]
    if settings.get("single_pass"):
        words.append("single_pass")
    if settings.get("num_steps"):
        words.append(f"num_steps {settings['num_steps']}")
    words += [f"{name} {value}" for name, value in settings.get("options", {}).items()]
    words += [
        f"{name} {settings[name]}"
        for name in ("temperature", "guidance_scale", "best_of", "num_score_passes")
        if name in settings
    ]
    return ", ".join(words)


# -- choosing and plotting --------------------------------------------------------------------------------------------


def reference(direction: Direction, records: list[Record]) -> Record:
    """The best setting with one token per step."""
    one_token = [
        record
        for record in records
        if record["settings"]["sampler"] in FIXED_STEPS
        and record["settings"].get("num_steps") is None
        and not record["settings"].get("single_pass")
    ]
    return max(one_token, key=lambda record: direction.sign * record["value"])


def fast(direction: Direction, records: list[Record]) -> Record:
    """The setting with the lowest NFE within one percentage point of the best score."""
    best = max(direction.sign * record["value"] for record in records)
    near = [record for record in records if direction.sign * record["value"] >= best - POINT - 1e-9]
    return min(near, key=lambda record: record["nfe"])


def plot(records: list[Record], split: str, path: Path) -> None:
    plt = require("matplotlib.pyplot", "hpo", "drawing figures")
    names = [name for name in DIRECTIONS if any(r["direction"] == name and r["split"] == split for r in records)]
    figure, panels = plt.subplots(1, len(names), figsize=(4.2 * len(names), 4.2), squeeze=False, layout="constrained")
    print(
        "| direction | fast setting | NFE | score | one token per step | NFE | score | NFE ratio |\n" + "|---" * 8 + "|"
    )
    colours = {name: f"C{i}" for i, name in enumerate((*FIXED_STEPS, *ADAPTIVE))}
    for panel, name in zip(panels[0], names):
        direction = DIRECTIONS[name]
        own = [r for r in records if r["direction"] == name and r["split"] == split]
        for sampler, colour in colours.items():
            points = sorted((r["nfe"], r["value"]) for r in own if r["settings"]["sampler"] == sampler)
            if points:
                panel.scatter(*zip(*points), s=22, color=colour, label=sampler.replace("_", " "))
        front: list[tuple[float, float]] = []
        for record in sorted(own, key=lambda r: (r["nfe"], -direction.sign * r["value"])):
            if not front or direction.sign * record["value"] > direction.sign * front[-1][1]:
                front.append((record["nfe"], record["value"]))
        panel.step(*zip(*front), where="post", color="black", linewidth=1)
        quick, slow = fast(direction, own), reference(direction, own)
        panel.scatter([quick["nfe"]], [quick["value"]], s=120, facecolors="none", edgecolors="red", label="fast preset")
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set_title(name.replace("-", " "))
        panel.set_xlabel("NFE per request")
        panel.set_ylabel("share right" if direction.sign > 0 else "word error rate (lower is better)")
        low, high = panel.get_ylim()
        panel.set_ylim(*((0, high) if direction.sign < 0 else (min(low, 0.9), 1.0)))
        print(
            f"| {name} | {label(quick['settings'])} | {quick['nfe']:.1f} | {quick['value']:.3f} | "
            f"{label(slow['settings'])} | {slow['nfe']:.1f} | {slow['value']:.3f} | "
            f"{slow['nfe'] / quick['nfe']:.1f} |"
        )
    handles = {text: handle for panel in panels[0] for handle, text in zip(*panel.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"\n{path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=DIRECTIONS, default=list(DIRECTIONS), help="directions to measure")
    parser.add_argument("--images", type=int, default=480)
    parser.add_argument("--speech", type=int, default=150)
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--records", type=Path, default=RECORDS, help="file of stored measurements")
    parser.add_argument("--match", nargs="+", metavar="TEXT", help="only settings whose label contains one of these")
    parser.add_argument("--figure", type=Path, default=FIGURE)
    parser.add_argument("--plot-only", action="store_true", help="measure nothing")
    args = parser.parse_args()
    args.records.parent.mkdir(parents=True, exist_ok=True)
    if not args.plot_only:
        for name in args.only:
            measure(name, args.split, args.images, args.speech, args.records, args.match or [""])
    plot(read(args.records), args.split, args.figure)


if __name__ == "__main__":
    main()
