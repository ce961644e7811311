"""Weights of files that others wrote, and networks that are exactly as large as their weights."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from triptych.errors import CheckpointError
from triptych.utils.files import open_regular

# Networks replace parameters while they are built, as weight norms do, and may have some that are not stored.
_FACTOR, _MORE_PARAMETERS, _MORE_NUMBERS = 4, 1000, 1 << 24


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises OSError or SafetensorError."""
    os.close(open_regular(path))  # opening a pipe would wait for its writer
    return load_file(path)


def read_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and the shape of each tensor of a safetensors file, as `read_tensors`."""
    os.close(open_regular(path))
    with safe_open(path, "pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        return {name: (each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()}


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite. `aminmax` gives NaN if there is one, and takes no memory as `isfinite` does."""
    return not tensor.numel() or bool(torch.stack(torch.aminmax(tensor)).isfinite().all())


def check_finite(weights: Mapping[str, Tensor], origin: Path) -> None:
    """Raise an error if a weight is NaN or infinite."""
    for name, tensor in weights.items():
        if not is_finite(tensor):
            raise CheckpointError(
                f"{origin} holds numbers that are not finite, in {name}: its training diverged, or it is damaged."
            )


@contextmanager
def network_of(num_weights: int, num_numbers: int) -> Iterator[None]:
    """Stop the construction of a network at the first parameter that is far beyond these numbers of its weights.

    A configuration of some bytes may ask for a million layers, which take minutes even without memory.
    """
    thread, count, numbers = threading.get_ident(), 0, 0

    def check(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal count, numbers
        if threading.get_ident() != thread or parameter is None:
            return
        count, numbers = count + 1, numbers + parameter.numel()
        if count > _FACTOR * num_weights + _MORE_PARAMETERS or numbers > _FACTOR * num_numbers + _MORE_NUMBERS:
            raise ValueError(f"it is far larger than its {num_weights:,} weights of {num_numbers:,} numbers")

    handle = register_module_parameter_registration_hook(check)
    try:
        yield
    finally:
        handle.remove()


def build(make: Callable[[], Any], weights: Mapping[str, Tensor], origin: Path, kind: str) -> Any:
    """A network with exactly these weights, as float32; it takes memory only once they fit."""
    try:
        with torch.device("meta"), network_of(len(weights), sum(weight.numel() for weight in weights.values())):
            network = make()
    except Exception as error:  # libraries raise many kinds of errors for a wrong value
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise CheckpointError(f"{origin} does not describe a {kind} ({reason}).") from error
    _check_shapes(weights, network.state_dict(), f"the weights in {origin} do not fit this {kind}")
    # Copied, so that the network does not keep the file open.
    owned = {name: weight.to(torch.float32, copy=True) for name, weight in weights.items()}
    check_finite(owned, origin)
    network.load_state_dict(owned, assign=True)
    return network


def _check_shapes(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], problem: str) -> None:
    expected = {name: tuple(weight.shape) for name, weight in wanted.items()}
    actual = {name: tuple(weight.shape) for name, weight in weights.items()}
    if expected == actual:
        return
    differing = [f"{n} {actual[n]} for {expected[n]}" for n in expected if n in actual and actual[n] != expected[n]]
    parts = {
        "missing": sorted(expected.keys() - actual.keys()),
        "unexpected": sorted(actual.keys() - expected.keys()),
        "of another shape": differing,
    }
    stored = (
        f"{len(names)} {what} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for what, names in parts.items()
        if names
    )
    raise CheckpointError(f"{problem}: {'; '.join(stored)}.")
