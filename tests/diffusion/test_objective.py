"""On a toy problem small enough to enumerate, every unbiased loss has the enumerated ELBO as its expectation."""

import itertools
import math

import numpy as np
import pytest
import torch

from triptych.data.types import Batch
from triptych.diffusion.corrupt import Corrupted
from triptych.diffusion.objective import check_norm, token_weights
from triptych.diffusion.schedule import Cosine, Geometric, Linear, Polynomial, complement_weight
from triptych.errors import UserError
from triptych.vocab import Modality

LENGTH = 5
MASKS = [np.array(bits, bool) for bits in itertools.product((0, 1), repeat=LENGTH)]
LOSSES = {
    mask.tobytes(): loss for mask, loss in zip(MASKS, np.random.default_rng(0).gamma(2, size=(2**LENGTH, LENGTH)))
}
"""Losses of a denoiser by mask: arbitrary numbers, since the identities hold for all."""
SCHEDULES = [Linear(), Cosine(), Polynomial(0.5), Polynomial(2), Polynomial(3), Geometric(1e-9, 40.0)]


def enumerated_elbo():
    """-log p(x) <= sum over mask sets S of 1 / (|S| C(L, |S|)) times the losses of S; nats per sequence."""
    return sum(
        LOSSES[mask.tobytes()][mask].sum() / (mask.sum() * math.comb(LENGTH, mask.sum()))
        for mask in MASKS
        if mask.any()
    )


def one_sequence(padding=2):
    shape = (1, LENGTH + padding)
    real = np.arange(shape[1])[None] < LENGTH
    return Batch(
        tokens=np.zeros(shape, np.int32),
        positions=np.arange(shape[1], dtype=np.int32)[None],
        segment_ids=real.astype(np.int32),
        modality_ids=np.where(real, Modality.TEXT, 255).astype(np.uint8),
        maskable=real,
        sample_ids=np.zeros(1, np.int64),
        epochs=np.zeros(1, np.int32),
        slots=np.zeros(1, np.int32),
        tasks=np.zeros(1, np.uint8),
    )


def loss_of(mask, weight, norm):
    """The weighted loss of one corrupted sequence, by the code under test."""
    batch = one_sequence()
    predicted = np.zeros(batch.tokens.shape, bool)
    predicted[0, :LENGTH] = mask
    corrupted = Corrupted(batch.tokens, predicted, np.full((1, 3), weight), np.array([LENGTH]), np.zeros((1, 3)))
    weights = token_weights(batch, corrupted, norm, num_sequences=1, num_eligible=LENGTH)
    assert (weights[~predicted] == 0).all()
    return float((weights[0, :LENGTH] * LOSSES[mask.tobytes()]).sum())


def expectation(schedule, norm, complement=False, points=600):
    """Expected loss, by Gauss-Legendre quadrature over times and enumeration of masks."""
    nodes, shares = np.polynomial.legendre.leggauss(points)
    times, total = torch.from_numpy((nodes + 1) / 2), 0.0
    kept = schedule.alpha(times).numpy()
    weights = (complement_weight(schedule, times) if complement else schedule.weight(times)).numpy()
    unit = {mask.tobytes(): loss_of(mask, 1.0, norm) for mask in MASKS}  # linear in the weight, or independent of it
    for mask in MASKS:
        masked = mask.sum()
        p_set = kept ** (LENGTH - masked) * (1 - kept) ** masked
        if complement:
            p_set = kept**masked * (1 - kept) ** (LENGTH - masked)
        scale = 1.0 if norm == "masked" else weights
        total += float((shares / 2 * p_set * scale).sum()) * unit[mask.tobytes()]
    return total


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("norm", ["sequence", "tokens"])
def test_the_expectation_is_the_elbo_for_every_schedule(schedule, norm):
    assert expectation(schedule, norm) == pytest.approx(enumerated_elbo() / LENGTH, rel=2e-3)


@pytest.mark.parametrize("schedule", SCHEDULES[:5], ids=str)
def test_the_complement_with_its_own_weight_estimates_the_elbo_too(schedule):
    assert expectation(schedule, "sequence", complement=True) == pytest.approx(enumerated_elbo() / LENGTH, rel=2e-3)


def test_norm_masked_is_the_elbo_divided_by_length_plus_one():
    assert expectation(Linear(), "masked") == pytest.approx(enumerated_elbo() / (LENGTH + 1), rel=1e-6)


def test_norm_paper_literal_is_not_the_elbo():
    expected = expectation(Linear(), "paper_literal")
    harmonic = sum(
        LOSSES[mask.tobytes()][mask].mean() / math.comb(LENGTH, mask.sum()) / mask.sum() for mask in MASKS if mask.any()
    )
    assert expected == pytest.approx(harmonic, rel=1e-3)
    assert expected > 1.5 * enumerated_elbo() / LENGTH


def test_weights_are_divided_by_totals_of_the_global_batch():
    """Two sequences with different weights and lengths, compared with the formula."""
    one = one_sequence()
    batch = Batch(
        **{
            name: np.concatenate([getattr(one, name), getattr(one, name)])
            for name in ("tokens", "positions", "modality_ids", "maskable", "sample_ids", "epochs", "slots", "tasks")
        },
        segment_ids=np.concatenate([one.segment_ids, 2 * one.segment_ids]),
    )
    predicted = np.zeros(batch.tokens.shape, bool)
    predicted[0, :2] = predicted[1, :4] = True
    corrupted = Corrupted(batch.tokens, predicted, np.array([[2.0] * 3, [3.0] * 3]), np.array([5, 4]), np.zeros((2, 3)))
    weights = token_weights(batch, corrupted, "sequence", num_sequences=8)
    assert weights[0, :2] == pytest.approx(2 / 5 / 8)
    assert weights[1, :4] == pytest.approx(3 / 4 / 8)
    tokens = token_weights(batch, corrupted, "tokens", num_sequences=8, num_eligible=100)
    assert tokens[1, :4] == pytest.approx(3 / 100)


def test_unknown_norms_are_rejected():
    with pytest.raises(UserError, match="Did you mean 'sequence'"):
        check_norm("sequences")
    check_norm("masked")
