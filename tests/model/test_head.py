"""The loss head equals a dense softmax: values, gradients, the columns of each scope; and never holds all logits."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from triptych.model import head
from triptych.model.head import chunk_rows, linear_cross_entropy
from triptych.model.transformer import Loss, ModelConfig, Targets, Transformer, initialise
from triptych.vocab import Modality, Task, Vocabulary

ROWS, WIDTH, COLUMNS = 23, 12, 37
VOCABULARY = Vocabulary(text=50, image=30, audio=20)


def inputs(rows: int = ROWS, seed: int = 0, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, WIDTH, generator=generator).to(dtype).requires_grad_()
    unembed = torch.randn(COLUMNS, WIDTH, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(0, COLUMNS, (rows,), generator=generator)
    loss_weight, z_loss_weight = torch.rand(2, rows, generator=generator)
    if rows > 2:
        loss_weight[1] = z_loss_weight[2] = 0
    return hidden, unembed, targets, loss_weight, 0.1 * z_loss_weight


def dense(hidden, unembed, targets, loss_weight, z_loss_weight):
    """What the head computes, said plainly and differentiated by autograd."""
    logits = hidden @ unembed.T
    lse = logits.logsumexp(-1)
    nll = F.cross_entropy(logits, targets, reduction="none")
    return (loss_weight * nll + z_loss_weight * lse**2).sum(), nll, lse


def truth(hidden, unembed, targets, loss_weight, z_loss_weight, upstream: float = 1.0):
    """Loss, rows and gradients in float64."""
    hidden, unembed = (x.detach().double().requires_grad_() for x in (hidden, unembed))
    loss, nll, lse = dense(hidden, unembed, targets, loss_weight.double(), z_loss_weight.double())
    (upstream * loss).backward()
    return loss.detach(), nll.detach(), lse.detach(), hidden.grad, unembed.grad


@pytest.mark.parametrize("chunk", [1, 5, 22, 23, 24, 1000, None])
def test_loss_and_gradients_are_those_of_a_dense_softmax(chunk: int | None) -> None:
    hidden, unembed, targets, loss_weight, z_loss_weight = inputs()
    loss, nll, lse = linear_cross_entropy(hidden, [unembed], targets, loss_weight, z_loss_weight, chunk=chunk)
    (3.5 * loss).backward()
    expected = truth(hidden, unembed, targets, loss_weight, z_loss_weight, upstream=3.5)
    for found, true in zip((loss, nll, lse, hidden.grad, unembed.grad), expected, strict=True):
        torch.testing.assert_close(found.detach().double(), true, atol=2e-5, rtol=2e-5)
    assert loss.requires_grad
    assert not nll.requires_grad
    assert not lse.requires_grad


def test_z_loss_and_weights_have_a_part_in_it() -> None:
    """The comparison above would see either missing."""
    hidden, unembed, targets, loss_weight, z_loss_weight = inputs()
    whole = truth(hidden, unembed, targets, loss_weight, z_loss_weight)
    for changed in ((loss_weight, 0 * z_loss_weight), (torch.ones_like(loss_weight), z_loss_weight)):
        other = truth(hidden, unembed, targets, *changed)
        assert all((a - b).abs().max() > 1e-2 for a, b in zip(whole[3:], other[3:]))


def test_gradients_point_where_the_loss_falls() -> None:
    """By finite differences of the loss itself: no autograd on either side."""
    hidden, unembed, targets, loss_weight, z_loss_weight = inputs()
    linear_cross_entropy(hidden, [unembed], targets, loss_weight, z_loss_weight, chunk=5)[0].backward()
    generator = torch.Generator().manual_seed(3)
    for tensor in (hidden, unembed):
        direction = torch.randn(tensor.shape, generator=generator)
        ahead, behind = (
            dense(
                *(
                    x.detach().double() + step * direction if x is tensor else x.detach().double()
                    for x in (hidden, unembed)
                ),
                targets,
                loss_weight.double(),
                z_loss_weight.double(),
            )[0]
            for step in (1e-5, -1e-5)
        )
        slope = float(ahead - behind) / 2e-5
        assert float((tensor.grad * direction).sum()) == pytest.approx(slope, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(COLUMNS,), (17, 9, 11)], ids=str)
def test_no_further_from_the_truth_than_a_dense_softmax(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    for seed in range(3):
        hidden, unembed, targets, loss_weight, z_loss_weight = inputs(seed=seed, dtype=dtype)
        true = truth(hidden, unembed, targets, loss_weight, z_loss_weight)
        tables = unembed.split(sizes)
        loss, nll, lse = linear_cross_entropy(hidden, tables, targets, loss_weight, z_loss_weight, chunk=7)
        loss.backward()
        ours = (loss, nll, lse, hidden.grad, unembed.grad)
        plain_hidden, plain_unembed = (x.detach().clone().requires_grad_() for x in (hidden, unembed))
        plain = dense(plain_hidden, plain_unembed, targets, loss_weight, z_loss_weight)
        plain[0].backward()
        naive = (*plain, plain_hidden.grad, plain_unembed.grad)
        for found, other, exact in zip(ours, naive, true, strict=True):
            error, allowed = ((x.detach().double() - exact).abs().max() for x in (found, other))
            assert error <= allowed + 4 * torch.finfo(dtype).eps * exact.abs().max()
        assert hidden.grad.dtype == unembed.grad.dtype == dtype


def test_huge_logits_overflow_nothing() -> None:
    hidden, unembed, targets, loss_weight, z_loss_weight = inputs()
    with torch.no_grad():
        hidden.mul_(300.0)
    loss, nll, _ = linear_cross_entropy(hidden, [unembed], targets, loss_weight, z_loss_weight, chunk=4)
    loss.backward()
    expected = truth(hidden, unembed, targets, loss_weight, z_loss_weight)
    assert nll.max() > 500
    torch.testing.assert_close(nll.double(), expected[1], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(hidden.grad.double(), expected[3], rtol=1e-4, atol=1e-2)


def test_no_rows_are_no_loss() -> None:
    hidden, unembed, targets, loss_weight, z_loss_weight = inputs(rows=0)
    loss, nll, lse = linear_cross_entropy(hidden, [unembed], targets, loss_weight, z_loss_weight)
    loss.backward()
    assert float(loss.detach()) == 0
    assert nll.shape == lse.shape == (0,)
    assert hidden.grad.shape == hidden.shape
    assert torch.equal(unembed.grad, torch.zeros_like(unembed))


@pytest.mark.parametrize("chunk", [1, 5, 23, None])
@pytest.mark.parametrize("sizes", [(17, 9, 11), (14, 9, 4), (17, 1, 0)], ids=str)
def test_tables_side_by_side_are_one(sizes: tuple[int, int, int], chunk: int | None) -> None:
    """Rows beyond the sizes are not there: no loss, and a gradient of zero."""
    hidden, unembed, targets, loss_weight, z_loss_weight = inputs()
    targets = targets % sum(sizes)
    tables = [table.detach().clone().requires_grad_() for table in unembed.split((17, 9, 11))]
    loss, nll, lse = linear_cross_entropy(hidden, tables, targets, loss_weight, z_loss_weight, sizes=sizes, chunk=chunk)
    (0.3 * loss).backward()
    together = torch.cat([table[:size] for table, size in zip(tables, sizes)])
    *rows, of_hidden, of_unembed = truth(hidden, together, targets, loss_weight, z_loss_weight, upstream=0.3)
    for found, true in zip((loss, nll, lse, hidden.grad), (*rows, of_hidden), strict=True):
        torch.testing.assert_close(found.detach().double(), true, atol=2e-5, rtol=2e-5)
    for table, size, true in zip(tables, sizes, of_unembed.split(sizes)):
        torch.testing.assert_close(table.grad[:size].double(), true, atol=2e-5, rtol=2e-5)
        assert torch.equal(table.grad[size:], torch.zeros_like(table[size:]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slices_and_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Products a few columns at a time, then passes over a few rows at a time."""

    def results() -> list[torch.Tensor]:
        hidden, unembed, *others = inputs(dtype=dtype)
        loss, nll, lse = linear_cross_entropy(hidden, [unembed[:20], unembed[20:]], *others, chunk=9)
        loss.backward()
        return [loss.detach(), nll, lse, hidden.grad, unembed.grad]

    single_pass = results()
    monkeypatch.setattr(head, "_SLICE", 8)
    monkeypatch.setattr(head, "_PIECE_BYTES", 4 * COLUMNS * 4)
    for found, expected in zip(results(), single_pass, strict=True):
        torch.testing.assert_close(found, expected)


