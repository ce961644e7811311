"""Sequences that share rows see themselves alone: attention by buckets is dense attention under a mask."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from triptych.data.pack import best_cuts
from triptych.model import segments as module
from triptych.model.segments import Segments, attend, find_segments, whole_rows
from triptych.model.transformer import ModelConfig, Targets, Transformer, initialise
from triptych.vocab import Modality, Vocabulary

CPU = torch.device("cpu")
HEADS, HEAD = 3, 4
VOCABULARY = Vocabulary(text=50, image=30, audio=20)


def random_ids(seed: int, rows: int = 5, length: int = 24) -> np.ndarray:
    """Rows of several sequences one behind another; some end with padding, one is empty, one begins with padding."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((rows, length), np.int32)
    number = 0
    for row in range(rows):
        start = int(rng.integers(3)) if row == 1 else 0
        while row != 2 and start < length and rng.random() < 0.9:
            stop = min(length, start + int(rng.integers(1, length)))
            number += 1
            ids[row, start:stop] = number
            start = stop
    return ids


LAYOUTS = {
    **{f"packed {seed}": random_ids(seed) for seed in range(4)},
    "shuffled": np.random.default_rng(0).integers(0, 4, (4, 15)),
    "apart": np.array([[1, 2, 1]]),
    "one position each": np.arange(1, 13).reshape(2, 6),
    "one row": np.full((1, 9), 7),
    "whole rows": np.array([[1] * 6, [2] * 6, [1] * 6]),
    "whole rows beside an empty one": np.array([[1] * 6, [0] * 6, [2] * 6]),
    "all padding": np.zeros((2, 5), np.int32),
}


@pytest.fixture(params=LAYOUTS.values(), ids=list(LAYOUTS))
def ids(request: pytest.FixtureRequest) -> np.ndarray:
    return request.param


def computed(segments: Segments) -> np.ndarray:
    """[N] which of the R x T positions."""
    everything = torch.arange(segments.shape[0] * segments.shape[1]).view(segments.shape)
    return segments.pick(everything).numpy()


# -- who sees whom ----------------------------------------------------------------------------------------------------


def test_who_sees_whom() -> None:
    found = find_segments(np.array([[1, 1, 2, 0], [3, 3, 3, 3]]), CPU)
    assert (found.shape, found.lengths) == ((2, 4), (2, 1, 4))
    assert found.places.tolist() == [0, 1, 2, 4, 5, 6, 7]
    separate = find_segments(np.array([[1, 2, 1]]), CPU)
    assert (separate.lengths, separate.places.tolist()) == ((2, 1), [0, 2, 1])
    # Rows that are whole sequences, or nothing at all, are left as they are.
    for rows in ([[3, 3, 3, 3]], [[1, 1], [2, 2]], [[0, 0], [0, 0]]):
        found = find_segments(np.array(rows), CPU)
        assert found.are_rows
        assert found.places is None
    # All is in order, but rows are no sequences.
    packed = find_segments(np.array([[1, 1, 2], [1, 2, 2]]), CPU)
    assert (packed.lengths, packed.places, packed.are_rows) == ((2, 1, 1, 2), None, False)
    # An empty row is not computed.
    beside = find_segments(np.array([[1, 1], [0, 0], [2, 2]]), CPU)
    assert (beside.lengths, beside.places.tolist(), beside.are_rows) == ((2, 2), [0, 1, 4, 5], False)


def test_sequences_are_the_positions_of_a_row_with_one_number(ids: np.ndarray) -> None:
    found = find_segments(ids, CPU)
    places = computed(found)
    numbers, rows = ids.reshape(-1), np.arange(ids.size) // ids.shape[1]
    has_same = (numbers[:, None] == numbers) & (rows[:, None] == rows)
    member = np.repeat(np.arange(len(found.lengths)), found.lengths)
    assert np.array_equal(member[:, None] == member, has_same[np.ix_(places, places)])
    expected = np.flatnonzero(numbers) if ids.any() else np.arange(ids.size)
    assert sorted(places) == expected.tolist()  # padding is left out, unless there is nothing else
    # Within a sequence, in the order in which they stand.
    assert all((np.diff(part) > 0).all() for part in np.split(places, np.cumsum(found.lengths)[:-1]))
    assert found.ends.tolist() == [0, *np.cumsum(found.lengths)]
    assert found.ends.dtype == torch.int32


