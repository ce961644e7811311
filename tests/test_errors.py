"""Suggestions: only close ones, without regard to case."""

import pytest

from triptych.errors import did_you_mean, nearest


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("A100", ["a100", "h100", "b200"], ["a100"]),
        ("giraffe", ["green", "cat", "star", "circle"], []),
        ("elefant", ["elephant", "eleven"], ["elephant"]),
        ("--guidance", ["--guidance-scale", "--out"], ["--guidance-scale"]),
        ("lr", ["optimizer.lr", "model.width"], ["optimizer.lr"]),
        ("image", ["text-to-image", "caption"], ["text-to-image"]),
        ("kat", ["cat", "dog"], ["cat"]),
        ("", ["a"], []),
        ("x", [], []),
    ],
)
def test_nearest(name: str, known: list[str], expected: list[str]) -> None:
    assert nearest(name, known) == expected


def test_an_error_lists_all_names_only_if_they_are_few() -> None:
    many = [f"key{n}" for n in range(95)]
    assert did_you_mean("key1x", [*many, "other"]).count("key") <= 3
    assert did_you_mean("zzz", ["b", "a"]) == " Known: a, b."
    assert did_you_mean("widht", ["width", "depth"]) == " Did you mean 'width'? Known: depth, width."
    assert "and 83 more" in did_you_mean("zzz", many)
