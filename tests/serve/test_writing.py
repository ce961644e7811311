"""What of a text is certain while it is written, and where it ends."""

from dataclasses import dataclass

import numpy as np
import pytest

from triptych.hub.requests import Request
from triptych.sample.canvas import MASKED, Canvas, Span, known, open_ended
from triptych.sample.config import SamplingConfig
from triptych.serve.canvases import SegmentIds
from triptych.serve.writing import Writer
from triptych.tokenizers.text import ByteBPE
from triptych.vocab import Modality

BYTES = ByteBPE([])
"""One token for each byte."""


def ids_of(text: str) -> np.ndarray:
    return np.asarray(BYTES.encode([text])[0], np.int64)


def read(canvas: Canvas) -> str:
    return BYTES.decode([canvas.text.ids])[0]


@dataclass
class Case:
    request: Request
    text: str

    def segment(self, shown: list[int]) -> SegmentIds:
        """The text with only these tokens filled in."""
        ids = ids_of(self.text)
        return SegmentIds(Modality.TEXT, 2, np.where(np.isin(np.arange(len(ids)), shown), ids, MASKED))

    def filled(self) -> Canvas:
        return Canvas(known(Modality.TEXT, ids_of(self.text)))


def case(prefix: str, text: str) -> Case:
    return Case(Request(Canvas(open_ended(Modality.TEXT, 100, ids_of(prefix))), Modality.TEXT, read), text)


def test_the_longest_beginning_without_gaps_is_certain():
    made = case("ab", "abcdef")
    writer = Writer(made.request, SamplingConfig())
    assert writer.first == 2
    assert writer.certain(made.segment([0, 1])) == "ab"
    assert writer.certain(made.segment([0, 1, 3, 4])) == "ab"
    assert writer.certain(made.segment([0, 1, 2, 3, 5])) == "abcd"
    assert writer.certain(made.segment([0, 1, 2, 3, 4, 5])) == "abcdef"


def test_a_part_of_a_character_is_not_shown():
    made = case("", "aé€b")  # 1, 2, 3 and 1 bytes
    writer = Writer(made.request, SamplingConfig())
    shown = [writer.certain(made.segment(list(range(count)))) for count in range(8)]
    assert shown == ["", "a", "a", "aé", "aé", "aé", "aé€", "aé€b"]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_certain_only_grows_and_is_the_beginning_of_the_text(seed):
    """In any order of filling in, with any end."""
    rng = np.random.default_rng(seed)
    text = "".join(rng.choice(list("abé€ "), 12))
    made = case(text[:2], text)
    num_ids = len(ids_of(text))
    stops = ["".join(rng.choice(list("abé€ "), rng.integers(1, 4))) for _ in range(rng.integers(0, 3))]
    max_tokens = [None, int(rng.integers(1, num_ids))][rng.integers(0, 2)]
    writer = Writer(made.request, SamplingConfig(), stops, max_tokens)
    order, shown, before = rng.permutation(np.arange(writer.first, num_ids)), list(range(writer.first)), ""
    for index in order.tolist():
        shown.append(index)
        certain = writer.certain(made.segment(shown))
        assert certain.startswith(before)
        before = certain
    assert writer.final(made.filled()).text.startswith(before)


def test_the_text_is_cut_at_the_first_stop():
    made = case("a", "a cat and a dog")
    written = Writer(made.request, SamplingConfig(), ["dog", " an"]).final(made.filled())
    assert (written.text, written.finish_reason) == ("a cat", "stop")
    assert read(written.canvas) == "a cat an"  # up to where the stop is complete


def test_the_text_is_cut_after_max_tokens():
    made = case("a", "a cat")
    cut = Writer(made.request, SamplingConfig(), max_tokens=2).final(made.filled())
    assert (cut.text, cut.finish_reason) == ("a c", "length")
    whole = Writer(made.request, SamplingConfig(), max_tokens=4).final(made.filled())
    assert (whole.text, whole.finish_reason) == ("a cat", "stop")


def test_a_text_of_fixed_length_ends_by_its_length():
    span = Span(Modality.TEXT, np.concatenate([ids_of("a"), np.full(4, MASKED)]))
    made = Case(Request(Canvas(span), Modality.TEXT, read), "a cat")
    assert Writer(made.request, SamplingConfig(), max_tokens=2).final(made.filled()).text == "a cat"
    assert Writer(made.request, SamplingConfig()).final(made.filled()).finish_reason == "length"


@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(sampler="remdm", num_steps=8),
        SamplingConfig(sampler="blocks", num_steps=8, options={"inner": "remdm"}),
        SamplingConfig(best_of=2),
    ],
)
def test_nothing_is_certain_if_tokens_may_change(config):
    made = case("a", "a cat")
    writer = Writer(made.request, config)
    assert writer.certain(made.segment(list(range(5)))) == ""
    assert writer.final(made.filled()).text == "a cat"
