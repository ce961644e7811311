"""Samplers against laws that are enumerated and rules that are restated in plain loops, on a model that is a table."""

import itertools
import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from triptych.diffusion.schedule import Cosine, Geometric, Linear, Polynomial
from triptych.errors import UserError
from triptych.sample import samplers as unmask
from triptych.sample.batch import Proposals, RequestBatch
from triptych.sample.samplers import SAMPLERS
from triptych.utils.rng import SampleStream

MASK = 3  # a state is 0, 1, 2 or masked
LENGTH = 7
BASES = torch.tensor([10, 10, 10, 10, 20, 20, 20])  # ids of two modalities: a state is id - base


def table_of(length, seed=0):
    """[4^T, T, 3] an arbitrary law of every position for every context: in general of no joint distribution at all."""
    return np.random.default_rng(seed).dirichlet([0.7] * 3, size=(4**length, length))


TABLES = {length: table_of(length) for length in (5, LENGTH)}


def law_at(states):
    """[T, 3] what the model says of each position in a context of states."""
    return TABLES[len(states)][sum(state * 4**i for i, state in enumerate(states))]


class Model:
    """Proposes from the table, and checks what it is asked. What it is not asked for is rubbish."""

    def __init__(self, group, greedy=False):
        self.group, self.greedy, self.steps, self.asked = group, greedy, [], []
        self.table = torch.from_numpy(TABLES[group.tokens.shape[1]])
        self.bases = BASES[: group.tokens.shape[1]]

    def __call__(self, tokens, where, step, wants):
        assert where.any(), "a look at nothing"
        assert ((tokens == self.group.mask_ids) & self.group.masked)[where].all(), "asked for what is not masked"
        assert torch.equal(tokens[~self.group.masked], self.group.tokens[~self.group.masked])
        assert not self.steps or step > self.steps[-1], "a step number came twice"
        self.steps.append(step)
        self.asked.append(where.clone())
        context = ((tokens - self.bases) * 4 ** torch.arange(tokens.shape[1])).sum(1)
        dist = self.table[context]
        if self.greedy:
            drawn = dist.argmax(-1)
        else:
            uniform = self.group.uniform(step, SampleStream.TOKEN)
            drawn = (dist.cumsum(-1) <= uniform[..., None]).sum(-1).clamp(max=2)
        log_prob = dist.gather(-1, drawn[..., None])[..., 0].log()
        entropy = -(
            dist[..., 0] * dist[..., 0].log() + dist[..., 1] * dist[..., 1].log() + dist[..., 2] * dist[..., 2].log()
        )
        return Proposals(
            torch.where(where, self.bases + drawn, -1),
            torch.where(where & torch.tensor(wants == "confidence"), log_prob, math.nan),
            torch.where(where & torch.tensor(wants == "entropy"), entropy, math.nan),
        )


def group_of(states, masked, seeds):
    """States [B, T] where given; what is to be generated is masked."""
    bases = BASES[: states.shape[1]]
    tokens = torch.where(masked, MASK, states) + bases
    return RequestBatch(tokens, masked, (bases + MASK).expand_as(tokens).contiguous(), tuple(seeds))


def many(requests, given=(MASK, 1, MASK, MASK, MASK)):
    """Equal requests with seeds of their own."""
    states = torch.tensor(given).repeat(requests, 1)
    return group_of(states, states == MASK, range(100, 100 + requests))


def ragged(requests=40, seed=0):
    """All sorts: nothing masked, all masked, given positions that hold a MASK as a hidden text does."""
    rng = np.random.default_rng(seed)
    states = torch.from_numpy(rng.integers(0, 3, (requests, LENGTH)))
    masked = torch.from_numpy(rng.random((requests, LENGTH)) < rng.random((requests, 1)))
    masked[0], masked[1], masked[2] = False, True, torch.tensor([0, 0, 0, 1, 0, 0, 0]).bool()
    states[3, 0], masked[3, 0] = MASK, False
    return group_of(states, masked, rng.integers(0, 2**60, requests).tolist())


