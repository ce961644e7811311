"""The voice that a client of OpenAI's API asks for."""

from triptych.hub.format import Limits

# fmt: off
_ANY = {
    "", "auto", "default",
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse",
}
"""OpenAI's voices: its clients must send one."""
# fmt: on


def voice_of(name: str | None, limits: Limits) -> str | None:
    """The voice to speak with. None leaves it to the model; so do OpenAI's voices, if the model does not have them."""
    wanted = (name or "").strip().lower()
    has_it = wanted in {voice.lower() for voice in limits.voices}
    return name if has_it or wanted not in _ANY else None
