"""What all samplers guarantee, on a model that is a table."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from sampler_fakes import BASES, LENGTH, MASK, Model, equal_requests, mixed_requests, sample, select_rows

from triptych.diffusion.schedule import Polynomial
from triptych.errors import UserError
from triptych.sample import samplers
from triptych.sample.batch import Proposals, RequestBatch
from triptych.sample.samplers import SAMPLERS, make_sampler
from triptych.sample.sampling_loop import Sampler, StepState

# Every sampler, and every sampler inside blocks, with options that make its rules matter at seven positions.
CASES = {
    "ancestral": ("ancestral", {"schedule": Polynomial(1.7)}),
    "first_hitting": ("first_hitting", {}),
    "random_order": ("random_order", {}),
    "remdm": ("remdm", {"eta": 0.4}),
    "low_confidence": ("low_confidence", {}),
    "maskgit": ("maskgit", {}),
    "threshold": ("threshold", {"threshold": 0.6}),
    "entropy_bounded": ("entropy_bounded", {"gamma": 0.8}),
    "blocks": ("blocks", {"block_length": 3}),
}
CASES |= {
    f"{name} in blocks": ("blocks", {"block_length": 3, "inner": name, **options})
    for name, (_, options) in CASES.items()
    if name not in ("blocks", "low_confidence")
}
ADAPTIVE = ("ancestral", "threshold", "entropy_bounded")  # may finish before their last step
every_sampler = pytest.mark.parametrize("case", CASES)


def run(case, batch, num_steps, callback=None, greedy=False):
    name, options = CASES[case]
    model = Model(batch, greedy)
    return sample(name, model, batch, num_steps, callback, **options), model


def test_every_sampler_is_registered_and_tested():
    assert {getattr(samplers, name) for name in SAMPLERS} == set(SAMPLERS.values())
    assert set(SAMPLERS) <= set(CASES)
    assert all(f"{name} in blocks" in CASES for name in sorted(set(SAMPLERS) - {"blocks", "low_confidence"}))


@every_sampler
@pytest.mark.parametrize("num_steps", [3, 4, 50, None])
def test_nothing_is_left_masked_and_given_positions_stay(case, num_steps):
    batch = mixed_requests()
    before = replace(batch, tokens=batch.tokens.clone(), masked=batch.masked.clone())
    tokens, model = run(case, batch, num_steps)
    states = tokens - BASES
    assert ((states >= 0) & (states < MASK))[batch.masked].all()
    assert torch.equal(tokens[~batch.masked], batch.tokens[~batch.masked])
    assert tokens.dtype == torch.int64
    assert torch.equal(batch.tokens, before.tokens)
    assert torch.equal(batch.masked, before.masked)
    max_steps = LENGTH if num_steps is None or "first_hitting" in case else num_steps
    assert len(model.steps) <= max_steps
    passes = torch.stack(model.queries).any(2).sum(0)  # forward passes of each request
    if not any(name in case for name in ("ancestral", "remdm", "first_hitting")):
        assert (passes <= torch.minimum(batch.masked.sum(1), torch.tensor(max_steps))).all()


@every_sampler
@pytest.mark.parametrize("num_steps", [3, 6, None])
def test_a_request_gives_the_same_tokens_in_any_batch(case, num_steps):
    batch = mixed_requests(300)
    together, _ = run(case, batch, num_steps)
    by_count = [(batch.masked.sum(1) == count).nonzero()[:, 0].tolist() for count in range(LENGTH + 1)]
    for rows in [*([i] for i in range(8)), *by_count, [7, 1, 30, 11], list(range(39, 0, -1))]:
        part, _ = run(case, select_rows(batch, rows), num_steps)
        assert torch.equal(part, together[rows]), rows


@every_sampler
def test_the_seed_determines_the_result(case):
    batch = equal_requests(300, given=(MASK,) * LENGTH)
    first, _ = run(case, batch, 4)
    again, _ = run(case, batch, 4)
    other, _ = run(case, replace(batch, seeds=tuple(seed + 1000 for seed in batch.seeds)), 4)
    assert torch.equal(first, again)
    assert len(first.unique(dim=0)) > 50
    assert (first != other).any(1).float().mean() > 0.9


# -- callback ---------------------------------------------------------------------------------------------------------


@every_sampler
def test_the_callback_is_called_after_every_step(case):
    batch = mixed_requests()
    calls = []
    tokens, model = run(case, batch, 5, callback=lambda *args: calls.append(args))
    steps = [step for step, _, _ in calls]
    assert steps == list(range(len(steps)))
    assert set(model.steps) <= set(steps)
    assert torch.equal(calls[-1][2], tokens)
    left = [(((now - BASES) == MASK) & batch.masked).sum(1) for _, _, now in calls]
    assert left[0].sum() < batch.masked.sum()
    assert left[-1].sum() == 0
    if "remdm" not in case:
        assert all((later <= earlier).all() for earlier, later in itertools.pairwise(left))


@every_sampler
@pytest.mark.parametrize("num_steps", [3, 5, 50, None])
def test_the_callback_reports_the_true_number_of_steps(case, num_steps):
    """Exact for samplers with a fixed number of steps; for the others a bound that never grows, exact at the end."""
    everything = mixed_requests()
    for rows in (list(range(40)), [1], [2], [0, 2], list(range(4, 12))):
        batch = select_rows(everything, rows)
        calls = []
        run(case, batch, num_steps, callback=lambda *args, calls=calls: calls.append(args))
        reported = [total for _, total, _ in calls]
        max_masked = int(batch.masked.sum(1).max())
        if num_steps is None or "first_hitting" in case:
            limit = max_masked
        elif "ancestral" in case or "remdm" in case:  # steps may fill nothing
            limit = num_steps
        else:
            limit = min(num_steps, max_masked)
        assert calls[-1][0] + 1 == reported[-1], "the last call reports the number of steps taken"
        assert reported == sorted(reported, reverse=True)
        assert reported[0] <= limit
        assert all(step + 1 < total for step, total, _ in calls[:-1])
        if not any(name in case for name in ADAPTIVE):
            assert reported == [limit] * limit


@every_sampler
def test_nothing_to_do_costs_nothing(case):
    calls = []
    batch = mixed_requests()
    for rows in ([0, 0], [], [0]):
        empty = select_rows(batch, rows)
        tokens, model = run(case, empty, 5, callback=lambda *args: calls.append(args))
        assert torch.equal(tokens, empty.tokens)
        assert tokens.shape == empty.tokens.shape
        assert not model.steps
    assert not calls


@pytest.mark.parametrize("case", [case for case in CASES if "block" not in case and case != "first_hitting"])
def test_one_step_fills_everything(case):
    batch = mixed_requests()
    tokens, model = run(case, batch, 1)
    assert len(model.steps) == 1
    assert torch.equal(model.queries[0], batch.masked)
    drawn = Model(batch)(batch.tokens, batch.masked, 0, "ids").ids
    assert torch.equal(tokens, torch.where(batch.masked, drawn, batch.tokens))


def test_nan_from_the_model_does_not_hang_a_sampler():
    batch = equal_requests(2, given=(MASK,) * 5 + (0, 0))

    def broken(tokens, where, step, need):
        nan = torch.full(tokens.shape, math.nan, dtype=torch.float64)
        return Proposals(BASES + tokens * 0, nan, nan)

    for name in SAMPLERS:
        assert torch.equal(sample(name, broken, batch, 3), BASES.expand(2, LENGTH)), name


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "num_steps", "options", "message"),
    [
        *(
            (name, 0, {}, "num_steps must be a whole number of at least 1, got 0")
            for name in sorted(set(SAMPLERS) - {"first_hitting"})
        ),
        ("ancestral", -3, {}, "got -3"),
        ("random_order", 2.0, {}, "got 2.0"),
        ("random_order", True, {}, "got True"),
        ("random_order", "10", {}, "got '10'"),
        ("threshold", 4, {"threshold": 0.0}, "threshold must be a number above 0 and at most 1, got 0.0"),
        ("threshold", 4, {"threshold": 1.01}, "above 0 and at most 1"),
        ("threshold", 4, {"threshold": math.nan}, "above 0 and at most 1"),
        ("threshold", 4, {"threshold": "0.9"}, "threshold must be a number above 0 and at most 1, got '0.9'"),
        ("entropy_bounded", 4, {"gamma": -0.1}, "gamma must be a number of at least 0, got -0.1"),
        ("entropy_bounded", 4, {"gamma": math.nan}, "gamma must be a number of at least 0"),
        ("maskgit", 4, {"choice_temperature": -1.0}, "choice_temperature must be a number of at least 0"),
        ("maskgit", 4, {"schedule": "cosine"}, "schedule must be one of triptych.diffusion.schedule"),
        ("remdm", 4, {"eta": -0.1}, "eta must be a number between 0 and 1, got -0.1"),
        ("remdm", 4, {"eta": 1.5}, "eta must be a number between 0 and 1"),
        ("remdm", 4, {"variant": "capp"}, "unknown variant of remdm 'capp'. Did you mean 'cap'?"),
        ("blocks", 4, {"block_length": 0}, "block_length must be a whole number of at least 1, got 0"),
        ("maskgit", 4, {"block_length": 2.5}, "block_length must be a whole number of at least 1, got 2.5"),
        ("blocks", 4, {"inner": "treshold"}, "'treshold'. Did you mean 'threshold'?"),
        ("blocks", 4, {"inner": "blocks"}, "unknown sampler inside blocks 'blocks'"),
        ("random_ordr", 4, {}, "unknown sampler 'random_ordr'. Did you mean 'random_order'?"),
        (
            "blocks",
            2,
            {"block_length": 3},
            "num_steps=2 is too few for 3 blocks of 3 positions: use at least 3 steps, or a block_length of at least 4",
        ),
    ],
)
def test_bad_arguments_are_refused_before_the_first_forward_pass(name, num_steps, options, message):
    batch = mixed_requests()
    model = Model(batch)
    with pytest.raises(UserError) as error:
        sample(name, model, batch, num_steps, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not model.steps


def test_any_sampler_takes_a_block_length():
    batch = mixed_requests()
    for name in sorted(set(SAMPLERS) - {"blocks"}):
        in_blocks = sample("blocks", Model(batch), batch, 5, block_length=3, inner=name)
        assert torch.equal(sample(name, Model(batch), batch, 5, block_length=3), in_blocks), name


def test_a_new_sampler_is_one_function_and_one_entry(monkeypatch):
    """The example in the docstring of `samplers`."""

    def leftmost(*, count: int = 1) -> Sampler:
        def rule(state: StepState):
            count_B = state.min_fill.clamp(min=count)
            chosen_BT = state.masked & (state.masked.cumsum(1) <= count_B[:, None])
            return chosen_BT, state.predict(chosen_BT).ids

        return Sampler(rule)

    monkeypatch.setitem(SAMPLERS, "leftmost", leftmost)
    batch = mixed_requests()
    one_by_one = sample("leftmost", Model(batch), batch)
    assert torch.equal(one_by_one, sample("random_order", Model(batch), batch, block_length=1))
    for num_steps, options, expected in ((None, {"count": 3}, 3), (2, {}, 2), (2, {"block_length": 4}, 2)):
        calls = []
        sample("leftmost", Model(batch), batch, num_steps, lambda *args, calls=calls: calls.append(args), **options)
        assert len(calls) == calls[-1][1] == expected
    with pytest.raises(UserError, match=r"the sampler 'leftmost' has no option 'cuont'\. Did you mean 'count'"):
        make_sampler("leftmost", {"cuont": 2})


# -- schedules --------------------------------------------------------------------------------------------------------


def test_alpha_of_a_request_does_not_depend_on_the_batch():
    """`pow` on a tensor uses a different path for the last few elements, and the last bit can differ."""
    schedule, count = Polynomial(1.7), 1001

    def state(rows):
        nothing = torch.zeros(len(rows), 1, dtype=torch.bool)
        num_steps = torch.arange(2, count + 2)[rows]
        return StepState(
            batch=RequestBatch(nothing.long(), nothing, nothing.long(), (0,) * len(rows)),
            predictor=None,
            tokens=nothing.long(),
            step=0,
            block=nothing,
            masked=nothing,
            block_size=num_steps,
            num_steps=num_steps,
            steps_taken=num_steps // 3,
        )

    together = state(list(range(count))).alphas(schedule)
    steps_left = state(list(range(count))).steps_left.double()
    times = steps_left / torch.arange(2, count + 2)
    assert (schedule.alpha(times) - together[0]).abs().max() < 1e-15
    for i in range(0, count, 5):
        alone = state([i]).alphas(schedule)
        assert [torch.equal(one[0], both[i]) for one, both in zip(alone, together)] == [True, True]
