"""Audio tokenizers: neural codecs with residual codebooks, from `transformers`, and resampling.

A codec has a fixed number of frames per second, and one code of each codebook per frame. Ids are written frame by
frame, coarse to fine: c0 c1 c2 c3 | c0 c1 c2 c3 | ... With the paper's codec (Higgs Audio v2, the first 4 of its 8
codebooks, 25 frames per second) 30 seconds are 3,000 ids.
"""

import importlib
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.errors import CheckpointError, DataError, UserError, require
from triptych.tokenizers.base import Tokenizer, hash_arrays, read_spec, write_spec
from triptych.utils.json_files import read_json
from triptych.utils.media import Audio
from triptych.utils.tensors import check_finite, network_of, read_header
from triptych.vocab import Modality

_LARGEST = 1 << 20  # samples per second, samples per frame, codes
_MAX_SECONDS = 24 * 3600.0

# B batch, K codebooks, F frames, T samples


def load_audio_tokenizer(folder: Path) -> Tokenizer[Audio]:
    """Load a saved `MelRVQ` or `Codec`."""
    folder = Path(folder)
    match read_spec(folder, ["mel-rvq", "higgs", "dac"])["kind"]:
        case "mel-rvq":
            from triptych.tokenizers.mel_rvq import MelRVQ  # imports `resample` from here

            return MelRVQ.load(folder)
        case _:
            return Codec.load(folder)


