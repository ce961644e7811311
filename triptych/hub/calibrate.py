"""Calibration of the input checks of a model: what inputs measure on validation data.

The data are raw files, in the formats of `triptych tokenize`. They pass through the same code as the inputs of users,
because token shards no longer have what a tokenizer loses. Half of the texts are cut at a random token: users also give
beginnings of texts.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from triptych.data.shards import MANIFEST
from triptych.data.sources import BadSample, Item, ReadOptions, Source, open_source
from triptych.errors import DataError, UserError
from triptych.hub.input_checks import FALSE_ALARM_RATE, InputChecks, kind_of_text
from triptych.hub.pipeline import Pipeline
from triptych.utils.arguments import checked
from triptych.utils.media import read_audio, read_image
from triptych.utils.rng import random_bits
from triptych.vocab import Task

NUM_SAMPLES = 1000
_CHOICE, _CUT = 0, 1  # purposes of random bits
_REPORT_EVERY = 100


@dataclass
class _Values:
    """Measurements by kind and part, input by input, and why samples were left out."""

    columns: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, kind: str, parts: dict[str, float]) -> None:
        for name, value in parts.items():
            self.columns.setdefault(kind, {}).setdefault(name, []).append(value)


@checked
def calibrate(
    pipe: Pipeline,
    inputs: Sequence[str],
    *,
    num_samples: int = NUM_SAMPLES,
    false_alarm_rate: float = FALSE_ALARM_RATE,
    options: ReadOptions | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> InputChecks:
    """Measure up to `num_samples` random samples of every input (file, folder or pattern), each of one task.

    Use validation data: on training data the surprise is too low. Samples that the model would refuse are left out.

        checks = calibrate(pipe, ["validation/photos", "validation/speech"])
        store_input_checks(Path("models/mine"), checks)
    """
    values = _Values()
    sources = [(name, _open(name, options)) for name in inputs]
    for name, source in sources:
        left_out = len(values.left_out)
        chosen = _choose(source, num_samples)
        for number, (index, item) in enumerate(chosen):
            if number and number % _REPORT_EVERY == 0:
                report(f"{name}: {number} of {len(chosen)}")
            try:
                _measure(pipe, source.task, index, item, values)
            except UserError as error:
                values.left_out.append(str(error))
        left_out = len(values.left_out) - left_out
        why = f"; {left_out} left out, the last because: {values.left_out[-1]}" if left_out else ""
        report(f"{name}: {len(chosen)} {source.task.label} samples{why}")
        if left_out == len(chosen):
            raise DataError(f"{name} has no sample that this model takes{why}")
    return InputChecks.fit(values.columns, false_alarm_rate)


def _open(name: str, options: ReadOptions | None) -> Source:
    if (Path(name) / MANIFEST).is_file():
        raise DataError(
            f"{name} holds tokens. Calibration also measures what the tokenizers lose: give the files it was made from."
        )
    return open_source([name], options=options)


def _choose(source: Source, count: int) -> list[tuple[int, Item]]:
    """A random sample, in a fixed random order; the same files give the same samples."""
    numbered: Iterator[tuple[int, Item]] = enumerate(source)
    return heapq.nsmallest(count, numbered, key=lambda pair: random_bits(_CHOICE, pair[0]).item())


def _measure(pipe: Pipeline, task: Task, index: int, item: Item, values: _Values) -> None:
    """Add the measurements of one sample: all of them, or none if the model refuses a part of it."""
    if isinstance(item, BadSample):
        raise DataError(f"{item.key}: {item.reason}")
    inputs, measures = pipe._inputs, pipe._checker.measures
    beside, media = None, {}
    if task == Task.IMAGE_TEXT:
        assert item.media is not None
        beside, media = "image", measures.image(*inputs.encoded_image(read_image(item.media)))
    elif task == Task.AUDIO_TEXT:
        assert item.media is not None
        audio = read_audio(item.media, item.offset_seconds, item.duration_seconds)
        beside, media = "audio", measures.audio(*inputs.encoded_audio(audio))
    _, ids = inputs.encoded_text(item.prompt + item.response, cut=True)
    bits = random_bits(_CUT, index).item()
    if bits % 2:
        ids = ids[: 1 + (bits >> 1) % len(ids)]
    values.add(kind_of_text(beside), measures.text(ids, beside))
    if beside is not None:
        values.add(beside, media)
