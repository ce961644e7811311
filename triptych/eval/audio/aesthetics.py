"""Audiobox Aesthetics (Tjandra et al. 2025): four ratings of audio from 1 to 10, without a reference.

    PQ production quality    PC production complexity    CE content enjoyment    CU content usefulness

The network is WavLM base with a linear head per rating, here on `WavLMModel` of transformers: the published package
needs torchaudio. The weights are those of facebook/audiobox-aesthetics on the hub: config.json and model.safetensors.
Audio is rated in windows of 10 s; the rating of a clip is the mean of its windows, weighted by their length.
"""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from triptych.errors import CheckpointError, UserError, require
from triptych.eval.metrics import Judge, file_sha256
from triptych.eval.pretrained import download
from triptych.hub.source import HUB_PREFIX
from triptych.tokenizers.audio import resample
from triptych.utils.json_files import read_json
from triptych.utils.media import Audio

AXES = ("PQ", "PC", "CE", "CU")
_RATE = 16_000
_WINDOW = 10 * _RATE
_PURPOSE = "Audiobox Aesthetics"
_WEIGHTS = "model.safetensors"

# Names of the published weights, and those of transformers.
_RENAMED = (
    (r"^mask_emb$", "masked_spec_embed"),
    (r"^layer_norm\.", "feature_projection.layer_norm."),
    (r"^post_extract_proj\.", "feature_projection.projection."),
    (r"conv_layers\.(\d+)\.0\.", r"conv_layers.\1.conv."),
    (r"conv_layers\.(\d+)\.2\.", r"conv_layers.\1.layer_norm."),
    (r"encoder\.pos_conv\.0\.weight_g$", "encoder.pos_conv_embed.conv.parametrizations.weight.original0"),
    (r"encoder\.pos_conv\.0\.weight_v$", "encoder.pos_conv_embed.conv.parametrizations.weight.original1"),
    (r"encoder\.pos_conv\.0\.bias$", "encoder.pos_conv_embed.conv.bias"),
    (r"self_attn\.grep_a$", "attention.gru_rel_pos_const"),
    (r"self_attn\.grep_linear\.", "attention.gru_rel_pos_linear."),
    (r"self_attn\.relative_attention_bias\.", "attention.rel_attn_embed."),
    (r"self_attn_layer_norm\.", "layer_norm."),
    (r"self_attn\.", "attention."),
    (r"\.fc1\.", ".feed_forward.intermediate_dense."),
    (r"\.fc2\.", ".feed_forward.output_dense."),
)


