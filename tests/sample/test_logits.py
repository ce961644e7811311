import itertools
import math

import numpy as np
import pytest
import torch

from triptych.errors import UserError
from triptych.sample.logits import Categorical, apply_cfg, apply_temperature_top_p, draw, mask_specials


def logs(*rows):
    return torch.tensor(rows, dtype=torch.float64).log()


def random_logits(rows, columns, seed=0, spread=3.0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * spread


def dist(logits, temperature=1.0, top_p=1.0):
    """Probabilities, in float64."""
    weights = apply_temperature_top_p(logits.double(), temperature, top_p)
    assert (weights.amax(1) == 1).all()
    return weights / weights.sum(1, keepdim=True)


# -- guidance and constraints -----------------------------------------------------------------------------------------


def test_guidance_extrapolates_from_the_unconditional_logits():
    cond, uncond = random_logits(4, 6, seed=1), random_logits(4, 6, seed=2)
    a, b = cond.numpy().astype(np.float64), uncond.numpy().astype(np.float64)
    assert apply_cfg(cond.double(), uncond.double(), 3.0).numpy() == pytest.approx(3 * a - 2 * b, abs=1e-12)
    assert apply_cfg(cond, uncond, 3.0).numpy() == pytest.approx(3 * a - 2 * b, abs=1e-5)
    assert (apply_cfg(cond, uncond, 0.0).numpy() == b).all()


def test_scale_one_returns_the_conditional_logits_bit_for_bit():
    cond, uncond = random_logits(4, 6, seed=1), torch.full((4, 6), 1e30)
    assert torch.equal(apply_cfg(cond, uncond, 1.0), cond)


def test_bos_is_never_allowed_and_eos_only_where_told():
    logits = torch.zeros(3, 6)
    logits[:, -2:] = 100.0
    allowed = torch.tensor([True, False, True])
    probabilities = dist(mask_specials(logits, allowed))
    assert (probabilities[:, -2] == 0).all()
    assert (probabilities[:, -1] > 0.99).tolist() == allowed.tolist()
    assert probabilities[1, :4].tolist() == [0.25] * 4


# -- distributions ----------------------------------------------------------------------------------------------------


def test_temperature_divides_the_logits():
    logits = random_logits(5, 7)
    scaled = np.exp(logits.numpy().astype(np.float64) / 1.7)
    assert dist(logits, 1.7).numpy() == pytest.approx(scaled / scaled.sum(1, keepdims=True), rel=1e-12)


def test_temperature_zero_takes_the_first_of_the_most_probable():
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [5.0, 1.0, 2.0, 5.0]])
    assert apply_temperature_top_p(logits, 0.0).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    assert apply_temperature_top_p(logits, 0.0, 0.3).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


def test_a_tiny_temperature_stays_finite():
    logits = torch.tensor([[1.0, 30.0, 3.0, -math.inf]])
    assert apply_temperature_top_p(logits, 1e-308).tolist() == [[0, 1, 0, 0]]


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.5, 0.8, 0.95, 0.99])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p):
    logits = random_logits(60, 5, spread=1.5)
    plain, truncated = dist(logits).numpy(), dist(logits, 1.0, top_p).numpy()
    sizes = set()
    for full, cut in zip(plain, truncated):
        reaching = [
            subset
            for size in range(1, 6)
            for subset in itertools.combinations(range(5), size)
            if full[list(subset)].sum() >= top_p
        ]
        smallest = min(len(subset) for subset in reaching)
        best = max((s for s in reaching if len(s) == smallest), key=lambda s: full[list(s)].sum())
        assert tuple(np.nonzero(cut)[0]) == best
        assert cut[list(best)] == pytest.approx(full[list(best)] / full[list(best)].sum(), rel=1e-12)
        sizes.add(smallest)
    assert top_p == 0.05 or len(sizes) > 1, "all sets have one size: nothing was tested"


