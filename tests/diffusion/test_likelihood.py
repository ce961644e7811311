"""The k-uniform estimator: its mean over all masks is the enumerated ELBO, and its masks are reproducible."""

import itertools
import math
from dataclasses import fields, replace

import numpy as np
import pytest

from triptych.data.types import Batch
from triptych.diffusion.likelihood import k_uniform
from triptych.diffusion.objective import token_weights
from triptych.errors import UserError
from triptych.vocab import NOT_A_MODALITY, Modality, Task, Vocabulary

V = Vocabulary(text=3, image=4, audio=5)
LENGTH = 5
SENTENCE = np.array([0, 2, 1, 1, 0], np.int32)
MASKS = [np.array(bits, bool) for bits in itertools.product((0, 1), repeat=LENGTH)]


# -- a model small enough to enumerate --------------------------------------------------------------------------------

_LOGITS = np.random.default_rng(0).normal(size=(4**LENGTH, LENGTH, 3))


def losses(seen: np.ndarray) -> np.ndarray:
    """-log p of the true token at every position, given a partly masked sentence.

    Any function of the visible tokens will do: the bound holds for all of them.
    """
    number = sum(int(min(token, 3)) * 4**place for place, token in enumerate(seen))
    logits = _LOGITS[number]
    return np.log(np.exp(logits).sum(-1)) - logits[np.arange(LENGTH), SENTENCE]


def enumerated_elbo() -> float:
    """sum over mask sets S of 1 / (|S| C(L, |S|)) times the losses of S; nats per sequence."""
    total = 0.0
    for mask in MASKS[1:]:
        seen = np.where(mask, V.mask(Modality.TEXT), SENTENCE)
        total += losses(seen)[mask].sum() / (mask.sum() * math.comb(LENGTH, mask.sum()))
    return total


def one_by_one_elbo() -> float:
    """The same bound as an unweighted mean over all orders in which tokens are unmasked."""
    total = 0.0
    for order in itertools.permutations(range(LENGTH)):
        seen = np.full(LENGTH, V.mask(Modality.TEXT), np.int32)
        for place in order:
            total += losses(seen)[place]
            seen[place] = SENTENCE[place]
    return total / math.factorial(LENGTH)


def sentences(count: int, first: int = 0) -> Batch:
    """Rows [TASK BOS a b c d e EOS PAD] of the same sentence under different sample ids."""
    row = [V.task(Task.TEXT), V.bos(Modality.TEXT), *SENTENCE.tolist(), V.eos(Modality.TEXT), V.pad]
    tokens = np.tile(np.array(row, np.int32), (count, 1))
    is_real = np.arange(len(row)) < len(row) - 1
    modality = V.modality_of(tokens)
    modality[:, ~is_real] = NOT_A_MODALITY
    is_data = (np.arange(len(row)) >= 2) & (np.arange(len(row)) < 2 + LENGTH)
    return Batch(
        tokens=tokens,
        positions=np.tile(np.where(is_real, np.arange(len(row)), 0).astype(np.int32), (count, 1)),
        segment_ids=(np.arange(1, count + 1)[:, None] * is_real).astype(np.int32),
        modality_ids=modality,
        maskable=np.tile(is_data, (count, 1)),
        sample_ids=np.arange(first, first + count),
        epochs=np.zeros(count, np.int32),
        slots=np.arange(count, dtype=np.int32),
        tasks=np.zeros(count, np.uint8),
    )


def nats(corrupted, row: int) -> float:
    """The estimate for one row: its weight times the losses of its masked positions."""
    here = slice(2, 2 + LENGTH)
    mask = corrupted.predicted[row, here]
    return corrupted.weight[row, Modality.TEXT] * losses(corrupted.tokens[row, here])[mask].sum()


def test_the_two_enumerations_agree() -> None:
    assert enumerated_elbo() == pytest.approx(one_by_one_elbo(), rel=1e-12)
    assert enumerated_elbo() > 2