def test_gradients_can_be_asked_for_once() -> None:
    """They are handed on, not copied: what comes after would change them."""
    hidden, unembed, *others = inputs()
    loss, _, _ = linear_cross_entropy(hidden, [unembed], *others)
    loss.backward(retain_graph=True)
    before = hidden.grad.clone(), unembed.grad.clone()
    with pytest.raises(AssertionError, match="once"):
        loss.backward()
    assert torch.equal(hidden.grad, before[0])
    assert torch.equal(unembed.grad, before[1])


# -- what is held -----------------------------------------------------------------------------------------------------


class Watch(TorchDispatchMode):
    """The size of every tensor that is made, and the operations that made them."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, torch.Tensor):
                self.made.append((func.overloadpacket.__name__, tuple(each.shape)))
        return result


@pytest.mark.parametrize("grad", [True, False])
def test_logits_are_never_held_at_once(grad: bool) -> None:
    rows, chunk = 400, 16
    hidden, unembed, targets, loss_weight, z_loss_weight = inputs(rows)
    hidden, unembed = hidden.detach().requires_grad_(grad), unembed.detach().requires_grad_(grad)
    with Watch() as watch:
        loss, _, _ = linear_cross_entropy(hidden, [unembed], targets, loss_weight, z_loss_weight, chunk=chunk)
        if grad:
            loss.backward()
    wide = [shape for _, shape in watch.made if COLUMNS in shape]
    assert (chunk, COLUMNS) in wide
    assert max(torch.Size(shape).numel() for shape in wide) == chunk * COLUMNS
    assert max(torch.Size(shape).numel() for _, shape in watch.made) <= rows * WIDTH < rows * COLUMNS
    products = sum(name in ("mm", "addmm", "addmm_", "matmul", "bmm") for name, _ in watch.made)
    assert products == (3 if grad else 1) * rows // chunk


def test_the_chunk_follows_the_size_of_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "_CHUNK_BYTES", 4 * COLUMNS * 100)
    # As many as there is room for, in whole multiples of the least.
    for least, expected in ((25, 100), (64, 64), (150, 150)):
        monkeypatch.setattr(head, "_LEAST_ROWS", least)
        assert chunk_rows(COLUMNS) == expected
        hidden, unembed, *others = inputs(400)
        with Watch() as watch:
            linear_cross_entropy(hidden, [unembed], *others)
        assert max(shape[0] for name, shape in watch.made if name == "mm" and shape[1] == COLUMNS) == expected


# -- in the model -----------------------------------------------------------------------------------------------------


def build(scope: str) -> Transformer:
    config = ModelConfig(num_layers=1, width=16, num_heads=2, d_ff=24, init_std=0.3, softmax_scope=scope)  # type: ignore[arg-type]
    model = Transformer(config, VOCABULARY)
    initialise(model, 0)
    return model


def answers(modality: Modality) -> list[int]:
    """What a position of this modality may become."""
    return [*VOCABULARY.data_ids(modality), VOCABULARY.bos(modality), VOCABULARY.eos(modality)]


def mixed_targets(counts: tuple[int, int, int], positions: int, seed: int = 0) -> Targets:
    """Data and EOS of every modality, at random places."""
    generator = torch.Generator().manual_seed(seed)
    ids = []
    for modality, count in zip(Modality, counts):
        known = [i for i in answers(modality) if i != VOCABULARY.bos(modality)]
        picked = torch.randint(0, len(known), (count,), generator=generator).tolist()
        ids += [known[i] for i in picked[:-1]] + [VOCABULARY.eos(modality)] * (count > 0)
    n = sum(counts)
    return Targets(
        rows_n=torch.randperm(positions, generator=generator)[:n],
        ids_n=torch.tensor(ids, dtype=torch.int64),
        loss_weight_n=torch.rand(n, generator=generator),
        z_loss_weight_n=0.1 * torch.rand(n, generator=generator),
        counts=counts,
    )


COUNTS = [(7, 9, 5), (0, 9, 5), (7, 0, 5), (7, 9, 0), (0, 11, 0), (0, 0, 0)]


@pytest.mark.parametrize("scope", ["full", "modality"])
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_the_model_s_loss_is_that_of_a_masked_softmax(scope: str, counts: tuple[int, int, int]) -> None:
    """Against logits over the whole vocabulary, minus infinity where an id is no answer."""
    model, dense_model = build(scope), build(scope).double()
    tokens = torch.randint(0, VOCABULARY.size, (2, 15), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(15).expand(2, 15)
    targets = mixed_targets(counts, 30)
    loss = model(tokens, positions, None, targets)
    assert isinstance(loss, Loss)
    loss.total.backward()

    hidden = dense_model(tokens, positions).flatten(0, 1)[targets.rows_n]
    allowed = torch.zeros(sum(counts), VOCABULARY.size, dtype=torch.bool)
    modality_of_row = [modality for modality, count in zip(Modality, counts) for _ in range(count)]
    for row, modality in enumerate(modality_of_row):
        for each in Modality if scope == "full" else [modality]:
            allowed[row, answers(each)] = True
    logits = (hidden @ torch.cat(dense_model.unembed.blocks).T).masked_fill(~allowed, -torch.inf)
    lse = logits.logsumexp(-1)
    nll = lse - logits.gather(1, targets.ids_n[:, None])[:, 0]
    total = (targets.loss_weight_n.double() * nll + targets.z_loss_weight_n.double() * lse**2).sum()
    total.backward()

    torch.testing.assert_close(loss.nll_n.double(), nll.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(loss.lse_n.double(), lse.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(loss.total.detach().double(), total.detach(), atol=1e-4, rtol=1e-4)
    for (name, found), true in zip(model.named_parameters(), dense_model.parameters(), strict=True):
        expected = torch.zeros_like(found) if true.grad is None else true.grad
        actual = torch.zeros_like(found) if found.grad is None else found.grad
        torch.testing.assert_close(
            actual.double(), expected.double(), atol=2e-4, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert not loss.nll_n.requires_grad


@pytest.mark.parametrize("scope", ["full", "modality"])
def test_mask_pad_and_task_are_no_answers(scope: str) -> None:
    """Their rows of the unembedding change neither loss nor gradient, however large they are."""
    tokens = torch.randint(0, 50, (1, 12), generator=torch.Generator().manual_seed(1))
    positions, targets = torch.arange(12)[None], mixed_targets((4, 4, 3), 12)
    forbidden = {VOCABULARY.mask(m) for m in Modality} | {VOCABULARY.pad} | {VOCABULARY.task(t) for t in Task}
    model = build(scope)
    before = model(tokens, positions, None, targets)
    before.total.backward()
    gradient = torch.cat([block.grad for block in model.unembed.blocks])
    silent = set((gradient == 0).all(1).nonzero()[:, 0].tolist())
    assert silent == forbidden
    with torch.no_grad():
        for block, ids in zip(model.unembed.blocks, VOCABULARY.embedding_blocks):
            for i in forbidden & set(ids):
                block[i - ids.start] = 1e3
        after = model(tokens, positions, None, targets)
    assert torch.equal(before.nll_n, after.nll_n)


def test_a_narrower_softmax_is_never_worse() -> None:
    """The same logits among fewer answers."""
    full, narrow = build("full"), build("modality")
    tokens = torch.randint(0, 50, (1, 12), generator=torch.Generator().manual_seed(1))
    positions, targets = torch.arange(12)[None], mixed_targets((4, 4, 3), 12)
    with torch.no_grad():
        losses = [model(tokens, positions, None, targets).nll_n for model in (full, narrow)]
    assert (losses[1] < losses[0]).all()


@pytest.mark.parametrize("scope", ["full", "modality"])
def test_looking_without_training_costs_one_product(scope: str) -> None:
    """One with each table, of all rows or of those that choose from it."""
    counts = (4, 4, 3)
    model, targets = build(scope), mixed_targets(counts, 12)
    hidden = torch.randn(sum(counts), 16)
    with torch.no_grad(), Watch() as watch:
        model._loss(hidden, targets)
    assert sum(name in ("mm", "addmm_", "addmm") for name, _ in watch.made) == 3
    rows = [sum(counts)] * 3 if scope == "full" else counts
    widths = [len(answers(modality)) for modality in Modality]
    assert [shape for name, shape in watch.made if name == "mm"] == list(zip(rows, widths))


def test_parts_add_up() -> None:
    """Rows split over several calls sum to the loss and gradient of one: what micro-batches and ranks rely on."""
    tokens = torch.randint(0, 50, (1, 12), generator=torch.Generator().manual_seed(1))
    positions, whole = torch.arange(12)[None], mixed_targets((4, 4, 4), 12)
    once, twice = build("full"), build("full")
    once(tokens, positions, None, whole).total.backward()
    for parity in (0, 1):
        rows = torch.arange(12) % 2 == parity
        part = Targets(
            whole.rows_n[rows], whole.ids_n[rows], whole.loss_weight_n[rows], whole.z_loss_weight_n[rows], (2, 2, 2)
        )
        twice(tokens, positions, None, part).total.backward()
    for a, b in zip(once.parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-4)