def test_there_and_back(ids: np.ndarray) -> None:
    found = find_segments(ids, CPU)
    values = torch.arange(ids.size * 3, dtype=torch.float64).view(*ids.shape, 3) + 1
    picked = found.pick(values)
    assert torch.equal(picked, values.flatten(0, 1)[computed(found)])
    is_computed = torch.from_numpy(ids > 0) if ids.any() else torch.ones(ids.shape, dtype=torch.bool)
    spread = found.spread(picked)
    assert torch.equal(spread, values * is_computed[..., None])
    asked = torch.from_numpy(np.random.default_rng(0).permutation(np.flatnonzero(is_computed.numpy())))
    assert torch.equal(picked[found.number(asked)], values.flatten(0, 1)[asked])
    # Gradients take the same way.
    picked.requires_grad_()
    found.spread(picked).backward(values)
    assert torch.equal(picked.grad, found.pick(values))


# -- attention --------------------------------------------------------------------------------------------------------


def dense_attention(qkv_RT3Hh: Tensor, ids: np.ndarray) -> Tensor:
    """[R, T, H h]: every pair of a row, minus infinity where the numbers differ."""
    q, k, v = qkv_RT3Hh.unbind(2)
    numbers = torch.from_numpy(ids)
    may_see = numbers[:, None, :, None] == numbers[:, None, None, :]
    scores = torch.einsum("rihc,rjhc->rhij", q, k) / HEAD**0.5
    share = scores.masked_fill(~may_see, -torch.inf).softmax(-1)
    return torch.einsum("rhij,rjhc->rihc", share, v).flatten(2)


def random_qkv(ids: np.ndarray, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(*ids.shape, 3, HEADS, HEAD, dtype=torch.float64, generator=generator)


def by_segments(qkv_RT3Hh: Tensor, segments: Segments) -> Tensor:
    """[R, T, H h] as a block does it: queries, keys and values are parts of one product."""
    picked = segments.pick(qkv_RT3Hh)
    return segments.spread(attend(picked[:, :2], picked[:, 2], segments))


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of those that went to torch's fused kernel."""
    lengths: list[int] = []
    kernel = F.scaled_dot_product_attention

    def noted(q: Tensor, *others: Tensor, **settings: Tensor) -> Tensor:
        lengths.append(q.shape[2])
        return kernel(q, *others, **settings)

    monkeypatch.setattr(module.F, "scaled_dot_product_attention", noted)
    return lengths


@pytest.mark.parametrize("small", [0, 6, 192])
@pytest.mark.parametrize("bucket_pairs", [0, 40, 6_000])
def test_attention_is_dense_attention_under_a_mask(
    ids: np.ndarray, small: int, bucket_pairs: int, monkeypatch: pytest.MonkeyPatch, fused: list[int]
) -> None:
    """Values and gradients, by plain products, by the fused kernel and by both; in many buckets and in few."""
    monkeypatch.setattr(module, "_SMALL", small)
    monkeypatch.setattr(module, "_BUCKET_PAIRS", bucket_pairs)
    ours, dense = (random_qkv(ids).requires_grad_() for _ in range(2))
    is_computed = torch.from_numpy(ids > 0 if ids.any() else ids == 0)
    segments = find_segments(ids, CPU)
    found, expected = by_segments(ours, segments), dense_attention(dense, ids) * is_computed[..., None]
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    up = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found.backward(up)
    expected.backward(up)
    torch.testing.assert_close(ours.grad, dense.grad, atol=1e-10, rtol=1e-10)
    lengths = [ids.shape[1]] if segments.are_rows else [bucket.length for bucket in segments.buckets.parts]
    assert fused == [length for length in lengths if length > small]


def test_long_and_short_sequences_side_by_side(fused: list[int]) -> None:
    """With the lengths that decide in earnest."""
    lengths = [250, 3, 193, 192, 20, 191]
    ids = np.repeat(np.arange(1, 7), lengths)[None]
    ours, dense = (random_qkv(ids).requires_grad_() for _ in range(2))
    found, expected = by_segments(ours, find_segments(ids, CPU)), dense_attention(dense, ids)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad, dense.grad, atol=1e-10, rtol=1e-10)
    assert min(fused) > 192
    assert max(fused) == 250


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_attention_in_other_precisions(ids: np.ndarray, dtype: torch.dtype, tolerance: float, fused: list[int]) -> None:
    qkv = random_qkv(ids).to(dtype)
    found = by_segments(qkv, find_segments(ids, CPU))
    expected = dense_attention(qkv.double(), ids) * torch.from_numpy(ids > 0 if ids.any() else ids == 0)[..., None]
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)
    assert bool(fused) == (dtype == torch.bfloat16)  # plain products are for float32


