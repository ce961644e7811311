"""How long fits of scaling laws take, and how often their 90 % intervals contain the true coefficients.

    python bench/laws.py [--short] [--json FILE]

Times are for 262 runs, as many as the paper has, also relative to a complete fit with 30 hops and 20 rounds. True laws
have the exponents of the paper and of Chinchilla; losses have 0.3 % noise.
"""

from itertools import product
from operator import itemgetter

import numpy as np
from measure import base_parser, print_table, progress, save_results, start_benchmark, time_interleaved
from scipy.optimize import minimize

from triptych.scaling.fit import HUBER, Problem, compare, fit
from triptych.scaling.law import ADDITIVE, JOINT, Law
from triptych.scaling.published import CHINCHILLA
from triptych.scaling.runs import Runs, runs_from_columns

NOISE = 0.003
PAPER = Law(JOINT, E=1.5, A=2.0, B=200.1 * 2.0 * 0.14 / 0.17, a=0.14, b=0.17)


def draw_runs(law: Law, count: int, seed: int) -> Runs:
    """Runs over the paper's budgets and sizes, with noise."""
    rng = np.random.default_rng(seed)
    sizes = 9.5 * 128**2 * rng.integers(3, 40, size=count * 20).astype(float) ** 3
    tokens = np.exp(rng.uniform(np.log(5e18), np.log(1e22), size=len(sizes))) / (8.4 * sizes)
    fits = (tokens / sizes >= 1) & (tokens / sizes <= 2000)
    sizes, tokens = sizes[fits][:count], tokens[fits][:count]
    return runs_from_columns(
        ("N", "D"), sizes, tokens, law.loss(sizes, tokens) * np.exp(NOISE * rng.standard_normal(count))
    )


def without_gradient(problem: Problem) -> None:
    """One descent with finite differences."""
    minimize(lambda theta: problem(theta)[0], problem.starts()[0], method="L-BFGS-B", bounds=problem.bounds)


def times(rounds: int) -> list[dict]:
    runs = draw_runs(PAPER, 262, 0)
    problem = Problem(JOINT, runs, HUBER)
    seconds = time_interleaved(
        {
            "the whole fit: 30 hops, 20 rounds": lambda: fit(JOINT, runs),
            "without rounds": lambda: fit(JOINT, runs, rounds=0),
            "one descent": lambda: problem.descend(problem.starts()[0]),
            "one descent, slopes by differences": lambda: without_gradient(problem),
        },
        rounds,
    )
    complete = seconds["the whole fit: 30 hops, 20 rounds"]
    return [{"what": name, "of the whole fit": value / complete, "seconds": value} for name, value in seconds.items()]


def coverage(draws: int) -> list[dict]:
    rows = []
    for law, other in ((PAPER, ADDITIVE), (CHINCHILLA, JOINT)):
        for count in (262, 50, 20):
            hits, chosen = dict.fromkeys(law.coefficients, 0), 0
            for seed in range(draws):
                runs = draw_runs(law, count, 100 + seed)
                true_form = fit(law.form, runs, hops=5, seed=seed)
                for name, (low, high) in true_form.intervals.items():
                    hits[name] += low <= law.coefficients[name] <= high
                chosen += compare(true_form, fit(other, runs, hops=5, seed=seed)).better is true_form
                progress(f"{law.form.name}, {count} runs: draw {seed + 1} of {draws}")
            shares = {name: each / draws for name, each in hits.items()}
            rows.append({"truth": law.form.name, "runs": count, **shares, "law chosen": chosen / draws})
    return rows


def hops(draws: int) -> list[dict]:
    """Whether basin hopping ends lower than the best of four descents."""
    gains = []
    for law in (PAPER, CHINCHILLA):
        for count in (262, 50, 20):
            for form, seed in product((JOINT, ADDITIVE), range(draws)):
                problem = Problem(form, draw_runs(law, count, 500 + seed), HUBER)
                cost, theta = min((problem.descend(start) for start in problem.starts()[:4]), key=itemgetter(0))
                gains.append(1 - problem.hop(theta, 30, seed)[0] / cost)
    lower = sum(gain > 1e-6 for gain in gains)
    return [{"fits": len(gains), "lower after 30 hops": lower, "largest gain": max(0.0, *gains)}]


def main() -> None:
    args = base_parser(__doc__).parse_args()
    start_benchmark(args)
    speed = times(1 if args.short else 5)
    print_table("Fits to 262 runs", speed)
    held = coverage(3 if args.short else 40)
    print_table("Share of draws whose 90 % interval holds the truth", held)
    hopped = hops(1 if args.short else 4)
    print_table("What basin hopping adds to descents from a lattice", hopped)
    save_results(args, times=speed, coverage=held, hops=hopped)


if __name__ == "__main__":
    main()
