"""The one table of directions: what goes in, what comes out. The API, the command line, evaluation and server read it.

A direction's name with underscores is the `Pipeline` method: "text-to-image" is `Pipeline.text_to_image`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from triptych.errors import UserError, did_you_mean
from triptych.utils.arguments import shown

Kind = Literal["text", "image", "audio"]

GAP = "___"
"""In a text: one token to fill in."""


@dataclass(frozen=True)
class Input:
    """An argument of a direction."""

    name: str
    """Of the method's parameter."""
    kinds: tuple[Kind, ...]
    """What it may be."""
    required: bool = True


@dataclass(frozen=True)
class Direction:
    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[Kind, ...]
    """What comes out, in order; the last one is what the direction is for."""
    summary: str
    region: str | None = None
    """Name of the argument that says what to fill in: "box" (pixels) or "interval" (seconds)."""
    options: tuple[str, ...] = ()
    """Names of the arguments that say more of the result: "num_tokens" of a text, "seconds" and "voice" of speech."""

    @property
    def method(self) -> str:
        """Name of the `Pipeline` method."""
        return self.name.replace("-", "_")

    @property
    def output(self) -> Kind:
        return self.outputs[-1]

    @property
    def needs(self) -> set[Kind]:
        """The kinds without which a model does not have this direction."""
        return {*self.outputs, *(kind for each in self.inputs if each.required for kind in each.kinds)}

    @property
    def usage(self) -> str:
        """Inputs and outputs for people: "IMAGE [TEXT] -> image"."""
        words = ["|".join(kind.upper() for kind in each.kinds) for each in self.inputs]
        words = [each.name.upper() if each.kinds == ("text",) else word for each, word in zip(self.inputs, words)]
        shown = [word if each.required else f"[{word}]" for each, word in zip(self.inputs, words)]
        region = f" --{self.region}" if self.region else ""
        return f"{' '.join(shown)}{region} -> {', '.join(self.outputs)}"


def _text(name: str = "text", *, required: bool = True) -> Input:
    return Input(name, ("text",), required)


_IMAGE, _AUDIO = Input("image", ("image",)), Input("audio", ("audio",))

DIRECTIONS = {
    direction.name: direction
    for direction in (
        Direction("text-to-image", (_text(),), ("image",), "draw what a text says"),
        Direction(
            "caption",
            (_IMAGE, _text("prompt", required=False)),
            ("text",),
            "describe an image",
            options=("num_tokens",),
        ),
        Direction(
            "answer",
            (_IMAGE, _text("question")),
            ("text",),
            "answer a question about an image",
            options=("num_tokens",),
        ),
        Direction("text-to-speech", (_text(),), ("audio",), "speak a text", options=("seconds", "voice")),
        Direction("transcribe", (_AUDIO,), ("text",), "write down what is said", options=("num_tokens",)),
        Direction("complete", (_text(),), ("text",), "continue a text", options=("num_tokens",)),
        Direction(
            "infill-image",
            (_IMAGE, _text(required=False)),
            ("image",),
            "repaint a rectangle of an image",
            region="box",
        ),
        Direction(
            "infill-text",
            (_text(), Input("media", ("image", "audio"), required=False)),
            ("text",),
            f"fill in the gaps of a text, written {GAP}",
        ),
        Direction(
            "infill-audio",
            (_AUDIO, _text(required=False)),
            ("audio",),
            "speak an interval of a recording again",
            region="interval",
        ),
        Direction("speech-to-image", (_AUDIO,), ("text", "image"), "transcribe, then draw", options=("num_tokens",)),
        Direction(
            "image-to-speech",
            (_IMAGE,),
            ("text", "audio"),
            "caption, then speak",
            options=("num_tokens", "seconds", "voice"),
        ),
    )
}


_SHORT_FOR = {
    "image": "text-to-image",
    "image-to-text": "caption",
    "img2txt": "caption",
    "describe": "caption",
    "txt2img": "text-to-image",
    "speech-to-text": "transcribe",
    "audio-to-text": "transcribe",
    "stt": "transcribe",
    "draw": "text-to-image",
    "speech": "text-to-speech",
    "speak": "text-to-speech",
    "audio": "text-to-speech",
    "tts": "text-to-speech",
    "asr": "transcribe",
    "text": "complete",
    "vqa": "answer",
    "fill-image": "infill-image",
    "inpaint": "infill-image",
    "fill-text": "infill-text",
    "fill-speech": "infill-audio",
}
"""What people type first, and the direction they mean; for suggestions only."""


def direction_named(name: str) -> Direction:
    if name not in DIRECTIONS:
        meant = _SHORT_FOR.get(name.lower(), name.lower().replace("_", "-"))
        if meant in DIRECTIONS:
            raise UserError(f"unknown direction {name!r}. Did you mean {meant!r}?")
        if " " in name.strip():
            raise UserError(f"{name[:50]!r} is no direction: name one first, for example text-to-image {name[:50]!r}.")
        raise UserError(f"unknown direction {name!r}.{did_you_mean(name, list(DIRECTIONS))}")
    return DIRECTIONS[name]


def direction_for(
    output: str, given: Collection[str], *, region: str | None = None, has_gap: bool = False
) -> Direction:
    """The direction that makes `output` from inputs of the `given` kinds.

    `region` is "box" or "interval" if one is given; `has_gap` says that the text contains a gap.
    """
    if not isinstance(output, str) or output not in ("text", "image", "audio"):
        raise UserError(f"output must be text, image or audio, got {shown(output)}.")
    fills_text = output == "text" and has_gap
    for direction in DIRECTIONS.values():
        needed = {kind for each in direction.inputs if each.required for kind in each.kinds}
        allowed = {kind for each in direction.inputs for kind in each.kinds}
        is_infill_text = direction.name == "infill-text"
        fits = needed <= set(given) <= allowed and not (is_infill_text and {"image", "audio"} <= set(given))
        if direction.output == output and direction.region == region and fits and is_infill_text == fills_text:
            # A caption's prompt and a question are both texts beside an image: a text there is a question.
            if direction.name == "caption" and "text" in given:
                continue
            return direction
    asked = " and ".join(sorted(given)) or "nothing"
    part = f" with {region}=" if region else ""
    raise UserError(
        f"there is no direction from {asked}{part} to {output}. There are: "
        + "; ".join(f"{each.name} ({each.usage})" for each in DIRECTIONS.values() if each.output == output)
        + "."
    )
