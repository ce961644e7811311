"""Canvases against training sequences: the same ids, masked where something is to be generated."""

import numpy as np
import pytest

from triptych.data.sequences import Documents, OpenEnds, Pairs
from triptych.data.shards import Manifest, TokenDataset, write_shard
from triptych.data.types import TokenSample
from triptych.errors import UserError
from triptych.sample.canvas import MASKED, Canvas, Span, known, lay_out, masked, open_ended, read_back, unconditional
from triptych.vocab import Modality, Task, Vocabulary

VOCABULARY = Vocabulary(text=50, image=30, audio=20)
MEDIA, TEXT = [3, 1, 4, 1, 5, 9], [7, 0, 49, 2]
PARTNERS = {Task.IMAGE_TEXT: Modality.IMAGE, Task.AUDIO_TEXT: Modality.AUDIO}


def training_sequence(folder, task, ends=None, media=MEDIA, text=TEXT):
    """The ids of the only sequence of a dataset of one sample, as training reads it."""
    sample = TokenSample(task, np.array(media if task in PARTNERS else [], np.int32), np.array(text, np.int32))
    folder.mkdir(parents=True)
    info = write_shard(folder / "shard-00000.safetensors", [sample], VOCABULARY)
    sizes = {"text": VOCABULARY.text, "image": VOCABULARY.image, "audio": VOCABULARY.audio}
    Manifest(
        name="one",
        task=task.name,
        vocabulary=sizes,
        tokenizers={"text": "a" * 64, "image": "", "audio": ""},
        shards=[info],
    ).save(folder)
    options = {} if ends is None else {"seed": 3, "open_ends": ends}
    source = (Pairs if task in PARTNERS else Documents)(TokenDataset(folder), 60, **options)
    out = np.empty(source.lengths(np.array([0]), np.array([0]))[0], np.int32)
    source.write(0, 0, out)
    return out.tolist()


def canvas_of(task, text=None, media=None, **options):
    text = known(Modality.TEXT, TEXT) if text is None else text
    if task == Task.TEXT:
        return Canvas(text, **options)
    return Canvas(text, known(PARTNERS[task], MEDIA) if media is None else media, **options)


# -- as in training ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", Task)
def test_a_known_canvas_is_the_training_sequence(task, tmp_path):
    canvas = canvas_of(task)
    layout = lay_out(canvas, VOCABULARY)
    assert canvas.task == task
    assert layout.tokens.tolist() == training_sequence(tmp_path / "set", task)
    assert layout.tokens.dtype == np.int64
    assert not layout.masked.any()
    assert not layout.allow_eos.any()
    assert not layout.hidden.any()


@pytest.mark.parametrize("task", Task)
def test_open_ends_are_laid_out_as_in_training(task, tmp_path):
    """Exactly the positions of EOS in a training sequence with open ends are masked and allow EOS."""
    sequence = training_sequence(tmp_path / "set", task, OpenEnds(probability=1.0, text=12, audio=16))
    text = open_ended(Modality.TEXT, 12, TEXT)
    media = open_ended(Modality.AUDIO, 16, MEDIA, stride=2) if task == Task.AUDIO_TEXT else None
    layout = lay_out(canvas_of(task, text, media), VOCABULARY)
    ends = {VOCABULARY.eos(Modality.TEXT): VOCABULARY.mask(Modality.TEXT)}
    if task == Task.AUDIO_TEXT:
        ends[VOCABULARY.eos(Modality.AUDIO)] = VOCABULARY.mask(Modality.AUDIO)
    is_end = np.isin(sequence, list(ends))
    assert is_end.sum() > len(ends), "no open end"
    assert layout.tokens.tolist() == [ends.get(token, token) for token in sequence]
    assert layout.masked.tolist() == is_end.tolist()
    assert layout.allow_eos.tolist() == is_end.tolist()


def test_an_open_end_without_a_prefix_allows_eos_after_one_token():
    layout = lay_out(Canvas(open_ended(Modality.TEXT, 5)), VOCABULARY)
    mask = VOCABULARY.mask(Modality.TEXT)
    assert layout.tokens.tolist() == [VOCABULARY.task(Task.TEXT), VOCABULARY.bos(Modality.TEXT), *[mask] * 5]
    assert layout.allow_eos.tolist() == [False, False, False, *[True] * 4]


# -- masked, unconditional and hidden positions -----------------------------------------------------------------------


@pytest.mark.parametrize("task", PARTNERS)
def test_masked_positions_of_a_closed_span_do_not_allow_eos(task):
    holes = np.array([3, MASKED, 4, MASKED, MASKED, 9])
    layout = lay_out(canvas_of(task, media=Span(PARTNERS[task], holes)), VOCABULARY)
    complete = lay_out(canvas_of(task), VOCABULARY)
    expected = complete.tokens.copy()
    expected[[3, 5, 6]] = VOCABULARY.mask(PARTNERS[task])
    assert layout.tokens.tolist() == expected.tolist()
    assert np.flatnonzero(layout.masked).tolist() == [3, 5, 6]
    assert not layout.allow_eos.any()


