"""Every direction on a small model of random weights: it says nothing sensible, but in the right form."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from huggingface_hub import ModelHubMixin
from PIL import Image
from safetensors.torch import load_file, save_file

from triptych.errors import CheckpointError, UserError
from triptych.hub.pipeline import Limits, Pipeline
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.sample.canvas import Canvas, known, masked
from triptych.sample.generate import SamplingConfig
from triptych.scenes import grammar
from triptych.scenes.samples import scene_sample
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.media import Audio
from triptych.vocab import Modality, Task

SHAPE = ModelConfig(num_layers=1, width=16, num_heads=2, d_ff=24, softmax_scope="modality", init_std=0.5)
LIMITS = Limits(seq_len=224, text_slot=16, audio_slot=64)
QUICK = {"num_steps": 2}


@pytest.fixture(scope="module")
def pipe():
    bundle = TokenizerBundle.load("scenes")
    model = Transformer(SHAPE, bundle.vocabulary)
    initialise(model, 1)
    return Pipeline(model, bundle, LIMITS)


@pytest.fixture(scope="module")
def knows_words(pipe):
    return Pipeline(pipe.model, pipe.bundle, replace(LIMITS, words=grammar.words()))


@pytest.fixture(scope="module")
def picture():
    return scene_sample(Task.IMAGE_TEXT, "test", 0).image


@pytest.fixture(scope="module")
def tone(pipe):
    """Half a second."""
    return Audio((0.3 * np.sin(np.arange(8000) * 0.1)).astype(np.float32), 16_000)


def message_of(call):
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def pixels(image):
    return np.asarray(image)


# -- directions -------------------------------------------------------------------------------------------------------


def test_text_to_image_of_one_and_of_several(pipe):
    prompts = ["a cat", "two dogs left of a red heart", "a cat"]
    drawn = pipe.text_to_image(prompts, seed=4, **QUICK)
    size = (pipe.bundle.image.resolution,) * 2
    assert [(each.size, each.mode) for each in drawn] == [(size, "RGB")] * 3
    assert pixels(pipe.text_to_image(prompts[1], seed=5, **QUICK)).tolist() == pixels(drawn[1]).tolist()
    assert pixels(drawn[0]).tolist() != pixels(drawn[2]).tolist()
    assert pipe.text_to_image([]) == []


def test_captions_answers_and_transcripts(pipe, picture, tone):
    said = pipe.caption([picture, picture], seed=2, temperature=1.0, sampler="random_order", length="draw")
    again = [pipe.caption(picture, seed=2 + i, temperature=1.0, sampler="random_order", length="draw") for i in (0, 1)]
    assert said == again
    assert all(isinstance(text, str) for text in said)
    assert isinstance(pipe.answer(picture, "how many cats are there?", **QUICK), str)
    assert isinstance(pipe.transcribe(tone, **QUICK), str)
    assert len(pipe.transcribe((tone, tone), **QUICK)) == 2


def test_answers_pair_pictures_with_questions(pipe, picture):
    asked = ["is there a cat?", "is there a dog?"]
    given = pipe.answer(picture, asked, seed=1, **QUICK)
    assert given == pipe.answer([picture, picture], asked, seed=1, **QUICK)
    assert given[1] == pipe.answer(picture, asked[1], seed=2, **QUICK)
    assert len(pipe.answer([picture], asked[0], **QUICK)) == 1
    assert "as many questions as pictures, got 3 and 2" in message_of(lambda: pipe.answer([picture] * 2, ["a?"] * 3))
    assert "expected a question, got an empty one" in message_of(lambda: pipe.answer(picture, " "))
    assert "expected a text, got int" in message_of(lambda: pipe.answer(picture, 5))


def test_an_answer_is_what_stands_behind_the_question(pipe, picture, monkeypatch):
    monkeypatch.setattr(Pipeline, "_said", lambda self, canvas: "how many cats are there? three")
    assert pipe.answer(picture, "  how many cats  are there? ", **QUICK) == "three"


def test_a_caption_begins_with_a_prompt(pipe, picture):
    """The model's own is cut off the answer, a user's is not; both are seen by the model."""
    prompted = Pipeline(pipe.model, pipe.bundle, replace(LIMITS, caption_prompt="a picture of"))
    bare = prompted.caption(picture, prompt="")
    assert bare == pipe.caption(picture)
    full = prompted.caption(picture, prompt="a picture of")
    assert full.startswith("a picture of")
    assert prompted.caption([picture]) == [full.removeprefix("a picture of").strip()]
    assert full == pipe.caption(picture, prompt="a picture of") != bare
    seen, _ = prompted.image_to_speech(picture, seconds=0.2, num_steps=1)
    assert seen == full


def test_speech_has_the_length_asked_for_or_one_of_its_own(pipe):
    tokenizer = pipe.bundle.audio
    half = pipe.speak("a cat", seconds=0.5, **QUICK)
    assert isinstance(half, Audio)
    assert half.seconds == pytest.approx(0.5, abs=1.01 / tokenizer.frame_rate)
    free = pipe.speak(["a cat", "a dog"], seed=3, **QUICK)
    longest = (LIMITS.audio_slot - 1) // tokenizer.num_codebooks / tokenizer.frame_rate
    assert all(0 < sound.seconds <= longest + 1 / tokenizer.frame_rate for sound in free)
    assert pipe.speak("a dog", seed=4, **QUICK).samples.tobytes() == free[1].samples.tobytes()
    for wrong in (0, -1, 60, float("nan"), float("inf")):
        assert "seconds must lie between" in message_of(lambda wrong=wrong: pipe.speak("a cat", seconds=wrong))


def test_completing_keeps_what_is_there(pipe):
    for text in pipe.complete(["a picture of", "there  is "], **QUICK):
        assert text.startswith(("a picture of", "there is"))
    assert isinstance(pipe.complete("", **QUICK), str)
    assert "expected a text, got NoneType" in message_of(lambda: pipe.complete(None))


def test_chains_end_where_their_parts_do(pipe, picture, tone):
    heard, drawn = pipe.speech_to_image(tone, seed=3, **QUICK)
    assert heard == pipe.transcribe(tone, seed=3)
    assert drawn.size == picture.size
    seen, spoken = pipe.image_to_speech(picture, seed=3, seconds=0.5, **QUICK)
    assert seen == pipe.caption(picture, seed=3)
    assert spoken.seconds == pytest.approx(0.5, abs=0.1)


def test_a_chain_does_not_stop_at_words_it_made_itself(knows_words, tone):
    heard, _ = knows_words.speech_to_image(tone, **QUICK)
    assert set(heard.split()) - set(grammar.words()), "it made none: nothing was tested"


def test_any_canvas(pipe):
    canvas = Canvas(masked(Modality.TEXT, 3), masked(Modality.IMAGE, pipe.bundle.image.tokens_per_image))
    (done,) = pipe.fill([canvas], SamplingConfig(num_steps=1), seed=np.int64(3))
    assert isinstance(pipe.decode(done.text), str)
    assert pipe.decode(done.media).size == (pipe.bundle.image.resolution,) * 2
    assert "expected one seed for all or 1 seeds, got 2" in message_of(
        lambda: pipe.fill([canvas], SamplingConfig(), [1, 2])
    )
    assert "seeds must lie between 0 and 2^64 - 1, got -1" in message_of(
        lambda: pipe.fill([canvas], SamplingConfig(), -1)
    )
    assert "2^64 - 1, got 184" in message_of(lambda: pipe.fill([canvas], SamplingConfig(), 2**64))


# -- filling in -------------------------------------------------------------------------------------------------------


def test_infill_leaves_other_pixels_alone(pipe, picture):
    side = int(pipe.bundle.image.tokens_per_image**0.5)
    cell = picture.width // side
    box = (cell, 2 * cell, 3 * cell, 3 * cell)
    for text in ("a cat", None):
        filled = pixels(pipe.infill_image(picture, box, text, **QUICK))
        outside = np.ones(filled.shape[:2], bool)
        outside[box[1] : box[3], box[0] : box[2]] = False
        assert (filled[outside] == pixels(picture)[outside]).all()
        assert (filled != pixels(picture)).any()


def test_a_box_that_touches_a_code_paints_all_of_it(pipe, picture):
    side = int(pipe.bundle.image.tokens_per_image**0.5)
    cell = picture.width // side
    exact = pipe.infill_image(picture, (cell, cell, 2 * cell, 2 * cell), "a cat", seed=1, **QUICK)
    touched = pipe.infill_image(picture, (cell + 1, cell + 2, cell + 3, 2 * cell), "a cat", seed=1, **QUICK)
    assert exact.tobytes() == touched.tobytes()


def test_infill_of_a_picture_of_another_size_keeps_its_pixels(pipe, picture):
    large = picture.resize((150, 100))
    filled = pixels(pipe.infill_image(large, (0, 0, 40, 30), "a cat", **QUICK))
    assert filled.shape == (100, 150, 3)
    assert (filled[50:] == pixels(large)[50:]).all()
    assert (filled[:, 80:] == pixels(large)[:, 80:]).all()


@pytest.mark.parametrize(
    "box", [(0, 0, 0, 5), (5, 0, 2, 5), (-1, 0, 5, 5), (0, 0, 65, 5), (0, 0, 5, 999), (0, 0, 5), (0.5, 0, 5, 5)]
)
def test_boxes_must_lie_within_the_picture(pipe, picture, box):
    found = message_of(lambda: pipe.infill_image(picture, box))
    assert f"the box must be left, top, right, bottom within 64 x 64 pixels, got {box}" in found


def test_gaps_are_filled_and_the_rest_is_kept(pipe, picture, tone):
    for beside in ({}, {"image": picture}, {"sound": tone}):
        filled = pipe.infill_text("a picture of ___ red ___", **beside, **QUICK)
        assert filled.startswith("a picture of")
        assert " red" in filled
        assert "___" not in filled
    assert "expected a text with gaps, written ___" in message_of(lambda: pipe.infill_text("a cat"))
    both = {"image": picture, "sound": tone}
    assert "not both" in message_of(lambda: pipe.infill_text("a ___", **both))


def test_infilled_sound_keeps_its_other_tokens(pipe, tone, monkeypatch):
    tokenizer = pipe.bundle.audio
    before = tokenizer.encode([tone])[0]
    decoded = []
    monkeypatch.setattr(Pipeline, "_sound", lambda self, canvas: decoded.append(canvas.media.ids))
    first, last = 3, 6
    interval = (0.12, 0.24)  # frames of 40 ms
    for text in ("a cat", None):
        pipe.infill_sound(tone, interval, text, **QUICK)
        (after,) = decoded
        decoded.clear()
        inside = np.zeros(len(before), bool)
        inside[first * tokenizer.num_codebooks : last * tokenizer.num_codebooks] = True
        assert (after[~inside] == before[~inside]).all()
        assert (after >= 0).all()
        assert (after[inside] != before[inside]).any()
    pipe.infill_sound(tone, (0.25, float("inf")), **QUICK)  # to the end
    assert (decoded[0][: len(before) // 4] == before[: len(before) // 4]).all()


@pytest.mark.parametrize(
    "interval", [(0.3, 0.2), (-0.1, 0.2), (0.2, 0.2), (5.0, 6.0), (float("nan"), 1.0), (0.1,), (0.1, float("nan"))]
)
def test_intervals_must_lie_within_the_sound(pipe, tone, interval):
    assert "must be two times within the 0.50 s of the sound" in message_of(lambda: pipe.infill_sound(tone, interval))


# -- what comes in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_pictures_of_any_mode_and_size(pipe, picture, mode):
    assert pipe._image(picture.resize((90, 41)).convert(mode)).ids.shape == (pipe.bundle.image.tokens_per_image,)


def test_what_is_transparent_is_white(pipe):
    size = (pipe.bundle.image.resolution,) * 2
    clear = Image.new("RGBA", size, (0, 0, 0, 0))
    assert pipe._image(clear).ids.tolist() == pipe._image(Image.new("RGB", size, "white")).ids.tolist()


def test_a_sound_of_another_rate_is_the_same_sound(pipe, tone):
    twice = Audio(np.interp(np.arange(16_000) / 2, np.arange(8000), tone.samples).astype(np.float32), 32_000)
    ids, again = pipe._audio(tone).ids, pipe._audio(twice).ids
    assert len(ids) == len(again)
    assert (ids == again).mean() > 0.8


def test_a_model_that_never_learned_lengths_does_not_choose_them(pipe, picture, tone):
    plain = Pipeline(pipe.model, pipe.bundle, Limits(seq_len=224, text_slot=None, audio_slot=None))
    assert "trained without open ends" in message_of(lambda: plain.caption(picture))
    assert "Give the seconds" in message_of(lambda: plain.speak("a cat"))
    assert plain.speak("a cat", seconds=0.4, **QUICK).seconds == pytest.approx(0.4)
    assert "between 0.04 and 8.76" in message_of(lambda: plain.speak("a cat", seconds=9))


def test_what_is_not_what_it_should_be(pipe, picture, tone):
    assert "expected a picture (PIL.Image), got str" in message_of(lambda: pipe.caption("cat.png"))
    assert "expected a picture (PIL.Image), got Sound" in message_of(lambda: pipe.infill_image(tone, (0, 0, 9, 9)))
    assert "expected a Sound, got str" in message_of(lambda: pipe.transcribe("cat.wav"))
    assert "one without samples" in message_of(lambda: pipe.transcribe(Audio(np.zeros(0, np.float32), 16_000)))
    assert "expected a text, got int" in message_of(lambda: pipe.text_to_image([5]))
    for empty in ("", "  \n"):
        assert "expected a text, got an empty one" in message_of(lambda empty=empty: pipe.text_to_image(empty))
    long = Audio(np.zeros(16_000 * 20, np.float32), 16_000)
    assert "the sound is 20.0 s long, and this model knows at most" in message_of(lambda: pipe.transcribe(long))


def test_a_prompt_that_is_too_long(pipe):
    text = "a cat and a dog " * 8
    for call in (pipe.text_to_image, pipe.complete, pipe.speak):
        found = message_of(lambda call=call: call(text))
        assert "this model knows texts of at most 15" in found
        assert "Shorten it." in found


# -- words ------------------------------------------------------------------------------------------------------------


def test_the_words_of_the_world_are_those_it_says():
    rng = np.random.default_rng(0)
    said = set()
    for _ in range(4000):
        said |= set(grammar.document(grammar.sample_scene(rng), rng).replace(".", "").replace("?", "").split())
    assert said <= set(grammar.words())
    assert set(grammar.words()) - said <= set(grammar.KINDS.values()) | {"one"}, "a word that is never said"


def test_an_unknown_word_is_named_with_the_nearest_known_one(knows_words, picture):
    pipe = knows_words
    number = len(grammar.words())
    expected = f"this model does not know the word 'elefant'. Did you mean 'elephant'? It knows {number} words."
    assert message_of(lambda: pipe.text_to_image("a red elefant")) == expected
    assert message_of(lambda: pipe.complete("an elefant")) == expected
    assert message_of(lambda: pipe.infill_text("___ elefant")) == expected
    assert message_of(lambda: pipe.answer(picture, "is there an elefant?")) == expected
    far = message_of(lambda: pipe.text_to_image("a zzxqj"))
    assert far == f"this model does not know the word 'zzxqj'. It knows {number} words."
    assert "'7'" in message_of(lambda: pipe.text_to_image("7 cats"))
    assert "'ca'" in message_of(lambda: pipe.text_to_image("a ca")), "a piece of a word is no word"


def test_capitals_do_not_matter_to_a_model_that_knows_none(knows_words):
    spoken = [knows_words._text(text).ids.tolist() for text in ("A Cat left of two DOGS.", "a cat left of two dogs.")]
    assert spoken[0] == spoken[1]


def test_without_a_list_any_word_will_do(pipe):
    assert len(pipe._text("zebra").ids) > 0
    assert pipe._text("Cat").ids.tolist() != pipe._text("cat").ids.tolist()


# -- settings ---------------------------------------------------------------------------------------------------------


def test_unknown_names_are_answered_with_the_nearest(pipe, picture):
    draw = pipe.text_to_image
    assert "unknown setting 'guidence'. Did you mean 'guidance'?" in message_of(lambda: draw("a cat", guidence=2))
    assert "unknown preset 'papr'. Did you mean 'paper'?" in message_of(lambda: draw("a cat", preset="papr"))
    found = message_of(lambda: draw("a cat", sampler="maskgitt"))
    assert "unknown sampler 'maskgitt'. Did you mean 'maskgit'?" in found
    assert "no option 'gama'" in message_of(lambda: draw("a cat", options={"gama": 1}))
    assert "guidance works against a hidden text" in message_of(lambda: pipe.caption(picture, guidance_scale=2.0))
    assert "unknown preset 'scene'" in message_of(lambda: Pipeline(pipe.model, pipe.bundle, LIMITS, presets="scene"))


def test_settings_change_the_preset_of_what_is_made(pipe, picture, monkeypatch):
    used = []

    def fill(self, canvases, settings, seed=0, callback=None):
        used.append(settings)
        return [Canvas(known(Modality.TEXT, [0]), canvas.media) for canvas in canvases]

    monkeypatch.setattr(Pipeline, "fill", fill)
    pipe.caption(picture, preset="paper", temperature=0.7)
    pipe.caption(picture, sampler="remdm", options={"eta": 0.2})
    pipe.caption(picture)
    pipe.answer(picture, "is there a cat?")
    assert (used[0].sampler, used[0].temperature) == ("random_order", 0.7)
    assert (used[1].sampler, used[1].options) == ("remdm", {"eta": 0.2})
    assert used[2] == pipe.presets["caption"]
    assert used[3] == pipe.presets[Modality.TEXT]


# -- saved models -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(knows_words, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    knows_words.save_pretrained(folder)
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def test_a_saved_model_draws_the_same_to_the_bit(saved, knows_words):
    loaded = Pipeline.from_pretrained(saved)
    assert loaded.limits == knows_words.limits
    assert loaded.presets is knows_words.presets
    ours, theirs = (pipe.text_to_image("a cat", seed=1, **QUICK) for pipe in (knows_words, loaded))
    assert ours.tobytes() == theirs.tobytes()
    assert {path.name for path in saved.iterdir()} >= {"config.json", "model.safetensors", "tokenizers", "README.md"}
    assert json.loads((saved / "config.json").read_text())["limits"]["words"] == list(grammar.words())


def test_half_the_size(pipe, saved, tmp_path):
    small = Pipeline(pipe.model, pipe.bundle, LIMITS, card="# mine\n")
    small.half = True
    small.save_pretrained(tmp_path / "half")
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (tmp_path / "half", saved)]
    assert sizes[0] < 0.6 * sizes[1]
    loaded = Pipeline.from_pretrained(str(tmp_path / "half"))
    assert loaded.card == "# mine\n"
    for name, weight in loaded.model.state_dict().items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, pipe.model.state_dict()[name].half().float())


def changed(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_model_of_other_tokenizers_is_refused(copy, pipe):
    changed(copy, vocabulary="0" * 64)
    with pytest.raises(CheckpointError):
        Pipeline.from_pretrained(copy)
    assert "was trained with other tokenizers" in message_of(lambda: Pipeline.from_pretrained(copy))
    other = replace(pipe.vocabulary, text=pipe.vocabulary.text + 1)
    found = message_of(lambda: Pipeline(Transformer(SHAPE, other), pipe.bundle, LIMITS))
    assert "the model has the vocabulary" in found


def test_weights_of_another_shape_are_refused(copy):
    weights = load_file(copy / "model.safetensors")
    save_file({**weights, "norm.weight": torch.ones(17)}, copy / "model.safetensors")
    found = message_of(lambda: Pipeline.from_pretrained(copy))
    assert "norm.weight is (17,), expected (16,)" in found
    save_file({k: v for k, v in weights.items() if k != "norm.weight"}, copy / "model.safetensors")
    assert "norm.weight is None, expected (16,)" in message_of(lambda: Pipeline.from_pretrained(copy))
    (copy / "model.safetensors").write_bytes(b"nothing")
    assert "cannot be read as safetensors" in message_of(lambda: Pipeline.from_pretrained(copy))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"format": "other", "version": 1}', '{"format": "triptych-model", "version": 1}']
)
def test_a_folder_that_is_no_model(copy, content):
    (copy / "config.json").write_text(content)
    assert "is not a saved Triptych model: config.json" in message_of(lambda: Pipeline.from_pretrained(copy))


def test_a_model_that_lacks_a_part(copy):
    for wrong in ({"limits": {"seq_len": 4}}, {"model": {"width": 16}}):
        before = (copy / "config.json").read_text()
        changed(copy, **wrong)
        assert "is not a saved Triptych model" in message_of(lambda: Pipeline.from_pretrained(copy))
        (copy / "config.json").write_text(before)
    changed(copy, presets="scene")
    assert "unknown preset 'scene'" in message_of(lambda: Pipeline.from_pretrained(copy))
    shutil.rmtree(copy / "tokenizers")
    assert "the folder tokenizers is missing" in message_of(lambda: Pipeline.from_pretrained(copy))
    (copy / "config.json").unlink()
    assert "is not a saved Triptych model" in message_of(lambda: Pipeline.from_pretrained(copy))


def test_a_name_of_nothing(monkeypatch):
    assert "Did you mean 'scenes'?" in message_of(lambda: Pipeline.from_pretrained("scene"))

    def offline(*_, **__):
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(ModelHubMixin, "from_pretrained", classmethod(offline))
    found = message_of(lambda: Pipeline.from_pretrained("some/model"))
    assert found == "'some/model' is no folder, and the hub gave no such model (ConnectionError: no network)."


def test_an_embedded_model_names_its_tokenizers_and_holds_no_copy(pipe, tmp_path):
    pipe.embedded_tokenizers = "scenes"
    try:
        pipe.save_pretrained(tmp_path / "model")
    finally:
        pipe.embedded_tokenizers = None
    assert not (tmp_path / "model/tokenizers").exists()
    assert Pipeline.from_pretrained(tmp_path / "model").complete("a cat", seed=3) == pipe.complete("a cat", seed=3)
