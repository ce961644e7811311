"""Devices by name: "auto", "cpu", "cuda", "cuda:1", "mps"."""

from typing import TYPE_CHECKING

from triptych.errors import UserError
from triptych.utils.arguments import shown

if TYPE_CHECKING:
    import torch


def resolve_device(name: "str | torch.device") -> "torch.device":
    """The torch device of that name, if this machine has it; "auto" is the first of CUDA, MPS and CPU."""
    import torch

    if not isinstance(name, str | torch.device):
        raise UserError(f"unknown device {shown(name)}; expected auto, cpu, cuda, cuda:N or mps.")
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise UserError(f"unknown device {str(name)!r}; expected auto, cpu, cuda, cuda:N or mps.") from None
    missing = {"cuda": not torch.cuda.is_available(), "mps": not torch.backends.mps.is_available()}
    if missing.get(device.type):
        raise UserError(
            f"the device {str(name)!r} cannot be used: PyTorch finds no {device.type.upper()} device on this machine. "
            "Use auto or cpu."
        )
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0][:120]
        raise UserError(f"the device {str(name)!r} cannot be used ({reason}). Use auto or cpu.") from None
    return device
