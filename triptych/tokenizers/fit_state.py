"""The state of a fit in one file, saved now and then, so that a stopped fit resumes exactly."""

import time
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from triptych.errors import CheckpointError

_OPTIMIZER = "optimizer"


class FitState:
    """Saves the weights, the optimizer and further tensors of a fit; restores them in place. No path: saves nothing."""

    def __init__(self, path: Path | None = None, every_seconds: float = 30.0):
        self._path, self._every, self._last = path, every_seconds, time.monotonic()

    def save(
        self, steps: int, network: nn.Module, optimizer: torch.optim.Optimizer, more: Mapping[str, Tensor]
    ) -> None:
        """Save after this many steps, if the last time is long enough ago."""
        if self._path is None or time.monotonic() - self._last < self._every:
            return
        tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
        for number, state in optimizer.state_dict()["state"].items():
            tensors |= {f"{_OPTIMIZER}.{number}.{name}": torch.as_tensor(value) for name, value in state.items()}
        tensors |= {f"more.{name}": tensor for name, tensor in more.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_suffix(".unfinished")
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, unfinished, {"steps": str(steps)})
        unfinished.replace(self._path)
        self._last = time.monotonic()

    def restore(self, network: nn.Module, optimizer: torch.optim.Optimizer, more: Mapping[str, Tensor]) -> int:
        """Restore everything in place; returns the number of finished steps, 0 if nothing was saved."""
        if self._path is None or not self._path.exists():
            return 0
        try:
            with safe_open(self._path, framework="pt") as file:
                steps = int(file.metadata()["steps"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, no iterator
            network.load_state_dict({n.removeprefix("network."): t for n, t in tensors.items() if n[:8] == "network."})
            for name, tensor in more.items():
                tensor.copy_(tensors[f"more.{name}"])
            states: dict[int, dict[str, Tensor]] = {}
            for name, tensor in tensors.items():
                if name.startswith(_OPTIMIZER):
                    _, number, entry = name.split(".")
                    states.setdefault(int(number), {})[entry] = tensor
            optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"{self._path} is not the state of this fit; delete it to start over.") from error
        return steps

    def read(self, name: str) -> Tensor | None:
        """One of the further tensors; None if nothing was saved."""
        if self._path is None or not self._path.exists():
            return None
        try:
            with safe_open(self._path, framework="pt") as file:
                return file.get_tensor(f"more.{name}")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self._path} is not the state of this fit; delete it to start over.") from error
