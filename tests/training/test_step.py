"""One optimizer step, compared with slow and simple implementations."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_fakes import CPU, TINY, broken_steps, first_step, tiny_run, with_loader

from triptych.data.pack import Grouped, Packed, Padded, RowLayout
from triptych.diffusion.corrupt import CorruptConfig, corrupt
from triptych.model.transformer import ModelConfig, Transformer, initialise, tagged_parameters
from triptych.training import loop
from triptych.training.config import OptimizerConfig, RunConfig
from triptych.training.ranks import Ranks
from triptych.training.step import StepSums, build_optimizer, lr_factor, micro_inputs, train_step
from triptych.transfer.groups import TransferConfig
from triptych.vocab import Modality

ONE_BIG: RowLayout = Padded()
LAYOUTS: list[RowLayout] = [Grouped(max_tokens=40, overhead=0), Packed(row_length=40, micro_batch_rows=1), Padded()]


def model_of(config: RunConfig) -> Transformer:
    model = Transformer(config.model, TINY)
    initialise(model, config.seed)
    return model


def gradient(config: RunConfig, ranks: Ranks = Ranks()) -> tuple[float, StepSums, dict[str, torch.Tensor], int]:  # noqa: B008
    """Total loss, sums, gradient and number of micro-batches of the first step."""
    model, step, sums, total, count = model_of(config), first_step(config), StepSums(), 0.0, 0
    for inputs in micro_inputs(step, config, TINY, CPU, ranks):
        loss = model.loss(inputs.tokens, inputs.positions, inputs.segments, inputs.targets)
        loss.total.backward()
        sums.add(loss, inputs.targets)
        total, count = total + float(loss.total.detach()), count + 1
    return total, sums, {name: p.grad for name, p in model.named_parameters()}, count


# -- micro-batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("complementary_masks", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=["grouped", "packed"])
def test_micro_batches_add_up_to_one_big_batch(layout: RowLayout, complementary_masks: bool, world: Path) -> None:
    config = tiny_run(world, complementary_masks=complementary_masks, z_loss_weight=0.01)
    total, sums, gradients, count = gradient(with_loader(config, layout=layout))
    big_total, big_sums, expected, big_count = gradient(with_loader(config, layout=ONE_BIG))
    assert count > big_count == (2 if complementary_masks else 1)
    assert total == pytest.approx(big_total, rel=1e-6)
    assert sums.loss == pytest.approx(big_sums.loss, rel=1e-6)
    np.testing.assert_allclose(sums.nll, big_sums.nll, rtol=1e-6)
    np.testing.assert_array_equal(sums.predicted, big_sums.predicted)
    for name, value in expected.items():
        assert value.abs().max() > 0, name
        torch.testing.assert_close(gradients[name], value, atol=1e-6, rtol=1e-5, msg=name)


# -- the loss, sequence by sequence -----------------------------------------------------------------------------------


def slow_rows(config: RunConfig) -> list[list[dict[str, Any]]]:
    """Predicted tokens, in float64, of every view of every sequence of the global batch, each evaluated alone.

    Uses only the plain forward pass and the masks: no loss weights, layouts or heads of the implementation.
    """
    model = model_of(config).double()
    step = first_step(with_loader(config, layout=ONE_BIG))
    (batch,) = step.micro_batches
    sequences = []
    for view in (0, 1) if config.complementary_masks else (None,):
        corrupted = corrupt(batch, TINY, config.corrupt, step=0, global_batch=step.num_sequences, view=view)
        for s in range(step.num_sequences):
            rows, columns = np.nonzero(batch.segment_ids == s + 1)
            assert len(set(rows)) == 1
            tokens = torch.from_numpy(corrupted.tokens[rows, columns]).long()[None]
            with torch.no_grad():
                hidden = model(tokens, torch.arange(len(rows))[None])[0]
            unembed = [block.detach() for block in model.unembed.blocks]
            sequence = []
            for place, (row, column) in enumerate(zip(rows, columns)):
                if not corrupted.predicted[row, column]:
                    continue
                modality = Modality(batch.modality_ids[row, column])
                start = TINY.data_ids(modality).start
                logits = hidden[place] @ unembed[modality][: TINY.data_size(modality) + 2].T
                target = int(batch.tokens[row, column]) - start
                sequence.append(
                    {
                        "nll": float(torch.logsumexp(logits, 0) - logits[target]),
                        "lse": float(torch.logsumexp(logits, 0)),
                        "time": float(corrupted.times[s, modality]),
                        "eligible": int(corrupted.num_eligible[s]),
                        "modality": modality,
                        "view": view,
                    }
                )
            sequences.append(sequence)
    return sequences


def slow_loss(sequences: list[list[dict[str, Any]]], norm: str, total_eligible: int) -> float:
    """The definitions of the norms for the linear schedule."""
    losses = []
    for sequence in sequences:
        # alpha = 1 - t: a masked token counts 1 / t, one of the complement 1 / (1 - t)
        weights = [1 / (1 - p["time"]) if p["view"] == 1 else 1 / p["time"] for p in sequence]
        weighted = sum(w * p["nll"] for w, p in zip(weights, sequence))
        if not sequence:
            losses.append(0.0)
        elif norm == "sequence":
            losses.append(weighted / sequence[0]["eligible"])
        elif norm == "masked":
            losses.append(sum(p["nll"] for p in sequence) / len(sequence))
        elif norm == "paper_literal":
            losses.append(weighted / len(sequence))
        else:
            losses.append(weighted)
    return sum(losses) / (total_eligible if norm == "tokens" else len(losses))


def num_eligible(config: RunConfig) -> int:
    step = first_step(with_loader(config, layout=ONE_BIG))
    views = (0, 1) if config.complementary_masks else (None,)
    return sum(
        int(corrupt(step.micro_batches[0], TINY, config.corrupt, step=0, global_batch=9, view=view).num_eligible.sum())
        for view in views
    )


@pytest.mark.parametrize("norm", ["sequence", "tokens", "masked", "paper_literal"])
def test_the_loss_follows_the_definition_of_its_norm(norm: str, world: Path) -> None:
    config = tiny_run(world, norm=norm, z_loss_weight=0.5, corrupt=CorruptConfig(p_one_sided=0.3, p_prompt_masked=0.2))
    sequences = slow_rows(config)
    _, sums, _, _ = gradient(config)
    assert sums.loss == pytest.approx(slow_loss(sequences, norm, num_eligible(config)), rel=1e-5)
    for modality in Modality:
        mine = [p["nll"] for sequence in sequences for p in sequence if p["modality"] == modality]
        assert sums.predicted[modality] == len(mine) > 0
        assert sums.nll[modality] == pytest.approx(sum(mine), rel=1e-5)


@pytest.mark.parametrize("norm", ["sequence", "tokens"])
def test_complementary_masks_average_two_views(norm: str, world: Path) -> None:
    config = tiny_run(world, norm=norm, complementary_masks=True)
    step = first_step(with_loader(config, layout=ONE_BIG))
    views = list(micro_inputs(step, with_loader(config, layout=ONE_BIG), TINY, CPU, Ranks()))
    assert len(views) == 2
    rows = [set(view.targets.query_idx.tolist()) for view in views]
    assert not rows[0] & rows[1]
    (batch,) = step.micro_batches
    eligible = np.flatnonzero(batch.maskable)
    never = set(eligible.tolist()) - (rows[0] | rows[1])  # given or hidden in both views
    for place in never:
        seen = {int(view.tokens.reshape(-1)[place]) for view in views}
        assert len(seen) == 1
    sequences = slow_rows(config)
    _, sums, _, _ = gradient(config)
    assert sums.loss == pytest.approx(slow_loss(sequences, norm, num_eligible(config)), rel=1e-5)
    if norm == "sequence":
        half = len(sequences) // 2
        both = [slow_loss(part, norm, 0) for part in (sequences[:half], sequences[half:])]
        assert sums.loss == pytest.approx(sum(both) / 2, rel=1e-5)


@pytest.mark.parametrize("complementary_masks", [False, True])
def test_the_z_loss_is_a_mean_over_predicted_positions(complementary_masks: bool, world: Path) -> None:
    config = tiny_run(world, complementary_masks=complementary_masks, z_loss_weight=0.3)
    squares = [p["lse"] ** 2 for sequence in slow_rows(config) for p in sequence]
    total, sums, _, count = gradient(config)
    assert count > 1
    assert total - sums.loss == pytest.approx(0.3 * sum(squares) / len(squares), rel=1e-5)
    assert gradient(replace(config, z_loss_weight=0.0))[1].loss == sums.loss


# -- the update -------------------------------------------------------------------------------------------------------


def slow_adamw(config: RunConfig, steps: int) -> tuple[dict[str, torch.Tensor], list[float]]:
    """AdamW as in the paper, in float64, with clipping by the global gradient norm."""
    model = model_of(config).double()
    o = config.optimizer
    moments = {name: [torch.zeros_like(p), torch.zeros_like(p)] for name, p in model.named_parameters()}
    norms = []
    for index in range(steps):
        model.zero_grad()
        for inputs in micro_inputs(first_step(config, index), config, TINY, CPU, Ranks()):
            targets = replace(
                inputs.targets,
                loss_weight_n=inputs.targets.loss_weight_n.double(),
                z_loss_weight_n=inputs.targets.z_loss_weight_n.double(),
            )
            hidden = model(inputs.tokens, inputs.positions, inputs.segments).flatten(0, 1)
            start = 0
            for modality, count in zip(Modality, targets.counts):
                part = slice(start, start + count)
                logits = model.logits(hidden[targets.query_idx[part]], modality)
                lse = logits.logsumexp(-1)
                local = targets.ids_n[part] - TINY.data_ids(modality).start
                nll = lse - logits.gather(1, local[:, None])[:, 0]
                (targets.loss_weight_n[part] * nll + targets.z_loss_weight_n[part] * lse**2).sum().backward(
                    retain_graph=True
                )
                start += count
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
        norms.append(norm)
        scale = min(1.0, (o.clip or math.inf) / norm)
        rate = o.lr * lr_factor(index, config)
        with torch.no_grad():
            for name, p in model.named_parameters():
                g, (m, v) = p.grad * scale, moments[name]
                m.mul_(o.beta1).add_((1 - o.beta1) * g)
                v.mul_(o.beta2).add_((1 - o.beta2) * g * g)
                if p.ndim == 2:
                    p.mul_(1 - rate * o.weight_decay)
                hat_m, hat_v = m / (1 - o.beta1 ** (index + 1)), v / (1 - o.beta2 ** (index + 1))
                p.sub_(rate * hat_m / (hat_v.sqrt() + o.eps))
    return {name: p.detach().float() for name, p in model.named_parameters()}, norms


@pytest.mark.parametrize("clip", [None, 0.05])
def test_steps_are_adamw_with_clipping(clip: float | None, world: Path) -> None:
    # With a tiny epsilon, the sign of rounding errors in zero gradients would matter.
    config = tiny_run(world, optimizer=OptimizerConfig(lr=1e-2, eps=1e-3, clip=clip, weight_decay=0.5, warmup_steps=2))
    model = model_of(config)
    optimizer = build_optimizer(model, config.resolved)
    norms = [
        train_step(model, optimizer, first_step(config, index), config, TINY, CPU)[1]
        for index in range(config.num_steps)
    ]
    expected, expected_norms = slow_adamw(config, config.num_steps)
    assert norms == pytest.approx(expected_norms, rel=1e-4)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], atol=1e-5, rtol=1e-4, msg=name)
        assert p.grad is None


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing(what: str, world: Path) -> None:
    config = tiny_run(world)
    model = model_of(config)
    optimizer = build_optimizer(model, config.resolved)

    def everything() -> list[torch.Tensor]:
        moments = [value for p in model.parameters() for value in optimizer.state[p].values()]
        return [value.detach().clone() for value in (*model.parameters(), *moments)]

    with broken_steps({1}, what):
        first, _ = loop.train_step(model, optimizer, first_step(config, 0), config, TINY, CPU)
        before = everything()
        second, norm = loop.train_step(model, optimizer, first_step(config, 1), config, TINY, CPU)
        after = everything()
        third, _ = loop.train_step(model, optimizer, first_step(config, 2), config, TINY, CPU)
    assert (first.skipped, second.skipped, third.skipped) == (None, "not finite", None)
    assert math.isfinite(second.loss) == (what != "loss")
    assert math.isfinite(norm) == (what != "gradient")
    assert len(before) == len(after) == 4 * len(list(model.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(before, after))
    assert all(value.isfinite().all() for value in everything())
    assert not torch.equal(everything()[0], after[0])
    assert all(p.grad is None for p in model.parameters())


def test_norms_do_not_decay_and_every_parameter_is_in_one_group(world: Path) -> None:
    config = tiny_run(world)
    model = model_of(config)
    decaying, constant = build_optimizer(model, config.resolved).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    members = [[names[id(p)] for p in group["params"]] for group in (decaying, constant)]
    assert sorted(members[0] + members[1]) == sorted(names.values())
    assert {name for name in names.values() if "norm" in name} == set(members[1]) != set()
    assert (decaying["weight_decay"], constant["weight_decay"]) == (config.optimizer.weight_decay, 0.0)


def test_roles_can_have_their_own_learning_rates(world: Path) -> None:
    factors = {"embed": 8.0, "embed_image": 2.0, "attn_qkv": 0.0, "unembed": 0.5}
    multipliers = {role: {"lr": factor} for role, factor in factors.items()}
    config = replace(tiny_run(world), transfer=TransferConfig(multipliers=multipliers))
    model = model_of(config)
    optimizer = build_optimizer(model, config.resolved)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train_step(model, optimizer, first_step(config, 1), config, TINY, CPU)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    base = config.optimizer.lr * lr_factor(1, config)
    for tagged in tagged_parameters(model):
        name = tagged.role if tagged.role in factors else tagged.role.split("_")[0]  # the most specific name
        factor = factors.get(name, 1.0)
        assert rates[id(tagged.parameter)] == pytest.approx(base * factor, rel=1e-12), tagged.name
        # Adam's first step changes a weight by the learning rate, up to epsilon.
        moved = (tagged.parameter.detach() - before[tagged.name]).abs().max().item()
        assert moved == pytest.approx(base * factor, rel=0.2), tagged.name


# -- the learning rate ------------------------------------------------------------------------------------------------


def schedule(num_steps: int, warmup: int, floor: float) -> list[float]:
    model = ModelConfig(num_layers=1, width=16, num_heads=2, d_ff=16)
    optimizer = OptimizerConfig(lr=1.0, warmup_steps=warmup, min_lr_ratio=floor)
    loader = tiny_run(Path("nowhere")).loader
    config = RunConfig(recipe="x", model=model, loader=loader, optimizer=optimizer, num_steps=num_steps)
    return [lr_factor(step, config) for step in range(num_steps)]


def test_the_learning_rate_rises_linearly_and_falls_as_a_cosine() -> None:
    rates = schedule(101, 10, 0.1)
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) / 10)
    falling = [0.1 + 0.9 * (0.5 + 0.5 * math.cos(math.pi * i / 90)) for i in range(91)]
    np.testing.assert_allclose(rates[10:], falling, rtol=1e-12)
    assert rates[-1] == 0.1  # exactly
    assert max(rates) == rates[9] == rates[10] == 1


@pytest.mark.parametrize(("num_steps", "warmup", "expected"), [(100, 1000, 25), (7, 1000, 1), (3, 1000, 0), (9, 2, 2)])
def test_the_warm_up_is_at_most_a_quarter(num_steps: int, warmup: int, expected: int) -> None:
    rates = schedule(num_steps, warmup, 0.0)
    assert rates.index(1.0) == max(expected - 1, 0)
    assert rates[:expected] == [(i + 1) / expected for i in range(expected)]
    assert rates[-1] == 0.0
    assert all(a > b for a, b in zip(rates[expected:], rates[expected + 1 :]))


def test_the_optimizer_uses_the_learning_rate_of_the_step(world: Path) -> None:
    config = tiny_run(world)
    model = model_of(config)
    optimizer = build_optimizer(model, config.resolved)
    for index in (0, 3, 5):
        train_step(model, optimizer, first_step(config, index), config, TINY, CPU)
        assert {group["lr"] for group in optimizer.param_groups} == {config.optimizer.lr * lr_factor(index, config)}