def rows_of(group, rows):
    return RequestBatch(
        group.tokens[rows], group.masked[rows], group.mask_ids[rows], tuple(np.array(group.seeds)[rows].tolist())
    )


# Every sampler, and every sampler inside blocks, with options that make its rules matter at seven positions.
CASES = {
    "ancestral": (SAMPLERS["ancestral"], {"schedule": Polynomial(1.7)}),
    "first_hitting": (SAMPLERS["first_hitting"], {}),
    "random_order": (SAMPLERS["random_order"], {}),
    "remdm": (SAMPLERS["remdm"], {"eta": 0.4}),
    "low_confidence": (SAMPLERS["low_confidence"], {}),
    "maskgit": (SAMPLERS["maskgit"], {}),
    "threshold": (SAMPLERS["threshold"], {"threshold": 0.6}),
    "entropy_bounded": (SAMPLERS["entropy_bounded"], {"gamma": 0.8}),
    "blocks": (SAMPLERS["blocks"], {"block_length": 3}),
}
CASES |= {
    f"{name} in blocks": (SAMPLERS["blocks"], {"block_length": 3, "inner": name, **options})
    for name, (_, options) in CASES.items()
    if name not in ("blocks", "low_confidence")
}
every_sampler = pytest.mark.parametrize("case", CASES)


def run(case, group, steps, callback=None, greedy=False):
    sampler, options = CASES[case]
    model = Model(group, greedy)
    return sampler(model, group, steps, callback=callback, **options), model


def test_every_sampler_is_in_the_table_and_tested():
    assert {getattr(unmask, name) for name in SAMPLERS} == set(SAMPLERS.values())
    assert set(SAMPLERS) <= set(CASES)
    assert all(f"{name} in blocks" in CASES for name in sorted(set(SAMPLERS) - {"blocks", "low_confidence"}))


# -- what all samplers promise ----------------------------------------------------------------------------------------


@every_sampler
@pytest.mark.parametrize("steps", [3, 4, 50, None])
def test_nothing_is_left_masked_and_given_positions_stay(case, steps):
    group = ragged()
    before = replace(group, tokens=group.tokens.clone(), masked=group.masked.clone())
    tokens, model = run(case, group, steps)
    states = tokens - BASES
    assert ((states >= 0) & (states < MASK))[group.masked].all()
    assert torch.equal(tokens[~group.masked], group.tokens[~group.masked])
    assert tokens.dtype == torch.int64
    assert torch.equal(group.tokens, before.tokens)
    assert torch.equal(group.masked, before.masked)
    most = LENGTH if steps is None or "first_hitting" in case else steps
    assert len(model.steps) <= most
    looks = torch.stack(model.asked).any(2).sum(0)  # in which a request takes part
    if not any(name in case for name in ("ancestral", "remdm", "first_hitting")):
        assert (looks <= torch.minimum(group.masked.sum(1), torch.tensor(most))).all()


@every_sampler
@pytest.mark.parametrize("steps", [3, 6, None])
def test_a_request_gives_the_same_tokens_alone_and_in_company(case, steps):
    group = ragged(300)
    whole, _ = run(case, group, steps)
    alike = [(group.masked.sum(1) == count).nonzero()[:, 0].tolist() for count in range(LENGTH + 1)]
    for rows in [*([i] for i in range(8)), *alike, [7, 1, 30, 11], list(range(39, 0, -1))]:
        part, _ = run(case, rows_of(group, rows), steps)
        assert torch.equal(part, whole[rows]), rows


@every_sampler
def test_seeds_matter_and_repeat(case):
    group = many(300, given=(MASK,) * LENGTH)
    first, _ = run(case, group, 4)
    again, _ = run(case, group, 4)
    other, _ = run(case, replace(group, seeds=tuple(seed + 1000 for seed in group.seeds)), 4)
    assert torch.equal(first, again)
    assert len(first.unique(dim=0)) > 50
    assert (first != other).any(1).float().mean() > 0.9


