"""The suites of the evaluation by name. A suite is imported when it is used: each needs other packages."""

import dataclasses
from collections.abc import Callable
from typing import Any, get_type_hints

from triptych.errors import UserError, did_you_mean
from triptych.eval.suite import Suite
from triptych.utils.arguments import check_values


def _text() -> tuple[Suite, type]:
    from triptych.eval.text.suite import TextSettings, text_suite

    return text_suite, TextSettings


def _image() -> tuple[Suite, type]:
    from triptych.eval.image.suite import ImageSettings, image_suite

    return image_suite, ImageSettings


def _audio() -> tuple[Suite, type]:
    from triptych.eval.audio.suite import AudioSettings, audio_suite

    return audio_suite, AudioSettings


SUITES: dict[str, Callable[[], tuple[Suite, type]]] = {"text": _text, "image": _image, "audio": _audio}
"""Each gives the function of a suite and the class of its settings."""
SCENES, PAPER = "scenes", "paper"
SUITE_NAMES = (SCENES, *SUITES, PAPER)


def suite_named(name: str) -> tuple[Suite, type]:
    if name not in SUITES:
        raise UserError(f"unknown suite {name!r}.{did_you_mean(name, list(SUITE_NAMES))}")
    return SUITES[name]()


def settings_of(name: str, values: dict[str, Any]) -> Any:
    """The settings of a suite from its fields; an unknown field is an error that names the nearest one."""
    _, kind = suite_named(name)
    known = [field.name for field in dataclasses.fields(kind)]
    for key in values:
        if key not in known:
            raise UserError(f"the suite {name!r} has no setting {key!r}.{did_you_mean(key, known)}")
    check_values(values, get_type_hints(kind))
    return kind(**values)
