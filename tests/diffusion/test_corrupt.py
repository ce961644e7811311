from dataclasses import replace

import numpy as np
import pytest
import torch

from triptych.data.types import Batch
from triptych.diffusion.corrupt import CorruptConfig, corrupt, sample_times
from triptych.diffusion.schedule import Cosine, Linear, Polynomial
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
    """The same sequences alone, as another rank would have them: renumbered segments, other rows."""
    segments = np.where(batch.segment_ids[chosen] > 0, np.arange(1, len(chosen) + 1)[:, None], 0).astype(np.int32)
    rows = {name: getattr(batch, name)[chosen] for name in ("tokens", "positions", "modality_ids", "maskable")}
    sequences = {name: getattr(batch, name)[chosen] for name in ("sample_ids", "epochs", "slots", "tasks")}
    return Batch(segment_ids=segments, **rows, **sequences)


def run(batch, config, **kwargs):
    return corrupt(batch, VOCABULARY, config, **({"step": 3, "global_batch": BATCH} | kwargs))


def test_each_modality_has_its_own_mask_and_specials_stay():
    batch = image_text_batch()
    made = run(batch, CorruptConfig())
    assert not (made.predicted & ~batch.maskable).any()
    assert (made.tokens[~made.predicted] == batch.tokens[~made.predicted]).all()
    for modality in (Modality.IMAGE, Modality.TEXT):
        where = made.predicted & (batch.modality_ids == modality)
        assert where.any()
        assert (made.tokens[where] == VOCABULARY.mask(modality)).all()
    assert (made.num_eligible == 30).all()


@pytest.mark.parametrize("schedule", [Linear(), Cosine(), Polynomial(2)], ids=str)
def test_tokens_are_masked_as_often_as_the_schedule_says(schedule):
    batch = image_text_batch()
    made = run(batch, CorruptConfig(schedule=schedule))
    share = made.predicted.sum(1) / 30
    expected = 1 - schedule.alpha(torch.from_numpy(made.times[:, 0])).numpy()
    spread = np.sqrt(expected * (1 - expected) / 30)
    assert abs((share - expected).mean()) < 4 * np.sqrt((spread**2).sum()) / BATCH
    assert np.abs(share - expected).max() < 0.5
    assert made.weight == pytest.approx(schedule.weight(torch.from_numpy(made.times)).numpy())


def test_texts_can_have_a_schedule_of_their_own():
    batch = image_text_batch()
    made = run(batch, CorruptConfig(schedule=Polynomial(3.0), text_schedule=Linear()))
    for modality, schedule in ((Modality.IMAGE, Polynomial(3.0)), (Modality.TEXT, Linear())):
        times = torch.from_numpy(made.times[:, modality])
        where = batch.maskable & (batch.modality_ids == modality)
        share = made.predicted[where].mean()
        assert abs(share - float(1 - schedule.alpha(times).mean())) < 0.02
        np.testing.assert_array_equal(made.weight[:, modality], schedule.weight(times).numpy())
    alone = run(batch, CorruptConfig(schedule=Polynomial(3.0)))
    is_image = batch.modality_ids == Modality.IMAGE
    assert (made.predicted == alone.predicted)[is_image].all()
    assert (made.predicted != alone.predicted)[~is_image].any()


def test_times_fill_every_stratum_of_the_global_batch():
    batch = image_text_batch()
    times = sample_times(batch, CorruptConfig(smallest_time=1e-9), step=0, global_batch=BATCH)
    assert (times == times[:, :1]).all()
    assert sorted((times[:, 0] * BATCH).astype(int)) == list(range(BATCH))
    slots = np.corrcoef(batch.slots, times[:, 0])[0, 1]
    assert abs(slots) < 0.15  # the permutation: a place in the batch says nothing about the time


def test_a_sample_is_masked_alike_in_any_company():
    batch = image_text_batch()
    config = CorruptConfig(p_one_sided=0.3, p_prompt_masked=0.1)
    whole = run(batch, config)
    chosen = np.random.default_rng(1).permutation(BATCH)[:50]
    part = run(rows_of(batch, chosen), config)
    for name in ("tokens", "predicted", "weight", "num_eligible", "times"):
        assert (getattr(part, name) == getattr(whole, name)[chosen]).all(), name