def resample(audio: Audio, sample_rate: int) -> Audio:
    """Convert to another sample rate by a windowed sinc, flat up to 90 % of the lower Nyquist frequency."""
    if audio.sample_rate == sample_rate:
        return audio
    from scipy.signal import firwin, resample_poly

    # Rates without a common divisor would need a filter of tens of millions of taps, so the ratio is rounded to
    # integers up to 48,000: exact for all rates up to 48 kHz and all usual ones above, inaudibly inexact for others.
    slow, fast = sorted((sample_rate, audio.sample_rate))
    ratio = Fraction(fast, slow).limit_denominator(max(1, 48_000 * slow // fast))
    many, few = ratio.numerator, ratio.denominator
    up, down = (many, few) if sample_rate == fast else (few, many)
    # 64 zero crossings on each side take the gain from 1 to -90 dB between 90 and 100 % of the lower Nyquist frequency.
    window = firwin(2 * 64 * many + 1, 0.95 / many, window=("kaiser", 9.0))
    samples = resample_poly(audio.samples.astype(np.float64), up, down, window=window)
    expected = -(-len(audio.samples) * sample_rate // audio.sample_rate)
    return Audio(np.clip(_of_length(samples, expected), -1, 1).astype(np.float32), sample_rate)


def _of_length(samples: np.ndarray, length: int) -> np.ndarray:
    """Cut, or pad with silence."""
    return np.pad(samples[:length], (0, max(0, length - len(samples))))


def check_audio(audio: Audio, max_seconds: float) -> None:
    """Refuse audio that no tokenizer can encode."""
    if audio.samples.ndim != 1 or not len(audio.samples) or not np.isfinite(audio.samples).all():
        raise DataError("audio must be one channel of at least one sample, all finite.")
    if len(audio.samples) > max_seconds * audio.sample_rate:
        raise DataError(f"the audio is {audio.seconds:.2f} s long, the limit is {max_seconds:g} s; cut it first.")


def check_frames(ids: np.ndarray, codebooks: int, vocab_size: int) -> None:
    """Refuse ids that are not complete frames."""
    if ids.ndim != 1 or len(ids) % codebooks:
        raise UserError(
            f"expected a multiple of {codebooks} audio ids (one per codebook), got shape {list(ids.shape)}."
        )
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
        raise UserError(f"audio token ids must be in [0, {vocab_size}), got {ids.min()} to {ids.max()}.")


# -- the tokenizer ----------------------------------------------------------------------------------------------------


class Network(Protocol):
    """A codec as the tokenizer uses it: a waveform to codes, and codes to a waveform."""

    kind: str
    model: Any
    sample_rate: int
    hop_length: int
    """Samples per frame."""
    num_codebooks: int
    codebook_size: int

    def encode(self, wave_T: Tensor) -> Tensor:
        """float [T], T a multiple of `hop_length` -> integer [K, F]"""
        ...

    def decode(self, codes_KF: Tensor) -> Tensor:
        """integer [K, F], the first K codebooks -> float [T]"""
        ...


@final
class Codec:
    """The first `codebooks` codebooks of a neural codec.

    All codebooks share one range of ids, unless `codebook_offsets` gives each its own. Clips are encoded one by one:
    the padding of a batch would change the last codes of the shorter ones.
    """

    modality = Modality.AUDIO

    def __init__(self, network: Network, codebooks: int = 4, codebook_offsets: bool = False, max_seconds: float = 30.0):
        sizes = (network.sample_rate, network.hop_length, network.codebook_size)
        if not all(isinstance(size, int) and 0 < size <= _LARGEST for size in sizes):
            raise CheckpointError(f"no codec has a rate, a hop and a number of codes of {sizes}.")
        if not 1 <= codebooks <= network.num_codebooks:
            raise UserError(f"this codec has {network.num_codebooks} codebooks, got codebooks={codebooks}.")
        self.network, self.num_codebooks, self.max_seconds = network, codebooks, max_seconds
        self.codebook_offsets = codebook_offsets
        network.model.eval()

    @property
    def kind(self) -> str:
        return self.network.kind

    @property
    def vocab_size(self) -> int:
        return self.network.codebook_size * (self.num_codebooks if self.codebook_offsets else 1)

    @property
    def frame_rate(self) -> float:
        return self.network.sample_rate / self.network.hop_length

    def num_frames(self, audio: Audio) -> int:
        """Frames that cover all samples, in exact arithmetic; the last one may be padded with silence."""
        return -(-len(audio.samples) * self.network.sample_rate // (audio.sample_rate * self.network.hop_length))

    def to(self, device: str | torch.device) -> "Codec":
        self.network.model.to(device)
        return self

    @torch.no_grad()
    def encode(self, items: Sequence[Audio]) -> list[np.ndarray]:
        return [self._encode_one(audio) for audio in items]

    def _encode_one(self, audio: Audio) -> np.ndarray:
        check_audio(audio, self.max_seconds)
        frames = self.num_frames(audio)
        wave = _of_length(resample(audio, self.network.sample_rate).samples, frames * self.network.hop_length)
        codes_KF = self.network.encode(torch.from_numpy(wave).to(self.network.model.device))[: self.num_codebooks]
        if codes_KF.shape[1] != frames:
            raise CheckpointError(f"the codec made {codes_KF.shape[1]} frames of {len(wave)} samples, not {frames}.")
        return (codes_KF.cpu().numpy() + self._offsets).T.reshape(-1).astype(np.int32)

    @property
    def _offsets(self) -> np.ndarray:
        step = self.network.codebook_size if self.codebook_offsets else 0
        return step * np.arange(self.num_codebooks)[:, None]

    @torch.no_grad()
    def decode(self, ids: Sequence[np.ndarray]) -> list[Audio]:
        """Audio at the codec's sample rate. With offsets, ids of a wrong codebook are read modulo the codebook size."""
        return [self._decode_one(np.asarray(row)) for row in ids]

    def _decode_one(self, row: np.ndarray) -> Audio:
        check_frames(row, self.num_codebooks, self.vocab_size)
        if not len(row):
            return Audio(np.zeros(0, np.float32), self.network.sample_rate)
        codes_KF = row.reshape(-1, self.num_codebooks).T.astype(np.int64) % self.network.codebook_size
        wave = self.network.decode(torch.from_numpy(codes_KF).to(self.network.model.device)).float().cpu().numpy()
        return Audio(
            np.clip(_of_length(wave, codes_KF.shape[1] * self.network.hop_length), -1, 1), self.network.sample_rate
        )

    # -- saving -------------------------------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        # Without the library's own configuration, which gains fields with every release.
        config = {"kind": self.kind, **self._choices, "rate": self.network.sample_rate, "hop": self.network.hop_length}
        weights = self.network.model.state_dict()
        return hash_arrays(config, {name: weight.cpu().numpy() for name, weight in weights.items()})

    @property
    def _choices(self) -> dict[str, Any]:
        return {"codebooks": self.num_codebooks, "codebook_offsets": self.codebook_offsets}

    def save(self, folder: str | Path) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with _quiet():
            self.network.model.save_pretrained(folder)
        about = {"vocab_size": self.vocab_size, "max_seconds": self.max_seconds, "fingerprint": self.fingerprint}
        write_spec(folder, self.kind, **self._choices, **about)

    @classmethod
    def load(cls, folder: Path) -> "Codec":
        networks: dict[str, type[HiggsAudio] | type[Dac]] = {HiggsAudio.kind: HiggsAudio, Dac.kind: Dac}
        spec = read_spec(folder, list(networks))
        try:
            codebooks, offsets = int(spec["codebooks"]), bool(spec["codebook_offsets"])
            max_seconds = float(spec["max_seconds"])
            if not 0 < max_seconds <= _MAX_SECONDS:
                raise ValueError(f"max_seconds is {max_seconds}")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"{folder}/tokenizer.json does not describe a codec ({error!r}).") from error
        codec = networks[spec["kind"]].from_pretrained(folder, codebooks, offsets)
        codec.max_seconds = max_seconds
        return codec


# -- the networks -----------------------------------------------------------------------------------------------------


@final
class HiggsAudio:
    """Higgs Audio v2: a DAC and a HuBERT, quantized together. 24 kHz, 25 frames per second, 8 codebooks of 1,024."""

    kind = "higgs"

    def __init__(self, model: Any):
        self.model = model
        self.sample_rate, self.hop_length = model.config.sample_rate, model.config.hop_length
        self.num_codebooks, self.codebook_size = model.config.num_quantizers, model.config.codebook_size

    @classmethod
    def from_pretrained(cls, source: str | Path, codebooks: int = 4, codebook_offsets: bool = False) -> Codec:
        """Load the tokenizer from a local folder or a hub name ("bosonai/higgs-audio-v2-tokenizer")."""
        return Codec(cls(_from_pretrained(higgs_model_class(), source)), codebooks, codebook_offsets)

    def encode(self, wave_T: Tensor) -> Tensor:
        return self.model.encode(wave_T[None, None]).audio_codes[0]

    def decode(self, codes_KF: Tensor) -> Tensor:
        return self.model.decode(codes_KF[None]).audio_values[0, 0]


@final
class Dac:
    """Descript Audio Codec. The 24 kHz model has 75 frames per second and 32 codebooks of 1,024."""

    kind = "dac"

    def __init__(self, model: Any):
        self.model = model
        self.sample_rate, self.hop_length = model.config.sampling_rate, model.config.hop_length
        self.num_codebooks, self.codebook_size = model.config.n_codebooks, model.config.codebook_size

    @classmethod
    def from_pretrained(cls, source: str | Path, codebooks: int = 4, codebook_offsets: bool = False) -> Codec:
        """Load the tokenizer from a local folder or a hub name ("descript/dac_24khz")."""
        dac = require("transformers", "codecs", "the DAC tokenizer").DacModel
        return Codec(cls(_from_pretrained(dac, source)), codebooks, codebook_offsets)

    def encode(self, wave_T: Tensor) -> Tensor:
        return self.model.encode(wave_T[None, None]).audio_codes[0]

    def decode(self, codes_KF: Tensor) -> Tensor:
        return self.model.decode(audio_codes=codes_KF[None]).audio_values[0]


def _from_pretrained(model_class: Any, source: str | Path) -> Any:
    """Load safetensors, never pickle. A missing weight is an error; `transformers` would initialise it randomly."""
    local = Path(source).is_dir()  # then do not use the network
    try:
        with _quiet(), network_of(*_sizes(Path(source))) if local else nullcontext():
            model, report = model_class.from_pretrained(
                source, use_safetensors=True, local_files_only=local, dtype=torch.float32, output_loading_info=True
            )
    except Exception as error:  # a missing file, no network, a wrong configuration, weights of another shape, ...
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{model_class.__name__} cannot be loaded from {str(source)!r} ({type(error).__name__}: {reason}). "
            "Pass a local folder with config.json and model.safetensors."
        ) from error
    if report["missing_keys"]:
        names = sorted(report["missing_keys"])
        raise CheckpointError(
            f"{str(source)!r} is not a complete {model_class.__name__}: {len(names)} weights are missing, "
            f"such as {', '.join(names[:3])}."
        )
    check_finite(model.state_dict(), Path(source))
    return model


def _sizes(folder: Path) -> tuple[int, int]:
    """How many weights the files of a folder hold, and how many numbers."""
    read_json(folder / "config.json")  # nor is it a pipe, or nested a thousand times
    shapes = [shape for path in folder.glob("*.safetensors") for _, shape in read_header(path).values()]
    return len(shapes), sum(map(math.prod, shapes))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the progress bars and tables of `transformers`; problems are raised as errors."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def higgs_model_class() -> Any:
    """`HiggsAudioV2TokenizerModel`, without torchaudio.

    Its module imports torchaudio for one function, the resampling from 24 to 16 kHz. It always gets the one below, so
    that ids do not depend on installed packages. The stand-in is in `sys.modules` only during that import.
    """
    require("transformers", "codecs", "the Higgs Audio tokenizer")
    name = "transformers.models.higgs_audio_v2_tokenizer"
    for needed in ("transformers.audio_utils", "transformers.models.auto", "transformers.processing_utils", name):
        importlib.import_module(needed)  # before the stand-in, so that none of them uses it
    stand_in = ModuleType("torchaudio")
    stand_in.functional = ModuleType("torchaudio.functional")  # type: ignore[attr-defined]
    stand_in.functional.resample = _hann_resample
    real = sys.modules.get("torchaudio")
    sys.modules["torchaudio"] = stand_in
    try:
        module = importlib.import_module(f"{name}.modeling_higgs_audio_v2_tokenizer")
    finally:
        if real is None:
            del sys.modules["torchaudio"]
        else:
            sys.modules["torchaudio"] = real
    return module.HiggsAudioV2TokenizerModel


def _hann_resample(wave: Tensor, orig_freq: int, new_freq: int) -> Tensor:
    """[..., T] at one rate -> [..., ceil(T * new / orig)] at another, as torchaudio does by default.

    The codec's semantic model was trained with this filter: a sinc with its cutoff at 99 % of the lower Nyquist
    frequency and six zero crossings on each side, under a Hann window.
    """
    divisor = math.gcd(orig_freq, new_freq)
    old, new = orig_freq // divisor, new_freq // divisor
    cutoff, crossings = 0.99 * min(old, new), 6
    reach = math.ceil(crossings * old / cutoff)
    # One kernel per phase of the output; time in units of the period that both rates share.
    inputs = torch.arange(-reach, reach + old, dtype=torch.float64, device=wave.device) / old
    outputs = torch.arange(new, dtype=torch.float64, device=wave.device) / new
    t = ((inputs - outputs[:, None]) * cutoff).clamp(-crossings, crossings)
    kernels = torch.sinc(t) * torch.cos(t * math.pi / (2 * crossings)) ** 2 * (cutoff / old)
    padded = F.pad(wave.reshape(-1, 1, wave.shape[-1]), (reach, reach + old))
    phases = F.conv1d(padded, kernels[:, None].to(wave.dtype), stride=old)
    length = -(-wave.shape[-1] * new // old)
    return phases.transpose(1, 2).reshape(*wave.shape[:-1], -1)[..., :length]
