"""The parts of a block: RMSNorm, rotary positions, attention, gated MLP. No biases, no dropout.

Each module declares the roles of its weights (`roles`); optimizers and initialisers use roles, never names.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triptych.model.fused import norm_and_rotate, rms_norm, take_rows
from triptych.model.segments import Segments, attend

# N positions, n queried positions, D width, H heads, h head width

Linear = Callable[[Tensor, Tensor], Tensor]
"""(x, weight) -> x @ weight.T; training may set one of lower precision."""


class RMSNorm(nn.Module):
    """x / rms(x) * gain."""

    def __init__(self, width: int, eps: float, role: str):
        super().__init__()
        self.roles = {"weight": role}
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rotary_angles(positions_N: Tensor, head_width: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [N, 1, 1, h/2] of the rotary angles at these positions."""
    steps = torch.arange(0, head_width, 2, device=positions_N.device, dtype=torch.float32)
    frequencies = base ** -(steps / head_width)
    angles = positions_N[:, None, None, None].to(torch.float32) * frequencies
    return angles.cos(), angles.sin()


class Attention(nn.Module):
    """Bidirectional attention within each sequence, with QK-norm per head."""

    roles: ClassVar = {"qkv": "attn_qkv", "proj": "attn_proj"}

    def __init__(self, width: int, num_heads: int, eps: float):
        super().__init__()
        self.num_heads, self.eps = num_heads, eps
        self.linear: Linear = F.linear
        self.qkv = nn.Parameter(torch.empty(3 * width, width))
        self.proj = nn.Parameter(torch.empty(width, width))
        # The gains are shared by all heads; the transfer rule for per-head gains would be a different one.
        self.q_norm = RMSNorm(width // num_heads, eps, "attn_q_norm")
        self.k_norm = RMSNorm(width // num_heads, eps, "attn_k_norm")

    def forward(
        self, x_ND: Tensor, cos: Tensor, sin: Tensor, segments: Segments, query_idx: Tensor | None = None
    ) -> Tensor:
        """[N, D], or [n, D] of the positions `query_idx`."""
        qkv_N3Hh = self.linear(x_ND, self.qkv).view(len(x_ND), 3, self.num_heads, -1)
        qk_N2Hh, v_N1Hh = qkv_N3Hh.split((2, 1), dim=1)
        gains_2h = torch.stack([self.q_norm.weight, self.k_norm.weight])
        mixed_ND = attend(norm_and_rotate(qk_N2Hh, gains_2h, cos, sin, self.eps), v_N1Hh[:, 0], segments)
        return self.linear(mixed_ND if query_idx is None else take_rows(mixed_ND, query_idx), self.proj)


class GatedMLP(nn.Module):
    """SwiGLU: fc2(silu(gate x) * fc1 x)."""

    roles: ClassVar = {"gate": "mlp_gate", "fc1": "mlp_fc1", "fc2": "mlp_fc2"}

    def __init__(self, width: int, d_ff: int):
        super().__init__()
        self.linear: Linear = F.linear
        self.gate = nn.Parameter(torch.empty(d_ff, width))
        self.fc1 = nn.Parameter(torch.empty(d_ff, width))
        self.fc2 = nn.Parameter(torch.empty(width, d_ff))

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.linear(F.silu(self.linear(x_ND, self.gate)) * self.linear(x_ND, self.fc1), self.fc2)


class Block(nn.Module):
    """x + s attention(norm x), then x + s mlp(norm x), where s is `residual_scale` (see transfer/rules.py)."""

    def __init__(self, layer: int, width: int, num_heads: int, d_ff: int, eps: float, residual_scale: float):
        super().__init__()
        self.layer, self.residual_scale = layer, residual_scale
        self.norm1 = RMSNorm(width, eps, "norm1")
        self.attention = Attention(width, num_heads, eps)
        self.norm2 = RMSNorm(width, eps, "norm2")
        self.mlp = GatedMLP(width, d_ff)

    def forward(
        self, x_ND: Tensor, cos: Tensor, sin: Tensor, segments: Segments, query_idx: Tensor | None = None
    ) -> Tensor:
        """[N, D], or [n, D] of the positions `query_idx`: of the others, only keys and values are computed."""
        mixed = self.attention(self.norm1(x_ND), cos, sin, segments, query_idx)
        if query_idx is not None:
            x_ND = take_rows(x_ND, query_idx)
        x_ND = torch.add(x_ND, mixed, alpha=self.residual_scale)
        return torch.add(x_ND, self.mlp(self.norm2(x_ND)), alpha=self.residual_scale)
