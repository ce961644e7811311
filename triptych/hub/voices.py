"""The voices of a model: which one is meant, and the text that asks for it."""

from typing import Any

from triptych.errors import UserError, nearest
from triptych.hub.format import Limits
from triptych.utils.arguments import shown
from triptych.utils.voice_request import ask


def voice_named(name: Any, limits: Limits) -> str:
    """The voice of this name, in any case; an unknown one is refused with the nearest names."""
    if not isinstance(name, str):
        raise UserError(f"voice must be a name, got {shown(name)}.")
    if not limits.voices:
        raise UserError(f"this model has no voices to choose from, got the voice {name!r}: leave it out.")
    voices = {voice.lower(): voice for voice in limits.voices}
    wanted = name.strip().lower()
    if wanted not in voices:
        near = " or ".join(map(repr, nearest(wanted, limits.voices)))
        hint = f" Did you mean {near}?" if near else ""
        count = f"{len(voices)} voice{'s' if len(voices) > 1 else ''}"
        listed = f"It has {count}; `triptych info MODEL --list-voices` lists them."
        raise UserError(f"this model does not have the voice {name!r}.{hint} {listed}")
    return voices[wanted]


def ask_for_voice(text: str, voice: Any, limits: Limits) -> str:
    """The text that has `text` spoken by a voice, as in training."""
    return ask(limits.voice_request, text, voice_named(voice, limits))
