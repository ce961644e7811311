"""Scores of GenEval: the share of right images by category, and overall the mean over categories."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from triptych.eval.geneval.prompts import GenEvalPrompt
from triptych.eval.scores import Score, ratio_score

_DRAWS = 10_000


@dataclass(frozen=True)
class Summary:
    """A score, and what each image adds to it: pairs whose sums divide to the value."""

    score: Score
    samples: list[tuple[float, float]]


def summarise(prompts: Sequence[GenEvalPrompt], right: Sequence[Sequence[bool]]) -> dict[str, Summary]:
    """Summaries by category, and "overall"; `right` has the verdicts on the images of every prompt.

    Images of one prompt are alike, so intervals are over prompts: the mean of a prompt is one observation.
    """
    by_category: dict[str, list[Sequence[bool]]] = {}
    for prompt, verdicts in zip(prompts, right):
        by_category.setdefault(prompt.category, []).append(verdicts)
    summaries = {}
    for category, answers in by_category.items():
        means = [float(np.mean(verdicts)) for verdicts in answers]
        images = [float(verdict) for verdicts in answers for verdict in verdicts]
        score = replace(ratio_score(means), n=len(images))
        summaries[category] = Summary(score, [(image, 1.0) for image in images])
    share = {category: 1 / len(summary.samples) for category, summary in summaries.items()}
    samples = [
        (verdict * share[prompt.category], share[prompt.category])
        for prompt, verdicts in zip(prompts, right)
        for verdict in verdicts
    ]
    return summaries | {"overall": Summary(_overall(list(by_category.values())), samples)}


def _overall(categories: Sequence[Sequence[Sequence[bool]]]) -> Score:
    """The mean over categories, with a Bayesian interval that has a spread even if all images are right.

    The rate of a category has the posterior Beta(hits + a, misses + a) of as many independent images as its images are
    worth: between the number of prompts, if images of one prompt are always judged alike, and the number of images.
    The categories share the 1/2 of Jeffreys' prior.
    """
    rng = np.random.default_rng(0)
    a = 0.5 / len(categories)
    rates, draws = [], []
    for answers in categories:
        means = np.array([np.mean(verdicts) for verdicts in answers])
        rate = float(means.mean())
        worth = _independent_images(means, rate, sum(map(len, answers)))
        rates.append(rate)
        draws.append(rng.beta(rate * worth + a, (1 - rate) * worth + a, size=_DRAWS))
    value = float(np.mean(rates))
    low, high = np.quantile(np.mean(draws, axis=0), (0.025, 0.975))
    total = sum(len(verdicts) for answers in categories for verdicts in answers)
    return Score(value, min(float(low), value), max(float(high), value), total)


def _independent_images(means: np.ndarray, rate: float, total: int) -> float:
    """Number of independent images with the variance that the means of the prompts have."""
    num_prompts = len(means)
    if num_prompts < 2 or rate in (0.0, 1.0) or num_prompts == total:
        return float(num_prompts)
    variance = float(means.var(ddof=1))
    return float(np.clip(num_prompts * rate * (1 - rate) / max(variance, 1e-12), num_prompts, total))