def test_the_crossing_token_is_kept_and_ties_are_broken_by_id():
    equal = torch.zeros(1, 4)
    assert dist(equal, 1.0, 0.5).tolist() == [[0.5, 0.5, 0, 0]]  # two tokens reach it exactly
    assert dist(equal, 1.0, 0.51).numpy() == pytest.approx(np.array([[1 / 3, 1 / 3, 1 / 3, 0]]))
    two_levels = (torch.arange(640) % 5 == 0).double()[None] * math.log(2.0)  # 128 twice as likely as the other 512
    kept = dist(two_levels, 1.0, 0.45)[0].nonzero()[:, 0].tolist()
    others = [i for i in range(640) if i % 5]
    assert kept == sorted([*range(0, 640, 5), *others[:90]])  # (128 * 2 + 90) / 768 = 0.4505
    assert dist(logs([0.2, 0.1, 0.7]), 1.0, 0.75).numpy() == pytest.approx(np.array([[2 / 9, 0, 7 / 9]]))
    assert dist(logs([0.2, 0.1, 0.7]), 1.0, 0.0).tolist() == [[0, 0, 1]]


@pytest.mark.parametrize(("dtype", "rare"), [(torch.float64, -200.0), (torch.float32, -80.0)])
def test_top_p_one_drops_nothing_however_rare(dtype, rare):
    logits = torch.zeros(1, 1025, dtype=dtype)
    logits[0, -1] = rare  # the others are 1/1024 each: their sum is 1 in floating point
    assert apply_temperature_top_p(logits, 1.0, 1.0)[0, -1] > 0
    assert apply_temperature_top_p(logits, 1.0, 0.999999)[0, -1] == 0


def test_temperature_comes_before_top_p():
    flat = dist(logs([0.5, 0.3, 0.2]), 100.0, 0.5)  # nearly a third each: two are needed
    assert (flat > 0).tolist() == [[True, True, False]]


def test_log_probabilities_and_entropy():
    categorical = Categorical(mask_specials(torch.zeros(2, 6, dtype=torch.float64), torch.tensor([False, True])))
    assert categorical.entropy.tolist() == pytest.approx([math.log(4), math.log(5)], abs=1e-15)
    assert categorical.log_prob(torch.tensor([3, 5])).tolist() == pytest.approx([-math.log(4), -math.log(5)])
    logits = random_logits(8, 9)
    scaled = np.exp(logits.numpy().astype(np.float64))
    true = scaled / scaled.sum(1, keepdims=True)
    for dtype, error in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        categorical = Categorical(logits.to(dtype, copy=True))
        for column in range(9):
            log_prob = categorical.log_prob(torch.full((8,), column)).numpy()
            assert log_prob == pytest.approx(np.log(true[:, column]), abs=error)
        assert categorical.entropy.numpy() == pytest.approx(-(true * np.log(true)).sum(1), abs=error)
        assert categorical.entropy.dtype == torch.float64
    assert Categorical(torch.tensor([[0.0, -math.inf, -math.inf]])).entropy.tolist() == [0.0]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.3])
