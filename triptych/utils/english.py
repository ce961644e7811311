"""Small facts of English spelling that several packages need."""

_BELOW_TWENTY = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
LARGEST_NUMBER = 999_999


def number_words(number: int) -> str:
    """A whole number up to `LARGEST_NUMBER` as words, without hyphens and "and": 342 is "three hundred forty two"."""
    assert 0 <= number <= LARGEST_NUMBER
    for unit, name in ((1000, "thousand"), (100, "hundred")):
        if number >= unit:
            rest = f" {number_words(number % unit)}" if number % unit else ""
            return f"{number_words(number // unit)} {name}{rest}"
    if number < len(_BELOW_TWENTY):
        return _BELOW_TWENTY[number]
    tens = _TENS[number // 10 - 2]
    return f"{tens} {_BELOW_TWENTY[number % 10]}" if number % 10 else tens
