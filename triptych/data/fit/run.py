"""Fits a tokenizer for every modality that the inputs have, and saves them as one bundle.

OUT/text  OUT/image  OUT/audio  OUT/vocab.json     the bundle; vocab.json is written last
OUT/.fit/                                          settings and the state of an unfinished fit
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from triptych.data.fit.config import PATCH_VQ, FitConfig, Sizes
from triptych.data.fit.samples import FitSamples, open_sources, read_samples
from triptych.data.sources import ReadOptions
from triptych.errors import UserError, did_you_mean
from triptych.tokenizers.bundle import TokenizerBundle, finish_bundle
from triptych.utils.arguments import checked
from triptych.utils.files import write_atomically
from triptych.utils.json_files import read_json
from triptych.utils.units import human_bytes, human_duration
from triptych.vocab import Vocabulary

Report = Callable[[str], None]

_STATE, _PLAN = ".fit", "settings.json"
_UNUSED = 1  # ids of a modality without samples: a vocabulary has all three
_IMAGE_BATCH = 16
_FLAT_SHARE = 0.2  # of patches with one colour: drawings have more, photographs less
_KIND_IMAGES = 64  # that are looked at to choose the kind of tokenizer
_MAX_SIDE = 512  # images are kept no larger than this before the resolution is known


@dataclass(frozen=True)
class Fitted:
    """The result: the bundle, its sizes, and the samples, of which the held-out ones are for a report."""

    bundle: TokenizerBundle
    sizes: Sizes
    samples: FitSamples


@checked
def fit_tokenizers(
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    overwrite: bool = False,
    report: Report = print,
    **options: Any,
) -> Fitted:
    """Fit tokenizers to files; the same as `triptych tokenizers fit`, without its report.

        fitted = fit_tokenizers(["notes/", "photos/", "calls/"], "tokenizers/mine")
        tokenize("photos/", "data/photos", tokenizers="tokenizers/mine")

    A stopped fit resumes when it is called again; finished tokenizers are left as they are.

    Args:
        inputs: files, folders or patterns of text, captioned images or transcribed audio, as `tokenize` reads them.
        out: folder of the tokenizers.
        overwrite: start over, whatever tokenizers are in `out`.
        report: called with lines of progress.
        **options: further fields of `FitConfig`, such as `vocab_size`, `resolution`, `codebooks`.
    """
    known = [field.name for field in fields(FitConfig)]
    for name in options:
        if name not in known:
            raise UserError(f"fit_tokenizers has no argument {name!r}.{did_you_mean(name, [*known, 'overwrite'])}")
    paths = [inputs] if isinstance(inputs, str | Path) else inputs
    config, out = FitConfig(inputs=tuple(map(str, paths)), **options), Path(out)
    sources = open_sources(
        config.inputs,
        ReadOptions(
            text_key=config.text_key, prompt_key=config.prompt_key, media_key=config.media_key, per_line=config.per_line
        ),
    )
    for text in config.inputs:
        if Path(text).is_dir() and out.resolve().is_relative_to(Path(text).resolve()):
            raise UserError(
                f"{out} is inside the input {text}; choose a folder outside, or it would read its own output."
            )
    plan = asdict(config) | {"input_files": [source.fingerprint() for source in sources]}
    plan = json.loads(json.dumps(plan))  # equal to the plan that is read back
    _check_folder(out, plan, overwrite)
    report("reading samples")
    samples = read_samples(sources, max_side=config.resolution or _MAX_SIDE, seed=config.seed)
    if samples.bad:
        report(
            f"{len(samples.bad):,} samples cannot be read, the first is {samples.bad[0].key}: {samples.bad[0].reason}"
        )
    sizes = Sizes.choose(config, samples)
    _adopt(out, plan, overwrite)  # nothing was changed before all mistakes are found
    parts = {"text": _fit_text, "image": _fit_image, "audio": _fit_audio}
    present = {"text": bool(samples.texts), "image": bool(samples.images), "audio": bool(samples.clips)}
    for part, fit in parts.items():
        if not present[part]:
            continue
        if (out / part).exists():
            report(f"{part}: finished before")
            continue
        tokenizer = fit(config, sizes, samples, out / _STATE / f"{part}.safetensors", report)
        unfinished = out / _STATE / part
        shutil.rmtree(unfinished, ignore_errors=True)
        tokenizer.save(unfinished)
        unfinished.replace(out / part)
        (out / _STATE / f"{part}.safetensors").unlink(missing_ok=True)
    stored = {part: _stored_size(out / part) if present[part] else _UNUSED for part in parts}
    finish_bundle(out, Vocabulary(**stored))
    return Fitted(TokenizerBundle.load(out), sizes, samples)


def _check_folder(out: Path, plan: dict[str, Any], overwrite: bool) -> None:
    """Refuse a folder with other files, or with another fit unless it is to be replaced."""
    path = out / _STATE / _PLAN
    if path.exists() and not overwrite:
        before = read_json(path)
        if changed := [key for key in plan if before.get(key) != plan[key]]:
            key = changed[0]
            what = f"{key} was {before.get(key)!r}, is {plan[key]!r}"
            if key == "input_files":
                what = "the input files have changed"
            raise UserError(f"{out} holds tokenizers of another fit: {what}. Use --overwrite, or another folder.")
    if not path.exists() and out.exists() and any(out.iterdir()):
        raise UserError(f"{out} holds other files; choose a new folder.")


def _adopt(out: Path, plan: dict[str, Any], overwrite: bool) -> None:
    """Prepare the folder for this fit; `overwrite` removes the one before."""
    path = out / _STATE / _PLAN
    if overwrite and path.exists():
        for part in ("text", "image", "audio", _STATE):
            shutil.rmtree(out / part, ignore_errors=True)
        (out / "vocab.json").unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(plan, indent=2) + "\n").encode())


def _stored_size(folder: Path) -> int:
    return int(read_json(folder / "tokenizer.json")["vocab_size"])


# -- the three fits ---------------------------------------------------------------------------------------------------


def _fit_text(config: FitConfig, sizes: Sizes, samples: FitSamples, state: Path, report: Report) -> Any:
    from triptych.tokenizers.text import ByteBPE

    report(f"text: up to {sizes.vocab_size:,} ids, {human_bytes(samples.text_bytes)} in {len(samples.texts):,} texts")
    return ByteBPE.train(samples.texts, sizes.vocab_size)


def _fit_image(config: FitConfig, sizes: Sizes, samples: FitSamples, state: Path, report: Report) -> Any:
    from triptych.tokenizers.pixels import resize_with_white_padding

    resolution, factor, codes = sizes.image
    grid, number = resolution // factor, len(samples.images)
    images = [resize_with_white_padding(image, resolution) for image in samples.images]
    share = _flat_share(images, factor)
    kind = config.image_kind or (PATCH_VQ if share >= _FLAT_SHARE else "movq")
    report(
        f"image: {kind}, {resolution} x {resolution} pixels, {grid} x {grid} tokens of {codes:,} codes, "
        f"{number:,} images, {share:.0%} of their patches have one colour"
    )
    if kind == PATCH_VQ:
        return _fit_patch_vq(images, resolution, factor, codes, config, report)
    return _fit_movq(images, resolution, factor, codes, config, state, report)


def _flat_share(images: Sequence[Image.Image], factor: int) -> float:
    """Share of patches with one colour: large in drawings, small in photographs."""
    import torch

    from triptych.tokenizers.backdrop import flat_patches
    from triptych.tokenizers.patch_vq import to_patches
    from triptych.tokenizers.pixels import to_pixels

    shown = images[:: max(1, len(images) // _KIND_IMAGES)][:_KIND_IMAGES]
    patches = to_patches(torch.from_numpy(to_pixels(shown)), factor).flatten(0, 1)
    return float(flat_patches(patches.unflatten(1, (3, -1))).float().mean())


def _fit_patch_vq(
    images: list[Image.Image], resolution: int, factor: int, codes: int, config: FitConfig, report: Report
) -> Any:
    from triptych.tokenizers.fit_patch_vq import different_patches, fit_patch_vq
    from triptych.tokenizers.patch_vq import PatchVQConfig

    shape = PatchVQConfig(resolution=resolution, patch=factor, codes=codes)
    layers, weights = different_patches(images, shape)
    if config.image_codes is None:
        shape = replace(shape, codes=min(codes, len(layers)))
    return fit_patch_vq(shape, layers, weights, seed=config.seed, report=lambda line: report(f"image: {line}"))


def _fit_movq(
    images: list[Image.Image],
    resolution: int,
    factor: int,
    codes: int,
    config: FitConfig,
    state: Path,
    report: Report,
) -> Any:
    import torch

    from triptych.tokenizers.fit_movq import fit_movq
    from triptych.tokenizers.fit_state import FitState
    from triptych.tokenizers.image import MoVQ
    from triptych.tokenizers.pixels import to_pixels

    def batch(step: int) -> torch.Tensor:
        rng = np.random.default_rng([config.seed, step])
        return torch.from_numpy(to_pixels([images[i] for i in np.sort(rng.integers(len(images), size=_IMAGE_BATCH))]))

    tokenizer = MoVQ.small(resolution, config.seed, **_network(factor, codes))
    fit_movq(
        tokenizer,
        batch,
        config.image_steps,
        seed=config.seed,
        state=FitState(state),
        report=lambda now: report(
            f"image step {now['step']:,} of {config.image_steps:,}: {now['psnr']:.1f} dB, {now['codes_used']:,} codes "
            f"in use, {human_duration(now['seconds_left'])} left"
        ),
    )
    return tokenizer


def _network(factor: int, codes: int) -> dict[str, Any]:
    """Images are folded into small patches first, which is cheaper than halving at full resolution."""
    patch = min(4, factor // 2)
    halvings = (factor // patch).bit_length() - 1
    return {
        "channels": (64, *(128,) * halvings),
        "patch": patch,
        "codes": codes,
        "latent_channels": 8,
        "groups": 8,
        "local": True,
    }


def _fit_audio(config: FitConfig, sizes: Sizes, samples: FitSamples, state: Path, report: Report) -> Any:
    from triptych.tokenizers.fit_mel_rvq import fit_mel_rvq
    from triptych.tokenizers.fit_state import FitState

    codebooks, codes = sizes.audio
    report(
        f"audio: {25 * codebooks} tokens per second of {codes:,} codes, "
        f"{human_duration(samples.audio_seconds)} in {len(samples.clips):,} clips"
    )
    return fit_mel_rvq(
        samples.clips,
        codebooks,
        codes,
        decoder_steps=config.audio_steps,
        seed=config.seed,
        state=FitState(state),
        report=lambda line: report(f"audio: {line}"),
    )
