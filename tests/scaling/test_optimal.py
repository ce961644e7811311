"""The optimum for a budget: closed form, frontier and line search agree; the paper's printed G does not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.errors import UserError
from triptych.model.flops import count_parameters, flops
from triptych.recipes.paper import fixed_aspect
from triptych.scaling.law import ADDITIVE, JOINT, Law
from triptych.scaling.optimal import SIX_N, FlopsPerToken, Frontier, Optimum, line_search
from triptych.scaling.published import CHINCHILLA, PAPER, PAPER_PRINTED, PUBLISHED, QUOKKA
from triptych.vocab import paper_vocabulary

BUDGETS = (1e18, 1e21, 3e24)


def closed_form(frontier: Frontier, budget: float) -> Optimum:
    """The optimum where training takes 6 N FLOPs per token: N* = (C / 6)^tau / G, D* = G (C / 6)^(1 - tau)."""
    G = frontier.K**frontier.tau
    return Optimum(budget, (budget / 6) ** frontier.tau / G, G * (budget / 6) ** (1 - frontier.tau))


joint_laws = st.builds(
    lambda a, b, A, K: Law(JOINT, E=1.5, A=A, B=K * A * a / b, a=a, b=b),
    st.floats(0.05, 0.5), st.floats(0.05, 0.5), st.floats(0.1, 10), st.floats(5, 500),
)  # fmt: skip


@given(joint_laws, st.sampled_from(BUDGETS))
@settings(max_examples=50, deadline=None)
def test_closed_form_frontier_and_line_search_agree_for_the_joint_law(law: Law, budget: float) -> None:
    numeric, closed = line_search(law, budget), closed_form(Frontier.from_law(law), budget)
    assert pytest.approx((numeric.N, numeric.D), rel=1e-3) == (closed.N, closed.D)
    found = Frontier.from_law(law).optimum(budget)
    assert pytest.approx((closed.N, closed.D), rel=1e-9) == (found.N, found.D)
    assert pytest.approx(float(Frontier.from_law(law).tokens(closed.N)), rel=1e-9) == closed.D
    assert pytest.approx(budget) == 6 * closed.N * closed.D


@pytest.mark.parametrize("law", [CHINCHILLA, QUOKKA, Law(ADDITIVE, E=1, A=0.3, B=2.0, a=0.6, b=0.2)])
@pytest.mark.parametrize("budget", BUDGETS)
def test_the_same_for_the_additive_law(law: Law, budget: float) -> None:
    numeric, closed = line_search(law, budget), closed_form(Frontier.from_law(law), budget)
    assert pytest.approx((numeric.N, numeric.D), rel=1e-3) == (closed.N, closed.D)


@pytest.mark.parametrize("law", [CHINCHILLA, Law(JOINT, E=1.5, A=2.0, B=330.0, a=0.14, b=0.17)])
@pytest.mark.parametrize("per_token", [FlopsPerToken(6, 3e3, 4e6), FlopsPerToken(6, 0, 3e8), FlopsPerToken(5, 2e5, 0)])
def test_frontier_and_line_search_agree_for_real_flops(law: Law, per_token: FlopsPerToken) -> None:
    for budget in BUDGETS:
        numeric, found = line_search(law, budget, per_token), Frontier.from_law(law).optimum(budget, per_token)
        assert pytest.approx((numeric.N, numeric.D), rel=1e-3) == (found.N, found.D)


def test_the_papers_printed_g_is_wrong() -> None:
    """G = bB / (aA), without the exponent tau: off by orders of magnitude, in whatever units."""
    law = Law(JOINT, E=1.5, A=2.0, B=200.1 * 2.0 * 0.14 / 0.17, a=0.14, b=0.17)
    numeric = line_search(law, 1e21)
    frontier = Frontier.from_law(law)
    printed_in_ones = (1e21 / 6) ** frontier.tau / frontier.K
    in_billions = law.b * law.B / (law.a * law.A)
    printed_in_billions = (1e21 / 6 / 1e18) ** frontier.tau / in_billions * 1e9
    for printed in (printed_in_ones, printed_in_billions):
        assert abs(np.log10(printed / numeric.N)) > 1
    assert pytest.approx(numeric.N, rel=1e-3) == closed_form(frontier, 1e21).N


def test_numbers_of_the_paper() -> None:
    """a/b = .14/.17 gives what the paper says in words: 480B tokens at 3B (2.875B), about 2T at 20B; .84 does not."""
    assert float(PAPER.tokens(2.875e9)) == pytest.approx(480e9, rel=0.02)
    assert float(PAPER.tokens(2.875e9)) == pytest.approx(477e9, rel=0.005)
    assert 2e12 < float(PAPER.tokens(20e9)) < 2.5e12
    assert float(PAPER.tokens(20e9)) == pytest.approx(2.36e12, rel=0.005)
    assert float(PAPER_PRINTED.tokens(3e9)) == pytest.approx(708e9, rel=0.01)
    assert PAPER.tau == pytest.approx(0.55, abs=0.005)
    assert float(Frontier.from_law(CHINCHILLA).tokens(3e9)) == pytest.approx(64.5e9, rel=0.01)


@pytest.mark.parametrize(
    ("size", "tokens"), [(400e6, 44.3e9), (1e9, 111.2e9), (10e9, 1.1e12), (67e9, 7.6e12), (1e12, 114.3e12)]
)
def test_table_of_quokka(size: float, tokens: float) -> None:
    """Ni et al. (2025), arXiv 2510.03280, table 5, from the law of eq. 13, whose printed coefficients are rounded."""
    assert float(Frontier.from_law(QUOKKA).tokens(size)) == pytest.approx(tokens, rel=0.08)


def test_published_laws_cross_where_the_paper_says() -> None:
    """The paper: its curve crosses Quokka's around 20B. By eq. 13 of Quokka it is a decade around that."""
    sizes = np.geomspace(1e9, 1e12, 400)
    gap = np.log(PAPER.tokens(sizes) / Frontier.from_law(QUOKKA).tokens(sizes))
    crossing = sizes[np.abs(gap).argmin()]
    assert 5e9 < crossing < 8e10
    assert set(PUBLISHED) == {
        "paper, a/b = .14/.17", "paper, .84 as printed", "Quokka", "Chinchilla, corrected",
    }  # fmt: skip


