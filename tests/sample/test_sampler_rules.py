"""Samplers that choose positions by confidence or in blocks, against their rules restated in plain loops."""

import itertools
import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from sampler_fakes import BASES, LENGTH, MASK, Model, equal_requests, mixed_requests, probabilities, sample, select_rows

from triptych.diffusion.schedule import Linear
from triptych.sample.batch import Proposals, RequestBatch
from triptych.sample.samplers import SAMPLERS
from triptych.utils.rng import SampleStream


def plain_loop(batch, choose, greedy=False):
    """The expected result, row by row: choose(step, row, {position: (probability, entropy)}) -> positions."""
    finished = []
    for row, (tokens, masked) in enumerate(zip(batch.tokens, batch.masked)):
        states = (tokens - BASES).tolist()
        left = [i for i in range(LENGTH) if masked[i]]
        step = 0
        while left:
            probs = probabilities(states)
            uniform = batch.uniform(step, SampleStream.TOKEN)[row].tolist()
            drawn, offers = {}, {}
            for i in left:
                cumulative = list(itertools.accumulate(probs[i]))
                drawn[i] = int(probs[i].argmax()) if greedy else min(sum(c <= uniform[i] for c in cumulative), 2)
                offers[i] = probs[i][drawn[i]], -sum(p * math.log(p) for p in probs[i])
            for i in choose(step, row, offers):
                states[i] = drawn[i]
                left.remove(i)
            step += 1
        finished.append(states)
    return torch.tensor(finished) + BASES


def most_confident(offers, count):
    return sorted(offers, key=lambda i: (-offers[i][0], i))[:count]


def num_masked(batch):
    return batch.masked.sum(1).tolist()


