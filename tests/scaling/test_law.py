"""Laws agree with their formulas, and gradients with finite differences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from triptych.errors import UserError
from triptych.scaling.law import ADDITIVE, FORMS, JOINT, NOISE, Law, find_form

MEANS = (float(np.log(3e8)), float(np.log(2e10)))
X, Z = np.array([-3.0, -1, 0, 0.5, 2, 4]), np.array([1.0, -4, 0, 3, -1, 2])
parameters = st.lists(st.floats(-2, 1), min_size=5, max_size=5).map(np.array)


@given(parameters, st.sampled_from(sorted(FORMS)))
@settings(max_examples=60, deadline=None)
def test_gradients_agree_with_finite_differences(theta: np.ndarray, name: str) -> None:
    form = FORMS[name]
    _, slopes = form.log_loss(theta, X, Z)
    for run in range(len(X)):
        numeric = approx_fprime(theta, lambda at, run=run: float(form.log_loss(at, X, Z)[0][run]), 1e-7)
        assert slopes[:, run] == pytest.approx(numeric, abs=2e-5)


@given(parameters, st.sampled_from(sorted(FORMS)))
@settings(max_examples=60, deadline=None)
def test_parameters_and_coefficients_give_the_same_law(theta: np.ndarray, name: str) -> None:
    form = FORMS[name]
    law = Law.from_theta(form, theta, MEANS)
    first, second = np.exp(MEANS[0] + X), np.exp(MEANS[1] + Z)
    assert np.log(law.loss(first, second)) == pytest.approx(form.log_loss(theta, X, Z)[0], rel=1e-9, abs=1e-9)


def test_the_formulas() -> None:
    """By hand, in the units in which coefficients are printed."""
    n, d = np.array([0.1e9, 3e9]), np.array([20e9, 1e12])
    joint = Law(JOINT, E=1.5, A=2.0, B=300.0, a=0.14, b=0.17)
    assert joint.loss(n, d) == pytest.approx(1.5 + (2.0 * (n / 1e9) ** (-0.14 / 0.17) + 300.0 / (d / 1e9)) ** 0.17)
    additive = Law(ADDITIVE, E=1.8, A=0.4, B=1.1, a=0.35, b=0.37)
    assert additive.loss(n, d) == pytest.approx(1.8 + 0.4 * (n / 1e9) ** -0.35 + 1.1 * (d / 1e9) ** -0.37)
    noise = Law(NOISE, E=1.8, A=3.0, B=2.0, a=0.2, b=0.3)
    assert noise.loss([100.0], [8.0]) == pytest.approx([1.8 + 3 * 100**-0.2 + 2 * 8**-0.3])


def test_raw_coefficients_are_for_plain_counts() -> None:
    n, d = 7e9, 1.4e11
    law = Law.from_raw(ADDITIVE, E=1.8172, A=482.01, B=2085.43, a=0.3478, b=0.3658)
    assert law.loss(n, d) == pytest.approx(1.8172 + 482.01 / n**0.3478 + 2085.43 / d**0.3658)
    joint = Law.from_raw(JOINT, E=1.0, A=5e3, B=8e7, a=0.14, b=0.17)
    assert joint.loss(n, d) == pytest.approx(1 + (5e3 * n ** (-0.14 / 0.17) + 8e7 / d) ** 0.17)


def test_forms_agree_when_one_term_vanishes() -> None:
    joint = Law(JOINT, E=1.0, A=2.0, B=3.0, a=0.3, b=0.5)
    additive = Law(ADDITIVE, E=1.0, A=2.0**0.5, B=3.0**0.5, a=0.3, b=0.5)
    much = 1e40
    assert joint.loss(1e8, much) == pytest.approx(additive.loss(1e8, much))
    assert joint.loss(much**2, 1e8) == pytest.approx(additive.loss(much**2, 1e8))
    assert joint.loss(1e9, 1e9) < additive.loss(1e9, 1e9)  # (X^2 + Y^2)^(1/2) < X + Y


def test_json_round_trip() -> None:
    law = Law(JOINT, E=1.5, A=2.0, B=300.0, a=0.14, b=0.17)
    assert Law.from_json(law.as_json) == law
    with pytest.raises(UserError, match="expected a law"):
        Law.from_json({"form": "joint", "E": 1.0})
    with pytest.raises(UserError, match="expected positive coefficients"):
        Law.from_json({**law.as_json, "A": -1.0})
    with pytest.raises(UserError, match="Did you mean 'joint'"):
        find_form("jont")