def test_the_mean_over_all_masks_is_the_elbo() -> None:
    """Exact: the code's value of every possible mask, weighted with the mask's theoretical probability."""
    batch = sentences(3000)
    value: dict[bytes, float] = {}
    seen = np.zeros(2**LENGTH)
    for draw in range(2):
        corrupted = k_uniform(batch, V, seed=1, draw=draw, num_draws=2)
        for row in range(len(batch.tokens)):
            mask = corrupted.predicted[row, 2 : 2 + LENGTH]
            estimate = nats(corrupted, row)
            assert value.setdefault(mask.tobytes(), estimate) == pytest.approx(estimate, rel=1e-12)
            seen[int(mask @ (1 << np.arange(LENGTH)))] += 1
    assert len(value) == 2**LENGTH - 1  # all but the empty mask
    probability = {mask.tobytes(): 1 / LENGTH / math.comb(LENGTH, mask.sum()) for mask in MASKS[1:]}
    assert sum(probability[mask] * value[mask] for mask in value) == pytest.approx(enumerated_elbo(), rel=1e-12)
    # Masks are drawn with that probability: chi-square with 30 degrees of freedom, mean 30, standard deviation 7.7.
    assert seen[0] == 0
    expected = 6000 * np.array(
        [probability[np.array([n >> i & 1 for i in range(LENGTH)], bool).tobytes()] for n in range(1, 32)]
    )
    assert ((seen[1:] - expected) ** 2 / expected).sum() < 65


@pytest.mark.parametrize("num_draws", [1, 2, 5, 12])
def test_the_estimate_is_unbiased(num_draws: int) -> None:
    batch = sentences(4000, first=10**6)
    estimates = np.mean(
        [
            [nats(corrupted, row) for row in range(1000 * (4 if num_draws == 1 else 1))]
            for corrupted in (k_uniform(batch, V, seed=2, draw=d, num_draws=num_draws) for d in range(num_draws))
        ],
        axis=0,
    )
    margin = 4 * estimates.std() / len(estimates) ** 0.5
    assert margin < 0.05 * enumerated_elbo()
    assert estimates.mean() == pytest.approx(enumerated_elbo(), abs=margin)


def test_training_weights_give_nats_per_token() -> None:
    batch = sentences(40)
    corrupted = k_uniform(batch, V, seed=1, draw=0, num_draws=1)
    weights = token_weights(batch, corrupted, "sequence", num_sequences=1)
    for row in range(40):
        mask = corrupted.predicted[row, 2 : 2 + LENGTH]
        by_objective = (weights[row, 2 : 2 + LENGTH] * losses(corrupted.tokens[row, 2 : 2 + LENGTH])).sum()
        assert by_objective == pytest.approx(nats(corrupted, row) / LENGTH)
        assert corrupted.weight[row].tolist() == [LENGTH / mask.sum()] * 3
        assert corrupted.times[row] == pytest.approx(mask.sum() / LENGTH)
    assert corrupted.num_eligible.tolist() == [LENGTH] * 40
    assert corrupted.times.shape == corrupted.weight.shape == (40, 3)


@pytest.mark.parametrize("num_draws", [2, 3, 5, 10, 23])
def test_counts_are_evenly_spaced_over_the_draws(num_draws: int) -> None:
    batch = sentences(300)
    counts = np.stack(
        [k_uniform(batch, V, seed=4, draw=draw, num_draws=num_draws).predicted.sum(1) for draw in range(num_draws)]
    )
    for column in counts.T:
        often = np.bincount(column - 1, minlength=LENGTH)
        assert often.max() - often.min() <= 1
    firsts = np.bincount(counts[0] - 1, minlength=LENGTH)
    assert (abs(firsts - 60) < 5 * np.sqrt(60)).all()  # every sequence starts at its own count
    if num_draws == 2:
        assert set((counts[1] - counts[0]).tolist()) <= {2, -3}