def test_fitted_flops_agree_with_exact_counts() -> None:
    """Also for models that were not fitted."""
    vocabulary, context = paper_vocabulary(), 2600.0

    def counted(layers: int) -> tuple[float, float]:
        model = fixed_aspect(layers).model
        return float(count_parameters(model, vocabulary).blocks), flops(model, vocabulary, context).training

    found = FlopsPerToken.fit_to(*zip(*(counted(layers) for layers in range(2, 60, 3))))
    for layers in (4, 9, 24, 50):
        size, exact = counted(layers)
        assert float(found(size)) == pytest.approx(exact, rel=0.02)
    assert found.matrices == pytest.approx(6, rel=0.02)
    step = 1e-5
    slope = (np.log(found(1e9 * (1 + step))) - np.log(found(1e9 * (1 - step)))) / (2 * step)
    assert float(found.elasticity(1e9)) == pytest.approx(float(slope), rel=1e-6)
    assert float(SIX_N.elasticity(5.0)) == 1


def test_flops_of_one_size_are_proportional_to_it() -> None:
    assert FlopsPerToken.fit_to([1e6, 1e6], [8e6, 8e6]) == FlopsPerToken(8.0)


@pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf")])
def test_wrong_budgets_are_refused(budget: float) -> None:
    for ask in (lambda: line_search(CHINCHILLA, budget), lambda: PAPER.optimum(budget)):
        with pytest.raises(UserError, match="positive number of FLOPs"):
            ask()


def test_budgets_without_an_optimum() -> None:
    assert line_search(CHINCHILLA, 1e60) is None
    assert PAPER.optimum(1e3) is None
