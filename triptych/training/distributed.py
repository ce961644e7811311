"""One model over several processes: FSDP2 over a device mesh, mixed precision, activation checkpointing, compilation.

All of it is applied from outside to the plain model, which knows nothing of it. Weights, gradients and the optimizer's
moments are divided among the ranks of a copy; each block's weights are gathered just before they are used.

    one rank, float32     the plain model
    shard = none          one copy over all ranks
    shard = 8 of 64       8 copies over 8 ranks each (hybrid): weights travel within a node, gradients between them too
"""

from collections.abc import Iterable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from triptych.errors import UserError
from triptych.model.transformer import ModelConfig, Transformer
from triptych.training.config import ParallelConfig
from triptych.vocab import Vocabulary


def build_mesh(config: ParallelConfig, size: int, device_type: str) -> DeviceMesh | None:
    """The ranks as copies x shards; None where one rank computes in float32 and nothing is to be done."""
    shard = size if config.shard is None else config.shard
    if size % shard:
        raise UserError(f"parallel.shard={shard} must divide the number of ranks, {size}.")
    if size == 1 and config.precision == "float32":
        return None
    if size == 1 and not dist.is_initialized():  # mixed precision is FSDP2's, also alone
        backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    shape, names = ((size,), ("shards",)) if shard == size else ((size // shard, shard), ("copies", "shards"))
    mesh = init_device_mesh(device_type, shape, mesh_dim_names=names)
    for group in mesh.get_all_groups():  # a mesh makes groups that wait as long as torch finds right
        _set_pg_timeout(timedelta(seconds=config.timeout), group)
    return mesh


def build_sharded(
    shape: ModelConfig, vocabulary: Vocabulary, config: ParallelConfig, mesh: DeviceMesh | None, device: torch.device
) -> Transformer:
    """A model without values, spread over the mesh; memory is taken for this rank's part only."""
    with torch.device("meta"):
        model = Transformer(shape, vocabulary)
    apply(model, config, mesh)
    return model.to_empty(device=device)


def apply(model: Transformer, config: ParallelConfig, mesh: DeviceMesh | None) -> None:
    """Compile, checkpoint and shard a model, in place."""
    for block in model.blocks:
        # Around the forward, inside of the hooks with which sharding gathers weights; no name of a weight changes.
        if config.compile:
            block.forward = torch.compile(block.forward)
        if config.checkpoint_activations:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    if mesh is None:
        return
    computed_in = torch.bfloat16 if config.precision == "bfloat16" else None
    policy = MixedPrecisionPolicy(param_dtype=computed_in, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=config.reshard_after_forward)
        assert isinstance(part, FSDPModule)
        # The loss is a sum whose weights contain every mean, so gradients are added up, not averaged.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


@torch.no_grad()
def write_weight(parameter: Tensor, value: Tensor) -> None:
    """Set a weight from its whole value; a rank keeps its part."""
    if isinstance(parameter, DTensor):
        # Every rank has the whole value: nothing is sent.
        mesh, placements = parameter.device_mesh, parameter.placements
        value = local(distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None))
    local(parameter).copy_(value)


def local(tensor: Tensor) -> Tensor:
    """This rank's part, the very numbers, without their history."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def whole(tensor: Tensor) -> Tensor:
    """The whole of it; all ranks must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> float:
    """Scale all gradients so that their norm is at most this; returns the norm before."""
    return float(whole(torch.nn.utils.clip_grad_norm_(parameters, limit)))


def drop_gathered(model: nn.Module) -> None:
    """Leave a model divided, as an optimizer and a running mean want it: a forward pass alone may not."""
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def is_divided(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def whole_model(model: Transformer) -> Transformer:
    """A plain copy on the CPU, for what one rank does alone; all ranks must ask."""
    plain = Transformer(model.config, model.vocabulary)
    for name, parameter in model.named_parameters():
        plain.get_parameter(name).data.copy_(whole(parameter.detach()))
    return plain.requires_grad_(False)
