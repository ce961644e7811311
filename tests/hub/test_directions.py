"""The one table of directions agrees with the pipeline's methods."""

import inspect

import pytest

from triptych.errors import UserError
from triptych.hub.directions import DIRECTIONS, direction_for, direction_named
from triptych.hub.pipeline import Pipeline


@pytest.mark.parametrize("direction", DIRECTIONS.values(), ids=str)
def test_every_direction_is_a_method_with_these_parameters(direction) -> None:
    parameters = inspect.signature(getattr(Pipeline, direction.method)).parameters
    for each in direction.inputs:
        for name in each.kinds if each.name == "media" else [each.name]:
            assert (parameters[name].default is inspect.Parameter.empty) == each.required, name
    for extra in (direction.region, *direction.options):
        assert extra is None or extra in parameters
    doc = getattr(Pipeline, direction.method).__doc__
    assert f"pipe.{direction.method}(" in doc, "every method shows an example"


def test_every_direction_is_found_by_what_goes_in_and_out() -> None:
    for direction in DIRECTIONS.values():
        given = {each.kinds[0] for each in direction.inputs if each.required}
        found = direction_for(direction.output, given, region=direction.region, has_gap=direction.name == "infill-text")
        assert found is direction


def test_names_that_are_not_there() -> None:
    with pytest.raises(UserError, match="unknown direction 'text-to-sound'"):
        direction_named("text-to-sound")
    with pytest.raises(UserError, match="there is no direction from audio and text to image"):
        direction_for("image", {"audio", "text"})
    with pytest.raises(UserError, match="there is no direction from nothing to text"):
        direction_for("text", set())


def test_usage_is_written_for_people() -> None:
    assert DIRECTIONS["infill-image"].usage == "IMAGE [TEXT] --box -> image"
    assert DIRECTIONS["answer"].usage == "IMAGE QUESTION -> text"
    assert DIRECTIONS["speech-to-image"].usage == "AUDIO -> text, image"