def test_what_fills_up_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands beside a short sequence in its bucket does not reach it, even if it is infinite."""
    monkeypatch.setattr(module, "_BUCKET_PAIRS", 10**9)  # one bucket
    ids = np.array([[1] * 8 + [2] * 3])
    segments = find_segments(ids, CPU)
    assert len(segments.buckets.parts) == 1
    qkv = random_qkv(ids)
    before = by_segments(qkv, segments)
    qkv[0, :8] = torch.inf
    assert torch.equal(by_segments(qkv, segments)[0, 8:], before[0, 8:])


# -- buckets ----------------------------------------------------------------------------------------------------------


def all_cuts(count: int) -> Iterator[list[int]]:
    for bits in range(2 ** max(0, count - 1)):
        yield [0, *(i + 1 for i in range(count - 1) if bits >> i & 1), count]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_bounded", [False, True])
def test_best_cuts_are_the_best_of_all(seed: int, is_bounded: bool) -> None:
    rng = np.random.default_rng(seed)
    for count in range(1, 9):
        costs = rng.integers(0, 100, (count + 1, count + 1))
        most = rng.integers(1, count + 1, count + 1) if is_bounded else np.arange(count + 1)

        def total(cuts: list[int], costs: np.ndarray = costs) -> int:
            return int(sum(costs[a, b] for a, b in pairwise(cuts)))

        found = best_cuts(
            count,
            lambda starts, stop, costs=costs: costs[starts, stop],
            lambda stop, most=most: int(most[stop]),
        )
        allowed = [cuts for cuts in all_cuts(count) if all(b - a <= most[b] for a, b in pairwise(cuts))]
        assert found in allowed
        assert total(found) == min(map(total, allowed))
    assert best_cuts(0, lambda starts, stop: starts) == [0]


@pytest.mark.parametrize("bucket_pairs", [0, 40, 400, 6_000])
@pytest.mark.parametrize("seed", range(4))
def test_every_position_stands_in_one_bucket(seed: int, bucket_pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUCKET_PAIRS", bucket_pairs)
    lengths = np.random.default_rng(seed).integers(1, 30, 9)
    segments = Segments((1, int(lengths.sum())), tuple(lengths.tolist()), CPU)
    buckets = segments.buckets
    there, back = buckets.there.numpy(), buckets.back.numpy()
    extra = np.zeros(0, np.int64) if buckets.extra is None else buckets.extra.numpy()
    assert len(there) == sum(buckets.sizes)
    # There and back is where it was, and what is not on the way back is what fills up.
    assert np.array_equal(there[back], np.arange(lengths.sum()))
    assert sorted([*back, *extra]) == list(range(len(there)))

    member = np.repeat(np.arange(9), lengths)
    seen, cost, start = [], 0, 0
    for bucket, size in zip(buckets.parts, buckets.sizes):
        own = there[start : start + size].reshape(bucket.count, bucket.length)
        assert (member[own] == member[own[:, :1]]).all()  # a sequence to a line
        ends = lengths[member[own[:, 0]]]
        assert ends.max() == bucket.length
        has_ended = np.arange(bucket.length) >= ends[:, None]
        assert np.array_equal(np.isin(np.arange(start, start + size), extra).reshape(own.shape), has_ended)
        assert (bucket.bias is None) == (not has_ended.any())
        if bucket.bias is not None:
            assert bucket.bias.shape == (bucket.count, 1, 1, bucket.length)
            assert np.array_equal(bucket.bias[:, 0, 0].numpy(), np.where(has_ended, -np.inf, 0.0))
        seen += member[own[:, 0]].tolist()
        cost += bucket.count * bucket.length * (bucket.length + module._POSITION_PAIRS) + bucket_pairs
        start += size
    assert sorted(seen) == list(range(9))

    def cost_of(cuts: list[int]) -> int:
        """With the longest first: a bucket of others than neighbours is never better."""
        widths = sorted(lengths.tolist(), reverse=True)
        return sum((b - a) * widths[a] * (widths[a] + module._POSITION_PAIRS) + bucket_pairs for a, b in pairwise(cuts))

    assert cost == min(map(cost_of, all_cuts(9)))


# -- the last block ---------------------------------------------------------------------------------------------------


def build(**changes: object) -> Transformer:
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
def test_asking_for_a_few_changes_nothing_of_them(changes: dict[str, object], is_packed: bool) -> None:
    """Hidden states of the positions that are asked for, and every gradient, as if all had been computed."""
    model, ids = build(**changes), random_ids(0)
    segments = find_segments(ids, CPU) if is_packed else None
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY.size, ids.shape, generator=generator)
    positions = torch.arange(ids.shape[1]).expand(ids.shape)
    known = torch.from_numpy(np.flatnonzero(ids) if is_packed else np.arange(ids.size))
    asked = known[torch.randperm(len(known), generator=generator)[:17]]
    up = torch.randn(17, 24, dtype=torch.float64, generator=generator)

    everything = model(tokens, positions, segments).flatten(0, 1)[asked]
    everything.backward(up)
    expected = gradients(model)
    model.zero_grad()
    few = model(tokens, positions, segments, query_idx=asked)
    few.backward(up)
    torch.testing.assert_close(few, everything, atol=1e-10, rtol=1e-10)
    assert few.std() > 0.1
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-10, rtol=1e-10)
    assert model(tokens, positions, segments, query_idx=asked[:0]).shape == (0, 24)


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_the_loss_is_that_of_hidden_states_gathered_afterwards(changes: dict[str, object]) -> None:
    """In packed rows with padding; the head itself works in float32."""
    model, ids = build(**changes), random_ids(3)
    segments, generator = find_segments(ids, CPU), torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY.size, ids.shape, generator=generator)
    positions = torch.arange(ids.shape[1]).expand(ids.shape)
    known = torch.from_numpy(np.flatnonzero(ids))
    counts = (6, 5, 4)
    targets = Targets(
        rows_n=known[torch.randperm(len(known), generator=generator)[:15]],
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
    loss = model(tokens, positions, segments, targets)
    loss.total.backward()
    found = gradients(model)
    model.zero_grad()

    hidden = model(tokens, positions, segments).flatten(0, 1)[targets.rows_n]
    answers = torch.cat([torch.arange(model.num_columns(m)) + VOCABULARY.ids(m).start for m in Modality])
    logits = hidden @ torch.cat(model.unembed.blocks)[answers].T
    column = (answers == targets.ids_n[:, None]).nonzero()[:, 1]
    nll, lse = F.cross_entropy(logits, column, reduction="none"), logits.logsumexp(-1)
    total = (targets.loss_weight_n.double() * nll + targets.z_loss_weight_n.double() * lse**2).sum()
    total.backward()
    torch.testing.assert_close(loss.nll_n.double(), nll, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss.total.double(), total, atol=1e-5, rtol=1e-5)
    for name, expected in gradients(model).items():
        torch.testing.assert_close(found[name], expected, atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
        assert expected.abs().max() > 1e-3, name  # a comparison of something


# -- on a GPU ---------------------------------------------------------------------------------------------------------


def on_gpu(ids: np.ndarray) -> Segments:
    """Who sees whom as a GPU has it, in tensors that stay where they are: there is no GPU here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "to", lambda tensor, device: tensor)
        return replace(find_segments(ids, torch.device("cuda")), device=CPU)


