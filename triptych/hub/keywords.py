"""Keyword arguments of pipeline methods: how to sample, and what to say to the habits of other libraries."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from triptych.errors import UserError, did_you_mean
from triptych.sample.batch import Callback


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
