import numpy as np
import pytest
from PIL import Image, ImageFilter

from triptych.scenes.grammar import CATEGORIES, COLOURS, ObjectGroup, Scene, sample_scene
from triptych.scenes.image import IMAGE_SIZE, PlacedObject, draw, place, scene_image
from triptych.scenes.judge import caption_is_right, caption_is_true, detect, matches, score_images
from triptych.scenes.sprites import APPEARANCES, SPRITE_SIZE


def scenes_and_images(count, seed=0):
    rng = np.random.default_rng(seed)
    scenes = [sample_scene(rng) for _ in range(count)]
    return scenes, [scene_image(scene, rng) for scene in scenes]


def test_reference_images_score_at_least_99_percent_in_every_category():
    scenes, images = scenes_and_images(400)
    scores = score_images(images, scenes)
    assert set(scores) == {*CATEGORIES, "overall"}
    assert min(scores.values()) >= 0.99


def test_every_sprite_is_detected_at_its_position():
    rng = np.random.default_rng(0)
    placed = [
        PlacedObject(appearance, *(int(v) for v in rng.integers(0, IMAGE_SIZE - SPRITE_SIZE + 1, size=2)))
        for appearance in APPEARANCES
    ]  # at any pixel
    for detection, item in zip(detect([draw([item]) for item in placed]), placed):
        assert detection.objects == (item,)
        assert not detection.has_residual


def test_images_of_other_scenes_fail(same_scene):
    scenes, images = scenes_and_images(120)
    detections = detect(images)
    wrong = [
        matches(detection, scene)
        for i, detection in enumerate(detections)
        for j, scene in enumerate(scenes)
        if not same_scene(scene, scenes[i]) and i != j and scene.composition != scenes[i].composition
    ]
    assert len(wrong) > 10_000
    assert not any(wrong)


@pytest.mark.parametrize("wrong", [c for c in COLOURS if c != "red"])
def test_a_wrong_colour_fails(wrong):
    (detection,) = detect([draw([PlacedObject(("heart", wrong), 12, 8)])])
    assert not matches(detection, Scene((ObjectGroup("heart", "red"),)))
    assert matches(detection, Scene((ObjectGroup("heart", wrong),)))


def test_a_wrong_count_an_extra_object_and_a_missing_one_fail():
    cats = [PlacedObject(("cat", None), 4, 4), PlacedObject(("cat", None), 36, 4)]
    dog = PlacedObject(("dog", None), 36, 36)
    two_cats = Scene((ObjectGroup("cat", None, 2),))
    assert matches(detect([draw(cats)])[0], two_cats)
    assert not matches(detect([draw(cats[:1])])[0], two_cats)
    assert not matches(detect([draw([*cats, dog])])[0], two_cats)
    assert not matches(detect([draw(cats)])[0], Scene((ObjectGroup("cat", None, 3),)))
    assert not matches(detect([Image.new("RGB", (64, 64), "white")])[0], two_cats)


def test_a_wrong_relation_fails():
    objects = [PlacedObject(("cat", None), 4, 8), PlacedObject(("dog", None), 36, 8)]
    groups = (ObjectGroup("cat"), ObjectGroup("dog"))
    (detection,) = detect([draw(objects)])
    assert matches(detection, Scene(groups, "left of"))
    assert matches(detection, Scene(groups))
    for relation in ("right of", "above", "below"):
        assert not matches(detection, Scene(groups, relation))


def test_a_smudge_next_to_the_right_object_fails():
    image = draw([PlacedObject(("cat", None), 4, 4)])
    assert matches(detect([image])[0], Scene((ObjectGroup("cat"),)))
    pixels = np.asarray(image).copy()
    pixels[40:56, 40:56] = np.random.default_rng(0).integers(0, 255, size=(16, 16, 3))
    (detection,) = detect([Image.fromarray(pixels)])
    assert detection.has_residual
    assert not matches(detection, Scene((ObjectGroup("cat"),)))


def test_noise_and_blur_are_tolerated():
    scenes, images = scenes_and_images(60, seed=3)
    rng = np.random.default_rng(0)
    noisy = [
        Image.fromarray(np.clip(np.asarray(p) + rng.normal(0, 20, (64, 64, 3)), 0, 255).astype(np.uint8))
        for p in images
    ]
    assert score_images(noisy, scenes)["overall"] >= 0.98
    assert score_images([p.filter(ImageFilter.GaussianBlur(0.8)) for p in images], scenes)["overall"] >= 0.98


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
    objects = place(scene, np.random.default_rng(0))
    assert caption_is_true(text, objects) == true
    states_relation = "of" in text  # the scene has one, so the caption must state it
    assert caption_is_right(text, scene, objects) == (true and states_relation)
    assert caption_is_right(text, Scene(scene.groups), objects) == true
