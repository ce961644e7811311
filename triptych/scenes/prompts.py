"""How a model of the toy dataset reads what people type (`triptych.hub.readers`).

The small world's model knows captions like "two cats left of a red heart" and nothing else. People type "cat", "2
kitties please" or "a photo of a fox!". The grammar of the full world reads all of these; what such a sentence means is
said to the small model in its own words, if it can be drawn in its world.
"""

from dataclasses import replace

from triptych.errors import UserError
from triptych.hub.readers import PromptReading, Use
from triptych.scenes.captions import plain_caption
from triptych.scenes.nouns import noun
from triptych.scenes.parse import too_much
from triptych.scenes.reading import Reading, classify
from triptych.scenes.world import FULL, NATURAL_COLOUR, SMALL, Look, ObjectGroup, Scene, World, colour_of, natural_look

_AROUND = " \t\n.,;:!?'\"‘’“”()"  # that people put around a prompt
_QUESTION = "how many cats are there?"


def read_small(text: str, use: Use) -> PromptReading:
    """For models of the preset `small`."""
    if use == "question":
        return _read_question(text, SMALL)
    text = text.strip(_AROUND)
    reading = classify(text, SMALL)
    if reading.scene is not None:
        return PromptReading(text)
    if use == "audio":
        return _with_problem(text, reading, f"the model speaks captions, and {reading.reason}")
    in_full = classify(text, FULL)
    if in_full.scene is not None:
        meant = _in_world(in_full.scene, SMALL)
        return PromptReading(plain_caption(meant)) if isinstance(meant, Scene) else _with_problem(text, reading, meant)
    # A word that only the small world lacks is not what is wrong with the sentence.
    is_word_known = reading.verdict == "refused" and in_full.verdict != "refused"
    return _with_problem(text, reading, in_full.reason if is_word_known else reading.reason)


def read_full(text: str, use: Use) -> PromptReading:
    """For models of the preset `full`, whose grammar has everything that people are expected to type."""
    if use == "question":
        return _read_question(text, FULL)
    reading = classify(text, FULL)
    if reading.scene is not None or use == "audio":  # a text to be spoken may ask for a voice
        return PromptReading(text)
    return _with_problem(text, reading, reading.reason)


def _read_question(text: str, world: World) -> PromptReading:
    reading = classify(text, world)
    if reading.question is not None:
        return PromptReading(text)
    return _with_problem(text, reading, f"it is no question that the model was trained on, such as {_QUESTION!r}")


def _with_problem(text: str, reading: Reading, problem: str) -> PromptReading:
    """The text as it is, with a problem; an error if the model does not know its words."""
    if reading.verdict != "refused":
        return PromptReading(text, problem)
    raise UserError(
        f"this model cannot read {text[:50]!r}: {problem.rstrip('.')}. Say for example 'two cats'; "
        "`triptych info MODEL --list-words` lists the words it knows."
    )


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