def test_draws_with_the_same_count_mask_different_positions() -> None:
    batch = sentences(400)
    first, second = (k_uniform(batch, V, seed=4, draw=d, num_draws=LENGTH * 2).predicted for d in (0, 1))
    same_count = first.sum(1) == second.sum(1)
    assert same_count.mean() > 0.3
    some_left = same_count & (first.sum(1) < LENGTH)
    assert (first[some_left] == second[some_left]).all(1).mean() < 0.3


# -- pairs ------------------------------------------------------------------------------------------------------------


def mixed(seed: int = 0) -> Batch:
    """Two rows of several sequences each (image with text, text, audio with text), and padding."""
    rng = np.random.default_rng(seed)
    rows = []
    for order in ((Task.IMAGE_TEXT, Task.TEXT, Task.AUDIO_TEXT), (Task.AUDIO_TEXT, Task.IMAGE_TEXT)):
        row: list[list[int]] = []
        for task in order:
            sequence = [V.task(task)]
            if task.partner is not None:
                data = V.data_ids(task.partner)
                sequence += [V.bos(task.partner), *rng.integers(data.start, data.stop, 7), V.eos(task.partner)]
            row.append([*sequence, V.bos(Modality.TEXT), *rng.integers(0, 3, 4), V.eos(Modality.TEXT)])
        rows.append((order, row))
    width = max(sum(map(len, row)) for _, row in rows) + 3
    shape = (2, width)
    tokens = np.full(shape, V.pad, np.int32)
    positions, segments = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    tasks, number = [], 0
    for r, (order, row) in enumerate(rows):
        column = 0
        for task, sequence in zip(order, row):
            number += 1
            here = slice(column, column + len(sequence))
            tokens[r, here], positions[r, here], segments[r, here] = sequence, np.arange(len(sequence)), number
            tasks.append(task)
            column += len(sequence)
    modality = V.modality_of(tokens)
    modality[segments == 0] = NOT_A_MODALITY
    data = np.isin(tokens, [i for m in Modality for i in V.data_ids(m)])
    return Batch(
        tokens=tokens,
        positions=positions,
        segment_ids=segments,
        modality_ids=modality,
        maskable=data,
        sample_ids=np.array([70, 71, 72, 73, 74]),
        epochs=np.array([0, 1, 0, 2, 0], np.int32),
        slots=np.arange(5, dtype=np.int32),
        tasks=np.array(tasks, np.uint8),
    )


def alone(batch: Batch, number: int) -> Batch:
    """One sequence of a batch in its own row, two columns further right."""
    here = np.argwhere(batch.segment_ids == number + 1)
    row, start, stop = here[0, 0], here[0, 1], here[-1, 1] + 1

    def cut(array: np.ndarray, fill: int) -> np.ndarray:
        return np.pad(array[row : row + 1, start:stop], ((0, 0), (2, 1)), constant_values=fill)

    return Batch(
        tokens=cut(batch.tokens, V.pad),
        positions=cut(batch.positions, 0),
        segment_ids=(cut(batch.segment_ids, 0) > 0).astype(np.int32),
        modality_ids=cut(batch.modality_ids, NOT_A_MODALITY),
        maskable=cut(batch.maskable, 0),
        **{name: getattr(batch, name)[number : number + 1] for name in ("sample_ids", "epochs", "slots", "tasks")},
    )


@pytest.mark.parametrize("given", ["nothing", "text", "media"])
def test_masks_do_not_depend_on_the_layout(given) -> None:
    batch = mixed()
    for draw in range(6):
        together = k_uniform(batch, V, seed=3, draw=draw, num_draws=6, given=given)
        for number in range(5):
            separate = k_uniform(alone(batch, number), V, seed=3, draw=draw, num_draws=6, given=given)
            here = batch.segment_ids == number + 1
            assert separate.tokens[0, 2:-1].tolist() == together.tokens[here].tolist()
            assert separate.predicted[0, 2:-1].tolist() == together.predicted[here].tolist()
            assert separate.weight[0].tolist() == together.weight[number].tolist()
            assert separate.num_eligible[0] == together.num_eligible[number]


