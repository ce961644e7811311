"""`Transformer.loss` equals a dense softmax over full hidden states, and `hidden_states` equals `forward`."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from model_fakes import CPU, OperationRecorder, random_ids
from torch import Tensor

from triptych.model.segments import find_segments
from triptych.model.transformer import ModelConfig, Targets, Transformer, initialise
from triptych.vocab import Modality, Task, Vocabulary

VOCABULARY = Vocabulary(text=50, image=30, audio=20)


# -- queries ----------------------------------------------------------------------------------------------------------


def build_exact(**changes: object) -> Transformer:
    config = ModelConfig(num_layers=2, width=24, num_heads=2, d_ff=40, init_std=0.3)
    model = Transformer(replace(config, **changes), VOCABULARY)  # type: ignore[arg-type]
    initialise(model, 0)
    return model.double()


def gradients(model: Transformer) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
    }  # fmt: skip


CHANGES = [
    {},
    {"num_layers": 1},
    {"max_learned_positions": 6, "logit_scale": 0.5},
    {"residual_scale": 0.3, "num_layers": 3},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("is_packed", [False, True], ids=["whole rows", "packed"])
def test_hidden_states_equal_those_of_forward(changes: dict[str, object], is_packed: bool) -> None:
    """Values at the queried positions, and every gradient."""
    model, ids = build_exact(**changes), random_ids(0)
    segments = find_segments(ids, CPU) if is_packed else None
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY.size, ids.shape, generator=generator)
    positions = torch.arange(ids.shape[1]).expand(ids.shape)
    computed = torch.from_numpy(np.flatnonzero(ids) if is_packed else np.arange(ids.size))
    query_idx = computed[torch.randperm(len(computed), generator=generator)[:17]]
    up = torch.randn(17, 24, dtype=torch.float64, generator=generator)

    from_forward = model(tokens, positions, segments).flatten(0, 1)[query_idx]
    from_forward.backward(up)
    expected = gradients(model)
    model.zero_grad()
    queried = model.hidden_states(tokens, positions, segments, query_idx=query_idx)
    queried.backward(up)
    torch.testing.assert_close(queried, from_forward, atol=1e-10, rtol=1e-10)
    assert queried.std() > 0.1
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-10, rtol=1e-10)
    assert model.hidden_states(tokens, positions, segments, query_idx=query_idx[:0]).shape == (0, 24)


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_the_loss_equals_that_of_forward_hidden_states(changes: dict[str, object]) -> None:
    """In packed rows with padding. The head itself computes in float32."""
    model, ids = build_exact(**changes), random_ids(3)
    segments, generator = find_segments(ids, CPU), torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY.size, ids.shape, generator=generator)
    positions = torch.arange(ids.shape[1]).expand(ids.shape)
    computed = torch.from_numpy(np.flatnonzero(ids))
    counts = (6, 5, 4)
    targets = Targets(
        query_idx=computed[torch.randperm(len(computed), generator=generator)[:15]],
        ids_n=torch.cat(
            [
                torch.tensor(VOCABULARY.data_ids(m))[torch.randint(20, (n,), generator=generator)]
                for m, n in zip(Modality, counts)
            ]
        ),
        loss_weight_n=torch.rand(15, generator=generator),
        z_loss_weight_n=0.1 * torch.rand(15, generator=generator),
        counts=counts,
    )
    loss = model.loss(tokens, positions, segments, targets)
    loss.total.backward()
    actual = gradients(model)
    model.zero_grad()

    hidden = model(tokens, positions, segments).flatten(0, 1)[targets.query_idx]
    answers = torch.cat([torch.arange(VOCABULARY.num_logits(m)) + VOCABULARY.ids(m).start for m in Modality])
    logits = hidden @ torch.cat(model.unembed.blocks)[answers].T
    column = (answers == targets.ids_n[:, None]).nonzero()[:, 1]
    nll, lse = F.cross_entropy(logits, column, reduction="none"), logits.logsumexp(-1)
    total = (targets.loss_weight_n.double() * nll + targets.z_loss_weight_n.double() * lse**2).sum()
    total.backward()
    torch.testing.assert_close(loss.nll_n.double(), nll, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss.total.double(), total, atol=1e-5, rtol=1e-5)
    for name, expected in gradients(model).items():
        torch.testing.assert_close(actual[name], expected, atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
        assert expected.abs().max() > 1e-3, name  # the comparison is not of zeros


# -- softmax scopes ---------------------------------------------------------------------------------------------------


def build(scope: str) -> Transformer:
    config = ModelConfig(num_layers=1, width=16, num_heads=2, d_ff=24, init_std=0.3, softmax_scope=scope)  # type: ignore[arg-type]
    model = Transformer(config, VOCABULARY)
    initialise(model, 0)
    return model


def answers(modality: Modality) -> list[int]:
    """Ids that are logits of this modality."""
    return [*VOCABULARY.data_ids(modality), VOCABULARY.bos(modality), VOCABULARY.eos(modality)]


def mixed_targets(counts: tuple[int, int, int], positions: int, seed: int = 0) -> Targets:
    """Data ids and EOS of every modality, at random positions."""
    generator = torch.Generator().manual_seed(seed)
    ids = []
    for modality, count in zip(Modality, counts):
        known = [i for i in answers(modality) if i != VOCABULARY.bos(modality)]
        picked = torch.randint(0, len(known), (count,), generator=generator).tolist()
        ids += [known[i] for i in picked[:-1]] + [VOCABULARY.eos(modality)] * (count > 0)
    n = sum(counts)
    return Targets(
        query_idx=torch.randperm(positions, generator=generator)[:n],
        ids_n=torch.tensor(ids, dtype=torch.int64),
        loss_weight_n=torch.rand(n, generator=generator),
        z_loss_weight_n=0.1 * torch.rand(n, generator=generator),
        counts=counts,
    )


COUNTS = [(7, 9, 5), (0, 9, 5), (7, 0, 5), (7, 9, 0), (0, 11, 0), (0, 0, 0)]


@pytest.mark.parametrize("scope", ["full", "modality"])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_the_loss_equals_that_of_a_masked_softmax(scope: str, counts: tuple[int, int, int]) -> None:
    """Compared with logits over the whole vocabulary, -inf for ids that are never predicted."""
    model, dense_model = build(scope), build(scope).double()
    tokens = torch.randint(0, VOCABULARY.size, (2, 15), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(15).expand(2, 15)
    targets = mixed_targets(counts, 30)
    loss = model.loss(tokens, positions, None, targets)
    loss.total.backward()

    hidden = dense_model(tokens, positions).flatten(0, 1)[targets.query_idx]
    allowed = torch.zeros(sum(counts), VOCABULARY.size, dtype=torch.bool)
    modality_of_row = [modality for modality, count in zip(Modality, counts) for _ in range(count)]
    for row, modality in enumerate(modality_of_row):
        for other in Modality if scope == "full" else [modality]:
            allowed[row, answers(other)] = True
    logits = (hidden @ torch.cat(dense_model.unembed.blocks).T).masked_fill(~allowed, -torch.inf)
    lse = logits.logsumexp(-1)
    nll = lse - logits.gather(1, targets.ids_n[:, None])[:, 0]
    total = (targets.loss_weight_n.double() * nll + targets.z_loss_weight_n.double() * lse**2).sum()
    total.backward()

    torch.testing.assert_close(loss.nll_n.double(), nll.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(loss.lse_n.double(), lse.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(loss.total.detach().double(), total.detach(), atol=1e-4, rtol=1e-4)
    for (name, parameter), exact in zip(model.named_parameters(), dense_model.parameters(), strict=True):
        expected = torch.zeros_like(parameter) if exact.grad is None else exact.grad
        actual = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(
            actual.double(), expected.double(), atol=2e-4, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert not loss.nll_n.requires_grad


@pytest.mark.parametrize("scope", ["full", "modality"])
def test_mask_pad_and_task_are_never_predicted(scope: str) -> None:
    """Their rows of the unembedding change neither loss nor gradient, however large they are."""
    tokens = torch.randint(0, 50, (1, 12), generator=torch.Generator().manual_seed(1))
    positions, targets = torch.arange(12)[None], mixed_targets((4, 4, 3), 12)
    forbidden = {VOCABULARY.mask(m) for m in Modality} | {VOCABULARY.pad} | {VOCABULARY.task(t) for t in Task}
    model = build(scope)
    before = model.loss(tokens, positions, None, targets)
    before.total.backward()
    gradient = torch.cat([block.grad for block in model.unembed.blocks])
    without_gradient = set((gradient == 0).all(1).nonzero()[:, 0].tolist())
    assert without_gradient == forbidden
    with torch.no_grad():
        for block, ids in zip(model.unembed.blocks, VOCABULARY.embedding_blocks):
            for i in forbidden & set(ids):
                block[i - ids.start] = 1e3
        after = model.loss(tokens, positions, None, targets)
    assert torch.equal(before.nll_n, after.nll_n)


def test_a_narrower_softmax_is_never_worse() -> None:
    """The same logits in a softmax over fewer ids."""
    full, narrow = build("full"), build("modality")
    tokens = torch.randint(0, 50, (1, 12), generator=torch.Generator().manual_seed(1))
    positions, targets = torch.arange(12)[None], mixed_targets((4, 4, 3), 12)
    with torch.no_grad():
        losses = [model.loss(tokens, positions, None, targets).nll_n for model in (full, narrow)]
    assert (losses[1] < losses[0]).all()


@pytest.mark.parametrize("scope", ["full", "modality"])
def test_without_gradients_there_is_one_product_per_table(scope: str) -> None:
    """With all rows, or with those of the table's modality."""
    counts = (4, 4, 3)
    model, targets = build(scope), mixed_targets(counts, 12)
    hidden = torch.randn(sum(counts), 16)
    with torch.no_grad(), OperationRecorder() as recorder:
        model.loss_from_hidden(hidden, targets)
    assert sum(name in ("mm", "addmm_", "addmm") for name, _ in recorder.results) == 3
    rows = [sum(counts)] * 3 if scope == "full" else counts
    widths = [len(answers(modality)) for modality in Modality]
    assert [shape for name, shape in recorder.results if name == "mm"] == list(zip(rows, widths))


def test_losses_of_micro_batches_add_up() -> None:
    """Targets split over several calls give the gradients of one call, as micro-batches and ranks need."""
    tokens = torch.randint(0, 50, (1, 12), generator=torch.Generator().manual_seed(1))
    positions, targets = torch.arange(12)[None], mixed_targets((4, 4, 4), 12)
    once, twice = build("full"), build("full")
    once.loss(tokens, positions, None, targets).total.backward()
    for parity in (0, 1):
        rows = torch.arange(12) % 2 == parity
        part = Targets(
            targets.query_idx[rows],
            targets.ids_n[rows],
            targets.loss_weight_n[rows],
            targets.z_loss_weight_n[rows],
            (2, 2, 2),
        )
        twice.loss(tokens, positions, None, part).total.backward()
    for a, b in zip(once.parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-4)
