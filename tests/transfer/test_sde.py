"""The SDE rule: runs with different batch sizes end at the same place, but only if weight decay is scaled too."""

import numpy as np
import pytest

from triptych.errors import UserError
from triptych.recipes import recipe
from triptych.transfer.sde import Sde
from triptych.utils.config import override


def final_mean(kappa: float, decay_power: float) -> float:
    """Mean final weight of many scalar AdamW runs with noisy gradients, scaled to batches kappa times as large."""
    rng = np.random.default_rng(0)
    problems, steps = 4000, round(512 / kappa)
    lr, beta1, beta2, decay = 0.02 * kappa**0.5, 0.9**kappa, 0.98**kappa, 0.3 * kappa**decay_power
    theta, first, second = np.zeros(problems), np.zeros(problems), np.zeros(problems)
    for step in range(steps):
        gradient = 0.3 * (theta - 1) + 3.0 / kappa**0.5 * rng.standard_normal(problems)
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        rate = lr * 0.5 * (1 + np.cos(np.pi * step / steps))
        corrected = first / (1 - beta1 ** (step + 1)) / np.sqrt(second / (1 - beta2 ** (step + 1)))
        theta = theta - rate * decay * theta - rate * corrected
    return float(theta.mean())


def test_the_result_is_independent_of_batch_size_only_if_weight_decay_is_scaled() -> None:
    ends = [final_mean(kappa, 0.5) for kappa in (0.25, 1.0, 4.0)]
    unscaled_decay = [final_mean(kappa, 0.0) for kappa in (0.25, 1.0, 4.0)]
    assert max(ends) / min(ends) < 1.1
    assert max(unscaled_decay) / min(unscaled_decay) > 1.25


def test_kappa_and_the_equivalent_base_run() -> None:
    run = Sde(batch=512, steps=4000, base_batch=256, base_steps=1000, gamma=0.44)
    assert run.tokens_ratio == 8
    assert run.kappa == pytest.approx(2 * 8**-0.44)
    assert run.virtual_batch == pytest.approx(256 * 8**0.44)
    assert run.virtual_batch * run.virtual_steps == pytest.approx(512 * 4000)  # the same tokens
    assert Sde(256, 9000, 256, 1000, gamma=0.0).kappa == 1  # same noise
    assert Sde(256, 9000, 256, 1000, gamma=1.0).virtual_steps == pytest.approx(1000)  # same SDE time


@pytest.mark.parametrize("gamma", [0.0, 0.44, 1.0])
@pytest.mark.parametrize("name", ["scenes", "paper_3b"])
def test_complementary_masks_on_half_the_batch_keep_the_hyperparameters(name: str, gamma: float) -> None:
    """Half as many sequences, each masked twice, cost the same and are the same batch."""
    base = ["transfer.base_batch=24", "transfer.base_steps=500", f"transfer.gamma={gamma}", "transfer.warmup_mode=sde"]
    plain = override(recipe(name), base)
    half = plain.loader.global_batch // 2
    paired = override(plain, ["complementary_masks=true", f"loader.global_batch={half}"])
    assert plain.resolved.sde is not None
    assert plain.resolved.sde.kappa != 1
    assert paired.resolved == plain.resolved  # learning rates, betas, eps and decay follow from it
    assert (paired.clip, paired.warmup_steps) == (plain.clip, plain.warmup_steps)
    same_samples = override(plain, ["complementary_masks=true"])
    assert same_samples.resolved.kappa == pytest.approx(plain.resolved.kappa * 2 ** (1 - gamma))


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"steps": -1}, {"gamma": 1.5}, {"base_batch": float("inf")}])
def test_invalid_values_are_rejected(wrong: dict) -> None:
    with pytest.raises(UserError):
        Sde(**({"batch": 1, "steps": 1, "base_batch": 1, "base_steps": 1} | wrong))
