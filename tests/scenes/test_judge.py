import numpy as np
import pytest
from PIL import Image, ImageFilter

from triptych.scenes.grammar import CATEGORIES, COLOURS, ObjectGroup, Scene, sample_scene
from triptych.scenes.image import PICTURE, Placed, draw, picture, place
from triptych.scenes.judge import describes, read, same_scene, score, shows, tells
from triptych.scenes.sprites import LOOKS, SIZE


def drawn(count, seed=0):
    rng = np.random.default_rng(seed)
    scenes = [sample_scene(rng) for _ in range(count)]
    return scenes, [picture(scene, rng) for scene in scenes]


def test_true_pictures_score_at_least_99_percent_in_every_category():
    scenes, pictures = drawn(400)
    scores = score(pictures, scenes)
    assert set(scores) == {*CATEGORIES, "overall"}
    assert min(scores.values()) >= 0.99


def test_every_look_is_read_where_it_stands():
    rng = np.random.default_rng(0)
    placed = [
        Placed(look, *(int(v) for v in rng.integers(0, PICTURE - SIZE + 1, size=2))) for look in LOOKS
    ]  # at any pixel
    for reading, thing in zip(read([draw([thing]) for thing in placed]), placed):
        assert reading.things == (thing,)
        assert not reading.smudged


def test_pictures_of_other_scenes_fail():
    scenes, pictures = drawn(120)
    readings = read(pictures)
    wrong = [
        shows(reading, scene)
        for i, reading in enumerate(readings)
        for j, scene in enumerate(scenes)
        if not same_scene(scene, scenes[i]) and i != j and scene.composition != scenes[i].composition
    ]
    assert len(wrong) > 10_000
    assert not any(wrong)


@pytest.mark.parametrize("wrong", [c for c in COLOURS if c != "red"])
def test_a_wrong_colour_fails(wrong):
    (reading,) = read([draw([Placed(("heart", wrong), 12, 8)])])
    assert not shows(reading, Scene((ObjectGroup("heart", "red"),)))
    assert shows(reading, Scene((ObjectGroup("heart", wrong),)))


def test_a_wrong_count_an_extra_thing_and_a_missing_one_fail():
    cats = [Placed(("cat", None), 4, 4), Placed(("cat", None), 36, 4)]
    dog = Placed(("dog", None), 36, 36)
    two_cats = Scene((ObjectGroup("cat", None, 2),))
    assert shows(read([draw(cats)])[0], two_cats)
    assert not shows(read([draw(cats[:1])])[0], two_cats)
    assert not shows(read([draw([*cats, dog])])[0], two_cats)
    assert not shows(read([draw(cats)])[0], Scene((ObjectGroup("cat", None, 3),)))
    assert not shows(read([Image.new("RGB", (64, 64), "white")])[0], two_cats)


def test_a_wrong_side_fails():
    things = [Placed(("cat", None), 4, 8), Placed(("dog", None), 36, 8)]
    groups = (ObjectGroup("cat"), ObjectGroup("dog"))
    (reading,) = read([draw(things)])
    assert shows(reading, Scene(groups, "left of"))
    assert shows(reading, Scene(groups))
    for relation in ("right of", "above", "below"):
        assert not shows(reading, Scene(groups, relation))


def test_a_smudge_beside_the_right_thing_fails():
    picture = draw([Placed(("cat", None), 4, 4)])
    assert shows(read([picture])[0], Scene((ObjectGroup("cat"),)))
    pixels = np.asarray(picture).copy()
    pixels[40:56, 40:56] = np.random.default_rng(0).integers(0, 255, size=(16, 16, 3))
    (reading,) = read([Image.fromarray(pixels)])
    assert reading.smudged
    assert not shows(reading, Scene((ObjectGroup("cat"),)))


def test_noise_and_blur_do_not_mislead():
    scenes, pictures = drawn(60, seed=3)
    rng = np.random.default_rng(0)
    noisy = [
        Image.fromarray(np.clip(np.asarray(p) + rng.normal(0, 20, (64, 64, 3)), 0, 255).astype(np.uint8))
        for p in pictures
    ]
    assert score(noisy, scenes)["overall"] >= 0.98
    assert score([p.filter(ImageFilter.GaussianBlur(0.8)) for p in pictures], scenes)["overall"] >= 0.98


@pytest.mark.parametrize(
    ("text", "true"),
    [
        ("a cat left of a red heart", True),
        ("there is a red heart to the right of a cat", True),
        ("a cat and a red heart", True),
        ("a red heart with a cat", True),
        ("a cat right of a red heart", False),
        ("a cat above a red heart", False),
        ("a cat left of a blue heart", False),
        ("two cats and a red heart", False),
        ("a cat", False),
        ("a cat left of left of", False),
    ],
)
def test_captions_are_judged_by_meaning(text, true):
    scene = Scene((ObjectGroup("cat"), ObjectGroup("heart", "red")), "left of")
    things = place(scene, np.random.default_rng(0))
    assert describes(text, things) == true
    assert tells(text, scene, things) == (true and "of" in text)  # the picture was to show a relation
    assert tells(text, Scene(scene.groups), things) == true