def test_a_gpu_computes_padding_as_a_sequence_of_its_own() -> None:
    found = on_gpu(np.array([[1, 1, 2, 2, 2, 0], [3, 3, 3, 0, 0, 0], [0, 0, 0, 0, 0, 0]]))
    assert (found.lengths, found.places) == ((2, 3, 1, 3, 3, 6), None)  # packed rows are in order as they are
    assert found.ends.tolist() == [0, 2, 5, 6, 9, 12, 18]
    assert on_gpu(np.array([[1, 1], [0, 0], [2, 2]])).are_rows
    separate = on_gpu(np.array([[0, 1, 2, 1]]))
    assert (separate.lengths, separate.places.tolist()) == ((2, 1, 1), [1, 3, 2, 0])


def test_padding_that_is_computed_changes_nothing(ids: np.ndarray) -> None:
    segments = on_gpu(ids)
    assert sum(segments.lengths) == ids.size
    qkv = random_qkv(ids)
    is_real = torch.from_numpy(ids > 0)
    found = by_segments(qkv, segments)
    torch.testing.assert_close(found[is_real], dense_attention(qkv, ids)[is_real], atol=1e-10, rtol=1e-10)
    assert found.isfinite().all()


def plain_varlen(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, ends_k: Tensor, longest: int, longest_k: int) -> Tensor:
    """What torch's kernel for sequences of many lengths says that it does, one sequence after another."""
    assert torch.equal(ends, ends_k)
    assert longest == longest_k >= int(ends.diff().max())
    parts = [x.split(ends.diff().tolist()) for x in (q, k, v)]
    return torch.cat(
        [
            F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in part)).transpose(0, 1)
            for part in zip(*parts, strict=True)
        ]
    )


