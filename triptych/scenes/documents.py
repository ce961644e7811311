"""Text-only documents: captions, descriptions, paraphrases, and questions that a caption answers."""

import numpy as np

from triptych.scenes.captions import caption
from triptych.scenes.descriptions import describe
from triptych.scenes.picture import Picture
from triptych.scenes.question_forms import SIDES, Asked
from triptych.scenes.questions import question
from triptych.scenes.world import FULL, INVERSE, Scene, World

# Share of each kind of document in the full world.
DOCUMENT_SHARES = {"caption": 0.2, "paraphrase": 0.15, "description": 0.2, "dialogue": 0.45}
SECOND_QUESTION_SHARE = 0.4  # of dialogues
# Share of dialogues in the small world; the rest are one caption or two.
SMALL_DIALOGUE_SHARE = 0.6

_FROM_LOOKS = ("count", "total", "colour", "is colour", "exists", "any", "contents", "more")


def document(scene: Scene, picture: Picture, rng: np.random.Generator, world: World = FULL) -> str:
    """A random document about a scene. Its questions are answered by the caption that it starts with."""
    if world.plain_language:
        chance = rng.random()
        rest = (1 - SMALL_DIALOGUE_SHARE) / 2
        kind = "dialogue" if chance < SMALL_DIALOGUE_SHARE else "paraphrase" if chance < 1 - rest else "caption"
    else:
        kind = list(DOCUMENT_SHARES)[rng.choice(len(DOCUMENT_SHARES), p=list(DOCUMENT_SHARES.values()))]
    if kind == "description":
        return describe(scene, picture, rng, world)
    first = _ended(caption(scene, rng, world))
    if kind == "caption":
        return first
    if kind == "paraphrase":
        return f"{first} {_ended(caption(scene, rng, world))}"
    asked, answer = question(scene, picture, rng, world, lambda asked: is_stated(asked, scene))
    if not world.plain_language and rng.random() < SECOND_QUESTION_SHARE:
        more = question(scene, picture, rng, world, lambda asked: is_stated(asked, scene))
        return " ".join([first, asked, _ended(answer), *more])
    return f"{first} {asked} {answer}"


def _ended(text: str) -> str:
    return text if text[-1] in ".?" else f"{text}."


def is_stated(asked: Asked, scene: Scene) -> bool:
    """Whether the scene alone answers a question: every picture of it gives the same answer."""
    relation = scene.relation or ""
    is_compared = relation in ("bigger than", "smaller than")
    match asked.form:
        case form if form in _FROM_LOOKS:
            return True
        case "size":
            return any(group.size and group.kind == asked.things[0].kind for group in scene.groups)
        case "background" | "is background":
            return scene.background is not None
        case "between":
            return relation == "between" and scene.groups[0].look not in {thing.look for thing in asked.things}
        case "on":
            return relation == "on" and scene.groups[1].kind == asked.things[0].kind != scene.groups[0].kind
        case "which":
            return is_compared
        case "where":
            return relation == "on" or relation in SIDES or (len(scene.groups) == 1 and scene.background is not None)
        case "side":
            return relation in SIDES and asked.detail in (relation, INVERSE[relation])
    # "what is" and "relation": the stated relation or its inverse
    return relation in INVERSE and relation != "under" and asked.detail in (relation, INVERSE[relation])
