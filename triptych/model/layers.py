"""The parts of a block: norm, rotary positions, attention, gated MLP. No biases, no dropout.

Each layer says which role its weights play (`roles`); optimizers and initialisers read roles, never names.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# R rows, T tokens in a row, D width, N heads, H head width, F feed-forward width


class RMSNorm(nn.Module):
    """x / rms(x) * gain."""

    def __init__(self, width: int, eps: float, role: str):
        super().__init__()
        self.roles = {"weight": role}
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rotary_angles(positions_RT: Tensor, head_width: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [R, 1, T, H/2] by which queries and keys at these positions are turned."""
    steps = torch.arange(0, head_width, 2, device=positions_RT.device, dtype=torch.float32)
    frequencies = base ** -(steps / head_width)
    angles = positions_RT[:, None, :, None].to(torch.float32) * frequencies
    return angles.cos(), angles.sin()


def rotate(x_RNTH: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + H/2) by their angles, so that a dot product depends on the distance of positions only."""
    first, second = x_RNTH.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.type_as(x_RNTH)  # angles are float32 also where all else is not


class Attention(nn.Module):
    """Every position attends to all of its own segment, before and behind it. Queries and keys are normed per head."""

    roles: ClassVar = {"qkv": "attn_qkv", "proj": "attn_proj"}

    def __init__(self, width: int, num_heads: int, eps: float):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Parameter(torch.empty(3 * width, width))
        self.proj = nn.Parameter(torch.empty(width, width))
        # Gains are shared by the heads: their rule of transfer differs from that of per-head gains.
        self.q_norm = RMSNorm(width // num_heads, eps, "attn_q_norm")
        self.k_norm = RMSNorm(width // num_heads, eps, "attn_k_norm")

    def forward(self, x_RTD: Tensor, cos: Tensor, sin: Tensor, attend: Tensor | None) -> Tensor:
        rows, length, width = x_RTD.shape
        heads = F.linear(x_RTD, self.qkv).view(rows, length, 3, self.num_heads, -1).transpose(1, 3)
        q_RNTH, k_RNTH, v_RNTH = heads.unbind(2)
        q_RNTH = rotate(self.q_norm(q_RNTH), cos, sin)
        k_RNTH = rotate(self.k_norm(k_RNTH), cos, sin)
        mixed_RNTH = F.scaled_dot_product_attention(q_RNTH, k_RNTH, v_RNTH, attn_mask=attend)
        return F.linear(mixed_RNTH.transpose(1, 2).reshape(rows, length, width), self.proj)


class GatedMLP(nn.Module):
    """SwiGLU: fc2(silu(gate x) * fc1 x)."""

    roles: ClassVar = {"gate": "mlp_gate", "fc1": "mlp_fc1", "fc2": "mlp_fc2"}

    def __init__(self, width: int, d_ff: int):
        super().__init__()
        self.gate = nn.Parameter(torch.empty(d_ff, width))
        self.fc1 = nn.Parameter(torch.empty(d_ff, width))
        self.fc2 = nn.Parameter(torch.empty(width, d_ff))

    def forward(self, x_RTD: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x_RTD, self.gate)) * F.linear(x_RTD, self.fc1), self.fc2)


class Block(nn.Module):
    """x + s attention(norm x), then x + s mlp(norm x), where s is the residual multiplier of depth transfer."""

    def __init__(self, layer: int, width: int, num_heads: int, d_ff: int, eps: float, residual_scale: float):
        super().__init__()
        self.layer, self.residual_scale = layer, residual_scale
        self.norm1 = RMSNorm(width, eps, "norm1")
        self.attention = Attention(width, num_heads, eps)
        self.norm2 = RMSNorm(width, eps, "norm2")
        self.mlp = GatedMLP(width, d_ff)

    def forward(self, x_RTD: Tensor, cos: Tensor, sin: Tensor, attend: Tensor | None) -> Tensor:
        x_RTD = torch.add(x_RTD, self.attention(self.norm1(x_RTD), cos, sin, attend), alpha=self.residual_scale)
        return torch.add(x_RTD, self.mlp(self.norm2(x_RTD)), alpha=self.residual_scale)
