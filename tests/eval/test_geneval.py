"""GenEval: prompts against the official file, verdicts against a table made by hand, scores by hand."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from triptych.errors import DataError, UserError
from triptych.eval.geneval.detection import Detection
from triptych.eval.geneval.prompts import (
    CATEGORIES,
    COCO_CLASSES,
    Clause,
    GenEvalPrompt,
    Wording,
    read_prompts,
    sample_prompts,
)
from triptych.eval.geneval.scoring import (
    Rules,
    overlap,
    relative_positions,
    score_detections,
    select_objects,
)
from triptych.eval.geneval.summary import summarise

OFFICIAL_SHA256 = "5c48e0813e812e3c373fa5c8ed07a8f0a483be30272b4427b0559c8048e67c13"  # of evaluation_metadata.jsonl


# -- prompts ----------------------------------------------------------------------------------------------------------


def test_the_prompts_are_byte_for_byte_the_official_ones(tmp_path):
    prompts = sample_prompts()
    content = "".join(json.dumps(prompt.as_json) + "\n" for prompt in prompts)
    assert len(prompts) == 553
    assert hashlib.sha256(content.encode()).hexdigest() == OFFICIAL_SHA256
    (tmp_path / "evaluation_metadata.jsonl").write_text(content)
    assert read_prompts(tmp_path / "evaluation_metadata.jsonl") == prompts


def test_prompts_of_each_category_say_what_they_require():
    by_category = {category: [p for p in sample_prompts() if p.category == category] for category in CATEGORIES}
    assert {category: len(prompts) for category, prompts in by_category.items()} == {
        "single_object": 80,
        "two_object": 99,
        "counting": 80,
        "colors": 94,
        "position": 100,
        "color_attr": 100,
    }
    bus = next(p for p in by_category["counting"] if p.text == "a photo of three buses")
    assert bus.include == (Clause("bus", 3),)
    assert bus.exclude == (Clause("bus", 4),)
    bird = next(p for p in by_category["position"] if p.text == "a photo of a bird below a skateboard")
    assert bird.include == (Clause("skateboard"), Clause("bird", position=("below", 0)))
    pair = next(p for p in by_category["color_attr"] if p.text.startswith("a photo of a white dog"))
    assert pair.text == "a photo of a white dog and a blue potted plant"
    assert pair.include == (Clause("dog", color="white"), Clause("potted plant", color="blue"))
    colored = {clause.name for p in (*by_category["colors"], *by_category["color_attr"]) for clause in p.include}
    assert "person" not in colored
    assert {p.include[0].name for p in by_category["single_object"]} == set(COCO_CLASSES)


def test_prompts_of_own_names():
    wording = Wording(prefix="", plurals={"fox": "foxes"})
    classes, colors = ("fox", "owl", "bus"), ("red", "orange")
    prompts = sample_prompts(classes, colors, n=200, seed=1, max_count=3, uncolored=None, wording=wording)
    texts = {prompt.text for prompt in prompts}
    assert len(texts) == len(prompts)  # repeated ones are dropped
    assert {"a fox", "an owl", "three foxes", "two buses", "a fox left of a bus", "an orange owl"} <= texts
    assert {prompt.category for prompt in prompts} == set(CATEGORIES)
    assert sample_prompts(classes, colors, n=200, seed=1, max_count=3, uncolored=None, wording=wording) == prompts
    assert all(prompt.classes <= set(classes) for prompt in prompts)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"classes": ("fox", "person")}, "two different classes"),
        ({"classes": ("fox", "fox", "owl")}, "two different classes"),
        ({"colors": ("red",)}, "two different classes and colors"),
        ({"max_count": 11}, "counts from 2 to at most 10"),
        ({"n": 0}, "n of at least 1"),
    ],
)
def test_prompts_that_cannot_be_drawn_are_refused(changed, words):
    with pytest.raises(UserError, match=words):
        sample_prompts(**changed)


GOOD = {"tag": "position", "prompt": "a cat above a dog", "include": [{"class": "dog", "count": 1}]}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "prompts.jsonl:1 is no GenEval prompt"),
        ("[1]", "is no GenEval prompt"),
        (json.dumps({"tag": "x", "prompt": "y"}), "'include'"),
        (json.dumps({**GOOD, "include": []}), "its include is empty"),
        (json.dumps({**GOOD, "prompt": " "}), "its prompt or"),
        (json.dumps({**GOOD, "include": [{"class": "dog"}]}), "'count'"),
        (json.dumps({**GOOD, "include": [{"class": "dog", "count": 0}]}), "at least 1, got 0"),
        (
            json.dumps({**GOOD, "include": [{"class": "dog", "count": 1, "position": ["above", 0]}]}),
            "an earlier clause",
        ),
        (
            json.dumps(
                {**GOOD, "include": [GOOD["include"][0], {"class": "cat", "count": 1, "position": ["near", 0]}]}
            ),
            "one of left of, right of, above, below",
        ),
    ],
)
def test_a_line_of_another_format_is_named(tmp_path, line, words):
    path = tmp_path / "prompts.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=words) as caught:
        read_prompts(path)
    assert "\n" not in str(caught.value)


def test_colors_that_no_judge_names_are_refused(tmp_path):
    path = tmp_path / "prompts.jsonl"
    line = {**GOOD, "prompt": "a\u2028dog", "include": [{"class": "dog", "count": 1, "color": "teal"}]}
    path.write_text(json.dumps(line, ensure_ascii=False) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"prompts\.jsonl:1: expected a color among red, .*, got 'teal'"):
        read_prompts(path)
    assert [prompt.text for prompt in read_prompts(path, colors=None)] == ["a\u2028dog"]


def test_files_without_prompts_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match="holds no prompts"):
        read_prompts(tmp_path / "empty.jsonl")
    with pytest.raises(DataError, match="cannot be read as GenEval prompts"):
        read_prompts(tmp_path / "absent.jsonl")


# -- verdicts ---------------------------------------------------------------------------------------------------------

# Boxes of 20 x 20 pixels by the place of their centre in an image of 100 x 100.
PLACES = {
    "W": (10, 40, 30, 60),
    "E": (70, 40, 90, 60),
    "N": (40, 10, 60, 30),
    "S": (40, 70, 60, 90),
    "NW": (10, 10, 30, 30),
    "SE": (70, 70, 90, 90),
    "M": (40, 40, 60, 60),
    "M+": (42, 43, 62, 63),  # nearly the middle
    "M>": (45, 40, 65, 60),  # 5 pixels right of it: the margin of two boxes of 20 pixels is 4
    "M]": (44, 40, 64, 60),  # 4 pixels right of it
    "ESE": (70, 55, 90, 75),  # right of the middle, and a little below
}


def detection(text):
    """`dog@W`, `dog@W:0.95`, `red dog@W:0.5`."""
    named, _, place = text.partition("@")
    place, _, score = place.partition(":")
    *colors, name = named.split()
    return Detection(name, PLACES[place], float(score or 0.95), colors[0] if colors else None)


def prompt(*clauses, category="two_object", exclude=()):
    return GenEvalPrompt(category, "a prompt", tuple(clauses), tuple(exclude))


DOG, CAT = Clause("dog"), Clause("cat")
RED_DOG, BLUE_CAT = Clause("dog", color="red"), Clause("cat", color="blue")
ONE_DOG = prompt(DOG, category="single_object")
DOG_AND_CAT = prompt(DOG, CAT)
THREE_DOGS = prompt(Clause("dog", 3), category="counting", exclude=[Clause("dog", 4)])
A_RED_DOG = prompt(RED_DOG, category="colors")
TWO_RED_DOGS = prompt(Clause("dog", 2, color="red"), category="colors")
RED_DOG_BLUE_CAT = prompt(RED_DOG, BLUE_CAT, category="color_attr")


def cat_to_dog(relation):
    """a cat RELATION a dog."""
    return prompt(DOG, Clause("cat", position=(relation, 0)), category="position")


TABLE = [
    # one object
    (ONE_DOG, "dog@M", True, ""),
    (ONE_DOG, "dog@M, dog@W, cat@E", True, ""),  # more objects do no harm
    (ONE_DOG, "", False, "expected 1 dog, found 0"),
    (ONE_DOG, "cat@M", False, "expected 1 dog, found 0"),
    (ONE_DOG, "dog@M:0.31", True, ""),
    (ONE_DOG, "dog@M:0.3", False, "expected 1 dog, found 0"),  # must be above the threshold
    # two objects
    (DOG_AND_CAT, "dog@W, cat@E", True, ""),
    (DOG_AND_CAT, "dog@W", False, "expected 1 cat, found 0"),
    (DOG_AND_CAT, "cat@W, cat@E", False, "expected 1 dog, found 0"),
    (DOG_AND_CAT, "", False, "expected 1 dog, found 0; expected 1 cat, found 0"),
    # counting: the threshold is 0.9
    (THREE_DOGS, "dog@W, dog@M, dog@E", True, ""),
    (THREE_DOGS, "dog@W, dog@M, dog@E, cat@N", True, ""),
    (THREE_DOGS, "dog@W, dog@M", False, "expected 3 dog, found 2"),
    (THREE_DOGS, "dog@W, dog@M, dog@E, dog@N", False, "expected fewer than 4 dog, found 4"),
    (THREE_DOGS, "dog@W, dog@M, dog@E:0.9", False, "expected 3 dog, found 2"),
    (THREE_DOGS, "dog@W, dog@M, dog@E, dog@N:0.89", True, ""),  # the fourth is not certain enough
    # colours: of the most confident objects
    (A_RED_DOG, "red dog@M", True, ""),
    (A_RED_DOG, "blue dog@M", False, "expected 1 red dog, found blue"),
    (A_RED_DOG, "red dog@M:0.9, blue dog@W:0.8", True, ""),
    (A_RED_DOG, "red dog@M:0.8, blue dog@W:0.9", False, "expected 1 red dog, found blue"),
    (A_RED_DOG, "red cat@M", False, "expected 1 dog, found 0"),
    (TWO_RED_DOGS, "red dog@W, red dog@E", True, ""),
    (TWO_RED_DOGS, "red dog@W:0.9, blue dog@E:0.8", False, "expected 2 red dog, found red, blue"),
    (TWO_RED_DOGS, "red dog@W:0.9, blue dog@E:0.8, red dog@N:0.7", False, "expected 2 red dog, found red, blue"),
    # colours of two objects
    (RED_DOG_BLUE_CAT, "red dog@W, blue cat@E", True, ""),
    (
        RED_DOG_BLUE_CAT,
        "blue dog@W, red cat@E",
        False,
        "expected 1 red dog, found blue; expected 1 blue cat, found red",
    ),
    (RED_DOG_BLUE_CAT, "red dog@W, red cat@E", False, "expected 1 blue cat, found red"),
    (RED_DOG_BLUE_CAT, "red dog@W", False, "expected 1 cat, found 0"),
    # positions
    (cat_to_dog("left of"), "cat@W, dog@E", True, ""),
    (cat_to_dog("left of"), "cat@E, dog@W", False, "expected cat left of dog, found it right of"),
    (cat_to_dog("right of"), "cat@E, dog@W", True, ""),
    (cat_to_dog("above"), "cat@N, dog@S", True, ""),
    (cat_to_dog("above"), "cat@S, dog@N", False, "expected cat above dog, found it below"),
    (cat_to_dog("below"), "cat@S, dog@N", True, ""),
    (cat_to_dog("above"), "cat@NW, dog@SE", True, ""),  # on the diagonal, both directions count
    (cat_to_dog("left of"), "cat@NW, dog@SE", True, ""),
    (cat_to_dog("right of"), "cat@NW, dog@SE", False, "expected cat right of dog, found it above and left of"),
    (cat_to_dog("below"), "cat@ESE, dog@M", False, "expected cat below dog, found it right of"),
    (cat_to_dog("left of"), "cat@M, dog@M+", False, "expected cat left of dog, found it in no clear position"),
    (cat_to_dog("right of"), "cat@M], dog@M", False, "found it in no clear position"),  # the margin is used up
    (cat_to_dog("right of"), "cat@M>, dog@M", False, "found it in no clear position"),  # 1 of 5 pixels is left
    (cat_to_dog("left of"), "cat@W", False, "expected 1 dog, found 0; nothing for cat to be left of"),
    (cat_to_dog("left of"), "dog@W", False, "expected 1 cat, found 0"),
    # the most confident pair decides
    (cat_to_dog("left of"), "cat@W:0.9, cat@E:0.8, dog@M", True, ""),
    (cat_to_dog("left of"), "cat@W:0.8, cat@E:0.9, dog@M", False, "expected cat left of dog, found it right of"),
    # several objects: every one must stand in the relation to every other
    (
        prompt(Clause("dog", 2), Clause("cat", 1, position=("left of", 0)), category="position"),
        "cat@W, dog@M, dog@E",
        True,
        "",
    ),
    (
        prompt(Clause("dog", 2), Clause("cat", 1, position=("left of", 0)), category="position"),
        "cat@M, dog@W:0.9, dog@E:0.8",
        False,
        "expected cat left of dog, found it right of",
    ),
    # a colour and a position: the colour is looked at first
    (
        prompt(DOG, Clause("cat", color="red", position=("above", 0)), category="position"),
        "red cat@N, dog@S",
        True,
        "",
    ),
    (
        prompt(DOG, Clause("cat", color="red", position=("above", 0)), category="position"),
        "blue cat@N, dog@S",
        False,
        "expected 1 red cat, found blue",
    ),
]


@pytest.mark.parametrize(("asked", "shown", "is_right", "reason"), TABLE)
def test_verdicts_are_those_of_the_table(asked, shown, is_right, reason):
    detections = [detection(text) for text in shown.split(", ") if text]
    verdict = score_detections(detections, asked)
    assert verdict.is_right == is_right
    assert reason in verdict.reason
    assert bool(verdict.reason) != is_right
    assert score_detections(detections[::-1], asked) == verdict  # the order of detections is of no matter


def test_the_table_has_every_category():
    assert len(TABLE) >= 30
    assert {asked.category for asked, *_ in TABLE} == set(CATEGORIES)
    assert 0.3 < np.mean([is_right for _, _, is_right, _ in TABLE]) < 0.6


def test_at_most_sixteen_objects_of_a_class_count():
    many = [Detection("dog", PLACES["M"], 0.99 - index / 1000) for index in range(40)]
    assert len(select_objects(many, "single_object")["dog"]) == 16
    assert select_objects(many, "single_object", Rules(max_objects=2))["dog"] == many[:2]
    assert not score_detections(many, prompt(Clause("dog", 17))).is_right


def test_overlapping_boxes_are_dropped_only_if_asked_to():
    first, second, third = (
        Detection("dog", box, score)
        for box, score in (((0, 0, 9, 9), 0.9), ((0, 0, 9, 4), 0.8), ((50, 50, 59, 59), 0.7))
    )
    assert overlap(first.box, second.box) == 0.5  # edges belong to boxes: 100 pixels and 50 of them
    assert overlap(first.box, third.box) == 0
    for limit, kept in ((1.0, [first, second, third]), (0.6, [first, second, third]), (0.5, [first, third])):
        assert select_objects([third, second, first], "colors", Rules(max_overlap=limit))["dog"] == kept


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ((0, 0, 10, 10), {"left of", "above"}),
        ((200, 100, 210, 110), {"right of"}),
        ((100, 40, 110, 50), {"above"}),
        ((100, 100, 110, 110), set()),  # the same place
        ((60, 80, 70, 90), {"left of"}),  # (-40 + 2, -20 + 2) of 44.7: 0.85 and 0.40
        ((60, 70, 70, 80), {"left of", "above"}),  # (-40 + 2, -30 + 2) of 50: 0.76 and 0.56
    ],
)
def test_positions_of_boxes(box, expected):
    assert relative_positions(box, (100, 100, 110, 110)) == expected
    mirrored = tuple(210 - edge for edge in (box[2], box[3], box[0], box[1]))
    opposite = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
    assert relative_positions(mirrored, (100, 100, 110, 110)) == {opposite[each] for each in expected}


def test_a_wider_margin_needs_a_larger_offset():
    assert relative_positions((0, 0, 20, 20), (40, 0, 60, 20)) == {"left of"}
    assert relative_positions((0, 0, 20, 20), (40, 0, 60, 20), margin=0.5) == frozenset()  # 40 - 20 of 40


# -- scores -----------------------------------------------------------------------------------------------------------


def test_scores_by_category_and_overall():
    prompts = [ONE_DOG, replace(ONE_DOG, text="another"), DOG_AND_CAT, A_RED_DOG]
    right = [[True, True], [True, False], [False, False], [True, True]]
    found = summarise(prompts, right)
    values = {name: summary.score.value for name, summary in found.items()}
    # The mean over categories, not over images.
    assert values == pytest.approx({"single_object": 0.75, "two_object": 0, "colors": 1, "overall": 1.75 / 3})
    assert list(found)[-1] == "overall"
    assert [summary.score.n for summary in found.values()] == [4, 2, 2, 8]
    for summary in found.values():
        hits, counts = np.array(summary.samples).sum(0)
        assert hits / counts == pytest.approx(summary.score.value)
        assert len(summary.samples) == summary.score.n
        assert 0 <= summary.score.low <= summary.score.value <= summary.score.high <= 1
    assert found["colors"].score.low < 0.6  # two images of one prompt prove little


@pytest.mark.parametrize("alike", [0.0, 0.9])
def test_the_interval_accounts_for_images_of_the_same_prompt(alike):
    """Repeated evaluations: the images of a prompt are independent, or nearly always judged alike."""
    rng = np.random.default_rng(0)
    prompts = [replace(ONE_DOG, category=category) for category in CATEGORIES for _ in range(25)]
    values, widths, covered = [], [], 0
    for _ in range(60):
        rates = np.where(rng.random(len(prompts)) < alike, rng.random(len(prompts)) < 0.4, 0.4)
        right = rng.random((len(prompts), 4)) < rates[:, None]
        score = summarise(prompts, right.tolist())["overall"].score
        values.append(score.value)
        widths.append((score.high - score.low) / (2 * 1.96))
        covered += score.low <= 0.4 <= score.high
    assert 0.75 < np.mean(widths) / np.std(values) < 1.35
    assert covered >= 53


def test_all_right_is_not_certain():
    score = summarise([ONE_DOG] * 20, [[True]] * 20)["overall"].score
    assert score.value == score.high == 1
    assert 0.8 < score.low < 1
