"""Sampling in threads: the same bits with any number of threads, and few waits per step."""

import numpy as np
import pytest
import torch

from triptych.model import head
from triptych.model.head import project
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.sample import forward
from triptych.sample.canvas import Canvas, known, masked
from triptych.sample.config import SamplingConfig
from triptych.sample.forward import LogitsReader, hidden_states
from triptych.sample.generate import generate
from triptych.utils import threads as threads_module
from triptych.vocab import Modality, Vocabulary

TEXT, IMAGE, _ = Modality
# A table that is large enough to be shared.
VOCABULARY = Vocabulary(text=33_000, image=200, audio=100)


@pytest.fixture(scope="module")
def transformer():
    model = Transformer(
        ModelConfig(num_layers=2, width=128, num_heads=2, d_ff=256, init_std=0.3, residual_scale=0.7), VOCABULARY
    )
    initialise(model, 3)
    assert model.unembed.text.numel() >= head._SHARED
    return model.eval().requires_grad_(False)


@pytest.fixture
def shared(monkeypatch):
    """The number of calls that each use of several threads was given."""
    uses = []
    start = threads_module._run

    def recorded(work, num_threads, pending):
        uses.append(len(pending))
        return start(work, num_threads, pending)

    monkeypatch.setattr(threads_module, "_run", recorded)
    return uses


def tokens(count, length, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, VOCABULARY.text, (count, length)))


def with_threads(num_threads, call):
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        with torch.inference_mode():
            return call()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("rows", [16, 17, 40])
def test_the_product_of_the_head_has_the_same_bits(rows, transformer, shared):
    hidden = torch.randn(rows, 128, generator=torch.Generator().manual_seed(rows))
    one, two, three = (
        with_threads(n, lambda: transformer.logits(hidden, TEXT, out=torch.empty(rows, VOCABULARY.text + 2)))
        for n in (1, 2, 3)
    )
    assert shared == [-(-(VOCABULARY.text + 2) // head._SLICE)] * 2  # one use per product
    assert torch.equal(one, two)
    assert torch.equal(one, three)
    exact = hidden.double() @ transformer.unembed.text[: one.shape[1]].double().T
    torch.testing.assert_close(one.double(), exact, atol=1e-4, rtol=1e-4)


def test_a_small_table_and_training_do_not_use_threads(transformer, shared):
    hidden = torch.randn(20, 128)
    with_threads(2, lambda: project(hidden, transformer.unembed.image))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with torch.no_grad():
        project(hidden, transformer.unembed.text)
    torch.set_num_threads(before)
    assert shared == []


@pytest.mark.parametrize("count", [1, 2, 5, 8, 13])
def test_hidden_states_have_the_same_bits_in_any_batch(count, transformer, threads, shared):
    """A large batch is divided among threads, a request alone is not."""
    batch, where = tokens(count, 70), torch.rand(count, 70, generator=torch.Generator().manual_seed(1)) < 0.3
    together = with_threads(threads, lambda: hidden_states(transformer, batch, where))
    assert shared == ([] if threads == 1 or count < 4 else [2 if count < 8 else 4])
    alone = [
        with_threads(threads, lambda i=i: hidden_states(transformer, batch[i : i + 1], where[i : i + 1]))
        for i in range(count)
    ]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("length", [1, 60, 96, 3000])
def test_rows_are_divided_completely_and_evenly(count, length, threads):
    bounds = forward._row_bounds(count, length)
    sizes = np.diff(bounds)
    assert bounds[0] == 0
    assert bounds[-1] == count
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1
    if len(sizes) > 1:
        assert len(sizes) % torch.get_num_threads() == 0
        assert count * length / len(sizes) >= forward._TOKENS_PER_THREAD


@pytest.mark.parametrize("count", [1, 2, 8, 17, 60, 300])
@pytest.mark.parametrize("row_bytes", [4, 2**19, 2**25])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_pieces_cover_every_row_once(count, row_bytes, num_threads):
    pieces = forward._pieces(7, 7 + count, row_bytes, num_threads)
    assert [row for piece in pieces for row in range(7 + count)[piece.start : piece.stop]] == list(range(7, 7 + count))
    rows = max(piece.stop - piece.start for piece in pieces)
    assert rows == 1 or rows * row_bytes <= forward._PIECE_BYTES
    if count * row_bytes > num_threads * forward._MIN_PIECE_BYTES and count >= num_threads:
        assert len(pieces) >= num_threads


def test_pieces_of_logits_reach_every_row_in_any_thread(transformer, threads, monkeypatch):
    """Of several chunks, each with several pieces."""
    monkeypatch.setattr(forward, "_CHUNK_BYTES", 4 * VOCABULARY.num_logits(TEXT) * 24)
    monkeypatch.setattr(forward, "_PIECE_BYTES", 4 * VOCABULARY.num_logits(TEXT) * 5)
    hidden = torch.randn(2, 61, 128, generator=torch.Generator().manual_seed(0))
    best, sums = torch.full((61,), -1), torch.zeros(61)

    def use(rows, logits):
        assert [len(part) for part in logits] == [rows.stop - rows.start] * 2
        best[rows] = logits[0].argmax(1)
        sums[rows] = logits[0].amax(1) + logits[1].amax(1)

    def read():
        LogitsReader(transformer).for_each_piece(use, TEXT, *hidden)
        return [transformer.logits(part, TEXT) for part in hidden]

    first, second = with_threads(threads, read)
    assert torch.equal(best, first.argmax(1))
    torch.testing.assert_close(sums, first.amax(1) + second.amax(1))


@pytest.mark.parametrize("sampler", ["low_confidence", "random_order", "entropy_bounded"])
@pytest.mark.parametrize("guidance_scale", [1.0, 2.0])
def test_requests_give_the_same_tokens_with_any_number_of_threads(sampler, guidance_scale, transformer, shared):
    rng = np.random.default_rng(0)
    canvases = [Canvas(known(TEXT, rng.integers(0, 33_000, 9)), masked(IMAGE, 40), hide_text=True) for _ in range(6)]
    texts = [Canvas(masked(TEXT, 40), known(IMAGE, rng.integers(0, 200, 40)), hide_text=True) for _ in range(6)]
    requests = canvases if guidance_scale != 1 else [*canvases, *texts]
    config = SamplingConfig(sampler=sampler, num_steps=3, guidance_scale=guidance_scale)

    def ids(some):
        filled = generate(transformer, some, config, range(len(some)))
        return [[span.ids.tolist() for span in canvas.spans] for canvas in filled]

    one = with_threads(1, lambda: ids(requests))
    assert not shared
    assert with_threads(2, lambda: ids(requests)) == one
    assert shared
    assert with_threads(2, lambda: ids(requests[:1])) == one[:1]


def test_a_step_waits_a_few_times(transformer, shared):
    """Once for the forward pass, and twice for every chunk of logits."""
    canvases = [Canvas(masked(TEXT, 90), hide_text=True) for _ in range(8)]
    config = SamplingConfig(sampler="low_confidence", num_steps=4)
    with_threads(2, lambda: generate(transformer, canvases, config, range(8)))
    assert len(shared) == 3 * 4
