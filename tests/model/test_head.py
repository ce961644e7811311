"""The loss head equals a dense softmax in values and gradients, and never materialises all logits."""

import pytest
import torch
import torch.nn.functional as F
from model_fakes import OperationRecorder

from triptych.model import head
from triptych.model.head import chunk_rows, linear_cross_entropy

ROWS, WIDTH, COLUMNS = 23, 12, 37


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
    """What the head computes, with all logits and autograd."""
    logits = hidden @ unembed.T
    lse = logits.logsumexp(-1)
    nll = F.cross_entropy(logits, targets, reduction="none")
    return (loss_weight * nll + z_loss_weight * lse**2).sum(), nll, lse


def truth(hidden, unembed, targets, loss_weight, z_loss_weight, upstream: float = 1.0):
    """Loss, nll, lse and gradients in float64."""
    hidden, unembed = (x.detach().double().requires_grad_() for x in (hidden, unembed))
    loss, nll, lse = dense(hidden, unembed, targets, loss_weight.double(), z_loss_weight.double())
    (upstream * loss).backward()
    return loss.detach(), nll.detach(), lse.detach(), hidden.grad, unembed.grad


@pytest.mark.parametrize("chunk", [1, 5, 22, 23, 24, 1000, None])
def test_loss_and_gradients_equal_a_dense_softmax(chunk: int | None) -> None:
    hidden, unembed, targets, loss_weight, z_loss_weight = inputs()
    loss, nll, lse = linear_cross_entropy(hidden, [unembed], targets, loss_weight, z_loss_weight, chunk=chunk)
    (3.5 * loss).backward()
    expected = truth(hidden, unembed, targets, loss_weight, z_loss_weight, upstream=3.5)
    for actual, true in zip((loss, nll, lse, hidden.grad, unembed.grad), expected, strict=True):
        torch.testing.assert_close(actual.detach().double(), true, atol=2e-5, rtol=2e-5)
    assert loss.requires_grad
    assert not nll.requires_grad
    assert not lse.requires_grad


def test_z_loss_and_weights_change_the_gradients() -> None:
    """Both matter: the comparison above would fail without either."""
    hidden, unembed, targets, loss_weight, z_loss_weight = inputs()
    full = truth(hidden, unembed, targets, loss_weight, z_loss_weight)
    for changed in ((loss_weight, 0 * z_loss_weight), (torch.ones_like(loss_weight), z_loss_weight)):
        other = truth(hidden, unembed, targets, *changed)
        assert all((a - b).abs().max() > 1e-2 for a, b in zip(full[3:], other[3:]))


