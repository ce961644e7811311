"""The paper's claims about scaling laws, beside the laws fitted to the records of a study."""

from functools import partial

import numpy as np
from scipy.stats import binomtest

from triptych.scaling.fit import Comparison, Fit
from triptych.scaling.held_out import error_interval
from triptych.scaling.intervals import Interval
from triptych.scaling.law import JOINT, Law
from triptych.scaling.optimal import Frontier
from triptych.scaling.parabola import ParabolaMinimum
from triptych.scaling.published import CHINCHILLA
from triptych.scaling.runs import Runs
from triptych.studies.base import Claim
from triptych.studies.verdict import verdict

_DOMINATED = 0.5  # compute dominates the loss if it explains more than this share of its variance
_PRECISE = 0.01  # mean relative error of a law that describes the runs as closely as the paper's does
_RESAMPLES = 500


def scaling_claims(table: Runs, best: Fit, comparison: Comparison, minima: list[ParabolaMinimum]) -> list[Claim]:
    """`best` is the law that describes the runs better; `minima` are the best sizes of the budgets, without any law."""
    return [
        _frontier_claim(best),
        _chinchilla_claim(best),
        _compute_claim(table),
        _form_claim(comparison),
        _error_claim(comparison),
        _allocation_claim(best),
        _minimum_claim(minima),
    ]


def _of_law(fit: Fit, quantity: "partial[float]") -> Interval:
    return Interval(quantity(fit.law), *fit.interval(quantity))


def _exponent(law: Law) -> float:
    return Frontier.from_law(law).p


def _share_of_size(law: Law) -> float:
    return Frontier.from_law(law).tau


def _tokens_per_parameter(size: float, law: Law) -> float:
    return float(Frontier.from_law(law).tokens(size)) / size


def _frontier_claim(best: Fit) -> Claim:
    exponent = _of_law(best, partial(_exponent))
    return Claim(
        "Equation 5.2",
        "The best number of tokens grows more slowly than the size of the model, as N^0.84.",
        f"as N^{exponent.shown('.2f')} by the {best.law.form.name} law at 6 N FLOPs per token",
        verdict((exponent.low, exponent.high), high=1),
    )


def _chinchilla_claim(best: Fit) -> Claim:
    sizes = best.runs.columns[0]
    middle = float(np.sqrt(sizes.min() * sizes.max()))
    ours = _of_law(best, partial(_tokens_per_parameter, middle))
    theirs = _tokens_per_parameter(middle, CHINCHILLA)
    return Claim(
        "Figure 3",
        "A compute-optimal masked-diffusion model needs many more tokens than an autoregressive one of its size.",
        f"{ours.shown(',.0f')} tokens per parameter at N = {middle:,.0f} and 6 N FLOPs per token; Chinchilla's law "
        f"gives {theirs:,.0f}",
        verdict((ours.low, ours.high), low=theirs),
    )


def compute_share(table: Runs, seed: int = 0) -> Interval:
    """Share of the variance of log L that a parabola in log C explains, with a bootstrap interval over runs."""
    assert table.flops is not None
    compute, loss = np.log(table.flops), np.log(table.loss)
    rng = np.random.default_rng(seed)

    def explained(picks: np.ndarray) -> float:
        x = compute[picks] - compute.mean()
        left = loss[picks] - np.polyval(np.polyfit(x, loss[picks], 2), x)
        return 1 - float(left.var() / loss[picks].var())

    draws = [explained(rng.integers(len(loss), size=len(loss))) for _ in range(_RESAMPLES)]
    return Interval(explained(np.arange(len(loss))), *np.quantile(draws, (0.025, 0.975)).tolist())


def _compute_claim(table: Runs) -> Claim:
    share = compute_share(table)
    return Claim(
        "Figure 10",
        "The loss is dominated by the total compute.",
        f"compute alone explains {share.shown('.0%')} of the variance of log L; more than {_DOMINATED:.0%} counts as "
        "dominated",
        verdict((share.low, share.high), low=_DOMINATED),
    )


def _form_claim(comparison: Comparison) -> Claim:
    joint_is_better = comparison.better.law.form is JOINT
    lead = comparison.difference if joint_is_better else -comparison.difference
    reach = 1.96 * comparison.error
    return Claim(
        "Figure 11",
        "The joint law describes the runs better than the additive law, which is insufficient.",
        f"the error of the additive law on held-out runs is {Interval(lead, lead - reach, lead + reach).shown('+.1%')} "
        "above that of the joint law",
        verdict((lead - reach, lead + reach), low=0),
    )


def _error_claim(comparison: Comparison) -> Claim:
    joint = comparison.better if comparison.better.law.form is JOINT else comparison.worse
    error = error_interval(joint)
    return Claim(
        "Figure 11",
        "The joint law fits the runs with a mean relative error of 0.5 % and an R2 of 99.3 %.",
        f"relative error {error.shown('.1%')} on held-out runs, R2 "
        f"{joint.held_out_r2:.1%}; an error up to {_PRECISE:.0%} counts as equal",
        verdict((error.low, error.high), high=_PRECISE),
    )


def _allocation_claim(best: Fit) -> Claim:
    share = _of_law(best, partial(_share_of_size))
    return Claim(
        "Equation 5.3",
        "With compute, the best size grows a little faster than the best number of tokens: C^0.55 and C^0.45.",
        f"the best size grows as C^{share.shown('.2f')} at 6 N FLOPs per token",
        verdict((share.low, share.high), low=0.5),
    )


def _minimum_claim(minima: list[ParabolaMinimum]) -> Claim:
    inside = sum(not each.is_on_edge for each in minima)
    share = binomtest(inside, len(minima)).proportion_ci(method="wilson")
    return Claim(
        "Figure 14",
        "At a fixed compute budget there is a best size between too small and too large models.",
        f"{inside} of {len(minima)} budgets have their best run inside the grid, {inside / len(minima):.0%} "
        f"({share.low:.0%} to {share.high:.0%})",
        verdict((share.low, share.high), low=0.5),
    )
