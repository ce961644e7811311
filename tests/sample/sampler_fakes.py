"""A model that is a table, and batches of requests for it, to test samplers against enumerated distributions."""

import math

import numpy as np
import torch

from triptych.sample.batch import Proposals, RequestBatch
from triptych.sample.samplers import make_sampler
from triptych.utils.rng import SampleStream

MASK = 3  # a state is 0, 1, 2 or masked
LENGTH = 7
BASES = torch.tensor([10, 10, 10, 10, 20, 20, 20])  # ids of two modalities: a state is id - base


def random_table(length, seed=0):
    """[4^T, T, 3] arbitrary probabilities at every position for every context, in general of no joint distribution."""
    return np.random.default_rng(seed).dirichlet([0.7] * 3, size=(4**length, length))


TABLES = {length: random_table(length) for length in (5, LENGTH)}


def probabilities(states):
    """[T, 3] the model's probabilities at each position, for a context of states."""
    return TABLES[len(states)][sum(state * 4**i for i, state in enumerate(states))]


class Model:
    """A predictor that draws from the table and checks its arguments. It returns -1 and NaN where nothing is needed."""

    def __init__(self, batch, greedy=False):
        self.batch, self.greedy, self.steps, self.queries = batch, greedy, [], []
        self.table = torch.from_numpy(TABLES[batch.tokens.shape[1]])
        self.bases = BASES[: batch.tokens.shape[1]]

    def __call__(self, tokens, where, step, need):
        assert where.any(), "a forward pass for no position"
        assert ((tokens == self.batch.mask_ids) & self.batch.masked)[where].all(), "a queried position is not masked"
        assert torch.equal(tokens[~self.batch.masked], self.batch.tokens[~self.batch.masked])
        assert not self.steps or step > self.steps[-1], "a step number came twice"
        self.steps.append(step)
        self.queries.append(where.clone())
        context = ((tokens - self.bases) * 4 ** torch.arange(tokens.shape[1])).sum(1)
        probs = self.table[context]
        if self.greedy:
            drawn = probs.argmax(-1)
        else:
            uniform = self.batch.uniform(step, SampleStream.TOKEN)
            drawn = (probs.cumsum(-1) <= uniform[..., None]).sum(-1).clamp(max=2)
        log_prob = probs.gather(-1, drawn[..., None])[..., 0].log()
        terms = probs * probs.log()
        entropy = -(terms[..., 0] + terms[..., 1] + terms[..., 2])
        return Proposals(
            torch.where(where, self.bases + drawn, -1),
            torch.where(where & torch.tensor(need == "confidence"), log_prob, math.nan),
            torch.where(where & torch.tensor(need == "entropy"), entropy, math.nan),
        )


def batch_of(states, masked, seeds):
    """A batch from states [B, T], masked where something is to be generated."""
    bases = BASES[: states.shape[1]]
    tokens = torch.where(masked, MASK, states) + bases
    return RequestBatch(tokens, masked, (bases + MASK).expand_as(tokens).contiguous(), tuple(seeds))


def equal_requests(count, given=(MASK, 1, MASK, MASK, MASK)):
    """Equal requests with different seeds."""
    states = torch.tensor(given).repeat(count, 1)
    return batch_of(states, states == MASK, range(100, 100 + count))


def mixed_requests(count=40, seed=0):
    """Requests with nothing masked, everything masked, some masked, and a given position that holds a MASK."""
    rng = np.random.default_rng(seed)
    states = torch.from_numpy(rng.integers(0, 3, (count, LENGTH)))
    masked = torch.from_numpy(rng.random((count, LENGTH)) < rng.random((count, 1)))
    masked[0], masked[1], masked[2] = False, True, torch.tensor([0, 0, 0, 1, 0, 0, 0]).bool()
    states[3, 0], masked[3, 0] = MASK, False
    return batch_of(states, masked, rng.integers(0, 2**60, count).tolist())


def select_rows(batch, rows):
    return RequestBatch(
        batch.tokens[rows], batch.masked[rows], batch.mask_ids[rows], tuple(np.array(batch.seeds)[rows].tolist())
    )


def sample(name, model, batch, num_steps=None, callback=None, **options):
    return make_sampler(name, options).run(model, batch, num_steps, callback)
