"""Text that others wrote, on a terminal: names of files, fields of models, what a model says."""

import re
from typing import TextIO

# C0 and C1 controls but tab and line break, and the characters that reverse the direction of what follows.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|[\ud800-\udfff]")
_BREAK = re.compile(r"\n(?!  )")


def printable(text: str) -> str:
    """The text with control characters, which move the cursor or set its title, as \\x1b."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """`printable`, with line breaks as \\n; those before an indented line stay, because errors list things so."""
    return _BREAK.sub(r"\\n", printable(text))


def say(text: str, file: TextIO | None = None) -> None:
    """Print what others may have written, such as names and licences, as one line."""
    print(one_line(text), file=file, flush=True)
