"""The demo audio tokenizer: residual vector quantisation of stacked log-mels, 25 frames per second, fitted on a CPU.

    audio -> log-mels at 100 Hz -> stacks of 4 -> principal components -> residual quantisation -> ids
    ids   -> sum of codes -> spectrum (a small convolutional network) -> Griffin-Lim phases -> audio

The network predicts a spectrum fine enough for the harmonics of speech, which mel bands blur. docs/tokenizers.md
compares it with direct inversion of the mels.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from triptych.errors import CheckpointError
from triptych.tokenizers.audio import check_audio, check_frames, resample
from triptych.tokenizers.base import hash_arrays, read_spec, write_spec
from triptych.tokenizers.mel import MelConfig, griffin_lim
from triptych.utils.media import Audio
from triptych.utils.tensors import build, check_finite, read_tensors
from triptych.vocab import Modality

# B batch, N token frames (25 Hz), T mel frames (100 Hz), F frequencies, C channels, K codebooks

STACK = 4
MAX_SECONDS = 30.0
_WEIGHTS = "mel_rvq.safetensors"


class SpectrumDecoder(nn.Module):
    """Quantised components [B, N, C] -> log-magnitude spectrum [B, T, F], T = 4 N."""

    def __init__(self, components: int, frequencies: int, width: int = 256, blocks: int = 4):
        super().__init__()
        self.enter = nn.Conv1d(components, width, 3, padding=1)
        self.slow = nn.ModuleList(_Block(width) for _ in range(blocks))
        self.spread = nn.Linear(width, STACK * width // 2)
        self.fast = nn.ModuleList(_Block(width // 2) for _ in range(blocks // 2))
        self.leave = nn.Linear(width // 2, frequencies)

    def forward(self, components_BNC: Tensor) -> Tensor:
        hidden = self.enter(components_BNC.transpose(1, 2))
        for block in self.slow:
            hidden = block(hidden)
        batch, _, frames = hidden.shape
        hidden = self.spread(hidden.transpose(1, 2)).view(batch, frames * STACK, -1).transpose(1, 2)
        for block in self.fast:
            hidden = block(hidden)
        return self.leave(hidden.transpose(1, 2))


class _Block(nn.Module):
    """Residual block: depthwise convolution over time, then a pointwise MLP."""

    def __init__(self, width: int):
        super().__init__()
        self.mix = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.grow = nn.Linear(width, 2 * width)
        self.shrink = nn.Linear(2 * width, width)

    def forward(self, x_BCN: Tensor) -> Tensor:
        mixed = self.norm(self.mix(x_BCN).transpose(1, 2))
        return x_BCN + self.shrink(nn.functional.gelu(self.grow(mixed))).transpose(1, 2)


@final
class MelRVQ:
    """Log-mels, principal components and residual codebooks. Fitted by `triptych.tokenizers.fit_mel_rvq`."""

    modality = Modality.AUDIO

    def __init__(
        self,
        mean: Tensor,
        basis: Tensor,
        codebooks: Tensor,
        decoder: SpectrumDecoder | None,
        mel: MelConfig | None = None,
        codebook_offsets: bool = False,
    ):
        """mean [4 M], basis [4 M, C], codebooks [K, codes, C]. Without a decoder the mels are inverted directly.

        `codebook_offsets` gives each codebook its own range of ids; by default they share one, as in the paper.
        """
        self.mean, self.basis, self.codebooks = mean, basis, codebooks
        self.decoder = decoder.eval() if decoder else None
        self.mel = mel or MelConfig()
        self.codebook_offsets = codebook_offsets

    def without_decoder(self) -> "MelRVQ":
        """The same codes with direct inversion of the mels: the baseline of the network."""
        return MelRVQ(self.mean, self.basis, self.codebooks, None, self.mel, self.codebook_offsets)

    @property
    def num_codebooks(self) -> int:
        return self.codebooks.shape[0]

    @property
    def vocab_size(self) -> int:
        return self.codebooks.shape[1] * (self.num_codebooks if self.codebook_offsets else 1)

    @property
    def samples_per_frame(self) -> int:
        return self.mel.hop * STACK

    @property
    def frame_rate(self) -> float:
        return self.mel.rate / self.samples_per_frame

    @cached_property
    def fingerprint(self) -> str:
        return self._hash(self._tensors())

    def _hash(self, tensors: dict[str, Tensor]) -> str:
        return hash_arrays(self._config(), {name: tensor.numpy() for name, tensor in tensors.items()})

    # -- ids ----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, items: Sequence[Audio]) -> list[np.ndarray]:
        """Frame by frame, coarse to fine: 25 frames per second, at least 2, the last padded with silence."""
        return [self.quantize(self.components(audio)).flatten().numpy().astype(np.int32) for audio in items]

    def components(self, audio: Audio) -> Tensor:
        """The continuous features [N, C] that are quantised."""
        check_audio(audio, MAX_SECONDS)
        samples = torch.from_numpy(np.ascontiguousarray(resample(audio, self.mel.rate).samples, dtype=np.float32))
        samples = nn.functional.pad(samples, (0, -len(samples) % self.samples_per_frame))
        # The spectrogram reflects half a window at the ends, so it needs at least two token frames.
        samples = nn.functional.pad(samples, (0, max(0, 2 * self.samples_per_frame - len(samples))))
        stacked = self.mel.log_mel(samples).reshape(-1, STACK * self.mel.bands)
        return (stacked - self.mean) @ self.basis

    def quantize(self, components_NC: Tensor) -> Tensor:
        """[N, C] -> ids [N, K]: each codebook takes the code nearest to the residual of those before it."""
        residual, chosen = components_NC, []
        for number, codes in enumerate(self.codebooks):
            index = (codes.square().sum(1) - 2 * residual @ codes.T).argmin(1)
            residual = residual - codes[index]
            chosen.append(index + (number * len(codes) if self.codebook_offsets else 0))
        return torch.stack(chosen, dim=1)

    def dequantize(self, ids_NK: Tensor) -> Tensor:
        """Ids [N, K] -> [N, C], the sum of their codes."""
        if self.codebook_offsets:
            ids_NK = ids_NK % self.codebooks.shape[1]  # an id of the wrong codebook is read modulo the codebook size
        return sum(codes[ids] for codes, ids in zip(self.codebooks, ids_NK.T))

    # -- audio --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def decode(self, ids: Sequence[np.ndarray]) -> list[Audio]:
        return [self._decode(np.asarray(row)) for row in ids]

    def _decode(self, row: np.ndarray) -> Audio:
        check_frames(row, self.num_codebooks, self.vocab_size)
        if not len(row):
            return Audio(np.zeros(0, np.float32), self.mel.rate)
        components = self.dequantize(torch.from_numpy(row.astype(np.int64)).view(-1, self.num_codebooks))
        samples = griffin_lim(self.magnitude(components), self.mel)
        return Audio(samples.clamp(-1, 1).numpy(), self.mel.rate)

    def magnitude(self, components_NC: Tensor) -> Tensor:
        """[N, C] -> magnitude spectrum [T, F]."""
        if self.decoder is not None:
            return self.decoder(components_NC[None])[0].exp()
        log_mel = components_NC @ self.basis.T + self.mean
        return self.mel.magnitude_from_log_mel(log_mel.reshape(-1, self.mel.bands))

    # -- disk ---------------------------------------------------------------------------------------------------------

    def _config(self) -> dict[str, Any]:
        fields = ("rate", "hop", "window", "fft", "bands", "top_hz", "floor")
        config: dict[str, Any] = {"mel": {name: getattr(self.mel, name) for name in fields}}
        if self.decoder is not None:
            config["decoder"] = {
                "width": self.decoder.enter.out_channels,
                "blocks": len(self.decoder.slow),
            }
        return config | {"codebook_offsets": self.codebook_offsets}

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {"mean": self.mean, "basis": self.basis, "codebooks": self.codebooks}
        if self.decoder is not None:
            tensors |= {f"decoder.{name}": tensor for name, tensor in self.decoder.state_dict().items()}
        return {name: tensor.contiguous() for name, tensor in tensors.items()}

    def save(self, folder: Path, half: bool = False) -> None:
        """`half` stores float16: a different tokenizer with its own fingerprint. Tokenize data with the loaded one."""
        tensors = {name: tensor.half() if half else tensor for name, tensor in self._tensors().items()}
        fingerprint = self._hash({name: tensor.float() for name, tensor in tensors.items()})
        write_spec(folder, "mel-rvq", vocab_size=self.vocab_size, fingerprint=fingerprint, **self._config())
        save_file(tensors, folder / _WEIGHTS)

    @classmethod
    def load(cls, folder: Path) -> "MelRVQ":
        spec = read_spec(folder, ["mel-rvq"])
        try:
            stored, mel, prefix = read_tensors(folder / _WEIGHTS), MelConfig(**spec["mel"]), "decoder."
            decoder = None
            if "decoder" in spec:
                shape = {"components": stored["basis"].shape[1], "frequencies": mel.fft // 2 + 1, **spec["decoder"]}
                parts = {name.removeprefix(prefix): t for name, t in stored.items() if name.startswith(prefix)}
                decoder = build(lambda: SpectrumDecoder(**shape), parts, folder / _WEIGHTS, "decoder of spectra")
            mean, basis, codebooks = (stored[name].float() for name in ("mean", "basis", "codebooks"))
            check_finite({"mean": mean, "basis": basis, "codebooks": codebooks}, folder / _WEIGHTS)
            bands, components = STACK * mel.bands, codebooks.shape[2]
            if mean.shape != (bands,) or basis.shape != (bands, components) or not codebooks.numel():
                shapes = ", ".join(str(list(each.shape)) for each in (mean, basis, codebooks))
                raise ValueError(f"mean, basis and codebooks have the shapes {shapes}, which do not fit")
            if not isinstance(spec["codebook_offsets"], bool):
                raise ValueError("codebook_offsets must be true or false")
            rvq = cls(mean, basis, codebooks, decoder, mel, spec["codebook_offsets"])
        except (OSError, LookupError, TypeError, RuntimeError, ValueError, SafetensorError) as error:
            raise CheckpointError(f"{folder} is not a usable mel-rvq tokenizer ({error}).") from error
        # A setting that this version does not know would change what the codes mean.
        if unknown := sorted(spec.keys() - {"kind", "version", "vocab_size", "fingerprint", *rvq._config()}):
            raise CheckpointError(
                f"{folder} is not a usable mel-rvq tokenizer (unknown settings {', '.join(unknown)}); a newer version "
                "of triptych may have made it."
            )
        return rvq
