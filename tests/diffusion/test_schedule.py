"""Schedules: derivatives, weights, inverses and mean masked shares."""

import pytest
import torch

from triptych.diffusion.schedule import Cosine, Geometric, Linear, Polynomial, complement_weight, time_range
from triptych.errors import UserError

SCHEDULES = [Linear(), Cosine(), Polynomial(0.5), Polynomial(2), Polynomial(3), Geometric()]
TIMES = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)

pytestmark = pytest.mark.parametrize("schedule", SCHEDULES, ids=str)


def test_the_derivative_equals_that_of_autograd(schedule):
    t = TIMES.clone().requires_grad_()
    (derivative,) = torch.autograd.grad(schedule.alpha(t).sum(), t)
    torch.testing.assert_close(schedule.alpha_prime(TIMES), derivative, rtol=1e-10, atol=1e-12)


def test_the_weights_follow_their_definitions(schedule):
    alpha, slope = schedule.alpha(TIMES), schedule.alpha_prime(TIMES)
    torch.testing.assert_close(schedule.weight(TIMES), -slope / (1 - alpha), rtol=1e-7, atol=0)
    torch.testing.assert_close(complement_weight(schedule, TIMES), -slope / alpha, rtol=1e-10, atol=0)
    assert (schedule.weight(TIMES) > 0).all()


def test_nothing_is_masked_at_the_start_and_everything_at_the_end(schedule):
    start, end = schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert 1 - float(start) <= 1.1e-5  # the geometric schedule starts slightly below 1
    assert float(end) <= 1e-8
    assert (schedule.alpha(TIMES).diff() < 0).all()


def test_time_of_inverts_alpha(schedule):
    torch.testing.assert_close(schedule.time_of(schedule.alpha(TIMES)), TIMES, rtol=1e-9, atol=1e-9)


def test_the_mean_masked_share(schedule):
    t = torch.linspace(0, 1, 200_001, dtype=torch.float64)
    expected = {
        Linear(): 1 / 2,
        Cosine(): 2 / torch.pi,
        Polynomial(0.5): 2 / 3,
        Polynomial(2): 1 / 3,
        Polynomial(3): 1 / 4,
        Geometric(): 0.246,
    }[schedule]
    assert float(torch.trapezoid(1 - schedule.alpha(t), t)) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("both_ends", [False, True])
@pytest.mark.parametrize("smallest", [1e-3, 0.1])
def test_the_cut_takes_the_same_part_of_the_elbo_from_every_schedule(schedule, smallest, both_ends):
    """The loss is the mean over the remaining rates of the loss at that rate: by integration over times."""
    drawn = time_range(schedule, smallest, both_ends)
    t = torch.linspace(drawn.lowest, drawn.highest, 400_001, dtype=torch.float64)
    rate = 1 - schedule.alpha(t)
    assert rate[0] == pytest.approx(smallest, rel=1e-9)
    assert rate[-1] == pytest.approx(1 - smallest if both_ends else 1, abs=1e-8)
    top = 1 - smallest if both_ends else 1.0

    def mean_over_times(weight, masked, loss):
        return float(torch.trapezoid(drawn.factor * weight * masked * loss, t)) / (drawn.highest - drawn.lowest)

    for power in (0, 1, 2):  # the loss of a masked token rises with the rate
        exact = (top ** (power + 1) - smallest ** (power + 1)) / (power + 1) / (top - smallest)
        assert mean_over_times(schedule.weight(t), rate, rate**power) == pytest.approx(exact, rel=5e-4)
        if both_ends:
            masked = 1 - rate
            complement = mean_over_times(complement_weight(schedule, t), masked, masked**power)
            assert complement == pytest.approx(exact, rel=5e-4)


def test_a_schedule_beyond_the_cut_keeps_its_own_ends(schedule):
    drawn = time_range(Geometric(0.2, 1.5), 1e-3, both_ends=True)
    assert (drawn.lowest, drawn.highest) == (0, 1)
    assert time_range(Linear(), 1e-3).factor == pytest.approx(1, rel=1e-12)


def test_float32_weights_are_close_to_float64(schedule):
    torch.testing.assert_close(schedule.weight(TIMES.float()).double(), schedule.weight(TIMES), rtol=2e-4, atol=0)


def test_invalid_parameters_are_rejected(schedule):
    with pytest.raises(UserError, match="must be positive"):
        Polynomial(0)
    with pytest.raises(UserError, match="0 < lowest < highest"):
        Geometric(2.0, 1.0)
