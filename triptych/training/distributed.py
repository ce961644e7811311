"""One model on several ranks: FSDP2 over a device mesh, mixed precision, activation checkpointing, compilation.

All of it is applied to the plain model from outside. Weights, gradients and optimizer state are sharded over the ranks
of a copy; the weights of a block are gathered just before they are used.

    one rank              the plain model, unless the precision is bfloat16
    shard = none          one copy over all ranks
    shard = 8 of 64       8 copies over 8 ranks each (hybrid): weights are gathered within a node, gradients are summed
                          over all nodes
"""

from collections.abc import Iterable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from triptych.errors import UserError
from triptych.model.fused import linear_in_bfloat16
from triptych.model.layers import Attention, GatedMLP
from triptych.model.transformer import ModelConfig, Transformer
from triptych.training.config import ParallelConfig
from triptych.vocab import Vocabulary


def build_mesh(config: ParallelConfig, size: int, device_type: str) -> DeviceMesh | None:
    """The ranks as copies x shards; None for one rank, unless FSDP2 is to do mixed precision."""
    if config.precision == "bfloat16-products" and device_type == "cuda":
        raise UserError("parallel.precision=bfloat16-products is for CPUs; on a GPU, use parallel.precision=bfloat16.")
    shard = size if config.shard is None else config.shard
    if size % shard:
        raise UserError(f"parallel.shard={shard} must divide the number of ranks, {size}.")
    if size == 1 and config.precision != "bfloat16":
        return None
    if size == 1 and not dist.is_initialized():  # FSDP2 does mixed precision on one rank too
        backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    shape, names = ((size,), ("shards",)) if shard == size else ((size // shard, shard), ("copies", "shards"))
    mesh = init_device_mesh(device_type, shape, mesh_dim_names=names)
    for group in mesh.get_all_groups():  # a mesh creates groups with torch's default timeout
        _set_pg_timeout(timedelta(seconds=config.timeout), group)
    return mesh


def build_sharded(
    shape: ModelConfig, vocabulary: Vocabulary, config: ParallelConfig, mesh: DeviceMesh | None, device: torch.device
) -> Transformer:
    """An uninitialised model, sharded over the mesh; it allocates memory for this rank's part only."""
    with torch.device("meta"):
        model = Transformer(shape, vocabulary)
    apply(model, config, mesh)
    return model.to_empty(device=device)


def apply(model: Transformer, config: ParallelConfig, mesh: DeviceMesh | None) -> None:
    """Compile, checkpoint and shard a model, in place."""
    if config.precision == "bfloat16-products":
        for layer in model.modules():
            if isinstance(layer, Attention | GatedMLP):
                layer.linear = linear_in_bfloat16
    for block in model.blocks:
        # Wraps `forward`, inside the hooks in which FSDP2 gathers weights; no parameter name changes.
        if config.compile:
            block.forward = torch.compile(block.forward)
        if config.checkpoint_activations:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    if mesh is None:
        return
    param_dtype = torch.bfloat16 if config.precision == "bfloat16" else None
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=config.reshard_after_forward)
        assert isinstance(part, FSDPModule)
        # The loss is a sum whose weights contain all means, so gradients are summed, not averaged.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    for method in ("hidden_states", "loss"):  # by itself, FSDP2 gathers weights around `forward` only
        register_fsdp_forward_method(model, method)


@torch.no_grad()
def write_weight(parameter: Tensor, value: Tensor) -> None:
    """Set a weight from its full value; each rank keeps its part."""
    if isinstance(parameter, DTensor):
        # Every rank has the full value: no communication is needed.
        mesh, placements = parameter.device_mesh, parameter.placements
        value = local(distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None))
    local(parameter).copy_(value)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, sharing its memory, detached from the autograd graph."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def full(tensor: Tensor) -> Tensor:
    """The full tensor. All ranks must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> float:
    """Scale all gradients so that their norm is at most `limit`; returns the norm before."""
    return float(full(torch.nn.utils.clip_grad_norm_(parameters, limit)))


def reshard(model: nn.Module) -> None:
    """Free gathered weights, which a forward pass without a backward pass may leave behind."""
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def gather_model(model: Transformer) -> Transformer:
    """A plain copy of a sharded model on the CPU, for work that one rank does alone. All ranks must call it."""
    plain = Transformer(model.config, model.vocabulary)
    for name, parameter in model.named_parameters():
        plain.get_parameter(name).data.copy_(full(parameter.detach()))
    return plain.requires_grad_(False)