def test_masks_are_reproducible_and_depend_on_seed_epoch_and_sample() -> None:
    batch = sentences(200)

    def masks(change: Batch = batch, **options) -> np.ndarray:
        return k_uniform(change, V, **({"seed": 0, "draw": 0, "num_draws": 2} | options)).predicted

    assert np.array_equal(masks(), masks())
    slots = replace(batch, slots=batch.slots[::-1].copy(), tasks=batch.tasks + 1)
    assert np.array_equal(masks(), masks(slots))
    for other in (
        masks(seed=1),
        masks(replace(batch, epochs=batch.epochs + 1)),
        masks(replace(batch, sample_ids=batch.sample_ids + 1000)),
    ):
        # One in five has the same count by chance; few of those have the same positions.
        count = masks().sum(1)
        alike = (count == other.sum(1)) & (count < LENGTH)
        assert 0 < alike.sum() < 0.4 * len(batch.tokens)
        assert (masks() == other)[alike].all(1).mean() < 0.45


def test_masks_do_not_depend_on_the_number_of_sequences() -> None:
    few, many = (k_uniform(sentences(count), V, seed=0, draw=0, num_draws=2).predicted for count in (10, 50))
    assert np.array_equal(many[:10], few)


@pytest.mark.parametrize("given", ["nothing", "text", "media"])
def test_the_given_side_is_never_masked(given) -> None:
    batch = mixed()
    is_text = batch.modality_ids == Modality.TEXT
    may_change = batch.maskable & {"nothing": np.ones_like(is_text), "text": ~is_text, "media": is_text}[given]
    ever = np.zeros_like(is_text)
    for draw in range(40):
        corrupted = k_uniform(batch, V, seed=0, draw=draw, num_draws=40, given=given)
        assert not (corrupted.predicted & ~may_change).any()
        assert np.array_equal(corrupted.tokens != batch.tokens, corrupted.predicted)
        hidden = corrupted.tokens[corrupted.predicted]
        assert hidden.tolist() == [V.mask(Modality(m)) for m in batch.modality_ids[corrupted.predicted].tolist()]
        open_count = [int((may_change & (batch.segment_ids == n + 1)).sum()) for n in range(5)]
        masked = np.array([int((corrupted.predicted & (batch.segment_ids == n + 1)).sum()) for n in range(5)])
        assert corrupted.num_eligible.tolist() == open_count
        for number, count in enumerate(open_count):
            assert (masked[number] >= 1) == (count > 0)
            expected = count / masked[number] if count else 0
            assert corrupted.weight[number] == pytest.approx([expected] * 3)
        ever |= corrupted.predicted
    assert np.array_equal(ever, may_change)  # every other position is masked at some time


def test_empty_batches_and_sequences_without_maskable_positions() -> None:
    batch = mixed()
    closed = k_uniform(replace(batch, maskable=np.zeros_like(batch.maskable)), V, seed=0, draw=0, num_draws=1)
    assert not closed.predicted.any()
    assert np.array_equal(closed.tokens, batch.tokens)
    assert (closed.weight == 0).all()
    sequences = {f.name: getattr(batch, f.name)[:0] for f in fields(Batch) if getattr(batch, f.name).ndim == 1}
    nothing = replace(
        batch,
        tokens=np.full_like(batch.tokens, V.pad),
        segment_ids=np.zeros_like(batch.segment_ids),
        modality_ids=np.full_like(batch.modality_ids, NOT_A_MODALITY),
        maskable=np.zeros_like(batch.maskable),
        **sequences,
    )
    corrupted = k_uniform(nothing, V, seed=0, draw=0, num_draws=1)
    assert not corrupted.predicted.any()
    assert corrupted.weight.shape == (0, 3)


def test_an_unknown_side_is_rejected() -> None:
    with pytest.raises(UserError, match=r"unknown side 'medias'\. Did you mean 'media'"):
        k_uniform(sentences(1), V, seed=0, draw=0, num_draws=1, given="medias")  # type: ignore[arg-type]
