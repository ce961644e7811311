"""How good the shipped model is against how often it looks: every sampler, every direction; and the fast presets.

    python bench/fewer_steps.py [--only DIRECTION ...] [--pictures 480] [--sounds 150] [--split validation]
    python bench/fewer_steps.py --draw             the figure and the table from what was measured

A look is one forward pass of one sequence. Counted are all that a request costs: with and without the text where it is
guided, those that choose a length, those that judge candidates; divided by the number of requests. Every setting is
measured on the same requests. What was measured is kept, a line each, and not measured again.

The fast preset of a direction is the one with the fewest looks that is not worse than the best by more than a point.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from triptych.errors import require
from triptych.eval.audio import transcribe
from triptych.hub.pipeline import Pipeline
from triptych.scenes.exam import Score, _spoken, _wer, examine

POINT = 0.01
RECORDS, FIGURE = Path("bench/results/fewer_steps.jsonl"), Path("docs/images/fewer-steps.png")


@dataclass(frozen=True)
class Direction:
    score: str
    """Which of the examination's scores."""
    sign: int
    """1 where more is better, -1 for error rates."""
    base: dict[str, Any]
    """What all settings have in common: the quality of the preset, one token a look."""
    steps: dict[str, tuple[int | None, ...]]
    """By sampler; None for one token a look."""
    others: tuple[dict[str, Any], ...] = ()
    share: float = 1.0
    """Of the requests that are asked for: where each costs much, fewer."""


def _adaptive(values: dict[str, tuple[float, ...]], **settings: Any) -> tuple[dict[str, Any], ...]:
    names = {"threshold": "threshold", "entropy_bounded": "gamma"}
    return tuple(
        {"sampler": sampler, "options": {names[sampler]: value}, **settings}
        for sampler, found in values.items()
        for value in found
    )


def _steps(**exceptions: tuple[int | None, ...]) -> dict[str, tuple[int | None, ...]]:
    return {name: exceptions.get(name, exceptions["others"]) for name in BY_STEPS}


BY_STEPS = ("random_order", "low_confidence", "maskgit", "ancestral", "remdm")
ADAPTIVE = {"threshold": (0.3, 0.5, 0.7, 0.9), "entropy_bounded": (0.03, 0.1, 0.3, 1.0, 3.0)}
AT_ONCE = {"sampler": "random_order", "single_pass": True}
DIRECTIONS = {
    "text-to-image": Direction(
        "text to image",
        1,
        {"temperature": 0.7, "guidance": 1.5},
        _steps(others=(1, 2, 3, 4, 6, 8, None)),
        (
            *_adaptive(ADAPTIVE),
            *({"sampler": "maskgit", "steps": n, "guidance": 1.0} for n in (3, 4, 6)),
            *_adaptive({"entropy_bounded": (0.01, 0.03, 0.1, 0.2, 0.3, 0.5)}, guidance_scale=1.0),
            # Not below 0.7: then pictures of one text are nearly all the same.
            *_adaptive({"entropy_bounded": (0.03, 0.1)}, guidance_scale=1.0, temperature=1.0),
            *({"sampler": sampler, "guidance": 1.0} for sampler in ("low_confidence", "maskgit")),
            *_adaptive({"entropy_bounded": (0.01, 0.03, 0.1)}, guidance_scale=2.0),
        ),
    ),
    "image-to-text": Direction(
        "image to text",
        1,
        {"temperature": 0.7, "length": "draw", "best_of": 8},
        _steps(random_order=(2, 4, None), low_confidence=(4, None), others=(3,)),
        (
            *_adaptive({"threshold": (0.7,), "entropy_bounded": (0.1, 0.3, 1.0)}),
            *({**each, "best_of": n} for n in (4, 2) for each in _adaptive({"entropy_bounded": (0.3,)})),
            *_adaptive({"entropy_bounded": (0.1,)}, num_score_passes=4),
            *_adaptive({"entropy_bounded": (0.1,)}, num_score_passes=4, best_of=4),
            *_adaptive({"entropy_bounded": (0.1,)}, num_score_passes=4, best_of=6),
            *_adaptive({"entropy_bounded": (0.1,)}, num_score_passes=6, best_of=6),
            {"sampler": "random_order", "best_of": 1},
            AT_ONCE,
            {"sampler": "low_confidence", "best_of": 1, "temperature": 0.0, "length": "mode"},
        ),
        share=0.3125,
    ),
    "questions": Direction(
        "question answering",
        1,
        {"temperature": 0.0, "length": "mode"},
        _steps(random_order=(1, None), low_confidence=(1, None), others=(2,)),
        (*_adaptive({"threshold": (0.5, 0.9), "entropy_bounded": (0.1,)}), AT_ONCE),
    ),
    "speech-to-text": Direction(
        "speech to text, WER",
        -1,
        {"temperature": 0.0, "length": "mode"},
        _steps(random_order=(1, 2, 4, None), low_confidence=(1, 2, 3, 4, 6, None), others=(2, 4)),
        (*_adaptive(ADAPTIVE), AT_ONCE),
    ),
    "text-to-speech": Direction(
        "text to speech, Whisper WER",
        -1,
        {"temperature": 0.0, "guidance": 1.5, "length": "median"},
        _steps(random_order=(4, 8), low_confidence=(4, 8, None), others=(8,)),
        (
            *_adaptive({"threshold": (0.9,), "entropy_bounded": (0.3, 1.0)}),
            {"sampler": "random_order", "steps": 8, "guidance": 1.0},
        ),
    ),
}


