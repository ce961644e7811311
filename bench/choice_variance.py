"""Noise of multiple choice by estimated likelihoods: masks that the choices share against masks of their own.

    python bench/choice_variance.py [--short] [--questions 40] [--seeds 8] [--json FILE]

The demo model answers questions about its toy language: "two cats left of a red heart." is followed by a paraphrase;
which of four? The wrong ones either say one word differently ("one word"), or describe another scene ("other scene").
Right answers have six words or more. All masks are drawn. Every question is asked with several seeds:

    variance     of the estimated log p(right) - log p(wrong) over seeds, averaged over questions and wrong choices
    accuracy     of the estimates of one seed
    agreement    how often one seed chooses what the mean over all seeds and both kinds of masks chooses

Both kinds have equal numbers of draws. Passes count the canvases that were computed: equal ones are computed once,
and choices with common masks have more of these. The estimators are those of `triptych.eval.text.masks`.
"""

import itertools
import re
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from measure import base_parser, print_table, progress, save_results, start_benchmark

from triptych.eval.text.likelihood import LikelihoodConfig, LikelihoodEstimator, MaskSharing, TextRequest
from triptych.hub.pipeline import Pipeline
from triptych.scenes.captions import caption
from triptych.scenes.exam_samples import exam_scenes, world_of
from triptych.scenes.world import World

STREAM = 71  # of the scenes of these questions
CHOICES = 4
LEAST_WORDS = 6
SWAPS = (
    ("two", "three", "four"),
    ("red", "blue", "green", "purple", "yellow"),
    ("cat", "dog", "fox", "frog", "cow", "bee"),
    ("cats", "dogs", "foxes", "frogs", "cows", "bees"),
    ("left", "right"),
    ("above", "below"),
)
KINDS = ("one word", "other scene")


@dataclass(frozen=True)
class Question:
    prompt: str
    choices: tuple[str, ...]
    """The right one first."""


def ask(kind: str, count: int, world: World) -> list[Question]:
    """Questions of one kind, from scenes of the test split."""
    scenes = exam_scenes(40 * count, "test", STREAM, world)
    asked: list[Question] = []
    for number, (scene, rng) in enumerate(scenes):
        right = f" {caption(scene, rng, world)}."
        if kind == "one word":
            wrong = one_word_differs(right, rng)
        else:
            others = [scenes[(number + step) % len(scenes)][0] for step in range(1, CHOICES)]
            wrong = [f" {caption(other, rng, world)}." for other in others]
        if len({right, *wrong}) == CHOICES and len(right.split()) >= LEAST_WORDS:
            asked.append(Question(f"{caption(scene, rng, world)}.", (right, *wrong)))
        if len(asked) == count:
            break
    return asked


def one_word_differs(text: str, rng: np.random.Generator) -> list[str]:
    """Copies of a text that each say one word differently."""
    options = {
        text[: match.start()] + other + text[match.end() :]
        for words in SWAPS
        for match in re.finditer(rf"\b({'|'.join(words)})\b", text)
        for other in words
        if other != match.group()
    }
    chosen = sorted(options)
    return [chosen[i] for i in rng.permutation(len(chosen))[: CHOICES - 1]]


def requests_of(pipe: Pipeline, questions: list[Question]) -> list[TextRequest]:
    """The requests of all questions, choice by choice."""
    requests = []
    for number, question in enumerate(questions):
        prompt = np.asarray(pipe.bundle.text.encode([question.prompt])[0], np.int64)
        for choice, text in enumerate(question.choices):
            whole = np.asarray(pipe.bundle.text.encode([question.prompt + text])[0], np.int64)
            assert (whole[: len(prompt)] == prompt).all()
            requests.append(TextRequest(prompt, whole[len(prompt) :], number, choice))
    return requests


def measure(pipe: Pipeline, kind: str, count: int, seeds: int, draws: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row for each estimator and number of draws."""
    questions = ask(kind, count, world_of(pipe))
    requests = requests_of(pipe, questions)
    shape = (seeds, len(questions), CHOICES)
    nats: dict[tuple[int, str, bool], np.ndarray] = {}
    passes = {}
    for mc_num, masks in itertools.product(draws, get_args(MaskSharing)):
        found: dict[bool, list[float]] = {True: [], False: []}
        for seed in range(seeds):
            config = LikelihoodConfig(mc_num=mc_num, masks=masks, exact_up_to=0, seed=seed)
            estimator = LikelihoodEstimator(pipe.model, config)
            for each in estimator.losses(requests):
                for controlled in found:
                    found[controlled].append(-each.masks.estimate(each.losses, controlled=controlled))
            passes[mc_num, masks] = estimator.num_passes
        for controlled in found:
            nats[mc_num, masks, controlled] = np.array(found[controlled]).reshape(shape)
        progress(f"{kind}, {mc_num} draws, {masks} masks")
    reference = np.mean([nats[max(draws), masks, True].mean(0) for masks in get_args(MaskSharing)], axis=0).argmax(1)
    rows = []
    for controlled, mc_num in itertools.product((False, True), draws):
        row: dict[str, Any] = {
            "wrong choices": kind,
            "estimator": "controlled" if controlled else "plain",
            "draws": mc_num,
        }
        for name, of in (
            ("variance", lambda found: (found[:, :, :1] - found[:, :, 1:]).var(0, ddof=1).mean()),
            ("accuracy", lambda found: (found.argmax(2) == 0).mean()),
            ("agreement", lambda found: (found.argmax(2) == reference).mean()),
        ):
            row |= {f"{name}, {masks}": float(of(nats[mc_num, masks, controlled])) for masks in get_args(MaskSharing)}
        row["ratio of variances"] = row["variance, independent"] / row["variance, common"]
        row["ratio of passes"] = passes[mc_num, "independent"] / passes[mc_num, "common"]
        rows.append(row)
    progress(f"{len(questions)} questions, {np.mean([len(each.answer) for each in requests]):.1f} tokens per answer")
    return rows


def main() -> None:
    parser = base_parser(__doc__)
    parser.add_argument("--questions", type=int, default=40, help="default: 40")
    parser.add_argument("--seeds", type=int, default=8, help="default: 8")
    args = parser.parse_args()
    start_benchmark(args)
    count, seeds, draws = (12, 4, (4, 16)) if args.short else (args.questions, args.seeds, (4, 16, 64))
    pipe = Pipeline.from_pretrained("scenes", device="cpu", check_inputs=False)
    rows = [row for kind in KINDS for row in measure(pipe, kind, count, seeds, draws)]
    print_table("Variance of differences between choices, and accuracy", rows)
    save_results(args, choices=rows)


if __name__ == "__main__":
    main()
