"""A long text is encoded in pieces, with exactly the tokens of the whole text."""

import base64
import hashlib
import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triptych.tokenizers import text as text_module
from triptych.tokenizers.split_text import last_place, split_text
from triptych.tokenizers.text import ByteBPE, Tiktoken

# Words, contractions and every kind of white space and of sign that one of the two splits treats in its own way.
PARTS = [*"abTs'09.,!-_ \n\r\t", " ", "\n", "'s", "'LL", "  ", "\n\n", "\r\n", "\x0b\x1c\x85\xa0", "\u2028", "\u180e"]
PARTS += ["é", "e\u0301", "你好", "。", "🙂", "٣", "²", "ǅ", "ª", "\u200d", "\ufeff", "the ", " the", "12345"]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=60).map("".join)


def small_tiktoken() -> Tiktoken:
    pieces = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", b"\n\n", b".\n", b"  ", b"12", b"'s"]
    content = b"".join(base64.b64encode(piece) + b" %d\n" % rank for rank, piece in enumerate(pieces))
    return Tiktoken(content, vocab_size=len(pieces), sha256=hashlib.sha256(content).hexdigest())


def small_bpe() -> ByteBPE:
    return ByteBPE.train(["the cat's the the 12 12.\n\n  the\n the. . .\n"] * 5 + ["你好。你好。é"] * 4, 320)


TOKENIZERS = {"byte-bpe": small_bpe(), "tiktoken": small_tiktoken()}


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
@settings(max_examples=400, deadline=None)
@given(before=TEXTS, after=TEXTS)
def test_no_token_crosses_a_place(tokenizer: ByteBPE | Tiktoken, before: str, after: str) -> None:
    text = before + after
    whole = tokenizer.encode([text])[0]
    for stop in range(1, len(text)):
        if last_place(text, stop - 1, stop) == stop:
            parts = tokenizer.encode([text[:stop], text[stop:]])
            assert np.concatenate(parts).tolist() == whole.tolist(), (text, stop)


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, size=st.integers(1, 30))
def test_pieces_are_the_text_and_short(text: str, size: int) -> None:
    pieces = list(split_text(text, size))
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= size for piece in pieces) or text == ""


def test_places_are_where_words_end() -> None:
    text = "one two\nthree \n four.\n\nfive  six"
    places = [stop for stop in range(1, len(text)) if last_place(text, stop - 1, stop) == stop]
    assert [text[:stop].split()[-1] for stop in places] == ["one", "two", "three", "five"]


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
def test_a_book_has_the_tokens_it_had(tokenizer: ByteBPE | Tiktoken, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    letters = [*string.ascii_letters, *"  \n.,'0123456789"]
    text = " ".join("".join(rng.choice(letters, rng.integers(1, 60))) for _ in range(3000))
    whole = tokenizer.encode([text, "short", text])
    for size in (100, 1000, 10_000):
        monkeypatch.setattr(text_module, "split_text", lambda each, size=size: split_text(each, size))
        pieces = tokenizer.encode([text, "short", text])
        assert all(np.array_equal(one, other) for one, other in zip(whole, pieces, strict=True))


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
@pytest.mark.parametrize("word", ["a", "ab", " ", "^", "1", "\n", "\u00a0", "a ", "你"])
def test_a_word_without_end_is_encoded_and_decoded(tokenizer: ByteBPE | Tiktoken, word: str) -> None:
    text = word * (300_000 // len(word))
    ids = tokenizer.encode([text])[0]
    assert tokenizer.decode([ids]) == [text]
