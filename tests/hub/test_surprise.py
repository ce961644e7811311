"""Surprise of tokens: compared with forward passes done one by one, and with logits that are known."""

import math

import numpy as np
import pytest
import torch

from triptych.hub.surprise import token_surprise
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.sample.canvas import MASKED, Canvas, Span, known, lay_out, masked, open_ended, unconditional
from triptych.vocab import Modality, Vocabulary

NUM_MASKS = 4
VOCABULARY = Vocabulary(text=40, image=30, audio=20)
SHAPE = ModelConfig(num_layers=2, width=32, num_heads=2, d_ff=48, softmax_scope="modality", init_std=0.3)


@pytest.fixture(scope="module")
def model():
    model = Transformer(SHAPE, VOCABULARY)
    initialise(model, 0)
    return model.eval()


class Recorder:
    """A network that predicts every token with the same probability and keeps what it was given."""

    vocabulary = VOCABULARY

    def __init__(self):
        self.tokens, self.query_idx = None, None

    def hidden_states(self, tokens, positions, *, query_idx):
        self.tokens, self.query_idx = tokens, query_idx
        return torch.zeros(len(query_idx), 4)

    def logits(self, hidden_nD, modality, *, out):
        return out.zero_()


CANVASES = {
    "text": (Canvas(known(Modality.TEXT, np.arange(9))), Modality.TEXT),
    "a beginning": (Canvas(open_ended(Modality.TEXT, 12, np.arange(5)), masked(Modality.IMAGE, 4)), Modality.TEXT),
    "gaps": (Canvas(Span(Modality.TEXT, np.array([3, MASKED, 5, MASKED, 7, 8]))), Modality.TEXT),
    "image": (Canvas(unconditional(Modality.TEXT, 8), known(Modality.IMAGE, np.arange(16))), Modality.IMAGE),
    "audio": (Canvas(unconditional(Modality.TEXT, 2), known(Modality.AUDIO, np.arange(3))), Modality.AUDIO),
    "one token": (Canvas(known(Modality.TEXT, np.array([7]))), Modality.TEXT),
}


def span_of(canvas, modality):
    side = [span.modality for span in canvas.spans].index(modality)
    return canvas.spans[side], lay_out(canvas, VOCABULARY).starts[side]


@pytest.mark.parametrize("name", CANVASES)
def test_every_given_token_is_masked_once_and_nothing_else_changes(name):
    canvas, modality = CANVASES[name]
    network = Recorder()
    surprise = token_surprise(network, canvas, modality, NUM_MASKS)
    span, start = span_of(canvas, modality)
    given = np.flatnonzero(span.ids != MASKED)
    assert len(surprise) == len(given)
    # BOS and EOS cannot occur, so all data ids share the probability.
    assert surprise == pytest.approx(math.log(VOCABULARY.data_size(modality)))
    rows = min(NUM_MASKS, len(given))
    tokens = network.tokens.numpy()[:rows]
    plain = lay_out(canvas, VOCABULARY).tokens
    changed = tokens != plain
    assert (changed.sum(0)[start + given] == 1).all()
    assert changed.sum() == len(given)
    assert (tokens[changed] == VOCABULARY.mask(modality)).all()
    assert np.ptp(changed.sum(1)) <= 1, "masks of equal size"


@pytest.mark.parametrize("name", CANVASES)
def test_it_is_the_cross_entropy_of_the_model(model, name):
    """Independently: one forward pass per mask, one softmax per token."""
    canvas, modality = CANVASES[name]
    network = Recorder()
    token_surprise(network, canvas, modality, NUM_MASKS)
    span, start = span_of(canvas, modality)
    given = np.flatnonzero(span.ids != MASKED)
    plain = lay_out(canvas, VOCABULARY).tokens
    expected = {}
    for row in network.tokens[: min(NUM_MASKS, len(given))]:
        for position in np.flatnonzero(row.numpy() != plain):
            with torch.no_grad():
                hidden = model.hidden_states(
                    row[None], torch.arange(len(row))[None], query_idx=torch.tensor([position])
                )
                logits = model.logits(hidden, modality)[0, : VOCABULARY.data_size(modality)]
            local = plain[position] - VOCABULARY.ids(modality).start
            expected[position] = -float(logits.double().log_softmax(0)[local])
    found = token_surprise(model, canvas, modality, NUM_MASKS)
    assert found == pytest.approx([expected[start + at] for at in given], rel=1e-4)


def test_nothing_given_has_no_surprise(model):
    assert len(token_surprise(model, Canvas(masked(Modality.TEXT, 4)), Modality.TEXT, NUM_MASKS)) == 0


def test_the_global_random_state_is_left_alone(model):
    torch.manual_seed(5)
    before = torch.rand(1).item()
    torch.manual_seed(5)
    token_surprise(model, *CANVASES["image"], NUM_MASKS)
    assert torch.rand(1).item() == before
