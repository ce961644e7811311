"""MoVQGAN in plain torch, with the weight names of the original code: the reference for the converted network.

Inference only: no dropout, no time embedding. Written from the paper (arXiv:2209.09002) and the structure of the
original; shares no code with diffusers or with this package.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv(channels_in: int, channels_out: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2 if stride == 1 else 0)


class SpatialNorm(nn.Module):
    """Group norm whose scale and shift are linear in the code vectors at that place."""

    def __init__(self, channels: int, code_channels: int):
        super().__init__()
        self.norm_layer = nn.GroupNorm(32, channels, eps=1e-6)
        self.conv_y = conv(code_channels, channels, 1)
        self.conv_b = conv(code_channels, channels, 1)

    def forward(self, x: Tensor, codes: Tensor) -> Tensor:
        repeat = x.shape[-1] // codes.shape[-1]
        codes = codes.repeat_interleave(repeat, dim=2).repeat_interleave(repeat, dim=3)
        return self.norm_layer(x) * self.conv_y(codes) + self.conv_b(codes)


class PlainNorm(nn.GroupNorm):
    def __init__(self, channels: int):
        super().__init__(32, channels, eps=1e-6)

    def forward(self, x: Tensor, codes: Tensor | None) -> Tensor:
        return super().forward(x)


def norm(channels: int, code_channels: int | None) -> nn.Module:
    return PlainNorm(channels) if code_channels is None else SpatialNorm(channels, code_channels)


class Residual(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, code_channels: int | None):
        super().__init__()
        self.norm1, self.conv1 = norm(channels_in, code_channels), conv(channels_in, channels_out)
        self.norm2, self.conv2 = norm(channels_out, code_channels), conv(channels_out, channels_out)
        if channels_in != channels_out:
            self.nin_shortcut = conv(channels_in, channels_out, 1)

    def forward(self, x: Tensor, codes: Tensor | None) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x, codes)))
        h = self.conv2(F.silu(self.norm2(h, codes)))
        return h + (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x)


class Attention(nn.Module):
    def __init__(self, channels: int, code_channels: int | None):
        super().__init__()
        self.norm = norm(channels, code_channels)
        self.q, self.k, self.v, self.proj_out = (conv(channels, channels, 1) for _ in range(4))

    def forward(self, x: Tensor, codes: Tensor | None) -> Tensor:
        h = self.norm(x, codes)
        q, k, v = (layer(h).flatten(2) for layer in (self.q, self.k, self.v))  # [B, C, H * W]
        weights = torch.einsum("bci,bcj->bij", q, k).div(q.shape[1] ** 0.5).softmax(dim=-1)
        return x + self.proj_out(torch.einsum("bij,bcj->bci", weights, v).view_as(x))


class Level(nn.Module):
    def __init__(self, widths: list[int], attention: bool, code_channels: int | None):
        super().__init__()
        self.block = nn.ModuleList(Residual(a, b, code_channels) for a, b in pairwise(widths))
        self.attn = nn.ModuleList(Attention(b, code_channels) for b in widths[1:] if attention)

    def forward(self, x: Tensor, codes: Tensor | None) -> Tensor:
        for index, block in enumerate(self.block):
            x = block(x, codes)
            x = self.attn[index](x, codes) if self.attn else x
        return x


class Middle(nn.Module):
    def __init__(self, width: int, code_channels: int | None):
        super().__init__()
        self.block_1, self.block_2 = (Residual(width, width, code_channels) for _ in range(2))
        self.attn_1 = Attention(width, code_channels)

    def forward(self, x: Tensor, codes: Tensor | None) -> Tensor:
        return self.block_2(self.attn_1(self.block_1(x, codes), codes), codes)


class Downsample(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv = conv(width, width, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)))  # one column right and one row below, none left and above


class Upsample(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv = conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3))


class Encoder(nn.Module):
    def __init__(self, channels: list[int], layers: int, latent: int):
        super().__init__()
        self.conv_in = conv(3, channels[0])
        self.down = nn.ModuleList()
        for index, (before, width) in enumerate(zip([channels[0], *channels], channels)):
            last = index == len(channels) - 1
            level = Level([before] + [width] * layers, attention=last, code_channels=None)
            if not last:
                level.downsample = Downsample(width)
            self.down.append(level)
        self.mid = Middle(channels[-1], None)
        self.norm_out, self.conv_out = norm(channels[-1], None), conv(channels[-1], latent)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for level in self.down:
            x = level(x, None)
            x = level.downsample(x) if hasattr(level, "downsample") else x
        return self.conv_out(F.silu(self.norm_out(self.mid(x, None), None)))


class Decoder(nn.Module):
    def __init__(self, channels: list[int], layers: int, latent: int):
        super().__init__()
        self.conv_in = conv(latent, channels[-1])
        self.mid = Middle(channels[-1], latent)
        levels = []
        for index, width in enumerate(channels):
            last = index == len(channels) - 1
            before = width if last else channels[index + 1]
            level = Level([before] + [width] * (layers + 1), attention=last, code_channels=latent)
            if index > 0:
                level.upsample = Upsample(width)
            levels.append(level)
        self.up = nn.ModuleList(levels)  # numbered from the image, applied from the latents
        self.norm_out, self.conv_out = norm(channels[0], latent), conv(channels[0], 3)

    def forward(self, latents: Tensor, codes: Tensor) -> Tensor:
        x = self.mid(self.conv_in(latents), codes)
        for level in reversed(self.up):
            x = level(x, codes)
            x = level.upsample(x) if hasattr(level, "upsample") else x
        return self.conv_out(F.silu(self.norm_out(x, codes)))


class Codebook(nn.Module):
    def __init__(self, codes: int, latent: int):
        super().__init__()
        self.embedding = nn.Embedding(codes, latent)


class ReferenceMoVQ(nn.Module):
    def __init__(self, channels: list[int], codes: int, layers: int, latent: int = 4):
        super().__init__()
        self.encoder, self.decoder = Encoder(channels, layers, latent), Decoder(channels, layers, latent)
        self.quantize = Codebook(codes, latent)
        self.quant_conv, self.post_quant_conv = conv(latent, latent, 1), conv(latent, latent, 1)

    def latents(self, pixels: Tensor) -> Tensor:
        """[B, 3, H, W] -> [B, h * w, C]"""
        return self.quant_conv(self.encoder(pixels)).flatten(2).transpose(1, 2)

    def indices(self, pixels: Tensor) -> Tensor:
        """[B, 3, H, W] -> [B, h * w]: the nearest code by plain distance."""
        return (self.latents(pixels)[:, :, None] - self.quantize.embedding.weight).square().sum(-1).argmin(-1)

    def pixels(self, indices: Tensor) -> Tensor:
        """[B, h * w] -> [B, 3, H, W]"""
        side = round(indices.shape[1] ** 0.5)
        codes = self.quantize.embedding(indices).transpose(1, 2).unflatten(2, (side, side))
        return self.decoder(self.post_quant_conv(codes), codes)


def random_reference(channels: list[int], codes: int = 64, layers: int = 1, seed: int = 0) -> ReferenceMoVQ:
    """With noise on every weight, so that no two tensors are alike and none is at its default; codes near latents."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ReferenceMoVQ(channels, codes, layers).eval().requires_grad_(False)
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
        latents = model.latents(torch.randn(8, 3, 64, 64)).flatten(0, 1)
        model.quantize.embedding.weight.copy_(latents[torch.randint(len(latents), (codes,))])
    return model


def original_checkpoint(model: ReferenceMoVQ) -> dict[str, Tensor]:
    """Its weights among those that only training needs."""
    return {
        **model.state_dict(),
        "loss.discriminator.main.0.weight": torch.zeros(4, 3, 4, 4),
        "loss.perceptual_loss.lin0.model.1.weight": torch.zeros(1, 64, 1, 1),
        "ema_encoder.decay": torch.tensor(0.9999),
        "ema_encoder.conv_inweight": torch.zeros(32, 3, 3, 3),
        "ema_quantize.embeddingweight": torch.zeros(64, 4),
    }
