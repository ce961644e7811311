"""Samplers that choose positions at random, against enumerated distributions."""

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
import torch
from sampler_fakes import BASES, LENGTH, MASK, Model, equal_requests, mixed_requests, probabilities, sample
from scipy.stats import chisquare

from triptych.diffusion.schedule import Cosine, Geometric, Linear, Polynomial

START = (MASK, 1, MASK, MASK, MASK)
REQUESTS = 20_000


def any_order_distribution(start=START):
    """The product of conditionals along an order, averaged over all orders."""
    free = [i for i, state in enumerate(start) if state == MASK]
    dist = defaultdict(float)
    orders = list(itertools.permutations(free))
    for order in orders:
        for values in itertools.product(range(3), repeat=len(free)):
            states, probability = list(start), 1 / len(orders)
            for i, value in zip(order, values):
                probability *= probabilities(states)[i, value]
                states[i] = value
            dist[tuple(states)] += probability
    return dist


def final_distribution(steps, start=START):
    """The distribution of the last state, over all paths. A step maps a state to (filled, masked again, chance)."""
    dist = {start: 1.0}
    for step in steps:
        after = defaultdict(float)
        for states, probability in dist.items():
            probs = probabilities(states)
            for filled, remasked, chance in step(states):
                base = list(states)
                for i in remasked:
                    base[i] = MASK
                for values in itertools.product(range(3), repeat=len(filled)):
                    for i, value in zip(filled, values):
                        base[i] = value
                    after[tuple(base)] += probability * chance * math.prod(probs[i, v] for i, v in zip(filled, values))
        dist = after
    assert sum(dist.values()) == pytest.approx(1)
    return dist


def subsets(items):
    return itertools.chain.from_iterable(itertools.combinations(items, size) for size in range(len(items) + 1))


def masked_in(states):
    return [i for i, state in enumerate(states) if state == MASK]


def independent(fill, remask=0.0, start=START):
    """A step that fills each masked position with one probability and masks each filled one with another."""

    def step(states):
        masked = masked_in(states)
        filled_before = [i for i in masked_in(start) if i not in masked]
        for filled in subsets(masked):
            p_filled = fill ** len(filled) * (1 - fill) ** (len(masked) - len(filled))
            for remasked in subsets(filled_before):
                p = p_filled * remask ** len(remasked) * (1 - remask) ** (len(filled_before) - len(remasked))
                if p:
                    yield filled, remasked, p

    return step


def fixed_count(count):
    """A step that fills this many masked positions, chosen uniformly."""

    def step(states):
        choices = list(itertools.combinations(masked_in(states), count))
        for filled in choices:
            yield filled, (), 1 / len(choices)

    return step


def p_value(tokens, dist):
    """Of a chi-square test of the frequencies of the results; rare results are merged."""
    assert len(dist) == 81
    states = (tokens - BASES[:5]).tolist()
    counts = defaultdict(int)
    for row in states:
        counts[tuple(row)] += 1
    assert set(counts) <= set(dist)
    expected = np.array([dist[key] for key in sorted(dist)]) * len(states)
    observed = np.array([counts[key] for key in sorted(dist)])
    order = np.argsort(expected)
    rare = np.searchsorted(expected[order].cumsum(), 8.0) + 1
    expected = np.concatenate([[expected[order[:rare]].sum()], expected[order[rare:]]])
    observed = np.concatenate([[observed[order[:rare]].sum()], observed[order[rare:]]])
    return chisquare(observed, expected * (len(states) / expected.sum())).pvalue


def test_one_position_per_step_gives_the_any_order_distribution():
    batch = equal_requests(REQUESTS)
    dist = any_order_distribution()
    assert p_value(sample("first_hitting", Model(batch), batch), dist) > 1e-3
    assert p_value(sample("random_order", Model(batch), batch, 4), dist) > 1e-3
    assert p_value(sample("random_order", Model(batch), batch, 1), dist) < 1e-9  # the test sees a difference
    left_to_right = sample("blocks", Model(batch), batch, None, block_length=1)
    assert p_value(left_to_right, dist) < 1e-9


def test_first_hitting_ignores_num_steps_and_random_order_needs_at_most_one_step_per_position():
    batch = mixed_requests()
    one_by_one = sample("first_hitting", Model(batch), batch)
    assert torch.equal(sample("first_hitting", Model(batch), batch, 2), one_by_one)
    assert torch.equal(sample("random_order", Model(batch), batch, 1000), one_by_one)
    model = Model(batch)
    sample("first_hitting", model, batch)
    queries = torch.stack(model.queries).sum(2)  # [steps, B]
    assert (queries.sum(0) == batch.masked.sum(1)).all()
    assert (queries == (torch.arange(LENGTH)[:, None] < batch.masked.sum(1))).all()


def test_ancestral_with_many_steps_gives_the_any_order_distribution():
    batch = equal_requests(5000)
    model = Model(batch)
    assert p_value(sample("ancestral", model, batch, 150), any_order_distribution()) > 1e-3
    assert len(model.steps) > 100


