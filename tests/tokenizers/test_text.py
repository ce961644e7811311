"""Text tokenizers: exact round trips of any text, saving, damaged files."""

import base64
import hashlib
import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import requests
import tiktoken

from triptych.errors import CheckpointError, UserError
from triptych.tokenizers import text as text_module
from triptych.tokenizers.text import ByteBPE, Tiktoken, load_text_tokenizer

CORPUS = ["the cat sat on the mat, and the cat ate", "a red heart and a red circle", "die Katze saß auf der Matte"] * 3

UNUSUAL = [
    "",
    "\0",
    "a\0b\x01\x02\x1b\x7f",
    "\r",
    "a\rb\r\nc\n\rd",
    " ",
    "  two  spaces  ",
    " leading",
    "trailing ",
    "\t\v\f\x1c\x85\xa0\u2003\u2028\u2029\u3000\ufeff",
    "שלום עולם مرحبا \u202etxet\u202c",
    "👩‍👩‍👧‍👦🇺🇳👍🏽",
    "e\u0301 é ﬁ ① Å",  # a normalizer would change these
    "\ufffd\uffff\U0010ffff",
    "don't I'LL we've",
    "<|endoftext|><|mask|><s>[MASK] Ġ Ċ",
]


def random_strings(count: int, seed: int) -> list[str]:
    """Strings over all of Unicode but surrogates, rich in ASCII, white space and control characters."""
    rng = random.Random(seed)
    odd = "".join(map(chr, range(33))) + "\x7f\x85\xa0\u200b\u200e\u200f\u2028\u3000\ufeff'’"

    def character() -> str:
        kind = rng.random()
        if kind < 0.4:
            return chr(rng.randrange(32, 127))
        if kind < 0.7:
            return rng.choice(odd)
        code = rng.randrange(0x110000 - 0x800) if kind < 0.9 else rng.randrange(0x800)
        return chr(code if code < 0xD800 else code + 0x800)

    return ["".join(character() for _ in range(rng.randrange(30))) for _ in range(count)]


@pytest.fixture(scope="module")
def bpe() -> ByteBPE:
    return ByteBPE.train(CORPUS, vocab_size=300)


def ranks_file(*merged: bytes) -> bytes:
    pieces = [bytes([byte]) for byte in range(256)] + list(merged)
    return b"".join(base64.b64encode(piece) + b" %d\n" % rank for rank, piece in enumerate(pieces))


def small_tiktoken(content: bytes | None = None) -> Tiktoken:
    content = content or ranks_file(b"th", b"the", b" the")
    return Tiktoken(content, vocab_size=280, sha256=hashlib.sha256(content).hexdigest())


@pytest.fixture(params=["byte-bpe", "tiktoken"])
def tokenizer(request, bpe):
    return bpe if request.param == "byte-bpe" else small_tiktoken()


# -- both -------------------------------------------------------------------------------------------------------------


def test_round_trip_of_ten_thousand_random_strings(tokenizer):
    strings = random_strings(10_000, seed=1)
    assert len(set("".join(strings))) > 5_000
    decoded = tokenizer.decode(tokenizer.encode(strings))
    assert [pair for pair in zip(strings, decoded) if pair[0] != pair[1]] == []


@pytest.mark.parametrize("string", UNUSUAL)
def test_round_trip_of_unusual_strings(tokenizer, string):
    (ids,) = tokenizer.encode([string])
    assert ids.dtype == np.int32
    assert ids.ndim == 1
    assert tokenizer.decode([ids]) == [string]


def test_white_space_and_line_breaks_survive(tokenizer):
    texts = ["a\n b", "\n\n  verse one\n\tverse two\r\n\r\n", "x = {\n    'y': 1,\n}\n", " \n \n "]
    assert tokenizer.decode(tokenizer.encode(texts)) == texts


def test_ids_do_not_depend_on_the_batch(tokenizer):
    together = tokenizer.encode(UNUSUAL)
    alone = [tokenizer.encode([string])[0] for string in UNUSUAL]
    assert all(np.array_equal(a, b) for a, b in zip(together, alone))


def test_a_word_of_a_million_characters(tokenizer):
    word = "^" * 500_000 + "é" * 500_000
    assert tokenizer.decode(tokenizer.encode([word])) == [word]


def test_lone_surrogates_are_refused(tokenizer):
    with pytest.raises(UserError, match=r"text 1 holds the lone surrogate U\+D83D at character 2"):
        tokenizer.encode(["fine", "ab\ud83dc"])


def test_one_text_is_not_a_list_of_texts(tokenizer):
    with pytest.raises(UserError, match="got one string"):
        tokenizer.encode("abc")


def test_bytes_that_are_not_utf8_are_replaced(tokenizer):
    (ids,) = tokenizer.encode(["é"])
    assert len(ids) == 2
    assert tokenizer.decode([ids[:1], ids[::-1]]) == ["\ufffd", "\ufffd\ufffd"]


def test_ids_out_of_range_are_refused(tokenizer):
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(UserError, match=r"must be in \[0, "):
            tokenizer.decode([np.array([0, wrong])])


def test_saved_and_loaded(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "text")
    loaded = load_text_tokenizer(tmp_path / "text")
    assert type(loaded) is type(tokenizer)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert json.loads((tmp_path / "text" / "tokenizer.json").read_text())["fingerprint"] == tokenizer.fingerprint
    assert loaded.vocab_size == tokenizer.vocab_size
    for before, after in zip(tokenizer.encode(CORPUS), loaded.encode(CORPUS)):
        np.testing.assert_array_equal(before, after)