@every_sampler
def test_the_callback_hears_of_every_step(case):
    group = ragged()
    heard = []
    tokens, model = run(case, group, 5, callback=lambda *args: heard.append(args))
    steps = [step for step, _, _ in heard]
    assert steps == list(range(len(steps)))
    assert {most for _, most, _ in heard} == {LENGTH if "first_hitting" in case else 5}
    assert len(steps) <= heard[0][1]
    assert set(model.steps) <= set(steps)
    assert torch.equal(heard[-1][2], tokens)
    left = [(((now - BASES) == MASK) & group.masked).sum(1) for _, _, now in heard]
    assert left[0].sum() < group.masked.sum()
    assert left[-1].sum() == 0
    if "remdm" not in case:
        assert all((later <= earlier).all() for earlier, later in itertools.pairwise(left))


@every_sampler
def test_nothing_to_do_costs_nothing(case):
    heard = []
    for group in (rows_of(ragged(), [0, 0]), rows_of(ragged(), []), rows_of(ragged(), [0])):
        tokens, model = run(case, group, 5, callback=lambda *args: heard.append(args))
        assert torch.equal(tokens, group.tokens)
        assert tokens.shape == group.tokens.shape
        assert not model.steps
    assert not heard


@pytest.mark.parametrize("case", [case for case in CASES if "block" not in case and case != "first_hitting"])
def test_one_step_fills_in_everything_at_once(case):
    group = ragged()
    tokens, model = run(case, group, 1)
    assert len(model.steps) == 1
    assert torch.equal(model.asked[0], group.masked)
    drawn = Model(group)(group.tokens, group.masked, 0, "ids").ids
    assert torch.equal(tokens, torch.where(group.masked, drawn, group.tokens))