def test_epochs_seeds_and_steps_change_what_they_should():
    batch = image_text_batch()
    base = run(batch, CorruptConfig())
    later = run(replace(batch, epochs=batch.epochs + 1), CorruptConfig())
    assert (later.predicted != base.predicted).mean() > 0.2
    assert (run(batch, CorruptConfig(seed=1)).predicted != base.predicted).mean() > 0.2
    assert (run(batch, CorruptConfig(), step=4).times != base.times).mean() > 0.9
    again = run(batch, CorruptConfig())
    assert (again.tokens == base.tokens).all()


def test_two_views_are_complementary():
    batch = image_text_batch()
    first, second = run(batch, CorruptConfig(), view=0), run(batch, CorruptConfig(), view=1)
    assert ((first.predicted ^ second.predicted) == batch.maskable).all()
    assert (first.times == second.times).all()
    t = first.times
    assert first.weight == pytest.approx(1 / t)
    assert second.weight == pytest.approx(1 / (1 - t))
    assert t.max() < 1 - 1e-3


def test_modalities_can_have_times_of_their_own():
    batch = image_text_batch()
    times = run(batch, CorruptConfig(time_mode="per_modality")).times
    assert abs(np.corrcoef(times[:, 0], times[:, 1])[0, 1]) < 0.15


def test_one_side_is_given_whole():
    batch = image_text_batch()
    made = run(batch, CorruptConfig(p_one_sided=1.0))
    text, image = (batch.maskable & (batch.modality_ids == m) for m in (Modality.TEXT, Modality.IMAGE))
    masked_text, masked_image = (made.predicted & text).any(1), (made.predicted & image).any(1)
    assert not (masked_text & masked_image).any()
    eligible = {10: "text", 20: "image"}
    assert set(made.num_eligible.tolist()) == set(eligible)
    assert (made.num_eligible == 10).mean() == pytest.approx(0.5, abs=0.1)
    assert not masked_text[made.num_eligible == 20].any()


def test_a_masked_prompt_is_hidden_but_not_predicted():
    batch = image_text_batch()
    made = run(batch, CorruptConfig(p_prompt_masked=1.0))
    text = batch.maskable & (batch.modality_ids == Modality.TEXT)
    assert (made.tokens[text] == VOCABULARY.mask(Modality.TEXT)).all()
    assert not made.predicted[text].any()
    assert (made.num_eligible == 20).all()


def test_text_alone_has_no_sides():
    batch = image_text_batch()
    alone = replace(batch, tasks=np.zeros(BATCH, np.uint8))
    plain, sided = run(alone, CorruptConfig()), run(alone, CorruptConfig(p_one_sided=0.5, p_prompt_masked=0.5))
    assert (plain.tokens == sided.tokens).all()


def test_an_empty_batch_passes():
    batch = rows_of(image_text_batch(), np.zeros(0, int))
    empty = replace(batch, tokens=np.full((2, 8), VOCABULARY.pad, np.int32), maskable=np.zeros((2, 8), bool))
    made = run(empty, CorruptConfig())
    assert (made.tokens == VOCABULARY.pad).all()
    assert not made.predicted.any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"time_mode": "both"}, "time_mode must be"),
        ({"p_one_sided": 0.8, "p_prompt_masked": 0.3}, "sum to more than 1"),
        ({"smallest_time": 0.0}, "smallest_time must lie"),
    ],
)
def test_impossible_settings_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        CorruptConfig(**fields)


@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=str)
def test_ends_of_texts_are_masked_whole_and_as_often_as_the_schedule_says(schedule):
    batch = image_text_batch()
    made = run(batch, CorruptConfig(schedule=schedule, p_text_end=1.0))
    text = made.predicted[:, 24:34]
    assert (np.diff(text.astype(int), axis=1) >= 0).all()
    expected = (1 - schedule.alpha(torch.from_numpy(made.times[:, 0]))).numpy()
    assert (np.abs(text.sum(1) - 10 * expected) <= 1).all()
    assert abs(text.mean() - expected.mean()) < 0.01
    image = made.predicted[:, 2:22]
    assert (run(batch, CorruptConfig(schedule=schedule)).predicted[:, 2:22] == image).all()


def test_ends_of_texts_do_not_depend_on_company():
    batch, config = image_text_batch(), CorruptConfig(p_text_end=0.5)
    chosen = np.array([7, 3, 500])
    assert (run(rows_of(batch, chosen), config).tokens == run(batch, config).tokens[chosen]).all()
    scattered = (run(batch, config).tokens == run(batch, CorruptConfig()).tokens).all(1)
    assert 0.4 < scattered.mean() < 0.7  # half, and those where both ways mask all or nothing
    with pytest.raises(UserError, match="p_text_end"):
        CorruptConfig(p_text_end=1.5)