@pytest.mark.parametrize("schedule", [Linear(), Cosine(), Polynomial(2.0), Geometric()], ids=repr)
def test_ancestral_in_three_steps_has_the_enumerated_distribution(schedule):
    batch = equal_requests(REQUESTS)
    alpha = [float(schedule.alpha(torch.tensor(t, dtype=torch.float64))) for t in (1, 2 / 3, 1 / 3)]
    chances = [(s - t) / (1 - t) for t, s in itertools.pairwise(alpha)]
    tokens = sample("ancestral", Model(batch), batch, 3, schedule=schedule)
    assert p_value(tokens, final_distribution([independent(chance) for chance in [*chances, 1.0]])) > 1e-3
    wrong = final_distribution([independent(chance) for chance in [chances[0] + 0.2, chances[1], 1.0]])
    assert p_value(tokens, wrong) < 1e-3


@pytest.mark.parametrize("name", ["ancestral", "remdm", "maskgit"])
def test_the_last_step_fills_everything_whatever_the_schedule(name):
    batch = equal_requests(50, given=(MASK,) * LENGTH)
    schedule = Geometric(lowest=0.5, highest=20.0)  # at time 0 it still masks 39 %
    model = Model(batch)
    tokens = sample(name, model, batch, 4, schedule=schedule)
    assert ((tokens - BASES) < MASK).all()
    assert model.steps[-1] == 3


def test_ancestral_queries_only_positions_it_fills_and_skips_empty_steps():
    batch = equal_requests(1, given=(MASK,) * LENGTH)
    model = Model(batch)
    calls = []
    sample("ancestral", model, batch, 100, callback=lambda *args: calls.append(args))
    assert sum(int(where.sum()) for where in model.queries) == LENGTH
    assert len(model.steps) <= LENGTH < len(calls)


@pytest.mark.parametrize(("num_steps", "counts"), [(1, [4]), (2, [2, 2]), (3, [2, 1, 1])])
def test_random_order_has_the_enumerated_distribution(num_steps, counts):
    batch = equal_requests(REQUESTS)
    model = Model(batch)
    tokens = sample("random_order", model, batch, num_steps)
    assert [where.sum(1).unique().tolist() for where in model.queries] == [[count] for count in counts]
    assert p_value(tokens, final_distribution([fixed_count(count) for count in counts])) > 1e-3


@pytest.mark.parametrize(("variant", "eta"), [("cap", 0.3), ("rescale", 0.4)])
def test_remdm_in_four_steps_has_the_enumerated_distribution(variant, eta):
    batch = equal_requests(REQUESTS)
    tokens = sample("remdm", Model(batch), batch, 4, variant=variant, eta=eta)
    steps = [independent(0.25)]  # nothing is filled yet that could be masked again
    for t, s in ((0.25, 0.5), (0.5, 0.75)):
        limit = min(1, (1 - s) / t)
        sigma = min(eta, limit) if variant == "cap" else eta * limit
        steps.append(independent((s - (1 - sigma) * t) / (1 - t), sigma))
    assert p_value(tokens, final_distribution([*steps, independent(1.0)])) > 1e-3
    without_remasking = final_distribution([independent(p) for p in (1 / 4, 1 / 3, 1 / 2, 1.0)])
    assert p_value(tokens, without_remasking) < 1e-3


@pytest.mark.parametrize(("variant", "eta"), [("cap", 0.2), ("rescale", 1.0), ("rescale", 0.1)])
@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=repr)
def test_remdm_keeps_the_masking_rate_of_the_schedule(variant, eta, schedule):
    batch = equal_requests(2000, given=(MASK, MASK, 1, MASK, MASK, MASK, 0))
    seen, num_steps = [], 10
    sample(
        "remdm",
        Model(batch),
        batch,
        num_steps,
        variant=variant,
        eta=eta,
        schedule=schedule,
        callback=lambda step, total, tokens: seen.append(tokens - BASES == MASK),
    )
    assert len(seen) == num_steps
    for k, masked in enumerate(seen):
        rate = 1 - float(schedule.alpha(torch.tensor(1 - (k + 1) / num_steps, dtype=torch.float64)))
        error = math.sqrt(rate * (1 - rate) / 10_000)
        assert masked[:, [0, 1, 3, 4, 5]].double().mean().item() == pytest.approx(rate, abs=4.5 * error + 1e-12), k
        assert not masked[:, [2, 6]].any()
    assert any((~earlier & later).any() for earlier, later in itertools.pairwise(seen)), "nothing was masked again"


def test_remdm_without_remasking_is_ancestral():
    batch = mixed_requests()
    for variant in ("cap", "rescale"):
        tokens = sample("remdm", Model(batch), batch, 6, variant=variant, eta=0.0)
        assert torch.equal(tokens, sample("ancestral", Model(batch), batch, 6))
    default = sample("remdm", Model(batch), batch, 6)
    assert torch.equal(default, sample("remdm", Model(batch), batch, 6, variant="rescale", eta=0.015))