def test_importing_does_not_import_torch():
    code = "import sys, triptych.tokenizers.text, triptych.tokenizers.bundle; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


# -- byte-level BPE ---------------------------------------------------------------------------------------------------


def test_training_merges_words(bpe):
    ids = bpe.encode(["the cat"])[0]
    assert [bpe.decode([[i]])[0] for i in ids] == ["the", " cat"]
    assert bpe.vocab_size == 300


def test_training_depends_on_the_texts_but_not_on_their_order(bpe):
    assert ByteBPE.train(reversed(CORPUS), 300).fingerprint == bpe.fingerprint
    assert ByteBPE.train([*CORPUS, "zebra zebra zebra"], 300).fingerprint != bpe.fingerprint


def test_training_on_little_text_stops_early():
    tokenizer = ByteBPE.train(["abab"], 1000)
    assert tokenizer.vocab_size == 257
    assert ByteBPE.train([], 1000).vocab_size == 256


def test_every_byte_has_an_id():
    plain = ByteBPE([])
    characters = [chr(code) for code in (*range(0xD800), *range(0xE000, 0x110000, 997), 0x10FFFF)]
    used = {int(i) for ids in plain.encode(characters) for i in ids}
    unused = set(range(256)) - used
    assert len(unused) == 13  # C0, C1 and F5 to FF are not in UTF-8, but a model may choose their ids
    assert plain.decode([np.array([i]) for i in unused]) == ["\ufffd"] * 13


def test_a_vocabulary_below_256_is_refused():
    with pytest.raises(UserError, match="at least 256"):
        ByteBPE.train(CORPUS, 255)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"merges": [["a"]]}', '{"merges": [["th", "e"]]}'])
def test_damaged_bpe_files_are_refused(bpe, tmp_path, content):
    bpe.save(tmp_path)
    (tmp_path / "bpe.json").write_text(content)
    with pytest.raises(CheckpointError):
        load_text_tokenizer(tmp_path)


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="holds no tokenizer"):
        load_text_tokenizer(tmp_path)


# -- tiktoken ---------------------------------------------------------------------------------------------------------


def test_tiktoken_merges_by_rank():
    ids = small_tiktoken().encode(["the then"])[0]
    assert ids.tolist() == [257, 258, ord("n")]


def test_special_and_unused_ids_decode_to_nothing():
    assert small_tiktoken().decode([np.array([257, 259, 265, 279, 258])]) == ["the the"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not base64 at all\n", "not lines of base64"),
        (b"!!!! 0\n", "not lines of base64"),
        (base64.b64encode(b"a") + b" 0\n", "must count up from 0 and cover all 256 bytes"),
        (ranks_file(b"th") + base64.b64encode(b"the") + b" 999\n", "must count up"),
        (ranks_file(*[bytes([65 + i, 65]) for i in range(30)]), "expected 256 to 280"),
    ],
)
def test_broken_ranks_are_refused(content, message):
    with pytest.raises(CheckpointError, match=message):
        small_tiktoken(content)


def test_another_ranks_file_is_not_cl100k(tmp_path):
    path = tmp_path / "cl100k_base.tiktoken"
    path.write_bytes(ranks_file())
    for source in (path, tmp_path):
        with pytest.raises(CheckpointError, match="expected 223921b76ee9"):
            Tiktoken.from_pretrained(source)


def test_a_missing_ranks_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"nothing\.tiktoken"):
        Tiktoken.from_pretrained(tmp_path / "nothing.tiktoken")


def test_changed_ranks_are_noticed_on_loading(tmp_path):
    small_tiktoken().save(tmp_path)
    (tmp_path / "cl100k_base.tiktoken").write_bytes(ranks_file(b"th", b"the", b" ths"))
    with pytest.raises(CheckpointError, match="SHA-256"):
        load_text_tokenizer(tmp_path)


def test_no_network_is_one_clear_line(monkeypatch):
    def offline(*_):
        raise requests.ConnectionError("no route\nto host")

    monkeypatch.setattr(text_module, "read_file_cached", offline)
    with pytest.raises(UserError, match="Pass the path of a local cl100k_base") as caught:
        Tiktoken.from_pretrained()
    assert "\n" not in str(caught.value)


_litellm = importlib.util.find_spec("litellm")  # find_spec does not import it


@pytest.mark.skipif(_litellm is None, reason="the real ranks file comes with the litellm wheel, which is not installed")
def test_the_real_cl100k(tmp_path, monkeypatch):
    folder = Path(next(iter(_litellm.submodule_search_locations))) / "litellm_core_utils" / "tokenizers"
    tokenizer = Tiktoken.from_pretrained(folder)
    assert tokenizer.vocab_size == 100_277
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
    assert Tiktoken.from_pretrained("cl100k_base").fingerprint == tokenizer.fingerprint
    official = tiktoken.get_encoding("cl100k_base")
    assert official.n_vocab == tokenizer.vocab_size
    strings = UNUSUAL + random_strings(2_000, seed=2)
    for string, ids in zip(strings, tokenizer.encode(strings)):
        assert ids.tolist() == official.encode_ordinary(string)
    assert tokenizer.decode(tokenizer.encode(strings)) == strings
    assert tokenizer.decode([np.arange(100_256, 100_277)]) == [""]
    tokenizer.save(tmp_path)
    assert load_text_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint
