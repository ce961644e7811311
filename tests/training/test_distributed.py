"""A model on several ranks trains like the model on one rank, however it is sharded, checkpointed and compiled."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from faults import exit_code_of, long_run, start_ranks
from train_fakes import CPU, TINY, events, first_step, run_it, tiny_run

from triptych.data.pack import Grouped, Padded
from triptych.errors import UserError
from triptych.training.config import ParallelConfig
from triptych.training.distributed import apply, build_mesh, gather_model, is_sharded
from triptych.training.ranks import Ranks, shutdown_ranks
from triptych.training.step import build_model, micro_inputs
from triptych.vocab import Modality


def losses(folder: Path) -> list[float]:
    return [event["loss"] for event in events(folder, "step")]


def test_two_ranks_match_the_losses_of_one_rank_over_fifty_steps(world: Path, tmp_path: Path) -> None:
    config = long_run(world, 50, save_every=1000)
    run_it(config, tmp_path / "one")
    assert [exit_code_of(process) for process in start_ranks(2, config, tmp_path / "two")] == [0, 0]
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == 50
    assert two == pytest.approx(one, abs=1.01e-5)  # rounded to five decimals
    both = [events(tmp_path / name, "step") for name in ("one", "two")]
    assert [event["tokens"] for event in both[0]] == [event["tokens"] for event in both[1]]


@pytest.mark.parametrize(
    ("size", "parallel"),
    [
        (2, ParallelConfig(shard=1)),  # two copies
        # two copies over two ranks each
        pytest.param(4, ParallelConfig(shard=2, checkpoint_activations=True), marks=pytest.mark.slow),
        (2, ParallelConfig(reshard_after_forward=False)),
    ],
)
def test_every_sharding_has_the_losses_of_one_rank(
    size: int, parallel: ParallelConfig, world: Path, tmp_path: Path
) -> None:
    # Several micro-batches per step, some of them empty on some ranks.
    layout = Grouped(max_tokens=40, overhead=1) if size == 4 else Padded(micro_batch_rows=2)
    config = replace(tiny_run(world, layout=layout), num_steps=8)
    run_it(config, tmp_path / "one")
    processes = start_ranks(size, replace(config, parallel=parallel), tmp_path / "many")
    assert [exit_code_of(process) for process in processes] == [0] * size
    assert losses(tmp_path / "many") == pytest.approx(losses(tmp_path / "one"), abs=2e-5)
    one, many = (events(tmp_path / name, "validation") for name in ("one", "many"))
    assert [event["step"] for event in one] == [event["step"] for event in many] == [4, 8]
    for alone, shared in zip(one, many):
        for name, estimate in alone["nelbo"].items():
            assert shared["nelbo"][name] == pytest.approx(estimate, abs=1e-4), name


def gradients(world: Path, parallel: ParallelConfig) -> dict[str, torch.Tensor]:
    config = tiny_run(world, parallel=parallel)
    model = build_model(config, TINY)
    for inputs in micro_inputs(first_step(config), config, TINY, CPU, Ranks()):
        model.loss(inputs.tokens, inputs.positions, inputs.segments, inputs.targets).total.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_activation_checkpointing_gives_the_same_gradients(world: Path) -> None:
    plain, again = gradients(world, ParallelConfig()), gradients(world, ParallelConfig(checkpoint_activations=True))
    assert plain.keys() == again.keys()
    assert all(torch.equal(plain[name], again[name]) for name in plain)


def test_activation_checkpointing_saves_memory(world: Path) -> None:
    def num_saved(parallel: ParallelConfig) -> int:
        config, count = tiny_run(world, parallel=parallel), 0
        model = build_model(config, TINY)
        inputs = next(iter(micro_inputs(first_step(config), config, TINY, CPU, Ranks())))

        def count_numbers(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count_numbers, lambda tensor: tensor):
            model.loss(inputs.tokens, inputs.positions, inputs.segments, inputs.targets)
        return count

    assert num_saved(ParallelConfig(checkpoint_activations=True)) < 0.5 * num_saved(ParallelConfig())


def test_bfloat16_trains_nearly_like_float32_with_float32_weights(world: Path, tmp_path: Path) -> None:
    config = replace(tiny_run(world), num_steps=12)
    run_it(config, tmp_path / "float32")
    try:
        shown = []
        run = run_it(
            replace(config, parallel=ParallelConfig(precision="bfloat16")),
            tmp_path / "bfloat16",
            on_validation=lambda run, model: shown.append(model.logits(torch.zeros(2, 16), Modality.TEXT).shape),
        )
        assert shown[0] == (2, TINY.text + 2)
        assert {parameter.dtype for parameter in run.state.model.parameters()} == {torch.float32}
        plain = gather_model(run.state.eval_model)
    finally:
        shutdown_ranks()
    half, full = losses(tmp_path / "bfloat16"), losses(tmp_path / "float32")
    assert half != full
    assert half == pytest.approx(full, rel=0.02)
    assert plain.embed.text.shape[0] == len(TINY.embedding_blocks[0])
    with pytest.raises(UserError, match=r"parallel.precision was 'bfloat16', is 'float32'"):
        run_it(config, tmp_path / "bfloat16")


def test_products_in_bfloat16_train_nearly_like_float32(world: Path, tmp_path: Path) -> None:
    config = replace(tiny_run(world), num_steps=12)
    rounded = replace(config, parallel=ParallelConfig(precision="bfloat16-products"))
    run_it(config, tmp_path / "float32")
    run = run_it(rounded, tmp_path / "products")
    assert not is_sharded(run.state.model), "one rank needs no FSDP for it"
    assert {parameter.dtype for parameter in run.state.model.parameters()} == {torch.float32}
    ours, full = losses(tmp_path / "products"), losses(tmp_path / "float32")
    assert ours != full
    assert ours == pytest.approx(full, rel=0.01)
    with pytest.raises(UserError, match=r"parallel.precision was 'bfloat16-products', is 'float32'"):
        run_it(config, tmp_path / "products")


def test_every_forward_method_of_a_sharded_model_gathers_its_weights(world: Path) -> None:
    config = tiny_run(world, parallel=ParallelConfig(precision="bfloat16"))
    inputs = next(iter(micro_inputs(first_step(config), config, TINY, CPU, Ranks())))
    batch, query_idx = (inputs.tokens, inputs.positions, inputs.segments), inputs.targets.query_idx
    try:
        model = build_model(config, TINY, mesh=build_mesh(config.parallel, 1, "cpu"))
        with torch.no_grad():
            loss = model.loss(*batch, inputs.targets).total
            hidden = model.hidden_states(*batch, query_idx=query_idx)
            expected = model(*batch).flatten(0, 1)[query_idx]
        assert hidden.dtype == torch.bfloat16
        torch.testing.assert_close(hidden, expected, rtol=0.05, atol=0.05)
        assert loss.isfinite()
    finally:
        shutdown_ranks()


def test_every_block_is_compiled(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile itself is replaced: it would take a minute."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda forward: compiled.append(forward) or forward)
    model = build_model(tiny_run(world), TINY)
    before = copy.copy(dict(model.named_parameters()))
    apply(model, ParallelConfig(compile=True, checkpoint_activations=True), None)
    assert len(compiled) == len(model.blocks)
    assert dict(model.named_parameters()) == before


def test_shard_must_divide_the_number_of_ranks() -> None:
    assert build_mesh(ParallelConfig(), 1, "cpu") is None
    with pytest.raises(UserError, match=r"parallel.shard=4 must divide the number of ranks, 6"):
        build_mesh(ParallelConfig(shard=4), 6, "cpu")
    for name in ("timeout", "hang_timeout"):
        with pytest.raises(UserError, match=f"parallel.{name} must be at least 1 second"):
            ParallelConfig(**{name: 0.0})
    with pytest.raises(UserError, match=r"parallel.shard must be at least 1, or none for all ranks, got 0"):
        ParallelConfig(shard=0)