# -- confidence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("greedy", [True, False])
def test_low_confidence_follows_lladas_loop(num_steps, greedy):
    batch = mixed_requests()

    def choose(step, row, offers):
        n = num_masked(batch)[row]
        counts = [n // num_steps + (1 if k < n % num_steps else 0) for k in range(num_steps)]
        return most_confident(offers, counts[step])

    tokens = sample("low_confidence", Model(batch, greedy), batch, num_steps)
    assert torch.equal(tokens, plain_loop(batch, choose, greedy))
    if greedy:
        other = replace(batch, seeds=tuple(seed + 1 for seed in batch.seeds))
        assert torch.equal(sample("low_confidence", Model(other, greedy), other, num_steps), tokens)


def test_equal_confidence_fills_from_left_to_right():
    batch = equal_requests(3, given=(MASK,) * LENGTH)

    def indifferent(tokens, where, step, need):
        return Proposals(BASES + tokens * 0, torch.full(tokens.shape, -1.0).double(), torch.ones(tokens.shape).double())

    for name, options in (("low_confidence", {}), ("threshold", {}), ("entropy_bounded", {"gamma": 0.5})):
        seen = []
        sample(name, indifferent, batch, 7, lambda *args, seen=seen: seen.append(args[2] - BASES), **options)
        for k, states in enumerate(seen):
            assert ((states == MASK) == (torch.arange(LENGTH) > k)).all(), name


@pytest.mark.parametrize("num_steps", [2, 3, 5, 9])
def test_maskgit_follows_its_loop(num_steps):
    batch = mixed_requests()
    left = {}

    def choose(step, row, offers):
        n = num_masked(batch)[row]
        total = min(num_steps, n)
        k = step + 1
        target = math.floor(n * math.cos(math.pi / 2 * k / total) + 1e-9)
        left[row, step] = 0 if k == total else max(1, min(target, len(offers) - 1))
        noise = -np.log(-np.log(batch.uniform(step, SampleStream.CONFIDENCE)[row].numpy()))
        confidence = {i: math.log(p) + 4.5 * (1 - k / total) * noise[i] for i, (p, _) in offers.items()}
        return sorted(offers, key=lambda i: (-confidence[i], i))[: len(offers) - left[row, step]]

    expected = plain_loop(batch, choose)
    assert torch.equal(sample("maskgit", Model(batch), batch, num_steps), expected)
    assert max(step for _, step in left) + 1 == min(num_steps, LENGTH)


def test_maskgit_counts_follow_the_schedule():
    batch = equal_requests(2, given=(MASK,) * LENGTH)
    # 7 cos(pi k / 8) = 6.47, 4.95, 2.68, 0; and 7 (1 - k/4) = 5.25, 3.5, 1.75, 0
    for options, expected in (({}, [6, 4, 2, 0]), ({"schedule": Linear()}, [5, 3, 1, 0])):
        left = []
        sample("maskgit", Model(batch), batch, 4, lambda *args, to=left: to.append(args[2] - BASES == MASK), **options)
        assert [masked.sum(1).unique().tolist() for masked in left] == [[count] for count in expected]


def test_maskgit_does_not_round_down_exact_counts():
    size, num_steps = 100, 10  # tenths are not exact in binary
    shape = (1, size)
    batch = RequestBatch(torch.full(shape, 5), torch.ones(shape, dtype=torch.bool), torch.full(shape, 5), (1,))

    def predictor(tokens, where, step, need):
        return Proposals(torch.zeros_like(tokens), *torch.zeros(2, *shape, dtype=torch.float64))

    left = []
    sample(
        "maskgit",
        predictor,
        batch,
        num_steps,
        schedule=Linear(),
        callback=lambda *args: left.append(int((args[2] == 5).sum())),
    )
    assert left == [90, 80, 70, 60, 50, 40, 30, 20, 10, 0]


def test_maskgit_without_noise_is_greedy():
    batch = mixed_requests()
    without_noise = sample("maskgit", Model(batch, True), batch, 100, choice_temperature=0.0)
    assert torch.equal(without_noise, sample("low_confidence", Model(batch, True), batch, 100))
    with_noise = sample("maskgit", Model(batch, True), batch, 100)
    assert (with_noise != without_noise).any()


@pytest.mark.parametrize("num_steps", [None, 2, 3])
@pytest.mark.parametrize("threshold", [0.5, 0.9, 1.0])
def test_threshold_keeps_exactly_the_draws_above_it(threshold, num_steps):
    batch = mixed_requests()
    forced, steps_taken = [], defaultdict(int)

    def choose(step, row, offers):
        confident = [i for i, (p, _) in offers.items() if p >= threshold]
        needed = 1
        if num_steps is not None:
            needed = max(1, math.ceil(len(offers) / (min(num_steps, num_masked(batch)[row]) - step)))
        forced.append(len(confident) < needed)
        steps_taken[row] = step + 1
        return confident if len(confident) >= needed else most_confident(offers, needed)

    tokens = sample("threshold", Model(batch), batch, num_steps, threshold=threshold)
    assert torch.equal(tokens, plain_loop(batch, choose))
    assert any(forced)
    assert threshold == 1.0 or num_steps == 2 or not all(forced)
    assert num_steps is None or max(steps_taken.values()) <= num_steps


@pytest.mark.parametrize("num_steps", [None, 3])
@pytest.mark.parametrize("gamma", [0.0, 0.4, 1.0, 2.0])
def test_the_entropy_bound_is_respected_and_reached(gamma, num_steps):
    batch = mixed_requests()
    sizes = set()

    def choose(step, row, offers):
        order = sorted(offers, key=lambda i: (offers[i][1], i))
        needed = 1
        if num_steps is not None:
            needed = math.ceil(len(offers) / (min(num_steps, num_masked(batch)[row]) - step))
        size = 1
        for candidate in range(1, len(order) + 1):
            entropies = [offers[i][1] for i in order[:candidate]]
            if sum(entropies) - max(entropies) <= gamma:
                size = candidate
        sizes.add(size)
        return order[: max(size, needed)]

    tokens = sample("entropy_bounded", Model(batch), batch, num_steps, gamma=gamma)
    assert torch.equal(tokens, plain_loop(batch, choose))
    assert sizes == {1} if gamma == 0 else len(sizes) > 1


def test_a_large_entropy_bound_fills_everything_and_zero_entropy_costs_nothing():
    batch = equal_requests(2, given=(MASK,) * LENGTH)

    def predictor(tokens, where, step, need):
        entropy = torch.tensor([0.0, 0.9, 0.0, 0.5, 0.0, 0.0, 0.7], dtype=torch.float64).expand(tokens.shape)
        return Proposals(BASES + tokens * 0, -entropy, entropy)

    def filled_first(gamma):
        seen = []
        sample(
            "entropy_bounded", predictor, batch, None, lambda *args: seen.append(args[2] - BASES != MASK), gamma=gamma
        )
        return seen[0][0].nonzero()[:, 0].tolist()

    assert filled_first(0.0) == [0, 2, 3, 4, 5]  # those of entropy 0, and one more
    assert filled_first(0.5) == [0, 2, 3, 4, 5, 6]  # 0.5 before the last one
    assert filled_first(1.2) == list(range(LENGTH))


# -- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [name for name in SAMPLERS if name != "blocks"])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 100])
def test_blocks_are_finished_from_left_to_right(inner, length):
    batch = mixed_requests()
    rank = torch.where(batch.masked, batch.masked.cumsum(1) - 1, LENGTH)
    seen = [batch.masked]
    sample(
        "blocks",
        Model(batch),
        batch,
        LENGTH,
        block_length=length,
        inner=inner,
        callback=lambda step, total, tokens: seen.append((tokens - BASES == MASK) & batch.masked),
    )
    current = [0] * len(rank)
    for before, after in itertools.pairwise(seen):
        for row, changed in enumerate(before != after):
            changed_blocks = set((rank[row][changed] // length).tolist())
            if changed_blocks:
                assert len(changed_blocks) == 1
                current[row], previous = changed_blocks.pop(), current[row]
                assert current[row] >= previous
                assert not (before[row] & (rank[row] // length < current[row])).any(), "a block was left unfinished"
    assert not seen[-1].any()


def test_blocks_of_one_are_autoregressive():
    batch = mixed_requests()
    expected = plain_loop(batch, lambda step, row, offers: [min(offers)])
    for inner in ("low_confidence", "random_order", "first_hitting", "threshold", "maskgit"):
        for num_steps in (LENGTH, 100, None):
            tokens = sample("blocks", Model(batch), batch, num_steps, block_length=1, inner=inner)
            assert torch.equal(tokens, expected), inner


def test_one_block_is_the_sampler_itself():
    batch = mixed_requests()
    for name in sorted(set(SAMPLERS) - {"blocks"}):
        alone = sample(name, Model(batch), batch, 4)
        assert torch.equal(sample("blocks", Model(batch), batch, 4, block_length=LENGTH, inner=name), alone), name


def test_steps_are_divided_by_length():
    batch = select_rows(mixed_requests(), [1, 1])  # seven positions: blocks of 3, 3, 1
    for num_steps, expected in ((3, [3, 3, 1]), (5, [2, 1, 2, 1, 1]), (7, [1] * 7), (50, [1] * 7)):
        seen = [batch.masked]
        sample(
            "blocks",
            Model(batch),
            batch,
            num_steps,
            block_length=3,
            callback=lambda step, total, tokens, seen=seen: seen.append(tokens - BASES == MASK),
        )
        filled = [int((before & ~after)[0].sum()) for before, after in itertools.pairwise(seen)]
        assert filled == expected


def test_requests_do_not_wait_for_each_other_at_the_end_of_a_block():
    batch = mixed_requests()
    model = Model(batch)
    sample("blocks", model, batch, 6, block_length=3, inner="threshold", threshold=0.6)
    is_queried = torch.stack(model.queries).any(2)  # [steps, B]
    assert (is_queried.cumprod(0).sum(0) == is_queried.sum(0)).all()
