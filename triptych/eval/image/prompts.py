"""Prompts for text-to-image: the captions of a dataset, or the lines of a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triptych.data.sources import open_source
from triptych.data.sources.base import BadSample
from triptych.errors import DataError, UserError
from triptych.hub.checker import InputChecker
from triptych.hub.inputs import Inputs
from triptych.hub.measures import Measures
from triptych.hub.pipeline import Pipeline
from triptych.hub.requests import Requests, check_length
from triptych.utils.json_files import parse_json, read_text
from triptych.vocab import Task

_FIELDS = ("prompt", "text", "caption")
_MAX_UNSUITABLE = 0.1  # share of captions that a model may refuse


@dataclass(frozen=True)
class Prompts:
    """Prompts that a model takes, in the order in which they are used."""

    texts: tuple[str, ...]
    label: str
    """Where they are from."""
    num_left_out: int = 0
    """Captions among the chosen ones that the model refuses: too long, or with unknown words."""


def read_prompt_file(path: str | Path) -> list[str]:
    """The lines of a text file, or the prompts of a .jsonl file with a field `prompt`, `text` or `caption`."""
    try:
        lines = [line.strip() for line in read_text(Path(path), "utf-8-sig").split("\n")]
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as prompts ({getattr(error, 'strerror', None) or error}).") from error
    texts = [line for line in lines if line]
    if Path(path).suffix in (".jsonl", ".ndjson"):
        texts = [_prompt_of(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line]
    if not texts:
        raise DataError(f"{path} holds no prompts: expected one per line.")
    return texts


def _prompt_of(line: str, where: str) -> str:
    try:
        content = parse_json(line)
        return next(content[name].strip() for name in _FIELDS if isinstance(content.get(name), str))
    except (ValueError, AttributeError, StopIteration, RecursionError) as error:
        raise DataError(f"{where} has no prompt: expected a JSON object with {', '.join(_FIELDS)}.") from error


def captions_of(data: str | Path) -> list[str]:
    """The captions of images, in the order of the data; empty ones are left out."""
    try:
        source = open_source([str(data)], task=Task.IMAGE_TEXT)
    except DataError as error:
        if not Path(data).exists():
            raise
        raise DataError(
            f"{data} has no captions to use as prompts: give a file of prompts, or captioned images "
            "(cat.png + cat.txt, tars, Parquet, a table)."
        ) from error
    captions = [item.text for item in source if not isinstance(item, BadSample) and item.text.strip()]
    if not captions:
        raise DataError(f"{data} has no captions to use as prompts: give a file of prompts.")
    return captions


def choose_prompts(
    texts: Sequence[str], label: str, num_samples: int | None, most: int, pipe: Pipeline, *, seed: int, is_file: bool
) -> Prompts:
    """`num_samples` prompts that the model takes, or as many as there are, up to `most`.

    Captions are drawn at random and those that the model refuses are left out. A file is used from its start, and every
    prompt must do.
    """
    order = np.arange(len(texts)) if is_file else np.random.default_rng(seed).permutation(len(texts))
    wanted = num_samples if num_samples is not None else min(len(texts), most)
    if wanted > len(texts):
        raise DataError(
            f"num_samples={wanted:,} needs as many prompts, and {label} has {len(texts):,}: give at most "
            f"{len(texts):,}, or more prompts."
        )
    refusal = refusals(pipe)
    chosen: list[str] = []
    refused: list[str] = []
    for index in order:
        if len(chosen) == wanted:
            break
        reason = refusal(texts[index])
        if reason is None:
            chosen.append(texts[index])
            continue
        refused.append(reason)
        if is_file:
            raise DataError(f"{label}: the model does not take {texts[index][:80]!r}: {reason}")
    if not chosen or len(refused) > _MAX_UNSUITABLE * (len(chosen) + len(refused)):
        raise DataError(
            f"the model does not take {len(refused):,} of the {len(chosen) + len(refused):,} captions of {label}, such "
            f"as: {refused[0]} Choose other prompts."
        )
    if len(chosen) < wanted and num_samples is not None:
        raise DataError(
            f"num_samples={wanted:,}, but the model takes only {len(chosen):,} of the captions of {label}, the others "
            f"are refused, such as: {refused[0]}"
        )
    return Prompts(tuple(chosen), label, len(refused))


def refusals(pipe: Pipeline) -> Callable[[str], str | None]:
    """A function that says why the model does not take a prompt, or None; nothing is generated."""
    silent = InputChecker(Measures(pipe.model, pipe.bundle, pipe.limits), None, False)
    requests = Requests(Inputs(pipe.bundle, pipe.limits, silent))

    def refusal(text: str) -> str | None:
        try:
            check_length(requests.text_to_image(text).canvas, pipe.limits)
        except UserError as error:
            return str(error)
        return None

    return refusal