@pytest.mark.parametrize("columns", [5, 256, 257, 700])
def test_float32_logits_draw_the_same_tokens_as_float64(temperature, columns):
    """All but very few draws are the same; log-probabilities agree to 2e-6."""
    rows = 4000
    logits = random_logits(rows, columns)
    uniform = torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    true = dist(logits, temperature).cumsum(1)
    expected = (true <= uniform[:, None]).sum(1).clamp(max=columns - 1)
    categorical = Categorical(logits.clone())
    drawn = categorical.draw(uniform, temperature)
    assert (drawn != expected).sum() <= 2
    log_prob = dist(logits).gather(1, drawn[:, None])[:, 0].log()
    assert categorical.log_prob(drawn).numpy() == pytest.approx(log_prob.numpy(), abs=2e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: apply_temperature_top_p(x, -0.1), "temperature must be a number of at least 0"),
        (lambda x: apply_temperature_top_p(x, math.nan), "temperature must be a number of at least 0"),
        (lambda x: apply_temperature_top_p(x, math.inf), "temperature must be a number of at least 0"),
        (lambda x: apply_temperature_top_p(x, 1.0, 1.1), "top_p must be a number between 0 and 1"),
        (lambda x: apply_temperature_top_p(x, 1.0, math.nan), "top_p must be a number between 0 and 1"),
        (lambda x: apply_cfg(x, x, math.nan), "guidance_scale must be a finite number"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(UserError, match=message):
        call(torch.zeros(1, 3))


# -- the draw ---------------------------------------------------------------------------------------------------------


def test_evenly_spaced_numbers_draw_each_token_by_its_probability():
    shares = torch.tensor([0.125, 0.0, 0.5, 0.25, 0.125, 0.0])
    numbers = (torch.arange(1024, dtype=torch.float64) + 0.5) / 1024
    drawn = draw(shares.expand(1024, 6), numbers)
    assert drawn.bincount(minlength=6).tolist() == [128, 0, 512, 256, 128, 0]
    assert (drawn.diff() >= 0).all()
    assert torch.equal(draw((shares / 3).expand(1024, 6), numbers), drawn), "the sum need not be 1"


@pytest.mark.parametrize(("rows", "columns", "share"), [(4000, 9, 0.4), (1000, 600, 0.004)])
def test_a_token_of_probability_zero_is_never_drawn(rows, columns, share):
    """Not even where all columns of a block have probability zero."""
    generator = torch.Generator().manual_seed(0)
    given = torch.rand(rows, columns, generator=generator, dtype=torch.float64) ** 4
    given *= torch.rand(rows, columns, generator=generator) < share
    given[:, 0] *= torch.rand(rows, generator=generator) < 0.3
    given[given.sum(1) == 0, 4] = 1.0
    given /= given.sum(1, keepdim=True)  # sums to 1 up to rounding, from above or below
    assert (given.cumsum(1)[:, -1] > 1).any()
    assert (given.cumsum(1)[:, -1] < 1).any()
    last = columns - 1 - (given > 0).flip(1).to(torch.uint8).argmax(1)
    for number in (0.0, 2.0**-53, 0.5, 1 - 2.0**-53, 1.0):
        drawn = draw(given, torch.full((rows,), number, dtype=torch.float64))
        assert (given.gather(1, drawn[:, None]) > 0).all(), number
        if number == 0.0:
            assert (drawn == (given > 0).to(torch.uint8).argmax(1)).all()
        if number == 1.0:
            assert (drawn == last).all()


def test_rare_tokens_are_drawn_at_the_right_rate():
    """In float32 the step of the cumulative sum near 1 is 6e-8: this token would never come or 6 times too often."""
    given = torch.tensor([[1 - 1e-8, 1e-8]], dtype=torch.float64)
    number = torch.tensor([1 - 1e-8 - 1e-12, 1 - 1e-8 + 1e-12], dtype=torch.float64)
    assert draw(given.expand(2, 2), number).tolist() == [0, 1]


# -- independence of the batch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns"), [(33, 5), (33, 1026), (7, 40_001)])
def test_a_row_gives_the_same_bits_in_any_batch(threads, rows, columns):
    cond, uncond = random_logits(rows, columns, seed=3), random_logits(rows, columns, seed=4)
    allowed = torch.arange(rows) % 2 == 0
    numbers = torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

    def everything(which):
        logits = mask_specials(apply_cfg(cond[which], uncond[which], 2.3), allowed[which])
        weights = apply_temperature_top_p(logits, 1.2, 0.9)
        categorical = Categorical(logits.clone())
        drawn = categorical.draw(numbers[which])
        return logits, weights, draw(weights, numbers[which]), drawn, categorical.log_prob(drawn), categorical.entropy

    together = everything(slice(None))
    for which in [[i] for i in range(rows)] + [[5, 2, 6], [1, 0, 3, 4]]:
        for part, all_rows in zip(everything(which), together):
            assert torch.equal(part, all_rows[which])


def test_zero_rows():
    logits = mask_specials(apply_cfg(torch.zeros(0, 5), torch.zeros(0, 5), 3.0), torch.zeros(0, dtype=torch.bool))
    assert draw(apply_temperature_top_p(logits, 1.0, 0.9), torch.zeros(0, dtype=torch.float64)).shape == (0,)
    assert apply_temperature_top_p(logits, 0.0).shape == (0, 5)
    assert (
        Categorical(logits).entropy.shape
        == Categorical(logits).log_prob(torch.zeros(0, dtype=torch.int64)).shape
        == (0,)
    )
