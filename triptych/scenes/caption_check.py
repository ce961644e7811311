"""Whether a caption is right."""

from triptych.scenes.descriptions import parse_description
from triptych.scenes.picture import Picture, shows
from triptych.scenes.world import FULL, Scene, World


def caption_is_true(text: str, picture: Picture, world: World = FULL) -> bool:
    """Whether a caption is in the grammar, names exactly the objects of a picture, and claims nothing false."""
    stated = parse_description(text, world)
    return stated is not None and shows(picture, stated, world)


def caption_is_right(text: str, scene: Scene, picture: Picture, world: World = FULL) -> bool:
    """Whether a caption of the picture of a scene is true. In the preset `small` it must state the scene's relation.

    An image of that preset shows whether its scene has a relation. In the preset `full`, something is left of something
    else in nearly every image, and a caption need not say so.
    """
    stated = parse_description(text, world)
    if stated is None or not shows(picture, stated, world):
        return False
    return not world.has_grid or not scene.relation or stated.relation is not None