def test_modality_of_every_position():
    for task, partner in PARTNERS.items():
        layout = lay_out(canvas_of(task, text=open_ended(Modality.TEXT, 6, TEXT)), VOCABULARY)
        assert layout.modality.tolist() == [Modality.TEXT, *[partner] * 8, *[Modality.TEXT] * 7]
        assert layout.starts == (2, 10)


def test_only_known_text_ids_are_hidden_and_only_with_hide_text():
    text = Span(Modality.TEXT, np.array([7, MASKED, 2]))
    for media in (masked(Modality.IMAGE, 4), open_ended(Modality.AUDIO, 9, stride=2)):
        layout = lay_out(Canvas(text, media, hide_text=True), VOCABULARY)
        start = layout.starts[1]
        assert np.flatnonzero(layout.hidden).tolist() == [start, start + 2]
        assert not lay_out(Canvas(text, media), VOCABULARY).hidden.any()


def test_an_unconditional_span_is_masked_but_not_generated():
    canvas = Canvas(unconditional(Modality.TEXT, 3), Span(Modality.IMAGE, np.array([1, MASKED])))
    layout = lay_out(canvas, VOCABULARY)
    plain = lay_out(Canvas(masked(Modality.TEXT, 3), canvas.media), VOCABULARY)
    assert layout.tokens.tolist() == plain.tokens.tolist()
    assert np.flatnonzero(layout.masked).tolist() == [3]
    assert np.flatnonzero(plain.masked).tolist() == [3, 6, 7, 8]


# -- reading back -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", Task)
def test_read_back_fills_the_masked_positions(task):
    text = Span(Modality.TEXT, np.array([MASKED, 0, MASKED, 2]))
    media = None if task == Task.TEXT else masked(PARTNERS[task], len(MEDIA))
    with_gaps = canvas_of(task, text, media)
    filled = read_back(with_gaps, lay_out(canvas_of(task), VOCABULARY).tokens, VOCABULARY)
    assert [span.ids.tolist() for span in filled.spans] == ([TEXT] if task == Task.TEXT else [MEDIA, TEXT])
    assert [span.num_masked for span in filled.spans] == [0] * len(filled.spans)
    assert lay_out(filled, VOCABULARY).tokens.tolist() == lay_out(canvas_of(task), VOCABULARY).tokens.tolist()


def test_an_unconditional_span_stays_masked():
    canvas = Canvas(unconditional(Modality.TEXT, 2), masked(Modality.IMAGE, 1))
    tokens = lay_out(canvas, VOCABULARY).tokens.copy()
    tokens[2] = VOCABULARY.to_global(Modality.IMAGE, np.array([5]))[0]
    filled = read_back(canvas, tokens, VOCABULARY)
    assert filled.text.ids.tolist() == [MASKED, MASKED]
    assert filled.text.unconditional
    assert filled.media.ids.tolist() == [5]


def test_read_back_refuses_special_tokens():
    canvas = Canvas(masked(Modality.TEXT, 1))
    tokens = lay_out(canvas, VOCABULARY).tokens.copy()
    for wrong in (VOCABULARY.eos(Modality.TEXT), VOCABULARY.bos(Modality.IMAGE), VOCABULARY.mask(Modality.TEXT)):
        tokens[2] = wrong
        with pytest.raises(UserError, match="expected only text data ids"):
            read_back(canvas, tokens, VOCABULARY)


# -- spans ------------------------------------------------------------------------------------------------------------


def test_closing_an_open_span_masks_the_new_positions():
    span = open_ended(Modality.AUDIO, 20, MEDIA, stride=2)
    closed = span.closed(10)
    assert closed.ids.tolist() == [*MEDIA, *[MASKED] * 4]
    assert closed.open_slot is None
    assert (closed.stride, closed.num_masked) == (2, 4)
    assert span.closed(6).ids.tolist() == MEDIA


def test_minimum_length_of_an_open_span():
    def min_length(given, stride):
        return open_ended(Modality.AUDIO, 50, np.zeros(given, np.int64), stride).min_length

    assert [min_length(given, 4) for given in (0, 1, 4, 5, 8, 9)] == [4, 4, 4, 8, 8, 12]
    assert [min_length(given, 1) for given in (0, 1, 2)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: open_ended(Modality.TEXT, 4, TEXT), "the text given is 4 tokens long, but the model knows text of at"),
        (lambda: open_ended(Modality.AUDIO, 4, stride=4), "audio of at most 3 tokens, but this span needs at least 4"),
        (
            lambda: open_ended(Modality.AUDIO, 8, [1] * 5, stride=4),
            "audio of at most 7 tokens, but this span needs at least 8",
        ),
        (lambda: Canvas(known(Modality.IMAGE, MEDIA)), "a canvas takes a text span"),
        (lambda: Canvas(known(Modality.TEXT, TEXT), known(Modality.TEXT, TEXT)), "a canvas takes a text span"),
        (lambda: lay_out(Canvas(known(Modality.TEXT, [50])), VOCABULARY), r"text token ids must be in \[0, 50\)"),
        (lambda: lay_out(Canvas(known(Modality.TEXT, [-2])), VOCABULARY), r"text token ids must be in \[0, 50\)"),
    ],
)
def test_errors(make, message):
    with pytest.raises(UserError, match=message):
        make()
