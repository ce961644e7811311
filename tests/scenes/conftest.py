import pytest

from triptych.scenes.grammar import INVERSE, Scene


@pytest.fixture
def same_scene():
    """(Scene | None, Scene) -> whether both describe the same scene, whichever group comes first."""

    def compare(parsed, scene):
        if parsed is None:
            return False
        swapped = Scene(parsed.groups[::-1], INVERSE[parsed.relation] if parsed.relation else None)
        return scene in (parsed, swapped)

    return compare