class Aesthetics:
    """The ratings of clips, from a folder with the published weights or from their name on the hub."""

    def __init__(self, source: str | Path, device: str = "cpu"):
        require("transformers", "codecs", _PURPOSE)
        folder = _folder(source)
        config, weights = _read(folder)
        self.network = _Network(config)
        expected, given = self.network.state_dict(), {_rename(name): weight for name, weight in weights.items()}
        wrong = sorted(
            {name for name in expected if name not in given or given[name].shape != expected[name].shape}
            | (given.keys() - expected.keys())
        )
        if wrong:
            raise CheckpointError(
                f"{_PURPOSE}: the weights in {folder} do not fit the network: {len(wrong)} are missing, unknown or of "
                f"another shape, such as {wrong[0]}."
            )
        self.network.load_state_dict(given)
        self.network.float().eval().requires_grad_(False).to(device)
        self.device = device
        try:
            scales = {axis: config["target_transform"][axis] for axis in AXES}
            self.scale = {axis: (float(each["mean"]), float(each["std"])) for axis, each in scales.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{_PURPOSE}: {folder}/config.json has no target_transform ({error!r}).") from error
        name = str(source) if folder != Path(source) else folder.resolve().name
        self.judge = Judge(f"{_PURPOSE} ({name})", file_sha256((folder / _WEIGHTS).resolve()))

    @torch.inference_mode()
    def __call__(self, clip: Audio) -> dict[str, float]:
        samples = np.asarray(resample(clip, _RATE).samples, np.float32)
        windows = [samples[start : start + _WINDOW] for start in range(0, max(len(samples), 1), _WINDOW)]
        ratings: dict[str, list[float]] = {axis: [] for axis in AXES}
        for window in windows:
            padded = torch.from_numpy(np.pad(window, (0, _WINDOW - len(window))))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch's, about how WavLM in transformers masks its attention
                scaled = self.network(padded[None].to(self.device), len(window))
            for axis, (mean, deviation) in self.scale.items():
                ratings[axis].append(float(scaled[axis]) * deviation + mean)
        lengths = [len(window) for window in windows]
        return {axis: float(np.average(values, weights=lengths)) for axis, values in ratings.items()}


class _Network(nn.Module):
    """WavLM, a mean of its layers for each rating, averaged over time, and a small network."""

    def __init__(self, config: dict[str, Any]):
        super().__init__()
        from transformers import WavLMConfig, WavLMModel

        # Sizes other than those of WavLM base are for tests.
        self.wavlm_model = WavLMModel(WavLMConfig(apply_spec_augment=False, **config.get("wavlm", {})))
        width, layers = self.wavlm_model.config.hidden_size, self.wavlm_model.config.num_hidden_layers + 1
        depth, has_norm = int(config.get("proj_num_layer", 1)), bool(config.get("proj_ln", False))
        has_dropout = float(config.get("proj_dropout", 0)) != 0
        if config.get("proj_act_fn", "gelu") != "gelu" or config.get("nth_layer", layers) != layers:
            raise CheckpointError(f"{_PURPOSE}: expected GELU and all {layers} layers, got {config}.")
        self.proj_layer = nn.ModuleDict({axis: _head(width, depth, has_norm, has_dropout) for axis in AXES})
        self.is_weighted = bool(config.get("use_weighted_layer_sum", True))
        self.is_normalized = bool(config.get("normalize_embed", True))
        if self.is_weighted:
            self.layer_weights = nn.ParameterDict({axis: nn.Parameter(torch.zeros(layers)) for axis in AXES})

    def forward(self, wave_BT: Tensor, num_samples: int) -> dict[str, Tensor]:
        """The rating [B] of each axis, of the first `num_samples` of padded windows."""
        model = self.wavlm_model
        features = model.feature_extractor(wave_BT).transpose(1, 2)
        hidden = model.feature_projection(features)[0]
        # A frame counts if any of its samples does, as in the original network.
        per_frame = wave_BT.shape[1] // hidden.shape[1]
        counts = torch.arange(hidden.shape[1], device=wave_BT.device) * per_frame < num_samples
        mask = counts[None].expand(len(wave_BT), -1)
        hidden = hidden * mask[..., None]
        hidden = model.encoder.layer_norm(hidden + model.encoder.pos_conv_embed(hidden))
        states, bias = [hidden], None
        for number, layer in enumerate(model.encoder.layers):
            hidden, bias = layer(hidden, attention_mask=mask, position_bias=bias, index=number)
            states.append(hidden)
        stacked = torch.stack(states, dim=-1)  # [B, frames, width, layers]
        ratings = {}
        for axis in AXES:
            mixed = stacked @ self.layer_weights[axis].softmax(0) if self.is_weighted else stacked[..., -1]
            pooled = (mixed * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
            if self.is_normalized:
                pooled = nn.functional.normalize(pooled, dim=-1)
            ratings[axis] = self.proj_layer[axis](pooled)[:, 0]
        return ratings


def _head(width: int, depth: int, has_norm: bool, has_dropout: bool) -> nn.Sequential:
    """Linear layers with GELU between them; dropout keeps its place, so that the weights keep their numbers."""
    layers: list[nn.Module] = []
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), *([nn.LayerNorm(width)] if has_norm else []), nn.GELU()]
        layers += [nn.Dropout()] if has_dropout else []
    return nn.Sequential(*layers, nn.Linear(width, 1))


def _rename(name: str) -> str:
    if not name.startswith("wavlm_model."):
        return name
    inner = name.removeprefix("wavlm_model.")
    for pattern, new in _RENAMED:
        inner = re.sub(pattern, new, inner)
    return f"wavlm_model.{inner}"


def _folder(source: str | Path) -> Path:
    folder, name = Path(source), str(source).removeprefix(HUB_PREFIX)
    if folder.is_dir():
        return folder
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(
            f"{_PURPOSE}: there is no folder {str(source)!r}; give a folder with config.json and {_WEIGHTS}, or "
            "facebook/audiobox-aesthetics."
        )
    return download(name, ("config.json", _WEIGHTS), f"{_PURPOSE}: {name}")


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        return dict(read_json(folder / "config.json")), load_file(folder / _WEIGHTS)
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:150]
        raise CheckpointError(f"{_PURPOSE}: {folder} has no readable config.json and {_WEIGHTS} ({reason}).") from error
