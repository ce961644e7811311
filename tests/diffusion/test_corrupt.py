"""The forward process: which tokens are masked, how often, and what the masks depend on."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from triptych.data.types import Batch
from triptych.diffusion.corrupt import CorruptConfig, corrupt, sample_times
from triptych.diffusion.schedule import Cosine, Geometric, Linear, Polynomial, time_range
from triptych.errors import UserError
from triptych.vocab import NOT_A_MODALITY, Modality, Task, Vocabulary

VOCABULARY = Vocabulary(text=50, image=40, audio=30)
BATCH = 600  # sequences; one row each


def image_text_batch(count=BATCH, media=20, text=10, padding=3, seed=0):
    """Rows [TASK BOS image EOS BOS text EOS PAD PAD PAD], laid out by hand."""
    rng = np.random.default_rng(seed)
    v = VOCABULARY
    image, words = v.data_ids(Modality.IMAGE), v.data_ids(Modality.TEXT)
    column = np.ones((count, 1), np.int32)
    parts = [
        column * [v.task(Task.IMAGE_TEXT), v.bos(Modality.IMAGE)],
        rng.integers(image.start, image.stop, (count, media)),
        column * [v.eos(Modality.IMAGE), v.bos(Modality.TEXT)],
        rng.integers(words.start, words.stop, (count, text)),
        column * [v.eos(Modality.TEXT)],
        column * ([v.pad] * padding),
    ]
    tokens = np.concatenate(parts, axis=1).astype(np.int32)
    length = tokens.shape[1] - padding
    real = np.arange(tokens.shape[1]) < length
    modality = v.modality_of(tokens)
    modality[:, ~real] = NOT_A_MODALITY
    maskable = np.zeros(tokens.shape, bool)
    maskable[:, 2 : 2 + media] = maskable[:, 4 + media : 4 + media + text] = True
    return Batch(
        tokens=tokens,
        positions=np.where(real, np.arange(tokens.shape[1]), 0).astype(np.int32) * column,
        segment_ids=(np.arange(1, count + 1)[:, None] * real).astype(np.int32),
        modality_ids=modality,
        maskable=maskable,
        sample_ids=np.arange(count) + 1000,
        epochs=np.zeros(count, np.int32),
        slots=np.arange(count, dtype=np.int32),
        tasks=np.full(count, Task.IMAGE_TEXT, np.uint8),
    )


def rows_of(batch, chosen):
    """Some of the sequences, as another rank would hold them: different rows, renumbered segments."""
    segments = np.where(batch.segment_ids[chosen] > 0, np.arange(1, len(chosen) + 1)[:, None], 0).astype(np.int32)
    rows = {name: getattr(batch, name)[chosen] for name in ("tokens", "positions", "modality_ids", "maskable")}
    sequences = {name: getattr(batch, name)[chosen] for name in ("sample_ids", "epochs", "slots", "tasks")}
    return Batch(segment_ids=segments, **rows, **sequences)


def run(batch, config, **kwargs):
    return corrupt(batch, VOCABULARY, config, **({"step": 3, "global_batch": BATCH} | kwargs))


def test_each_modality_has_its_own_mask_id_and_special_tokens_are_never_masked():
    batch = image_text_batch()
    corrupted = run(batch, CorruptConfig())
    assert not (corrupted.predicted & ~batch.maskable).any()
    assert (corrupted.tokens[~corrupted.predicted] == batch.tokens[~corrupted.predicted]).all()
    for modality in (Modality.IMAGE, Modality.TEXT):
        where = corrupted.predicted & (batch.modality_ids == modality)
        assert where.any()
        assert (corrupted.tokens[where] == VOCABULARY.mask(modality)).all()
    assert (corrupted.num_eligible == 30).all()


@pytest.mark.parametrize("schedule", [Linear(), Cosine(), Polynomial(2)], ids=str)
def test_the_masked_share_follows_the_schedule(schedule):
    batch = image_text_batch()
    corrupted = run(batch, CorruptConfig(schedule=schedule))
    share = corrupted.predicted.sum(1) / 30
    expected = 1 - schedule.alpha(torch.from_numpy(corrupted.times[:, 0])).numpy()
    spread = np.sqrt(expected * (1 - expected) / 30)
    assert abs((share - expected).mean()) < 4 * np.sqrt((spread**2).sum()) / BATCH
    assert np.abs(share - expected).max() < 0.5
    factor = time_range(schedule, 1e-3).factor
    assert corrupted.weight == pytest.approx(factor * schedule.weight(torch.from_numpy(corrupted.times)).numpy())


def test_text_can_have_its_own_schedule():
    batch = image_text_batch()
    corrupted = run(batch, CorruptConfig(schedule=Polynomial(3.0), text_schedule=Linear()))
    for modality, schedule in ((Modality.IMAGE, Polynomial(3.0)), (Modality.TEXT, Linear())):
        times = torch.from_numpy(corrupted.times[:, modality])
        where = batch.maskable & (batch.modality_ids == modality)
        share = corrupted.predicted[where].mean()
        assert abs(share - float(1 - schedule.alpha(times).mean())) < 0.02
        factor = time_range(schedule, 1e-3).factor
        np.testing.assert_allclose(corrupted.weight[:, modality], factor * schedule.weight(times).numpy(), rtol=1e-12)
    alone = run(batch, CorruptConfig(schedule=Polynomial(3.0)))
    is_image = batch.modality_ids == Modality.IMAGE
    assert (corrupted.predicted == alone.predicted)[is_image].all()
    assert (corrupted.predicted != alone.predicted)[~is_image].any()


def test_times_cover_every_stratum_of_the_global_batch():
    batch = image_text_batch()
    times = sample_times(batch, CorruptConfig(smallest_mask_rate=1e-9), step=0, global_batch=BATCH)
    assert (times == times[:, :1]).all()
    assert sorted((times[:, 0] * BATCH).astype(int)) == list(range(BATCH))
    slots = np.corrcoef(batch.slots, times[:, 0])[0, 1]
    assert abs(slots) < 0.15  # slots are permuted: a slot does not determine its time


def test_masks_do_not_depend_on_the_rest_of_the_batch():
    batch = image_text_batch()
    config = CorruptConfig(p_one_sided=0.3, p_prompt_masked=0.1)
    full = run(batch, config)
    chosen = np.random.default_rng(1).permutation(BATCH)[:50]
    part = run(rows_of(batch, chosen), config)
    for name in ("tokens", "predicted", "weight", "num_eligible", "times"):
        assert (getattr(part, name) == getattr(full, name)[chosen]).all(), name


def test_masks_depend_on_epoch_and_seed_and_times_on_the_step():
    batch = image_text_batch()
    base = run(batch, CorruptConfig())
    later = run(replace(batch, epochs=batch.epochs + 1), CorruptConfig())
    assert (later.predicted != base.predicted).mean() > 0.2
    assert (run(batch, CorruptConfig(seed=1)).predicted != base.predicted).mean() > 0.2
    assert (run(batch, CorruptConfig(), step=4).times != base.times).mean() > 0.9
    again = run(batch, CorruptConfig())
    assert (again.tokens == base.tokens).all()


def test_two_views_mask_complementary_positions():
    batch = image_text_batch()
    first, second = run(batch, CorruptConfig(), view=0), run(batch, CorruptConfig(), view=1)
    assert ((first.predicted ^ second.predicted) == batch.maskable).all()
    assert (first.times == second.times).all()
    t = first.times
    assert first.weight == pytest.approx(1 / t)
    assert second.weight == pytest.approx(1 / (1 - t))
    assert t.max() < 1 - 1e-3


@pytest.mark.parametrize("views", [(None,), (0, 1)], ids=["one view", "two views"])
@pytest.mark.parametrize("schedule", [Linear(), Cosine(), Polynomial(0.5), Polynomial(3), Geometric()], ids=str)
def test_masks_and_weights_give_the_same_loss_with_every_schedule(schedule, views):
    """Of a model whose loss is 1 for every token: its ELBO is the number of tokens."""
    batch = image_text_batch(count=4000)
    config = CorruptConfig(schedule=schedule, smallest_mask_rate=0.05)
    for view in views:
        corrupted = run(batch, config, view=view, global_batch=4000)
        losses = corrupted.weight[:, 0] * corrupted.predicted.sum(1) / 30
        assert losses.mean() == pytest.approx(1, abs=4 * losses.std() / 4000**0.5)
        assert losses.std() / 4000**0.5 < 0.02


def test_modalities_can_have_independent_times():
    batch = image_text_batch()
    times = run(batch, CorruptConfig(time_mode="per_modality")).times
    assert abs(np.corrcoef(times[:, 0], times[:, 1])[0, 1]) < 0.15


def test_one_sided_masking_keeps_the_other_side_unmasked():
    batch = image_text_batch()
    corrupted = run(batch, CorruptConfig(p_one_sided=1.0))
    text, image = (batch.maskable & (batch.modality_ids == m) for m in (Modality.TEXT, Modality.IMAGE))
    masked_text, masked_image = (corrupted.predicted & text).any(1), (corrupted.predicted & image).any(1)
    assert not (masked_text & masked_image).any()
    eligible = {10: "text", 20: "image"}
    assert set(corrupted.num_eligible.tolist()) == set(eligible)
    assert (corrupted.num_eligible == 10).mean() == pytest.approx(0.5, abs=0.1)
    assert not masked_text[corrupted.num_eligible == 20].any()


def test_a_masked_prompt_is_masked_but_not_predicted():
    batch = image_text_batch()
    corrupted = run(batch, CorruptConfig(p_prompt_masked=1.0))
    text = batch.maskable & (batch.modality_ids == Modality.TEXT)
    assert (corrupted.tokens[text] == VOCABULARY.mask(Modality.TEXT)).all()
    assert not corrupted.predicted[text].any()
    assert (corrupted.num_eligible == 20).all()


def test_text_samples_ignore_one_sided_masking():
    batch = image_text_batch()
    alone = replace(batch, tasks=np.zeros(BATCH, np.uint8))
    plain, sided = run(alone, CorruptConfig()), run(alone, CorruptConfig(p_one_sided=0.5, p_prompt_masked=0.5))
    assert (plain.tokens == sided.tokens).all()


def test_an_empty_batch_stays_unchanged():
    batch = rows_of(image_text_batch(), np.zeros(0, int))
    empty = replace(batch, tokens=np.full((2, 8), VOCABULARY.pad, np.int32), maskable=np.zeros((2, 8), bool))
    corrupted = run(empty, CorruptConfig())
    assert (corrupted.tokens == VOCABULARY.pad).all()
    assert not corrupted.predicted.any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"time_mode": "both"}, "time_mode must be"),
        ({"p_one_sided": 0.8, "p_prompt_masked": 0.3}, "sum to more than 1"),
        ({"smallest_mask_rate": 0.0}, "smallest_mask_rate must lie"),
    ],
)
def test_invalid_settings_are_rejected(fields, message):
    with pytest.raises(UserError, match=message):
        CorruptConfig(**fields)


@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=str)
def test_masked_text_ends_are_contiguous_and_follow_the_schedule(schedule):
    batch = image_text_batch()
    corrupted = run(batch, CorruptConfig(schedule=schedule, p_text_end=1.0))
    text = corrupted.predicted[:, 24:34]
    assert (np.diff(text.astype(int), axis=1) >= 0).all()
    expected = (1 - schedule.alpha(torch.from_numpy(corrupted.times[:, 0]))).numpy()
    assert (np.abs(text.sum(1) - 10 * expected) <= 1).all()
    assert abs(text.mean() - expected.mean()) < 0.01
    image = corrupted.predicted[:, 2:22]
    assert (run(batch, CorruptConfig(schedule=schedule)).predicted[:, 2:22] == image).all()


def test_masked_text_ends_do_not_depend_on_the_rest_of_the_batch():
    batch, config = image_text_batch(), CorruptConfig(p_text_end=0.5)
    chosen = np.array([7, 3, 500])
    assert (run(rows_of(batch, chosen), config).tokens == run(batch, config).tokens[chosen]).all()
    scattered = (run(batch, config).tokens == run(batch, CorruptConfig()).tokens).all(1)
    assert 0.4 < scattered.mean() < 0.7  # half of them, and those where both ways mask everything or nothing
    with pytest.raises(UserError, match="p_text_end"):
        CorruptConfig(p_text_end=1.5)