def test_what_the_gpu_s_kernel_is_asked_for(ids: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", plain_varlen)
    segments = on_gpu(ids)
    ours, dense = (random_qkv(ids).requires_grad_() for _ in range(2))
    picked = segments.pick(ours)
    found = segments.spread(module._varlen(picked[:, :2], picked[:, 2], segments))
    expected = dense_attention(dense, ids)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad, dense.grad, atol=1e-10, rtol=1e-10)


def test_shapes_of_the_gpu_s_kernel() -> None:
    """Of pretended tensors, so only shapes and types: that torch has it, with these arguments, and its gradients."""
    segments = on_gpu(random_ids(0))
    count = sum(segments.lengths)
    with FakeTensorMode(allow_non_fake_inputs=True):
        qkv = torch.randn(count, 3, HEADS, HEAD, dtype=torch.bfloat16, requires_grad=True)
        found = module._varlen(qkv[:, :2], qkv[:, 2], segments)
        assert (found.shape, found.dtype) == ((count, HEADS * HEAD), torch.bfloat16)
        found.sum().backward()
        assert qkv.grad is not None
        assert (qkv.grad.shape, qkv.grad.dtype) == (qkv.shape, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_when_the_gpu_s_kernel_is_taken(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """For halves, which is all it knows; not for whole rows. Tensors are pretended, and so are their ways."""
    taken: list[str] = []

    def way(name: str) -> Callable[..., Tensor]:
        def go(first: Tensor, *_: object) -> Tensor:
            taken.append(name)
            return first

        return go

    for name in ("_varlen", "_side_by_side", "take_rows"):
        monkeypatch.setattr(module, name, way(name))
    device, ids = torch.device("cuda:0"), np.array([[1, 1, 2, 2]])
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        qk = torch.empty(4, 2, HEADS, HEAD, dtype=dtype, device=device)
        v = torch.empty(4, HEADS, HEAD, dtype=dtype, device=device)
        attend(qk, v, whole_rows(1, 4, device))
        assert taken == ["_side_by_side"]
        taken.clear()
        found = find_segments(ids, device)
        monkeypatch.setattr(Segments, "buckets", on_gpu(ids).buckets)
        attend(qk, v, found)
    buckets = ["take_rows", "take_rows", "_side_by_side", "take_rows"]
    assert taken == (buckets if dtype == torch.float32 else ["_varlen"])
