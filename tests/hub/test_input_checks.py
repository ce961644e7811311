"""Statistics of input checks: rates and scores are compared with plain counts."""

import json

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.hub.input_checks import InputCheck, InputChecks


def normal(n, seed=0):
    rng = np.random.default_rng(seed)
    return {"one": rng.normal(3, 2, n).tolist(), "two": rng.gamma(2, 5, n).tolist()}


def rows(columns):
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


@pytest.mark.parametrize("kind", ["image", "text"])
@pytest.mark.parametrize("rate", [0.005, 0.02, 0.1])
def test_the_false_alarm_rate_is_what_was_asked_for(kind, rate):
    checks = InputChecks.fit({kind: normal(2000)}, rate)
    own = np.mean([checks.check(kind, row).is_unusual for row in rows(normal(2000))])
    assert own == pytest.approx(rate, abs=1.1 / 2000)
    fresh = np.mean([checks.check(kind, row).is_unusual for row in rows(normal(20_000, seed=1))])
    assert fresh == pytest.approx(rate, rel=0.5)


def test_a_score_is_the_share_of_validation_inputs_that_are_closer():
    """With one part, counted: the share of values whose distance from the median, in units of its tail, is smaller."""
    values = np.random.default_rng(0).gamma(2, 5, 3000)
    checks = InputChecks.fit({"image": {"one": values.tolist()}})
    low, median, high = np.quantile(values, (0.01, 0.5, 0.99))

    def distance(x):
        return np.where(x > median, (x - median) / (high - median), (median - x) / (median - low))

    for value in (0.01, 0.5, 3.0, median, 12.0, 30.0, 45.0):
        expected = (distance(values) < distance(np.array(value))).mean()
        assert checks.check("image", {"one": value}).score == pytest.approx(expected, abs=0.01)


def test_media_are_unusual_on_both_sides_and_texts_only_above():
    columns = normal(1000)
    checks = InputChecks.fit({"image": columns, "text": columns})
    middle = {name: float(np.median(column)) for name, column in columns.items()}
    for name in columns:
        assert checks.check("image", middle | {name: 1e3}).is_unusual
        assert checks.check("image", middle | {name: -1e3}).is_unusual
        assert checks.check("text", middle | {name: 1e3}).is_unusual
        assert not checks.check("text", middle | {name: -1e3}).is_unusual
    assert checks.check("image", middle).score < 0.05


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_a_number_is_unusual(wrong):
    checks = InputChecks.fit({"image": normal(1000)})
    check = checks.check("image", {"one": 3.0, "two": wrong})
    assert check.score == 1.0
    assert check.is_unusual
    json.dumps(check.as_json["distance"], allow_nan=False)


def test_scores_rise_with_the_distance():
    checks = InputChecks.fit({"image": normal(500)})
    scores = [checks.check("image", {"one": 3 + x, "two": 8.0}).score for x in np.linspace(0, 30, 100)]
    assert scores == sorted(scores)
    assert scores[-1] == 1.0


def test_equal_values_do_not_make_everything_else_unusual():
    checks = InputChecks.fit({"image": {"one": [5.0] * 300, "two": np.linspace(0, 1, 300).tolist()}})
    assert not checks.check("image", {"one": 5.001, "two": 0.5}).is_unusual
    assert checks.check("image", {"one": 6.0, "two": 0.5}).is_unusual


def test_too_few_inputs_or_an_impossible_rate_are_refused():
    with pytest.raises(UserError, match=r"rate of 0.005 needs at least 200 .* got 199 of the kind 'audio'"):
        InputChecks.fit({"image": normal(200), "audio": normal(199)})
    for rate in (0, 0.5, -1, float("nan")):
        with pytest.raises(UserError, match=r"false-alarm rate must lie between 0 and 0\.5"):
            InputChecks.fit({"image": normal(200)}, rate)
    assert InputChecks.fit({"image": normal(20)}, 0.05).threshold == 0.95


def test_checks_survive_json():
    checks = InputChecks.fit({"image": normal(300), "text with audio": normal(300, seed=1)}, 0.013)
    again = InputChecks.from_json(json.loads(json.dumps(checks.as_json)))
    assert again == checks
    for row in rows(normal(50, seed=2)):
        assert again.check("image", row) == checks.check("image", row)
    assert len(json.dumps(checks.as_json)) < 4000, "it is stored in config.json, which people read"


def test_the_message_is_one_line():
    check = InputCheck("text with image", 0.99931, 0.995, 2.0, {"mean surprise": 3.0}, "a purple cat")
    assert check.message == (
        "this text 'a purple cat' is unlike the training data (score 0.9993, threshold 0.995): the result may be wrong"
    )
    assert InputCheck("image", 1.0, 0.995).message.startswith("this image is unlike the training data (score 1.0000")
    assert "is like the training data" in InputCheck("image", 0.5, 0.995).message
    assert InputCheck("image", 0.995, 0.995).is_unusual is False
