"""A model from its weights, after every name, shape and dtype is compared with its configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from triptych.errors import CheckpointError
from triptych.model.transformer import ModelConfig, Transformer
from triptych.utils.tensors import check_finite, read_header, read_tensors
from triptych.vocab import Vocabulary

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}  # by their names in safetensors


class _Entry(NamedTuple):
    """What a header says of a tensor."""

    dtype: str
    shape: tuple[int, ...]


def read_weights(path: Path, config: ModelConfig, vocabulary: Vocabulary) -> Transformer:
    """A model in float32, whatever precision its weights were saved in.

    The header is checked first: a configuration of another size allocates nothing.
    """
    try:
        header = {name: _Entry(dtype, shape) for name, (dtype, shape) in read_header(path).items()}
        _check_header(path, header, config, vocabulary)
        weights = read_tensors(path)
    except CheckpointError:
        raise
    except Exception as error:  # safetensors raises its own kind, OSError and others
        raise CheckpointError(f"{path} cannot be read as safetensors ({error}).") from error
    return _with_weights(path, config, vocabulary, weights)


def model_with_weights(
    origin: Path, config: ModelConfig, vocabulary: Vocabulary, weights: Mapping[str, Tensor]
) -> Transformer:
    """The same for weights in memory; `origin` is where they are from, for errors."""
    names = {dtype: name for name, dtype in _DTYPES.items()}
    header = {
        name: _Entry(names.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape))
        for name, tensor in weights.items()
    }
    _check_header(origin, header, config, vocabulary)
    return _with_weights(origin, config, vocabulary, weights)


def _check_header(origin: Path, header: Mapping[str, _Entry], config: ModelConfig, vocabulary: Vocabulary) -> None:
    blocks = {name.split(".")[1] for name in header if name.startswith("blocks.")}
    if len(blocks) != config.num_layers:  # before as many layers are built
        raise _misfit(origin, f"it has {len(blocks)} layers, expected {config.num_layers}")
    expected = {name: tuple(tensor.shape) for name, tensor in _empty_model(config, vocabulary).state_dict().items()}
    for name in sorted({*expected, *header}):
        entry = header.get(name)
        shape = None if entry is None else entry.shape
        if shape != expected.get(name):
            raise _misfit(origin, f"{name} is {shape}, expected {expected.get(name)}")
        if entry is not None and entry.dtype not in _DTYPES:
            raise _misfit(origin, f"{name} has the dtype {entry.dtype}, expected one of {', '.join(_DTYPES)}")


def _with_weights(
    origin: Path, config: ModelConfig, vocabulary: Vocabulary, weights: Mapping[str, Tensor]
) -> Transformer:
    check_finite(weights, origin)
    model = _empty_model(config, vocabulary)
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, assign=True)
    return model


def _empty_model(config: ModelConfig, vocabulary: Vocabulary) -> Transformer:
    with torch.device("meta"):
        return Transformer(config, vocabulary)


def _misfit(origin: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{origin} does not fit its configuration: {what}. Is it of another vocabulary or shape?")
