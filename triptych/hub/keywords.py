"""Keyword arguments of pipeline methods: how to sample, and what to say to the habits of other libraries."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, get_args

import numpy as np

from triptych.errors import UserError, did_you_mean
from triptych.sample.batch import Callback
from triptych.sample.config import SAMPLING_PRESETS, SamplingConfig, Use
from triptych.utils.arguments import shown
from triptych.vocab import Modality


class Sampling(TypedDict, total=False):
    """Keyword arguments of every method: fields of `SamplingConfig` that differ from the preset, and these."""

    preset: str
    """Name of a preset to use instead of the model's: "scenes", "fast" or "paper"."""
    seed: int | Sequence[int]
    """Seed of the first request (the next ones have seed + 1, ...), or one seed per request. Default 0."""
    callback: Callback
    """Called after every step with its index, the number of steps and the tokens so far."""
    sampler: str
    num_steps: int | None
    guidance_scale: float
    temperature: float
    top_p: float
    length: str
    single_pass: bool
    best_of: int
    num_score_passes: int
    options: Mapping[str, Any]


class Writing(Sampling, total=False):
    """Keyword arguments of methods that write a text."""

    num_tokens: int | None
    """Number of tokens to write; the model chooses it by default."""


INSTEAD = {
    "num_inference_steps": "use num_steps=N",
    "steps": "use num_steps=N",
    "guidance": "use guidance_scale=S",
    "cfg_scale": "use guidance_scale=S",
    "generator": "use seed=N; results depend on the seed alone",
    "negative_prompt": "there is none: guidance_scale pushes away from the prediction without the text",
    "num_images_per_prompt": "pass a list: [text] * N gives N results with seeds seed, seed + 1, ...",
    "num_return_sequences": "pass a list: [text] * N gives N results with seeds seed, seed + 1, ...",
    "height": "the image tokenizer fixes the size of images",
    "width": "the image tokenizer fixes the size of images",
    "output_type": "results are PIL images, Audio and str",
    "max_new_tokens": "use num_tokens=N",
    "max_length": "use num_tokens=N",
    "top_k": "use top_p=P",
    "do_sample": "use temperature=0 for greedy sampling",
    "prompt": "use text=TEXT",
    "torch_dtype": "use dtype=DTYPE",
    "device_map": "use device=DEVICE",
}
"""Keyword arguments of other libraries, and what to use here."""


def refuse_keywords(unknown: Iterable[str], known: Iterable[str]) -> None:
    """Raise an error for the first of these keyword arguments, with what to use instead."""
    for key in unknown:
        if key in INSTEAD:
            raise UserError(f"unknown argument {key!r}: {INSTEAD[key]}.")
        raise UserError(f"unknown argument {key!r}.{did_you_mean(key, list(known))}")


def check_preset(name: Any) -> None:
    if not isinstance(name, str) or name not in SAMPLING_PRESETS:
        raise UserError(f"unknown preset {shown(name)}.{did_you_mean(shown(name), list(SAMPLING_PRESETS))}")


def sampling_config(
    preset: str,
    target: Modality,
    use: Use | None,
    changes: Mapping[str, Any],
    own: Mapping[str, Mapping[str, Any]] | None = None,
) -> SamplingConfig:
    """The configuration of a preset for what is generated, with some fields changed.

    `own` are a model's changes to its preset, by use or by name of the modality; `changes` come after them.
    """
    check_preset(preset)
    configs = SAMPLING_PRESETS[preset]
    has_own_preset = use is not None and use in configs
    config = configs[use] if has_own_preset and use is not None else configs[target]
    name = use if has_own_preset and use is not None else target.name.lower()
    return _changed(_changed(config, (own or {}).get(name, {})), changes)


def check_own_sampling(preset: str, own: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse changes to a preset that are not fields of `SamplingConfig`, by use or name of the modality."""
    names = [each.name.lower() for each in Modality] + list(get_args(Use))
    for name, changes in own.items():
        if name not in names or not isinstance(changes, Mapping):
            raise UserError(f"sampling of a model has fields for some of {', '.join(names)}, got {name}: {changes!r}.")
        use: Use | None = "caption" if name == "caption" else None
        sampling_config(preset, Modality.TEXT if use else Modality[name.upper()], use, {}, own)


def _changed(config: SamplingConfig, changes: Mapping[str, Any]) -> SamplingConfig:
    fields = SamplingConfig.__dataclass_fields__
    refuse_keywords([key for key in changes if key not in fields], [*fields, "seed", "callback", "preset"])
    if "sampler" in changes and changes["sampler"] != config.sampler:
        config = replace(config, options={})  # those were another sampler's
    return replace(config, **changes)


def seeds_of(seed: Any, count: int) -> list[int]:
    """The seeds of requests: seed, seed + 1, ..., or those of a sequence."""
    is_sequence = isinstance(seed, Sequence) and not isinstance(seed, str)
    if not all(isinstance(each, int | np.integer) for each in (seed if is_sequence else [seed])):
        raise UserError(f"seed must be a whole number, or one for each request, got {shown(seed)}.")
    seeds = list(seed) if is_sequence else [int(seed) + i for i in range(count)]
    if len(seeds) != count:
        raise UserError(f"expected one seed for all or {count} seeds, got {len(seeds)}.")
    for number in seeds:
        if not 0 <= number < 2**64:
            raise UserError(f"seeds must lie between 0 and 2^64 - 1, got {shown(number)}.")
    return seeds
