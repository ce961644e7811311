"""Configurations: JSON, differences, overrides. More overrides are tested with the recipes."""

import json
from dataclasses import replace

import pytest

from triptych.data.pack import Grouped
from triptych.diffusion.corrupt import CorruptConfig
from triptych.diffusion.schedule import Cosine, Polynomial
from triptych.errors import UserError
from triptych.recipes import recipe
from triptych.utils.config import assignments, changed_keys, differences, fill_in, flatten, override, to_json


def test_only_choices_have_a_kind_in_json() -> None:
    config = replace(recipe("scenes"), corrupt=CorruptConfig(schedule=Polynomial(3.0), text_schedule=Cosine()))
    saved = json.loads(json.dumps(to_json(config)))
    assert saved["corrupt"]["schedule"] == {"kind": "polynomial", "power": 3.0}
    assert saved["corrupt"]["text_schedule"] == {"kind": "cosine"}
    assert saved["loader"]["layout"]["kind"] == "packed"
    for part in (saved, saved["model"], saved["loader"], saved["loader"]["open_ends"], saved["prompts"]):
        assert "kind" not in part


def test_defaults_are_filled_in_for_the_same_kind_only() -> None:
    config = recipe("nano")
    saved = to_json(config)
    assert fill_in(saved, config) == saved
    polynomial = replace(config, corrupt=CorruptConfig(schedule=Polynomial(3.0)))
    older = {**saved, "corrupt": {"schedule": {"kind": "polynomial"}}}
    filled = fill_in(older, polynomial)["corrupt"]
    assert filled["schedule"] == {"kind": "polynomial", "power": 2.0}
    assert filled["seed"] == 0
    assert fill_in(older, config)["corrupt"]["schedule"] == {"kind": "polynomial"}
    assert older["corrupt"] == {"schedule": {"kind": "polynomial"}}  # not changed


def test_nested_mappings_are_flattened() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": [2]}, "e": None, "f": {}}) == {"a.b.c": 1, "a.d": [2], "e": None}


def test_differences_name_the_changed_keys() -> None:
    old = {"a": {"x": 1, "y": 2}, "b": None, "c": 3}
    new = {"a": {"x": 1, "y": 5}, "b": {"z": 1}, "d": 4}
    assert changed_keys(old, new) == {"a.y": (2, 5), "b": (None, {"z": 1}), "c": (3, None), "d": (None, 4)}
    assert differences(old, new, ignored={"a", "d"}) == ["b was None, is {'z': 1}", "c was 3, is None"]
    assert differences(old, new, ignored={"a.y", "b", "c", "d"}) == []


def test_assignments_recreate_a_configuration() -> None:
    base = recipe("nano")
    other = replace(
        base,
        loader=replace(base.loader, layout=Grouped(max_tokens=99, overhead=1), task_weights={"text": 2.0}),
        corrupt=CorruptConfig(schedule=Polynomial(3.0)),
        ema_decay=None,
        tensorboard=True,
        data=("a", "b"),
    )
    other = replace(other, loader=replace(other.loader, task_weights={**base.loader.task_weights, "text": 2.0}))
    assert override(base, assignments(base, other)) == other
    assert assignments(base, base) == []


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("optimizer.learning_rate", "Did you mean 'optimizer.lr'?"),
        ("learning_rate", "Did you mean 'optimizer.lr'?"),
        ("optimizer.lrr", "Did you mean 'optimizer.lr'?"),
        ("optim.lr", "Did you mean 'optimizer.lr'?"),
        ("width", "Did you mean 'model.width'?"),
        ("global_batch_size", "Did you mean 'loader.global_batch'?"),
        ("antimask", "it is called 'complementary_masks' now."),
        ("parallel.watch", "it is called 'parallel.hang_timeout' now."),
        ("foo", "See `triptych train RECIPE --print-config`."),
    ],
)
def test_an_unknown_key_names_the_nearest_ones(key: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        override(recipe("scenes"), [f"{key}=1"])
    message = str(caught.value)
    assert message.startswith(f"unknown key {key!r}")
    assert message.endswith(hint)
    assert message.count("' or '") <= 2