def test_gradients_equal_finite_differences() -> None:
    """Compared with finite differences of the loss, without autograd."""
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
def test_as_accurate_as_a_dense_softmax(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
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
        for actual, other, exact in zip(ours, naive, true, strict=True):
            error, allowed = ((x.detach().double() - exact).abs().max() for x in (actual, other))
            assert error <= allowed + 4 * torch.finfo(dtype).eps * exact.abs().max()
        assert hidden.grad.dtype == unembed.grad.dtype == dtype


def test_huge_logits_do_not_overflow() -> None:
    hidden, unembed, targets, loss_weight, z_loss_weight = inputs()
    with torch.no_grad():
        hidden.mul_(300.0)
    loss, nll, _ = linear_cross_entropy(hidden, [unembed], targets, loss_weight, z_loss_weight, chunk=4)
    loss.backward()
    expected = truth(hidden, unembed, targets, loss_weight, z_loss_weight)
    assert nll.max() > 500
    torch.testing.assert_close(nll.double(), expected[1], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(hidden.grad.double(), expected[3], rtol=1e-4, atol=1e-2)


def test_the_loss_of_no_rows_is_zero() -> None:
    hidden, unembed, targets, loss_weight, z_loss_weight = inputs(rows=0)
    loss, nll, lse = linear_cross_entropy(hidden, [unembed], targets, loss_weight, z_loss_weight)
    loss.backward()
    assert float(loss.detach()) == 0
    assert nll.shape == lse.shape == (0,)
    assert hidden.grad.shape == hidden.shape
    assert torch.equal(unembed.grad, torch.zeros_like(unembed))


@pytest.mark.parametrize("chunk", [1, 5, 23, None])
@pytest.mark.parametrize("sizes", [(17, 9, 11), (14, 9, 4), (17, 1, 0)], ids=str)
def test_several_tables_equal_one_concatenated_table(sizes: tuple[int, int, int], chunk: int | None) -> None:
    """Rows beyond the sizes have no part in the loss, and a gradient of zero."""
    hidden, unembed, targets, loss_weight, z_loss_weight = inputs()
    targets = targets % sum(sizes)
    tables = [table.detach().clone().requires_grad_() for table in unembed.split((17, 9, 11))]
    loss, nll, lse = linear_cross_entropy(hidden, tables, targets, loss_weight, z_loss_weight, sizes=sizes, chunk=chunk)
    (0.3 * loss).backward()
    together = torch.cat([table[:size] for table, size in zip(tables, sizes)])
    *rows, grad_hidden, grad_unembed = truth(hidden, together, targets, loss_weight, z_loss_weight, upstream=0.3)
    for actual, true in zip((loss, nll, lse, hidden.grad), (*rows, grad_hidden), strict=True):
        torch.testing.assert_close(actual.detach().double(), true, atol=2e-5, rtol=2e-5)
    for table, size, true in zip(tables, sizes, grad_unembed.split(sizes)):
        torch.testing.assert_close(table.grad[:size].double(), true, atol=2e-5, rtol=2e-5)
        assert torch.equal(table.grad[size:], torch.zeros_like(table[size:]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slices_and_pieces_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Matrix products over a few columns at a time, and elementwise passes over a few rows at a time."""

    def results() -> list[torch.Tensor]:
        hidden, unembed, *others = inputs(dtype=dtype)
        loss, nll, lse = linear_cross_entropy(hidden, [unembed[:20], unembed[20:]], *others, chunk=9)
        loss.backward()
        return [loss.detach(), nll, lse, hidden.grad, unembed.grad]

    in_one_piece = results()
    monkeypatch.setattr(head, "_SLICE", 8)
    monkeypatch.setattr(head, "_PIECE_BYTES", 4 * COLUMNS * 4)
    for actual, expected in zip(results(), in_one_piece, strict=True):
        torch.testing.assert_close(actual, expected)


def test_only_one_backward_pass_is_possible() -> None:
    """The backward pass returns its buffers without a copy, so it cannot run twice."""
    hidden, unembed, *others = inputs()
    loss, _, _ = linear_cross_entropy(hidden, [unembed], *others)
    loss.backward(retain_graph=True)
    before = hidden.grad.clone(), unembed.grad.clone()
    with pytest.raises(AssertionError, match="one backward pass"):
        loss.backward()
    assert torch.equal(hidden.grad, before[0])
    assert torch.equal(unembed.grad, before[1])


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [True, False])
def test_logits_never_exist_all_at_once(grad: bool) -> None:
    rows, chunk = 400, 16
    hidden, unembed, targets, loss_weight, z_loss_weight = inputs(rows)
    hidden, unembed = hidden.detach().requires_grad_(grad), unembed.detach().requires_grad_(grad)
    with OperationRecorder() as recorder:
        loss, _, _ = linear_cross_entropy(hidden, [unembed], targets, loss_weight, z_loss_weight, chunk=chunk)
        if grad:
            loss.backward()
    wide = [shape for _, shape in recorder.results if COLUMNS in shape]
    assert (chunk, COLUMNS) in wide
    assert max(torch.Size(shape).numel() for shape in wide) == chunk * COLUMNS
    assert max(torch.Size(shape).numel() for _, shape in recorder.results) <= rows * WIDTH < rows * COLUMNS
    products = sum(name in ("mm", "addmm", "addmm_", "matmul", "bmm") for name, _ in recorder.results)
    assert products == (3 if grad else 1) * rows // chunk


def test_the_chunk_size_depends_on_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "_CHUNK_BYTES", 4 * COLUMNS * 100)
    # The largest multiple of the minimum that fits, and at least the minimum.
    for min_rows, expected in ((25, 100), (64, 64), (150, 150)):
        monkeypatch.setattr(head, "_MIN_ROWS", min_rows)
        assert chunk_rows(COLUMNS) == expected
        hidden, unembed, *others = inputs(400)
        with OperationRecorder() as recorder:
            linear_cross_entropy(hidden, [unembed], *others)
        assert max(shape[0] for name, shape in recorder.results if name == "mm" and shape[1] == COLUMNS) == expected
