"""What the demo model's reader makes of prompts that people type: none is drawn as something else without a word."""

import re
import warnings

import pytest

from triptych import Pipeline
from triptych.errors import UnusualInputWarning, UserError
from triptych.hub.checker import collect_checks
from triptych.hub.readers import as_it_is, reader_named
from triptych.recipes import recipe
from triptych.scenes.captions import plain_caption
from triptych.scenes.parse import parse
from triptych.scenes.prompts import read_full, read_small
from triptych.scenes.samples import scene_sample
from triptych.scenes.world import FULL, SMALL
from triptych.vocab import Task

DRAWN = {
    "cat": "a cat", "CAT!!!": "a cat", "sun": "a sun", "2 dogs": "two dogs", "kitty": "a cat", "two cats!": "two cats",
    "please draw a red heart": "a red heart", "a photo of a fox": "a fox", "pink pig": "a pig",
    "a green frog": "a frog", "an orange fox": "a fox", '"a boat"': "a boat", "A boat, please": "a boat",
    "the sun over the house": "a sun above a house", "a cat, a dog": "a cat and a dog", "two cat": "two cats",
    "two kitties left of a puppy": "two cats left of a dog", "a cat and a dog": "a cat and a dog",
    "a puppy left of an automobile": "a dog left of a {colour} car", "hat": "a {colour} hat",
    "two hats and a red hat": "two {colour} hats and a red hat",
    "three blue hats": "three blue hats", "there is a cat left of a red heart": "there is a cat left of a red heart",
}  # fmt: skip
WARNED = {
    "a blue star": "stars come in no", "a purple cat": "cats come in no",
    "a red cat left of a blue dog": "cats come in no", "three red hearts and a blue house": "houses come in no",
    "a cat on a dog": "'on' is none of the relations", "red": "names no thing", "cats": "say how many cats: two cats",
    "cat dog": "no noun phrase", "no cats": "no noun phrase", "the cat is red": "no noun phrase",
    "three cats and a dog": "at most two each", "four red hearts and two cats": "at most 4 things",
    "a cat and a dog and a fox": "one or two kinds", "how many cats are there?": "a question", "two": "names no thing",
}  # fmt: skip
REFUSED = {
    "five cats": "at most 4 things, not 5", "6 stars": "at most 4 things", "black cat": "cats come in no",
    "a small dog": "the same size", "a cat at night": "backgrounds are always white", "two horses": "no horses",
    "a cat next to a dog": "none of the relations", "a red haert": "did you mean 'heart'", "zebra": "'zebra'",
    "a \U0001f431": "unknown word", "ein hund": "unknown words 'ein', 'hund'", "a black hat": "hats are red",
    "a cat beside a dog and a fox": "a relation holds between two",
}  # fmt: skip


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    return Pipeline.from_pretrained("scenes")


@pytest.mark.parametrize("text", DRAWN)
def test_what_can_be_drawn_is_said_in_the_models_words(text: str) -> None:
    drawn, problem = read_small(text, "image")
    assert problem == ""
    assert re.fullmatch(DRAWN[text].replace("{colour}", f"({'|'.join(SMALL.colours)})"), drawn)
    assert parse(drawn, SMALL) is not None


@pytest.mark.parametrize("text", WARNED)
def test_known_words_that_mean_nothing_here_are_drawn_with_a_warning(text: str, pipe: Pipeline) -> None:
    drawn, problem = read_small(text, "image")
    assert WARNED[text] in problem
    assert drawn == text.rstrip("?")
    with collect_checks() as checks:
        pipe._requests.text_to_image(text)
    (check,) = checks
    assert check.is_unusual
    assert problem in check.message
    assert check.as_json["reason"] == problem


@pytest.mark.parametrize("text", REFUSED)
def test_other_words_are_refused_with_the_reason(text: str) -> None:
    with pytest.raises(UserError) as refused:
        read_small(text, "image")
    assert REFUSED[text] in str(refused.value)
    assert "Say for example" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_reason_that_suggests_a_function_word() -> None:
    with pytest.raises(UserError) as refused:
        read_small("a man", "image")
    assert "many" not in str(refused.value)


@pytest.mark.parametrize("world", [SMALL, FULL], ids=["small", "full"])
def test_captions_of_the_dataset_are_read_as_they_are(world) -> None:
    read = {"small": read_small, "full": read_full}[world.name]
    captions = [scene_sample(Task.IMAGE_TEXT, "validation", i, world=world) for i in range(60)]
    texts = [each.text for each in captions if parse(each.text, world)]
    assert len(texts) > 20
    for text in texts:
        drawn, problem = read(text, "image")
        assert problem == ""
        assert drawn.rstrip(".!?") == text.strip().rstrip(".!?")


def test_every_scene_of_the_small_world_can_be_said_in_the_language_of_the_full_one() -> None:
    for index in range(60):
        scene = scene_sample(Task.IMAGE_TEXT, "train", index, world=SMALL).scene
        drawn, problem = read_small(f"please draw {plain_caption(scene)}", "image")
        assert problem == ""
        assert parse(drawn, SMALL) == parse(plain_caption(scene), SMALL)


def test_questions_and_speech() -> None:
    assert read_small("how many cats are there?", "question").problem == ""
    assert "no question that the model" in read_small("cats", "question").problem
    assert read_small("two cats.", "audio") == ("two cats", "")
    assert "the model speaks captions" in read_small("cat", "audio").problem
    assert "stars come in no" in read_small("a blue star", "audio").problem
    with pytest.raises(UserError, match="unknown word"):
        read_small("hello", "audio")
    assert read_full("say a red cat as emma", "audio") == ("say a red cat as emma", "")
    assert "no question" in read_full("cats", "question").problem


def test_the_demo_model_reads_with_it(pipe: Pipeline) -> None:
    assert recipe("scenes").prompts.reader == pipe.limits.reader == "scenes-small"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cat = pipe.text_to_image("CAT!!!", seed=1, num_steps=1)
        assert cat.tobytes() == pipe.text_to_image("a cat", seed=1, num_steps=1).tobytes()
    with pytest.warns(UnusualInputWarning, match="cats come in no other colour"):
        pipe.text_to_image("a purple cat", seed=1, num_steps=1)
    with pytest.warns(UnusualInputWarning, match="stars come in no colour"):
        pipe.text_to_speech("a blue star", seed=1, num_steps=1)
    with pytest.warns(UnusualInputWarning, match="no question"):
        pipe.answer(cat, "cats")


def test_a_reader_that_is_not_installed_is_named(recwarn) -> None:
    assert reader_named("") is as_it_is
    assert reader_named("nobody-has-this") is as_it_is
    assert "'nobody-has-this'" in str(recwarn[0].message)
    assert {reader_named("scenes-small"), reader_named("scenes-full")} == {read_small, read_full}
