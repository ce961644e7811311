"""The text by which a user asks for a voice: "say {text} as {voice}"."""

import re
from collections.abc import Collection

from triptych.errors import UserError


def check_voices(voices: tuple[str, ...], request: str, words: Collection[str]) -> None:
    """Refuse voices that cannot be asked for. `words`: all words that the model knows; empty for any."""
    if not voices:
        return
    if not all(isinstance(voice, str) and voice.strip() for voice in voices):
        raise UserError(f"voices must be names, got {voices!r}.")
    if len({voice.lower() for voice in voices}) < len(voices):
        raise UserError(f"voices must have different names, got {', '.join(voices)}.")
    if not all(part in request for part in ("{text}", "{voice}")):
        raise UserError(f"voice_request must contain {{text}} and {{voice}} if there are voices, got {request!r}.")
    spoken = re.findall(r"[a-z]+", request.replace("{text}", "").replace("{voice}", "").lower())
    unknown = [word for word in (*spoken, *map(str.lower, voices)) if words and word not in words]
    if unknown:
        raise UserError(f"words must have every word of voice_request and voices; missing: {', '.join(unknown[:5])}.")


def ask(request: str, text: str, voice: str) -> str:
    """The text that has `text` spoken by a voice."""
    return request.replace("{voice}", voice).replace("{text}", text)