def settings_of(direction: Direction) -> Iterator[dict[str, Any]]:
    for sampler, found in direction.steps.items():
        for steps in found:
            if steps is None and sampler in ("ancestral", "remdm"):  # they are told a number
                continue
            yield {**direction.base, "sampler": sampler, "steps": steps}
    for other in direction.others:
        yield {**direction.base, **other}


@contextmanager
def counted(pipe: Pipeline) -> Iterator[list[int]]:
    """How many sequences pass through the model."""
    looks = [0]

    def count(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        looks[0] += len(inputs[0])

    hook = pipe.model.register_forward_pre_hook(count)
    try:
        yield looks
    finally:
        hook.remove()


def score_of(pipe: Pipeline, name: str, split: str, pictures: int, sounds: int, settings: dict[str, Any]) -> Score:
    if name == "text-to-speech":  # without Whisper's errors on true speech, which take as long and are always the same
        texts, _ = _spoken(sounds, split)
        return _wer(texts, transcribe(pipe.speak(texts, **settings)))
    found = examine(
        pipe, pictures, sounds, split=split, directions=[name], settings={name: settings}, report=lambda _: None
    )
    return found.scores[DIRECTIONS[name].score]


def measure(name: str, split: str, pictures: int, sounds: int, path: Path, match: list[str]) -> None:
    direction = DIRECTIONS[name]
    pictures, sounds = round(pictures * direction.share), round(sounds * direction.share)
    pipe = Pipeline.from_pretrained("scenes")
    done = {_key(record) for record in read(path)}
    todo = [
        each
        for each in settings_of(direction)
        if _key({"direction": name, "split": split, "settings": each}) not in done
        and any(text in label(each) for text in match)
    ]
    for number, settings in enumerate(todo, start=1):
        with counted(pipe) as looks:
            score = score_of(pipe, name, split, pictures, sounds, settings)
        looks_each = looks[0] / (sounds if "speech" in name else pictures)
        record = {"direction": name, "split": split, "settings": settings, "looks": looks_each, **score.as_json}
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{name}, {number} of {len(todo)}: {label(settings)}: {score} at {looks_each:.1f} looks", flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _key(record: dict[str, Any]) -> str:
    return json.dumps([record["direction"], record["split"], record["settings"]], sort_keys=True)


def label(settings: dict[str, Any]) -> str:
    words = [settings["sampler"]]
    if settings.get("single_pass"):
        words.append("at once")
    if settings.get("steps"):
        words.append(f"{settings['steps']} steps")
    words += [f"{name} {value}" for name, value in settings.get("options", {}).items()]
    words += [
        f"{name} {settings[name]}"
        for name in ("temperature", "guidance", "best_of", "num_score_passes")
        if name in settings
    ]
    return ", ".join(words)


def reference(direction: Direction, records: list[dict[str, Any]]) -> dict[str, Any]:
    """One token a look: the best of all that do so."""
    one = [r for r in records if r["settings"]["sampler"] in BY_STEPS and r["settings"].get("steps") is None]
    one = [r for r in one if not r["settings"].get("single_pass")]
    return max(one, key=lambda record: direction.sign * record["value"])


def fast(direction: Direction, records: list[dict[str, Any]]) -> dict[str, Any]:
    best = max(direction.sign * record["value"] for record in records)
    near = [r for r in records if direction.sign * r["value"] >= best - POINT - 1e-9]
    return min(near, key=lambda record: record["looks"])


def draw(records: list[dict[str, Any]], split: str, path: Path) -> None:
    plt = require("matplotlib.pyplot", "hpo", "drawing figures")
    names = [name for name in DIRECTIONS if any(r["direction"] == name and r["split"] == split for r in records)]
    figure, panels = plt.subplots(1, len(names), figsize=(4.2 * len(names), 4.2), squeeze=False, layout="constrained")
    print(
        "| direction | preset | looks | score | one token a look | looks | score | fewer looks |\n" + "|---" * 8 + "|"
    )
    colours = {name: f"C{i}" for i, name in enumerate((*BY_STEPS, *ADAPTIVE))}
    for panel, name in zip(panels[0], names):
        direction = DIRECTIONS[name]
        own = [r for r in records if r["direction"] == name and r["split"] == split]
        for sampler, colour in colours.items():
            points = sorted((r["looks"], r["value"]) for r in own if r["settings"]["sampler"] == sampler)
            if points:
                panel.scatter(*zip(*points), s=22, color=colour, label=sampler.replace("_", " "))
        front: list[tuple[float, float]] = []
        for record in sorted(own, key=lambda r: (r["looks"], -direction.sign * r["value"])):
            if not front or direction.sign * record["value"] > direction.sign * front[-1][1]:
                front.append((record["looks"], record["value"]))
        panel.step(*zip(*front), where="post", color="black", linewidth=1)
        quick, slow = fast(direction, own), reference(direction, own)
        panel.scatter(
            [quick["looks"]], [quick["value"]], s=120, facecolors="none", edgecolors="red", label="fast preset"
        )
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set_title(name.replace("-", " "))
        panel.set_xlabel("forward passes a request")
        panel.set_ylabel("share right" if direction.sign > 0 else "word error rate (less is better)")
        low, high = panel.get_ylim()
        panel.set_ylim(*((0, high) if direction.sign < 0 else (min(low, 0.9), 1.0)))
        print(
            f"| {name} | {label(quick['settings'])} | {quick['looks']:.1f} | {quick['value']:.3f} | "
            f"{label(slow['settings'])} | {slow['looks']:.1f} | {slow['value']:.3f} | "
            f"{slow['looks'] / quick['looks']:.1f} x |"
        )
    handles = {text: handle for panel in panels[0] for handle, text in zip(*panel.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"\n{path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=DIRECTIONS, default=list(DIRECTIONS))
    parser.add_argument("--pictures", type=int, default=480)
    parser.add_argument("--sounds", type=int, default=150)
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--match", nargs="+", metavar="TEXT", help="only settings whose names contain one of these")
    parser.add_argument("--figure", type=Path, default=FIGURE)
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    args = parser.parse_args()
    args.records.parent.mkdir(parents=True, exist_ok=True)
    if not args.draw:
        for name in args.only:
            measure(name, args.split, args.pictures, args.sounds, args.records, args.match or [""])
    draw(read(args.records), args.split, args.figure)


if __name__ == "__main__":
    main()
