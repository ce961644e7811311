"""The judge of synthesized speech: Whisper base (int8 ONNX), decoded greedily, on one thread.

It is independent of the scores of an evaluation, which use Whisper tiny.en (triptych/eval/audio/speech.py).
"""

import re
from functools import cache
from typing import Any

import numpy as np

from triptych.errors import UserError, require
from triptych.eval.audio.speech import normalize_transcript, word_errors
from triptych.scenes.voice_files import WHISPER, folder
from triptych.tokenizers.audio import resample
from triptych.utils.json_files import read_json
from triptych.utils.media import Audio

_RATE = 16_000
_WINDOWS = (10, 30)  # seconds; Whisper was trained on 30, its encoder is five times faster on 10
_POSITIONS_PER_SECOND = 50
_WIDTH, _NUM_LAYERS, _NUM_HEADS = 512, 6, 8
_PROMPT = (50258, 50259, 50359, 50363)  # start, English, transcribe, no timestamps
_END = 50257
_MAX_RUN = 3  # words that may be heard as one, or one that is heard as so many
_MAX_TOKENS_PER_SECOND = 8  # and ten; on unclear clips Whisper repeats itself without end

# Words that sound the same: the first stands for all. Without stress, "and" is heard as "in" where that makes more
# sense ("five cats and a tree").
_SAME = {
    word: words[0]
    for words in map(
        str.split,
        (
            "and in", "two to too", "four for", "eight ate", "one won", "red read", "blue blew", "night knight",
            "there their theyre", "right write", "whale wail", "whales wails wales", "bear bare", "bears bares",
            "deer dear", "flower flour", "flowers flours", "plane plain", "planes plains", "pear pair", "pears pairs",
            "sun son", "suns sons", "bee be", "sea see", "hare hair", "hares hairs", "by bye buy", "which witch",
            "rose rows", "ant aunt", "ants aunts", "horse hoarse", "eye i", "not knot", "no know", "here hear",
            "ball bawl", "nose knows", "tie thai",
        ),
    )
    for word in words
}  # fmt: skip


def comparable(text: str) -> str:
    """A normalised transcript with one spelling of words that sound the same; "3cats" are two words."""
    words = normalize_transcript(re.sub(r"(?<=\d)(?=[a-z])", " ", text.lower())).replace("'", "").split()
    return " ".join(_SAME.get(word, word) for word in words)


def count_errors(text: str, transcript: str) -> int:
    """Word errors of a transcript. Where a word is split does not matter: "snow man" is "snowman"."""
    expected, heard = comparable_words(text, transcript)
    return word_errors(" ".join(expected), " ".join(heard))[0]


def comparable_words(text: str, transcript: str) -> tuple[list[str], list[str]]:
    """Comparable words of a text, and of its transcript, with the spaces of the text where the letters are the same."""
    expected, heard = comparable(text).split(), comparable(transcript).split()
    joined = {"".join(words): words for words in _runs(expected)}
    result: list[str] = []
    while heard:
        count = next((n for n in range(min(_MAX_RUN, len(heard)), 0, -1) if "".join(heard[:n]) in joined), 0)
        result += joined["".join(heard[:count])] if count else heard[:1]
        heard = heard[max(count, 1) :]
    return expected, result


def _runs(words: list[str]) -> list[list[str]]:
    """Consecutive words, the shortest runs last."""
    starts = range(len(words))
    return [words[start : start + n] for n in range(_MAX_RUN, 0, -1) for start in starts if start + n <= len(words)]


def transcribe(audio: Audio) -> str:
    """What Whisper base hears in up to 30 seconds of English, with its case and punctuation."""
    window = next((each for each in _WINDOWS if audio.seconds <= each - 0.5), _WINDOWS[-1])
    if audio.seconds > window:
        raise UserError(f"the judge takes up to {window} seconds of speech, got {audio.seconds:.1f}.")
    samples = resample(audio, _RATE).samples
    samples = np.pad(samples, (0, window * _RATE - len(samples)))
    mel = _features()(samples, padding=0)[None, :, : 100 * window].astype(np.float32)
    hidden = _encoder(window)[0].run(["last_hidden_state"], {"input_features": mel})[0]
    return _tokenizer().decode(_decode(hidden, 10 + int(_MAX_TOKENS_PER_SECOND * audio.seconds))).strip()


def _decode(hidden: np.ndarray, max_tokens: int) -> list[int]:
    """The likeliest token at each step. Keys and values of earlier steps are handed back to the graph."""
    (decoder, _), (suppressed, suppressed_first) = _decoder(), _suppressed()
    names = [
        f"{layer}.{part}.{kind}"
        for layer in range(_NUM_LAYERS)
        for part in ("decoder", "encoder")
        for kind in ("key", "value")
    ]
    outputs = ["logits", *(f"present.{name}" for name in names)]
    empty = np.zeros((1, _NUM_HEADS, 0, _WIDTH // _NUM_HEADS), np.float32)
    past = {f"past_key_values.{name}": empty for name in names}
    tokens: list[int] = []
    while len(tokens) < max_tokens:
        inputs = {
            "input_ids": np.array([tokens[-1:] or _PROMPT], np.int64),
            "encoder_hidden_states": hidden,
            "use_cache_branch": np.array([bool(tokens)]),
        }
        logits, *present = decoder.run(outputs, inputs | past)
        scores = logits[0, -1]
        scores[suppressed if tokens else suppressed_first] = -np.inf
        token = int(scores[: _END + 1].argmax())
        if token == _END:
            break
        for name, value in zip(names, present):
            if not tokens or ".decoder." in name:  # the graph returns those of the encoder only once
                past[f"past_key_values.{name}"] = value
        tokens.append(token)
    return tokens


def _session(name: str, initializers: dict[str, np.ndarray]) -> tuple[Any, Any]:
    onnx = require("onnxruntime", "eval", "the judge of speech")
    options = onnx.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    values = [(key, onnx.OrtValue.ortvalue_from_numpy(value)) for key, value in initializers.items()]
    for key, value in values:
        options.add_initializer(key, value)
    path = str(folder(WHISPER) / "onnx" / name)
    session = onnx.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session, values  # the session does not copy the values


@cache
def _encoder(window: int) -> tuple[Any, Any]:
    """The encoder for a window. Whisper's positions are sinusoids, so those of a short window are its first rows."""
    rates = np.exp(-np.log(10_000) / (_WIDTH // 2 - 1) * np.arange(_WIDTH // 2))
    angles = np.arange(window * _POSITIONS_PER_SECOND)[:, None] * rates
    positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    is_whole = window == _WINDOWS[-1]
    return _session("encoder_model_quantized.onnx", {} if is_whole else {"embed_positions.weight": positions})


@cache
def _decoder() -> tuple[Any, Any]:
    return _session("decoder_model_merged_quantized.onnx", {})


@cache
def _suppressed() -> tuple[list[int], list[int]]:
    """Tokens that are not speech, in general and as the first of a transcript."""
    config = read_json(folder(WHISPER) / "generation_config.json")
    usual = [token for token in config["suppress_tokens"] if token < _END]
    return usual, usual + config["begin_suppress_tokens"]


@cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder(WHISPER) / "tokenizer.json"))


@cache
def _features() -> Any:
    return require("faster_whisper.feature_extractor", "eval", "the judge of speech").FeatureExtractor()
