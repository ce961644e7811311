"""What the shards of a checkpoint hold, compared with what they should: right hashes do not make right contents."""

import math
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

from triptych.errors import CheckpointError


def read_headers(path: Path) -> dict[str, dcp.TensorStorageMetadata]:
    """Shape, dtype and parts of every tensor, from the headers of the shards. The parts make up the whole tensor."""
    try:
        metadata = dcp.HuggingFaceStorageReader(str(path)).read_metadata()
        headers = {}
        for name, meta in metadata.state_dict_metadata.items():
            assert isinstance(meta, dcp.TensorStorageMetadata)  # always true of safetensors
            if not _is_whole(list(meta.size), meta.chunks):
                raise ValueError(f"the parts of {name} do not make up a tensor of shape {tuple(meta.size)}")
            headers[name] = meta
        return headers
    except Exception as error:  # of safetensors, or a malformed header
        line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise CheckpointError(f"{path} does not hold the tensors of a run: {line}") from error


def _is_whole(size: list[int], chunks: list[ChunkStorageMetadata]) -> bool:
    """Whether the parts cover a tensor exactly once: as many numbers, and no two parts overlap."""
    volume = sum(math.prod(chunk.sizes) for chunk in chunks)
    return volume == math.prod(size) and not any(_overlap(*pair) for pair in combinations(chunks, 2))


def _overlap(one: ChunkStorageMetadata, other: ChunkStorageMetadata) -> bool:
    return all(
        max(one.offsets[axis], other.offsets[axis])
        < min(one.offsets[axis] + one.sizes[axis], other.offsets[axis] + other.sizes[axis])
        for axis in range(len(one.sizes))
    )


def check_headers(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse shards whose tensors have other shapes or dtypes than these, before any is read."""
    headers = read_headers(path)
    for name, tensor in tensors.items():
        saved = headers.get(name)
        if saved is None:
            raise CheckpointError(f"{path} does not fit this run: it has no tensor {name}.")
        if tuple(saved.size) != tuple(tensor.shape) or saved.properties.dtype != tensor.dtype:
            raise CheckpointError(
                f"{_file_of(path, name)} does not fit this run: {name} is {_kind(saved.properties.dtype, saved.size)}, "
                f"expected {_kind(tensor.dtype, tensor.shape)}."
            )


def not_finite(path: Path, name: str) -> CheckpointError:
    """The error of a tensor with NaN or infinities, which training never saves."""
    return CheckpointError(f"{_file_of(path, name)} holds numbers that are not finite, in {name}.")


def _file_of(path: Path, name: str) -> Path:
    """The shard that holds a tensor, or its first part."""
    storage = dcp.HuggingFaceStorageReader(str(path)).read_metadata().storage_data
    files = [info.relative_path for index, info in storage.items() if index.fqn == name]
    return Path(min(files))


def _kind(dtype: object, shape: object) -> str:
    return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"  # type: ignore[arg-type]
