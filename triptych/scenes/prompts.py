"""How a model of the toy dataset reads what people type (`triptych.hub.readers`).

The small world's model knows captions like "two cats left of a red heart" and nothing else. People type "cat", "2
kitties please" or "a photo of a fox!". The grammar of the full world reads all of these; what such a sentence means is
said to the small model in its own words, if it can be drawn in its world.
"""

from dataclasses import replace
from typing import NoReturn

from triptych.errors import UserError
from triptych.hub.readers import PromptReading, Use
from triptych.scenes.captions import plain_caption
from triptych.scenes.descriptions import read_description
from triptych.scenes.nouns import noun
from triptych.scenes.parse import NotInGrammar, too_much
from triptych.scenes.question_forms import read_question
from triptych.scenes.reading import refusal_of
from triptych.scenes.world import FULL, NATURAL_COLOUR, SMALL, Look, ObjectGroup, Scene, World, colour_of, natural_look

_AROUND = " \t\n.,;:!?'\"‘’“”()"
_QUESTION = "how many cats are there?"


def read_small(text: str, use: Use) -> PromptReading:
    """For models of the preset `small`."""
    if use == "question":
        return _read_question(text, SMALL)
    text = text.strip(_AROUND)
    if use == "audio":
        return _read_spoken(text)
    meant = _meaning(text, SMALL)
    if isinstance(meant, Scene):
        return PromptReading(text)
    in_full = _meaning(text, FULL)
    problem = meant
    if isinstance(in_full, Scene):
        scene = _in_world(in_full, SMALL)
        if isinstance(scene, Scene):
            return PromptReading(plain_caption(scene))
        problem = scene
    if refusal := refusal_of(text, SMALL):
        _refuse(text, problem if isinstance(in_full, Scene) else in_full if not refusal_of(text, FULL) else refusal)
    return PromptReading(text, problem)


def read_full(text: str, use: Use) -> PromptReading:
    """For models of the preset `full`, whose grammar has everything that people are expected to type."""
    if use == "question":
        return _read_question(text, FULL)
    if use == "audio":  # may ask for a voice
        return PromptReading(text)
    meant = _meaning(text, FULL)
    if isinstance(meant, Scene):
        return PromptReading(text)
    if refusal := refusal_of(text, FULL):
        _refuse(text, refusal)
    return PromptReading(text, meant)


def _read_question(text: str, world: World) -> PromptReading:
    if read_question(text, world):
        return PromptReading(text)
    if refusal := refusal_of(text, world):
        _refuse(text, refusal)
    return PromptReading(text, f"it is no question that the model was trained on, such as {_QUESTION!r}")


def _read_spoken(text: str) -> PromptReading:
    if refusal := refusal_of(text, SMALL):
        _refuse(text, refusal)
    meant = _meaning(text, SMALL)
    return PromptReading(text, "" if isinstance(meant, Scene) else f"the model speaks captions, and {meant}")


def _refuse(text: str, reason: str) -> NoReturn:
    raise UserError(
        f"this model cannot read {text[:50]!r}: {reason.rstrip('.')}. Say for example 'two cats'; "
        "`triptych info MODEL --list-words` lists the words it knows."
    )


def _meaning(text: str, world: World) -> Scene | str:
    """The scene that a text describes, or why it describes none."""
    if read_question(text, world):
        return "it is a question; say what to draw, such as 'two cats'"
    if not text:
        return "it has no words; say for example 'a red heart'"
    try:
        return read_description(text, world)
    except NotInGrammar as error:
        return str(error)


def _in_world(scene: Scene, world: World) -> Scene | str:
    """A scene of the full world in another one, or why it cannot be drawn there."""
    groups: list[ObjectGroup] = []
    for group in scene.groups:
        others = [*groups, *(other for other in scene.groups if other.colour)]
        there = _group_in_world(group, world, {natural_look(other.kind, other.colour) for other in others})
        if isinstance(there, str):
            return there
        groups.append(there)
    if scene.background is not None:
        return "backgrounds are always white"
    if scene.relation is not None and scene.relation not in world.relations:
        return f"{scene.relation!r} is none of the relations {', '.join(world.relations)}"
    if len(groups) > 2:
        return "an image has things of one or two kinds"
    moved = Scene(tuple(groups), scene.relation)
    return moved if world.fits(moved) else too_much(moved, world)


def _group_in_world(group: ObjectGroup, world: World, taken: set[Look]) -> ObjectGroup | str:
    """A group in another world, or why it is not there. A colour that is needed is the usual one, or any free one."""
    many = noun(group.kind, 2)
    if group.kind not in world.kinds:
        return f"there are no {many}"
    if group.size is not None:
        return "all things have the same size"
    looks = [colour for kind, colour in world.looks() if kind == group.kind]
    if looks == [None]:
        if group.look[1] is not None:
            return f"{many} come in no other colour"
        return ObjectGroup(group.kind, None, group.count)
    if group.colour is None:
        usual = sorted(looks, key=lambda colour: colour != NATURAL_COLOUR.get(group.kind))
        free = [colour for colour in usual if natural_look(group.kind, colour) not in taken]
        return replace(group, colour=free[0]) if free else f"there are too many kinds of {many}"
    if group.colour not in looks:
        return f"{many} are {', '.join(colour for colour in looks if colour)}, not {colour_of(group.look)}"
    return group
