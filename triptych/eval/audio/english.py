"""English transcripts in one spelling, so that word errors count what is heard and not how it is written.

    normalize_english("Twenty-one colours cost £2.50, didn't they?")  ->  "21 colors cost £2.50 did not they"

The conventions are those of Whisper's normaliser, which published word error rates use: numbers as digits, contractions
written out, American spelling, no punctuation, no fillers, nothing that stands in brackets. Beyond it, "a hundred" is
100, "10:30" is "ten thirty", "-5" is "minus five", and "to-day" is "today". `normalize_other` is for other languages.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence

from triptych.eval.audio.english_numbers import LARGE, write_numbers
from triptych.eval.audio.english_spelling import american

_BRACKETS = re.compile(r"\[[^\]]*\]|<[^>]*>|\([^)]*\)")
_FILLERS = ("hm", "hmm", "hmmm", "mm", "mmm", "mhm", "uh", "uhm", "um", "umm", "erm")
_LETTERS = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "ß": "ss", "đ": "d", "ð": "d", "þ": "th", "ł": "l"})
_QUOTES = str.maketrans(dict.fromkeys("‘’ʼ`´", "'"))
# Punctuation that is part of a number: decimal points, commas of thousands, colons of times, signs.
_NUMBER = r"[$£€¢]?\d+(?:\.\d+)?"
_TOKEN = re.compile(rf"{_NUMBER}(?:st|nd|rd|th|s)?(?![a-z\d])|{_NUMBER}|[a-z]+(?:'[a-z]+)*|%|¢|[^\W_]|[,.;?!—]")
_BOUNDARIES = (",", ".", ";", "?", "!", "—")
"""Numbers on both sides of these are not one number."""
_FRACTIONS = str.maketrans({"½": " 1/2", "¼": " 1/4", "¾": " 3/4"})
_QUARTERS = {"1/2": "one half", "1/4": "one quarter", "3/4": "three quarters"}
_CONTRACTIONS = {
    "won't": "will not", "can't": "can not", "cannot": "can not", "shan't": "shall not", "let's": "let us",
    "ain't": "is not", "y'all": "you all", "'tis": "it is", "'twas": "it was", "ma'am": "madam",
    "wanna": "want to", "gotta": "got to", "gonna": "going to", "gimme": "give me", "lemme": "let me",
    "woulda": "would have", "coulda": "could have", "shoulda": "should have", "'em": "them", "'cause": "because",
}  # fmt: skip
_ENDINGS = {"n't": "not", "'re": "are", "'ll": "will", "'ve": "have", "'m": "am", "'s": "is", "'d": "would"}
# After 's and 'd these words say that "has" and "had" are meant.
_PARTICIPLES = ("been", "gone", "done", "got", "become", "had", "seen")
_AFTER_HAD = (*_PARTICIPLES, "better")
_TITLES = {
    "mr": "mister", "mrs": "missus", "dr": "doctor", "st": "saint", "prof": "professor", "capt": "captain",
    "gov": "governor", "gen": "general", "sen": "senator", "rep": "representative", "pres": "president",
    "rev": "reverend", "hon": "honorable", "asst": "assistant", "assoc": "associate", "lt": "lieutenant",
    "col": "colonel", "jr": "junior", "sr": "senior", "esq": "esquire", "sgt": "sergeant", "messrs": "messieurs",
}  # fmt: skip


def normalizer(language: str = "en") -> Callable[[str], str]:
    """The normaliser of a language, by its code."""
    return normalize_english if language == "en" else normalize_other


def normalize_english(text: str) -> str:
    """English words and digits in one spelling, separated by single spaces. Applying it twice changes nothing more."""
    text = _BRACKETS.sub(" ", text.translate(_QUOTES).lower()).translate(_LETTERS).translate(_FRACTIONS)
    text = "".join(letter for letter in unicodedata.normalize("NFKD", text) if unicodedata.category(letter) != "Mn")
    text = re.sub(r"\s+'(?=(?:s|t|re|ll|ve|d|m)\b)", "'", text)  # it 's
    text = re.sub(r"\bto-(day|night|morrow)\b", r"to\1", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)  # 1,305
    text = re.sub(r"(?<![\w./])(\d+)(?: and)? +1/2(?![\w/])", r"\1.5", text)  # 5 1/2
    text = re.sub(r"(?<![\w./])(\d+)(?: and)? +(?=[13]/4(?![\w/]))", r"\1 and ", text)
    text = re.sub(r"(?<![\w./])(1/2|[13]/4)(?![\w/])", lambda match: _QUARTERS[match[1]], text)
    text = re.sub(r"(?<=\d):(?=\d)", "", text)  # 10:30, which is read "ten thirty"
    text = re.sub(r"(?<![a-z'])([ap])\. ?m\b\.?", r" \1m ", text)  # 10:30 a.m.
    text = re.sub(r"(?<=\d)'(?=s\b)", "", text)  # the 1960's
    text = re.sub(r"(?<![\w.])[-−](?=[$£€¢]?\d)", "minus ", text)
    text = re.sub(r"(?<![\d.])\.(?=\d)", "point ", text)
    text = text.replace("&", " and ")
    words, breaks = _written_out(re.findall(r"'(?:tis|twas|em|cause)\b", text), text)
    return " ".join(map(american, write_numbers(words, breaks)))


def _written_out(leading: Sequence[str], text: str) -> tuple[list[str], set[int]]:
    """The words of a text without contractions, abbreviated titles and fillers, and before which a clause starts."""
    for word in set(leading):
        text = re.sub(rf"(?<!\w){re.escape(word)}\b", _CONTRACTIONS[word], text)
    tokens = _TOKEN.findall(text)
    words: list[str] = []
    breaks: set[int] = set()
    for index, (token, following) in enumerate(zip(tokens, [*tokens[1:], ""])):
        if token in _BOUNDARIES:
            # "two thousand, three hundred" is one number.
            if not (token == "," and words and words[-1] in LARGE and tokens[index + 2 : index + 3] == ["hundred"]):
                breaks.add(len(words))
        elif token not in _FILLERS:
            words += _expand(token, following).split()
    return words, breaks


def _expand(token: str, following: str) -> str:
    if token in _CONTRACTIONS:
        return _CONTRACTIONS[token]
    for ending, meaning in _ENDINGS.items():
        if token.endswith(ending) and len(token) > len(ending):
            if ending == "'s" and following in _PARTICIPLES:
                meaning = "has"
            elif ending == "'d" and following in _AFTER_HAD:
                meaning = "had"
            return f"{_expand(token.removesuffix(ending), '')} {meaning}"
    return _TITLES.get(token, token).replace("'", "")


def normalize_other(text: str) -> str:
    """A text of any language in lower case without punctuation and symbols; letters keep their accents."""
    text = _BRACKETS.sub(" ", unicodedata.normalize("NFKC", text).casefold())
    return " ".join("".join(" " if unicodedata.category(c)[0] in "PSZC" else c for c in text).split())