@pytest.mark.parametrize(
    ("name", "steps", "options", "message"),
    [
        *(
            (name, 0, {}, "steps must be a whole number of at least 1, got 0")
            for name in sorted(set(SAMPLERS) - {"first_hitting"})
        ),
        ("ancestral", -3, {}, "got -3"),
        ("random_order", 2.0, {}, "got 2.0"),
        ("random_order", True, {}, "got True"),
        ("random_order", "10", {}, "got '10'"),
        ("threshold", 4, {"threshold": 0.0}, "above 0 and at most 1, got 0.0"),
        ("threshold", 4, {"threshold": 1.01}, "above 0 and at most 1"),
        ("threshold", 4, {"threshold": math.nan}, "above 0 and at most 1"),
        ("entropy_bounded", 4, {"gamma": -0.1}, "gamma must be 0 or more, got -0.1"),
        ("entropy_bounded", 4, {"gamma": math.nan}, "gamma must be 0 or more"),
        ("maskgit", 4, {"choice_temperature": -1.0}, "choice_temperature must be 0 or more"),
        ("remdm", 4, {"eta": -0.1}, "eta must lie between 0 and 1, got -0.1"),
        ("remdm", 4, {"eta": 1.5}, "eta must lie between 0 and 1"),
        ("remdm", 4, {"variant": "capp"}, "unknown variant of remdm 'capp'. Did you mean 'cap'?"),
        ("blocks", 4, {"block_length": 0}, "block_length must be a whole number of at least 1, got 0"),
        ("blocks", 4, {"inner": "treshold"}, "'treshold'. Did you mean 'threshold'?"),
        ("blocks", 4, {"inner": "blocks"}, "unknown sampler inside blocks 'blocks'"),
        (
            "blocks",
            2,
            {"block_length": 3},
            "2 steps are too few for 3 blocks of 3 positions: take at least 3 steps, or a",
        ),
    ],
)
def test_bad_arguments_are_refused_before_the_first_look(name, steps, options, message):
    group = ragged()
    model = Model(group)
    with pytest.raises(UserError) as error:
        SAMPLERS[name](model, group, steps, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not model.steps


# -- laws of random orders --------------------------------------------------------------------------------------------

START = (MASK, 1, MASK, MASK, MASK)
REQUESTS = 20_000


def any_order_law(start=START):
    """The product of conditionals along an order, averaged over all orders."""
    free = [i for i, state in enumerate(start) if state == MASK]
    dist = defaultdict(float)
    orders = list(itertools.permutations(free))
    for order in orders:
        for values in itertools.product(range(3), repeat=len(free)):
            states, probability = list(start), 1 / len(orders)
            for i, value in zip(order, values):
                probability *= law_at(states)[i, value]
                states[i] = value
            dist[tuple(states)] += probability
    return dist


def law_of(steps, start=START):
    """The law of the last state, by following every way through. A step maps a state to (filled, masked again, p)."""
    dist = {start: 1.0}
    for step in steps:
        after = defaultdict(float)
        for states, probability in dist.items():
            says = law_at(states)
            for filled, again, chance in step(states):
                base = list(states)
                for i in again:
                    base[i] = MASK
                for values in itertools.product(range(3), repeat=len(filled)):
                    for i, value in zip(filled, values):
                        base[i] = value
                    after[tuple(base)] += probability * chance * math.prod(says[i, v] for i, v in zip(filled, values))
        dist = after
    assert sum(dist.values()) == pytest.approx(1)
    return dist


def subsets(items):
    return itertools.chain.from_iterable(itertools.combinations(items, size) for size in range(len(items) + 1))


def masked_in(states):
    return [i for i, state in enumerate(states) if state == MASK]


def by_coins(fill, again=0.0, start=START):
    """Every masked position is filled in with one probability, every filled one masked again with another."""

    def step(states):
        masked = masked_in(states)
        done = [i for i in masked_in(start) if i not in masked]
        for filled in subsets(masked):
            p_filled = fill ** len(filled) * (1 - fill) ** (len(masked) - len(filled))
            for back in subsets(done):
                p = p_filled * again ** len(back) * (1 - again) ** (len(done) - len(back))
                if p:
                    yield filled, back, p

    return step


def by_count(count):
    def step(states):
        chosen = list(itertools.combinations(masked_in(states), count))
        for filled in chosen:
            yield filled, (), 1 / len(chosen)

    return step


def p_value(tokens, dist):
    """Of a chi-square test of how often each result came; rare ones are taken together."""
    assert len(dist) == 81
    states = (tokens - BASES[:5]).tolist()
    seen = defaultdict(int)
    for row in states:
        seen[tuple(row)] += 1
    assert set(seen) <= set(dist)
    expected = np.array([dist[key] for key in sorted(dist)]) * len(states)
    observed = np.array([seen[key] for key in sorted(dist)])
    order = np.argsort(expected)
    rare = np.searchsorted(expected[order].cumsum(), 8.0) + 1
    expected = np.concatenate([[expected[order[:rare]].sum()], expected[order[rare:]]])
    observed = np.concatenate([[observed[order[:rare]].sum()], observed[order[rare:]]])
    return chisquare(observed, expected * (len(states) / expected.sum())).pvalue


def test_one_at_a_time_is_the_any_order_law():
    group = many(REQUESTS)
    dist = any_order_law()
    assert p_value(unmask.first_hitting(Model(group), group), dist) > 1e-3
    assert p_value(unmask.random_order(Model(group), group, 4), dist) > 1e-3
    assert p_value(unmask.random_order(Model(group), group, 1), dist) < 1e-9  # the judge can tell
    left_to_right = unmask.blocks(Model(group), group, None, block_length=1)
    assert p_value(left_to_right, dist) < 1e-9


def test_steps_do_not_matter_to_first_hitting_and_no_more_than_n_to_random_order():
    group = ragged()
    one_by_one = unmask.first_hitting(Model(group), group)
    assert torch.equal(unmask.first_hitting(Model(group), group, 2), one_by_one)
    assert torch.equal(unmask.random_order(Model(group), group, 1000), one_by_one)
    model = Model(group)
    unmask.first_hitting(model, group)
    asked = torch.stack(model.asked).sum(2)  # [looks, B]
    assert (asked.sum(0) == group.masked.sum(1)).all()
    assert (asked == (torch.arange(LENGTH)[:, None] < group.masked.sum(1))).all()


def test_ancestral_with_many_steps_is_the_any_order_law():
    group = many(5000)
    model = Model(group)
    assert p_value(unmask.ancestral(model, group, 150), any_order_law()) > 1e-3
    assert len(model.steps) > 100


@pytest.mark.parametrize("schedule", [Linear(), Cosine(), Polynomial(2.0), Geometric()], ids=repr)
def test_ancestral_in_three_steps_is_its_own_law(schedule):
    group = many(REQUESTS)
    alpha = [float(schedule.alpha(torch.tensor(t, dtype=torch.float64))) for t in (1, 2 / 3, 1 / 3)]
    chances = [(s - t) / (1 - t) for t, s in itertools.pairwise(alpha)]
    tokens = unmask.ancestral(Model(group), group, 3, schedule=schedule)
    assert p_value(tokens, law_of([by_coins(chance) for chance in [*chances, 1.0]])) > 1e-3
    wrong = law_of([by_coins(chance) for chance in [chances[0] + 0.2, chances[1], 1.0]])
    assert p_value(tokens, wrong) < 1e-3


@pytest.mark.parametrize("name", ["ancestral", "remdm", "maskgit"])
def test_a_schedule_that_never_comes_to_an_end_is_ended(name):
    group = many(50, given=(MASK,) * LENGTH)
    schedule = Geometric(lowest=0.5, highest=20.0)  # at time 0 it still masks 39 %
    model = Model(group)
    tokens = SAMPLERS[name](model, group, 4, schedule=schedule)
    assert ((tokens - BASES) < MASK).all()
    assert model.steps[-1] == 3


def test_a_time_has_the_same_alpha_alone_and_in_company():
    """`pow` on a tensor takes another path for the last few elements, and the last bit can differ."""
    times = torch.rand(1001, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alpha = Polynomial(1.7).alpha
    whole = unmask._rowwise(alpha, times)
    assert (alpha(times) - whole).abs().max() < 1e-15
    assert all(torch.equal(unmask._rowwise(alpha, times[i : i + 1])[0], whole[i]) for i in range(0, 1001, 5))


def test_ancestral_asks_only_for_what_it_fills_in_and_skips_empty_steps():
    group = many(1, given=(MASK,) * LENGTH)
    model = Model(group)
    heard = []
    unmask.ancestral(model, group, 100, callback=lambda *args: heard.append(args))
    assert sum(int(where.sum()) for where in model.asked) == LENGTH
    assert len(model.steps) <= LENGTH < len(heard)


@pytest.mark.parametrize(("steps", "counts"), [(1, [4]), (2, [2, 2]), (3, [2, 1, 1])])
def test_random_order_is_the_law_of_its_counts(steps, counts):
    group = many(REQUESTS)
    model = Model(group)
    tokens = unmask.random_order(model, group, steps)
    assert [where.sum(1).unique().tolist() for where in model.asked] == [[count] for count in counts]
    assert p_value(tokens, law_of([by_count(count) for count in counts])) > 1e-3


@pytest.mark.parametrize(("variant", "eta"), [("cap", 0.3), ("rescale", 0.4)])
def test_remdm_in_four_steps_is_its_own_law(variant, eta):
    group = many(REQUESTS)
    tokens = unmask.remdm(Model(group), group, 4, variant=variant, eta=eta)
    steps = [by_coins(0.25)]  # nothing is there to be masked again
    for t, s in ((0.25, 0.5), (0.5, 0.75)):
        most = min(1, (1 - s) / t)
        sigma = min(eta, most) if variant == "cap" else eta * most
        steps.append(by_coins((s - (1 - sigma) * t) / (1 - t), sigma))
    assert p_value(tokens, law_of([*steps, by_coins(1.0)])) > 1e-3
    without = law_of([by_coins(p) for p in (1 / 4, 1 / 3, 1 / 2, 1.0)])
    assert p_value(tokens, without) < 1e-3


@pytest.mark.parametrize(("variant", "eta"), [("cap", 0.2), ("rescale", 1.0), ("rescale", 0.1)])
@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=repr)
def test_remdm_keeps_as_many_masked_as_the_schedule_says(variant, eta, schedule):
    group = many(2000, given=(MASK, MASK, 1, MASK, MASK, MASK, 0))
    seen, steps = [], 10
    unmask.remdm(
        Model(group),
        group,
        steps,
        variant=variant,
        eta=eta,
        schedule=schedule,
        callback=lambda step, most, tokens: seen.append(tokens - BASES == MASK),
    )
    assert len(seen) == steps
    for k, masked in enumerate(seen):
        rate = 1 - float(schedule.alpha(torch.tensor(1 - (k + 1) / steps, dtype=torch.float64)))
        error = math.sqrt(rate * (1 - rate) / 10_000)
        assert masked[:, [0, 1, 3, 4, 5]].double().mean().item() == pytest.approx(rate, abs=4.5 * error + 1e-12), k
        assert not masked[:, [2, 6]].any()
    assert any((~earlier & later).any() for earlier, later in itertools.pairwise(seen)), "nothing was masked again"


def test_remdm_without_remasking_is_ancestral():
    group = ragged()
    for variant in ("cap", "rescale"):
        made = unmask.remdm(Model(group), group, 6, variant=variant, eta=0.0)
        assert torch.equal(made, unmask.ancestral(Model(group), group, 6))
    default = unmask.remdm(Model(group), group, 6)
    assert torch.equal(default, unmask.remdm(Model(group), group, 6, variant="rescale", eta=0.015))


# -- rules of confidence, restated row by row -------------------------------------------------------------------------


def plain(group, choose, greedy=False):
    """What a sampler should give, row by row: choose(look, row, {position: (probability, entropy)}) -> positions."""
    made = []
    for row, (tokens, masked) in enumerate(zip(group.tokens, group.masked)):
        states = (tokens - BASES).tolist()
        left = [i for i in range(LENGTH) if masked[i]]
        look = 0
        while left:
            says = law_at(states)
            uniform = group.uniform(look, SampleStream.TOKEN)[row].tolist()
            drawn, offers = {}, {}
            for i in left:
                running = list(itertools.accumulate(says[i]))
                drawn[i] = int(says[i].argmax()) if greedy else min(sum(c <= uniform[i] for c in running), 2)
                offers[i] = says[i][drawn[i]], -sum(p * math.log(p) for p in says[i])
            for i in choose(look, row, offers):
                states[i] = drawn[i]
                left.remove(i)
            look += 1
        made.append(states)
    return torch.tensor(made) + BASES


def surest(offers, count):
    return sorted(offers, key=lambda i: (-offers[i][0], i))[:count]


def num_masked(group):
    return group.masked.sum(1).tolist()


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("greedy", [True, False])
def test_low_confidence_is_lladas_loop(steps, greedy):
    group = ragged()

    def choose(look, row, offers):
        n = num_masked(group)[row]
        counts = [n // steps + (1 if k < n % steps else 0) for k in range(steps)]
        return surest(offers, counts[look])

    tokens = unmask.low_confidence(Model(group, greedy), group, steps)
    assert torch.equal(tokens, plain(group, choose, greedy))
    if greedy:
        other = replace(group, seeds=tuple(seed + 1 for seed in group.seeds))
        assert torch.equal(unmask.low_confidence(Model(other, greedy), other, steps), tokens)


def test_equal_confidence_goes_from_left_to_right():
    group = many(3, given=(MASK,) * LENGTH)

    def indifferent(tokens, where, step, wants):
        return Proposals(BASES + tokens * 0, torch.full(tokens.shape, -1.0).double(), torch.ones(tokens.shape).double())

    for name, options in (("low_confidence", {}), ("threshold", {}), ("entropy_bounded", {"gamma": 0.5})):
        seen = []
        SAMPLERS[name](indifferent, group, 7, **options, callback=lambda *args, seen=seen: seen.append(args[2] - BASES))
        for k, states in enumerate(seen):
            assert ((states == MASK) == (torch.arange(LENGTH) > k)).all(), name


def test_an_answer_that_is_not_a_number_does_not_hang_a_sampler():
    group = many(2, given=(MASK,) * 5 + (0, 0))

    def broken(tokens, where, step, wants):
        nan = torch.full(tokens.shape, math.nan, dtype=torch.float64)
        return Proposals(BASES + tokens * 0, nan, nan)

    for name in SAMPLERS:
        assert torch.equal(SAMPLERS[name](broken, group, 3), BASES.expand(2, LENGTH)), name


@pytest.mark.parametrize("steps", [2, 3, 5, 9])
def test_maskgit_is_its_own_loop(steps):
    group = ragged()
    left = {}

    def choose(look, row, offers):
        n = num_masked(group)[row]
        looks = min(steps, n)
        k = look + 1
        aim = math.floor(n * math.cos(math.pi / 2 * k / looks) + 1e-9)
        left[row, look] = 0 if k == looks else max(1, min(aim, len(offers) - 1))
        noise = -np.log(-np.log(group.uniform(look, SampleStream.CONFIDENCE)[row].numpy()))
        sure = {i: math.log(p) + 4.5 * (1 - k / looks) * noise[i] for i, (p, _) in offers.items()}
        return sorted(offers, key=lambda i: (-sure[i], i))[: len(offers) - left[row, look]]

    expected = plain(group, choose)
    assert torch.equal(unmask.maskgit(Model(group), group, steps), expected)
    assert max(look for _, look in left) + 1 == min(steps, LENGTH)


def test_maskgit_counts_follow_the_cosine_or_another_schedule():
    group = many(2, given=(MASK,) * LENGTH)
    # 7 cos(pi k / 8) = 6.47, 4.95, 2.68, 0; and 7 (1 - k/4) = 5.25, 3.5, 1.75, 0
    for options, expected in (({}, [6, 4, 2, 0]), ({"schedule": Linear()}, [5, 3, 1, 0])):
        left = []
        unmask.maskgit(
            Model(group), group, 4, callback=lambda *args, to=left: to.append(args[2] - BASES == MASK), **options
        )
        assert [masked.sum(1).unique().tolist() for masked in left] == [[count] for count in expected]


def test_maskgit_counts_that_are_whole_are_not_rounded_down():
    size, steps = 100, 10  # tenths are not whole in binary
    shape = (1, size)
    group = RequestBatch(torch.full(shape, 5), torch.ones(shape, dtype=torch.bool), torch.full(shape, 5), (1,))

    def propose(tokens, where, step, wants):
        return Proposals(torch.zeros_like(tokens), *torch.zeros(2, *shape, dtype=torch.float64))

    left = []
    unmask.maskgit(
        propose, group, steps, schedule=Linear(), callback=lambda *args: left.append(int((args[2] == 5).sum()))
    )
    assert left == [90, 80, 70, 60, 50, 40, 30, 20, 10, 0]


def test_without_noise_maskgit_is_greedy():
    group = ragged()
    quiet = unmask.maskgit(Model(group, True), group, 100, choice_temperature=0.0)
    assert torch.equal(quiet, unmask.low_confidence(Model(group, True), group, 100))
    loud = unmask.maskgit(Model(group, True), group, 100)
    assert (loud != quiet).any()


@pytest.mark.parametrize("steps", [None, 2, 3])
@pytest.mark.parametrize("least", [0.5, 0.9, 1.0])
def test_threshold_keeps_exactly_what_is_sure_enough(least, steps):
    group = ragged()
    forced, looks = [], defaultdict(int)

    def choose(look, row, offers):
        sure = [i for i, (p, _) in offers.items() if p >= least]
        needed = 1 if steps is None else max(1, math.ceil(len(offers) / (min(steps, num_masked(group)[row]) - look)))
        forced.append(len(sure) < needed)
        looks[row] = look + 1
        return sure if len(sure) >= needed else surest(offers, needed)

    assert torch.equal(unmask.threshold(Model(group), group, steps, threshold=least), plain(group, choose))
    assert any(forced)
    assert least == 1.0 or steps == 2 or not all(forced)
    assert steps is None or max(looks.values()) <= steps


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("gamma", [0.0, 0.4, 1.0, 2.0])
def test_entropy_bound_is_respected_and_reached(gamma, steps):
    group = ragged()
    sizes = set()

    def choose(look, row, offers):
        order = sorted(offers, key=lambda i: (offers[i][1], i))
        needed = 1 if steps is None else math.ceil(len(offers) / (min(steps, num_masked(group)[row]) - look))
        size = 1
        for candidate in range(1, len(order) + 1):
            entropies = [offers[i][1] for i in order[:candidate]]
            if sum(entropies) - max(entropies) <= gamma:
                size = candidate
        sizes.add(size)
        return order[: max(size, needed)]

    assert torch.equal(unmask.entropy_bounded(Model(group), group, steps, gamma=gamma), plain(group, choose))
    assert sizes == {1} if gamma == 0 else len(sizes) > 1


def test_no_bound_at_all_fills_in_everything_and_certain_positions_are_free():
    group = many(2, given=(MASK,) * LENGTH)

    def model(tokens, where, step, wants):
        entropy = torch.tensor([0.0, 0.9, 0.0, 0.5, 0.0, 0.0, 0.7], dtype=torch.float64).expand(tokens.shape)
        return Proposals(BASES + tokens * 0, -entropy, entropy)

    def first(gamma):
        seen = []
        unmask.entropy_bounded(model, group, gamma=gamma, callback=lambda *args: seen.append(args[2] - BASES != MASK))
        return seen[0][0].nonzero()[:, 0].tolist()

    assert first(0.0) == [0, 2, 3, 4, 5]  # those of no entropy, and one more
    assert first(0.5) == [0, 2, 3, 4, 5, 6]  # 0.5 before the last one
    assert first(1.2) == list(range(LENGTH))


# -- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [name for name in SAMPLERS if name != "blocks"])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 100])
def test_blocks_are_finished_from_left_to_right(inner, length):
    group = ragged()
    place = torch.where(group.masked, group.masked.cumsum(1) - 1, LENGTH)
    seen = [group.masked]
    unmask.blocks(
        Model(group),
        group,
        LENGTH,
        block_length=length,
        inner=inner,
        callback=lambda step, most, tokens: seen.append((tokens - BASES == MASK) & group.masked),
    )
    current = [0] * len(place)
    for before, after in itertools.pairwise(seen):
        for row, changed in enumerate(before != after):
            worked_on = set((place[row][changed] // length).tolist())
            if worked_on:
                assert len(worked_on) == 1
                current[row], previous = worked_on.pop(), current[row]
                assert current[row] >= previous
                assert not (before[row] & (place[row] // length < current[row])).any(), "a block was left unfinished"
    assert not seen[-1].any()


def test_blocks_of_one_are_autoregressive():
    group = ragged()
    expected = plain(group, lambda look, row, offers: [min(offers)])
    for inner in ("low_confidence", "random_order", "first_hitting", "threshold", "maskgit"):
        for steps in (LENGTH, 100, None):
            tokens = unmask.blocks(Model(group), group, steps, block_length=1, inner=inner)
            assert torch.equal(tokens, expected), inner


def test_one_block_is_the_sampler_itself():
    group = ragged()
    for name in sorted(set(SAMPLERS) - {"blocks"}):
        alone = SAMPLERS[name](Model(group), group, 4)
        assert torch.equal(unmask.blocks(Model(group), group, 4, block_length=LENGTH, inner=name), alone), name


def test_steps_are_divided_by_length():
    group = rows_of(ragged(), [1, 1])  # seven positions: blocks of 3, 3, 1
    for steps, expected in ((3, [3, 3, 1]), (5, [2, 1, 2, 1, 1]), (7, [1] * 7), (50, [1] * 7)):
        seen = [group.masked]
        unmask.blocks(
            Model(group),
            group,
            steps,
            block_length=3,
            callback=lambda step, most, tokens, seen=seen: seen.append(tokens - BASES == MASK),
        )
        filled = [int((before & ~after)[0].sum()) for before, after in itertools.pairwise(seen)]
        assert filled == expected


def test_a_request_does_not_wait_for_others_at_the_end_of_a_block():
    group = ragged()
    model = Model(group)
    unmask.blocks(model, group, 6, block_length=3, inner="threshold", threshold=0.6)
    asked = torch.stack(model.asked).any(2)  # [looks, B]
    assert (asked.cumprod(0).sum(0) == asked.sum(0)).all()
