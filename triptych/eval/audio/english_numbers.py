"""Numbers in English words as digits: "nineteen eighty four" is 1984, "two and a half million" 2500000.

cardinals   "one hundred and five", "20 million"          105, 20000000
sequences   "nineteen oh five", "five five five"          1905, 555
endings     "twenty first", "nineteen sixties"            21st, 1960s
decimals    "three point one four", "two and a half"      3.14, 2.5
units       "two dollars and fifty cents", "ten percent"  $2.50, 10%
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal

_BELOW_TWENTY = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_ROUND = "twenty thirty forty fifty sixty seventy eighty ninety"
LARGE = ("thousand", "million", "billion", "trillion", "quadrillion")
_ONES = {name: value for value, name in enumerate(_BELOW_TWENTY.split(), start=1)}
_TENS = {name: 10 * value for value, name in enumerate(_ROUND.split(), start=2)}
_MULTIPLIERS = {name: 1000**power for power, name in enumerate(LARGE, start=1)}
_LARGE_UNITS = ("hundred", *_MULTIPLIERS)
_VAGUE = ("few", "several", "a", "many")  # "a few hundred" is no number
_IRREGULAR = {"first": 1, "second": 2, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12}
_CARDINALS = {**_ONES, **_TENS, "hundred": 100, **_MULTIPLIERS}
_ORDINALS = {
    **{name + "th": value for name, value in _CARDINALS.items() if value not in (1, 2, 3, 5, 8, 9, 12)},
    **_IRREGULAR,
    **{name[:-1] + "ieth": value for name, value in _TENS.items()},
}
_PLURALS = {
    **{name + "s": value for name, value in _ONES.items() if name != "six"},
    "sixes": 6,
    **{name[:-1] + "ies": value for name, value in _TENS.items()},
    **{name + "s": value for name, value in _MULTIPLIERS.items()},
    "hundreds": 100,
}
_ZEROS = ("zero", "oh", "o")
_CURRENCIES = {"dollar": "$", "pound": "£", "euro": "€", "cent": "¢"}
_CURRENCIES |= {**{name + "s": sign for name, sign in _CURRENCIES.items()}, "¢": "¢"}
_DIGITS = re.compile(r"([$£€¢]?)(\d+(?:\.\d+)?)(st|nd|rd|th|s)?")


@dataclass(frozen=True)
class _Number:
    digits: str
    """As it is written: digits, perhaps with a decimal point."""
    ending: str = ""
    """Of an ordinal or a plural: st, nd, rd, th, s."""
    sign: str = ""
    """Of a currency."""
    is_simple: bool = True
    """A number below 100 in words, without "hundred" and larger units: several of them are one number."""

    @property
    def text(self) -> str:
        if self.sign == "$" and re.fullmatch(r"0\.\d\d", self.digits):
            return f"¢{int(self.digits[2:])}"
        return f"{self.sign}{self.digits}{self.ending}"


def write_numbers(words: Sequence[str], breaks: Collection[int] = ()) -> list[str]:
    """The words with every number as digits. "one" alone stays a word, because it is a pronoun as well.

    `breaks` are the indices of words before which a clause or a member of a list starts: "one, two" are two numbers.
    """
    written: list[str] = []
    at = 0
    while at < len(words):
        number, end = _read(words, at, breaks)
        if number is None:
            written.append("oh" if words[at] == "o" else words[at])
            at += 1
            continue
        number, end = _with_unit(number, words, end, breaks)
        if end < len(words) and _is_percent(words, end):
            written.append(number.text + "%")
            end += 1 if words[end] in ("percent", "%") else 2
        else:
            written.append({"1": "one", "1s": "ones"}.get(number.text, number.text))
        at = end
    # Read once more, "one one" would be 11, and "one oh one" 101.
    following = [*written[1:], ""]
    return ["1" if word == "one" and after in ("one", "oh") else word for word, after in zip(written, following)]


def _read(words: Sequence[str], at: int, breaks: Collection[int]) -> tuple[_Number | None, int]:
    """The number that starts at a word, and where it ends; None if there is none."""
    if (match := _DIGITS.fullmatch(words[at])) is not None:
        sign, digits, ending = match.groups()
        if ending:
            return _Number(digits, ending, sign, False), at + 1
        return _scaled(_Number(digits, sign=sign, is_simple=False), words, at + 1, breaks)
    if words[at] == "a" and _word(words, at + 1) in _LARGE_UNITS and _word(words, at - 1) != "half":
        at += 1  # "a hundred"
    elif words[at] in ("oh", "o") or (words[at] in _LARGE_UNITS and _word(words, at - 1) in _VAGUE):
        return None, at
    number, end = _cardinal(words, at, breaks)
    if number is None:
        return None, at
    if number.is_simple and not number.ending:
        number, end = _sequence(number, words, end, breaks)
    if not number.ending:
        number, end = _scaled(number, words, end, breaks)
    return number, end


def _word(words: Sequence[str], at: int) -> str:
    return words[at] if 0 <= at < len(words) else ""


def _cardinal(words: Sequence[str], at: int, breaks: Collection[int]) -> tuple[_Number | None, int]:
    """One number of the grammar "three million two hundred and five"; it may end as an ordinal or a plural."""
    if _word(words, at) == "zero":
        return _Number("0"), at + 1
    total, group, last_unit, limit = 0, 0, "", 10**18
    start, is_simple = at, True
    while at < len(words):
        word = words[at]
        if at > start and at in breaks:
            break
        if (
            word == "and"
            and at + 1 not in breaks
            and last_unit in ("hundred", "multiplier")
            and _below_hundred(_word(words, at + 1))
        ):
            at += 1
            continue
        value, ending = _value_of(word)
        if value is None:
            break
        if value < 10:
            fits, kind = last_unit in ("", "tens", "hundred", "multiplier"), "ones"
        elif value < 100:
            fits, kind = last_unit in ("", "hundred", "multiplier"), "tens" if value >= 20 else "teens"
        elif value == 100:
            fits, kind = 0 < group < 100 or (at == start and not group), "hundred"
        else:
            fits, kind = value < limit and (group > 0 or at == start), "multiplier"
        if not fits or (last_unit == "tens" and ending == "s"):
            break
        if kind == "hundred":
            group = max(group, 1) * 100
        elif kind == "multiplier":
            total, group, limit = total + max(group, 1) * value, 0, value
        else:
            group += value
        is_simple &= value < 100
        last_unit = kind
        at += 1
        if ending:
            value = total + group
            return _Number(str(value), ending if ending == "s" else _ordinal(value), is_simple=is_simple), at
    if at == start:
        return None, at
    return _Number(str(total + group), is_simple=is_simple), at


def _value_of(word: str) -> tuple[int | None, str]:
    if word in _CARDINALS:
        return _CARDINALS[word], ""
    if word in _ORDINALS:
        return _ORDINALS[word], "th"
    if word in _PLURALS:
        return _PLURALS[word], "s"
    return None, ""


def _below_hundred(word: str) -> bool:
    value, _ = _value_of(word)
    return value is not None and value < 100


def _ordinal(value: int) -> str:
    return "th" if value % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")


def _sequence(first: _Number, words: Sequence[str], at: int, breaks: Collection[int]) -> tuple[_Number, int]:
    """Numbers below 100 one after another are one number: "nineteen eighty four", "five five five", "one oh one".

    Not so before an ordinal of one word, as in "one second" and "one third", except after a zero: "one oh fifth".
    """
    digits, ending = first.digits, ""
    while at < len(words) and not ending and at not in breaks:
        if words[at] in _ZEROS:
            follows = at + 1 not in breaks and (_word(words, at + 1) in _ONES or _word(words, at + 1) in _ZEROS)
            if words[at] == "zero" or follows:
                digits, at = digits + "0", at + 1
                continue
            break
        if words[at] in _ORDINALS and words[at - 1] not in _ZEROS:
            break
        following, end = _cardinal(words, at, breaks)
        if following is None or not following.is_simple or (following.digits, following.ending) == ("1", "s"):
            break
        digits, ending, at = digits + following.digits, following.ending, end
    return _Number(digits, ending, is_simple=len(digits) < 3), at


def _scaled(number: _Number, words: Sequence[str], at: int, breaks: Collection[int]) -> tuple[_Number, int]:
    """With decimals, a half and a multiplier: "three point one", "two and a half million", "20 million"."""
    digits = number.digits
    while True:
        has_fraction, start = "." in digits, at
        takes_point = _word(words, at) == "point" and not has_fraction and not number.sign
        if takes_point and (decimals := _decimals(words, at + 1, breaks))[0]:
            digits, at, has_fraction = f"{digits}.{decimals[0]}", decimals[1], True
        elif list(words[at : at + 3]) == ["and", "a", "half"] and not has_fraction:
            digits, at, has_fraction = f"{digits}.5", at + 3, True
        if (has_fraction or not number.is_simple) and _word(words, at) in _MULTIPLIERS:
            scaled = Decimal(digits) * _MULTIPLIERS[words[at]]
            if scaled == scaled.to_integral_value():
                digits, at = str(int(scaled)), at + 1
        if at == start:
            return _Number(digits, "", number.sign, number.is_simple), at


def _decimals(words: Sequence[str], at: int, breaks: Collection[int]) -> tuple[str, int]:
    digits = ""
    while at < len(words) and not (digits and at in breaks):
        if words[at] in _ZEROS:
            digits, at = digits + "0", at + 1
        elif words[at].isdigit() and len(words[at]) < 3:  # 100 is no decimals, as "hundred" is not
            digits, at = digits + words[at], at + 1
        elif words[at] in _ONES or words[at] in _TENS:  # one by one, so that a multiplier after them stays
            value, at = _CARDINALS[words[at]], at + 1
            if value >= 20 and at not in breaks and _ONES.get(_word(words, at), 10) < 10:
                value, at = value + _ONES[words[at]], at + 1
            digits += str(value)
        else:
            break
    return digits, at


def _with_unit(number: _Number, words: Sequence[str], at: int, breaks: Collection[int]) -> tuple[_Number, int]:
    """With a currency: "five dollars" is $5, "two dollars and fifty cents" $2.50, "$2 and 50 cents" as well."""
    if number.ending:
        return number, at
    sign = number.sign
    if not sign and _word(words, at) in _CURRENCIES:
        sign, at = _CURRENCIES[words[at]], at + 1
    number = _Number(number.digits, "", sign, number.is_simple)
    if sign in ("$", "€") and "." not in number.digits:
        after = at + 1 if _word(words, at) == "and" else at
        cents, end = _read(words, after, breaks) if after < len(words) else (None, after)
        is_amount = cents is not None and not cents.ending and re.fullmatch(r"\d\d?", cents.digits) is not None
        if is_amount and cents is not None and (cents.sign or _word(words, end)) in ("¢", "cent", "cents"):
            end += 0 if cents.sign else 1
            return _Number(f"{number.digits}.{int(cents.digits):02d}", "", sign), end
    return number, at


def _is_percent(words: Sequence[str], at: int) -> bool:
    return words[at] in ("percent", "%") or (words[at] == "per" and _word(words, at + 1) == "cent")
