"""The exact judge: reads a picture back into things and places, and says whether it shows a scene.

Reading is matching pursuit over the world's own sprites. A sprite T at some place explains the picture P better than
white does by

    gain = |1 - P|^2 - |T - P|^2 = 2 <1 - P, 1 - T> - |1 - T|^2        (over the sprite's 28 x 28 window)

which is one correlation. The best sprite and place are taken, painted out, and the search goes on until nothing left
looks like a thing. What remains and is too much to be blur counts as an unreadable thing, so that a smudge cannot pass.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from triptych.scenes.grammar import CATEGORIES, INVERSE, Scene, parse
from triptych.scenes.image import PICTURE, Placed
from triptych.scenes.sprites import LOOKS, SIZE, sprites

# B pictures, L looks, H x W places

MAX_READ = 8  # more things than any scene has; a picture with more is wrong anyway
MIN_QUALITY = 0.5  # share of a sprite's own contrast that must be explained: 1 is pixel-perfect, 0 is plain white
SMUDGE = 0.5  # unexplained contrast, in units of the faintest sprite's, that counts as a thing nobody can name
APART = SIZE / 2  # how far apart centres must be for "left of" and the like


@dataclass(frozen=True)
class Reading:
    """What the judge sees in a picture."""

    things: tuple[Placed, ...]
    smudged: bool
    """Whether there is something else that is no known thing."""

    @property
    def looks(self) -> Counter:
        return Counter(thing.look for thing in self.things)


@cache
def _templates() -> tuple[torch.Tensor, torch.Tensor]:
    """Every look's difference from white [L, 3, 28, 28], and its energy [L]."""
    contrast = np.stack([sprites()[look][..., 3:] * (1 - sprites()[look][..., :3]) for look in LOOKS])
    templates = torch.from_numpy(contrast).movedim(-1, 1).contiguous()
    return templates, templates.square().sum((1, 2, 3))


@torch.no_grad()
def read(pictures: Sequence[Image.Image]) -> list[Reading]:
    """Read pictures of 64 x 64 pixels."""
    templates, energy = _templates()
    pixels = np.stack([np.asarray(picture.convert("RGB").resize((PICTURE, PICTURE))) for picture in pictures])
    contrast_BCHW = 1 - torch.from_numpy(pixels).movedim(-1, 1).float() / 255
    found: list[list[Placed]] = [[] for _ in pictures]
    active = torch.arange(len(pictures))
    for _ in range(MAX_READ):
        if not len(active):
            break
        overlap_BLHW = F.conv2d(contrast_BCHW[active], templates)
        gain_BLHW = 2 * overlap_BLHW - energy[:, None, None]
        gain, place = gain_BLHW.flatten(1).max(1)
        places = gain_BLHW.shape[3]
        look = place // (places * places)
        y, x = (place // places) % places, place % places
        # A sprite may explain a strange blob a little: it must explain most of its own contrast to be seen there.
        good = gain / energy[look] >= MIN_QUALITY
        for picture, number, row, column in zip(active[good], look[good], y[good], x[good]):
            found[picture].append(Placed(LOOKS[number], int(column), int(row)))
            contrast_BCHW[picture, :, row : row + SIZE, column : column + SIZE] -= templates[number]
        active = active[good]
    leftover = F.avg_pool2d(contrast_BCHW.square().sum(1, keepdim=True), SIZE, stride=4, divisor_override=1)
    smudged = (leftover.flatten(1) > SMUDGE * energy.min()).any(1)
    return [Reading(tuple(things), bool(smudge)) for things, smudge in zip(found, smudged)]


def shows(reading: Reading, scene: Scene) -> bool:
    """Whether a picture shows exactly the scene: its things, no others, in its relation."""
    wanted = Counter({(group.kind, group.colour): group.count for group in scene.groups})
    return not reading.smudged and reading.looks == wanted and relation_holds(reading.things, scene)


def relation_holds(things: Sequence[Placed], scene: Scene) -> bool:
    """Whether every thing of the first group stands as the relation says from every thing of the second."""
    if scene.relation is None:
        return True
    first, second = ([t for t in things if t.look == (group.kind, group.colour)] for group in scene.groups)
    axis = 0 if scene.relation in ("left of", "right of") else 1
    sign = 1 if scene.relation in ("left of", "above") else -1
    return bool(first and second) and all(
        sign * (there.centre[axis] - here.centre[axis]) >= APART for here in first for there in second
    )


def describes(text: str, things: Sequence[Placed]) -> bool:
    """Whether a caption is in the grammar, names exactly these things, and says nothing false about their places."""
    scene = parse(text)
    return scene is not None and shows(Reading(tuple(things), False), scene)


def tells(text: str, scene: Scene, things: Sequence[Placed]) -> bool:
    """Whether a caption describes the picture of a scene and, if that has a relation, does not leave it out."""
    said = parse(text)
    return said is not None and describes(text, things) and (not scene.relation or said.relation is not None)


def same_scene(said: Scene | None, meant: Scene) -> bool:
    """Whether two scenes say the same, whichever group is named first."""
    if said is None:
        return False
    swapped = Scene(said.groups[::-1], INVERSE[said.relation] if said.relation else None)
    return meant in (said, swapped)


def score(pictures: Sequence[Image.Image], scenes: Sequence[Scene]) -> dict[str, float]:
    """Share of pictures that show their scene, for each of the six categories and overall (their mean, as GenEval)."""
    right: dict[str, list[bool]] = {category: [] for category in CATEGORIES}
    for start in range(0, len(scenes), 64):
        batch = slice(start, start + 64)
        for reading, scene in zip(read(pictures[batch]), scenes[batch]):
            right[scene.category].append(shows(reading, scene))
    scores = {category: float(np.mean(answers)) for category, answers in right.items() if answers}
    return scores | {"overall": float(np.mean(list(scores.values())))}
