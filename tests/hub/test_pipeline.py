"""Every direction on a small model of random weights: results are nonsense, but of the right form."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from triptych.errors import CheckpointError, DamageWarning, UserError
from triptych.hub.format import Limits
from triptych.hub.integrity import read_raw_config, write_checksums
from triptych.hub.pipeline import Pipeline
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.sample.canvas import Canvas, known, masked
from triptych.sample.config import SAMPLING_PRESETS, SamplingConfig
from triptych.scenes.documents import document
from triptych.scenes.layout import place
from triptych.scenes.samples import scene_sample
from triptych.scenes.vocabulary import words
from triptych.scenes.world import PLURALS, SMALL
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
    return Pipeline(model, bundle, LIMITS, preset="scenes")


@pytest.fixture(scope="module")
def knows_words(pipe):
    return Pipeline(pipe.model, pipe.bundle, replace(LIMITS, words=words(SMALL)), preset="scenes")


@pytest.fixture(scope="module")
def image():
    return scene_sample(Task.IMAGE_TEXT, "test", 0, world=SMALL).image


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


def test_captions_answers_and_transcripts(pipe, image, tone):
    said = pipe.caption([image, image], seed=2, temperature=1.0, sampler="random_order", length="draw")
    again = [pipe.caption(image, seed=2 + i, temperature=1.0, sampler="random_order", length="draw") for i in (0, 1)]
    assert said == again
    assert all(isinstance(text, str) for text in said)
    assert isinstance(pipe.answer(image, "how many cats are there?", **QUICK), str)
    assert isinstance(pipe.transcribe(tone, **QUICK), str)
    assert len(pipe.transcribe((tone, tone), **QUICK)) == 2


def test_answers_pair_images_with_questions(pipe, image):
    asked = ["is there a cat?", "is there a dog?"]
    given = pipe.answer(image, asked, seed=1, **QUICK)
    assert given == pipe.answer([image, image], asked, seed=1, **QUICK)
    assert given[1] == pipe.answer(image, asked[1], seed=2, **QUICK)
    assert len(pipe.answer([image], asked[0], **QUICK)) == 1
    assert "as many questions as images, got 3 and 2" in message_of(lambda: pipe.answer([image] * 2, ["a?"] * 3))
    assert "expected a question, got an empty one" in message_of(lambda: pipe.answer(image, " "))
    assert "expected a text, got int" in message_of(lambda: pipe.answer(image, 5))


def test_an_answer_is_what_follows_the_question(pipe, image, monkeypatch):
    monkeypatch.setattr(pipe.bundle.text, "decode", lambda ids: ["how many cats are there? three"])
    assert pipe.answer(image, "how many cats are there?", **QUICK) == "three"


def test_a_caption_starts_with_a_prompt(pipe, image):
    """The model's own is cut off the answer, a user's is not; both are seen by the model."""
    prompted = Pipeline(pipe.model, pipe.bundle, replace(LIMITS, caption_prompt="a picture of"), preset="scenes")
    bare = prompted.caption(image, prompt="")
    assert bare == pipe.caption(image)
    full = prompted.caption(image, prompt="a picture of")
    assert full.startswith("a picture of")
    assert prompted.caption([image]) == [full.removeprefix("a picture of").strip()]
    assert full == pipe.caption(image, prompt="a picture of") != bare
    seen, _ = prompted.image_to_speech(image, seconds=0.2, num_steps=1)
    assert seen == full


def test_speech_has_the_given_length_or_one_the_model_chooses(pipe):
    tokenizer = pipe.bundle.audio
    half = pipe.text_to_speech("a cat", seconds=0.5, **QUICK)
    assert isinstance(half, Audio)
    assert half.seconds == pytest.approx(0.5, abs=1.01 / tokenizer.frame_rate)
    free = pipe.text_to_speech(["a cat", "a dog"], seed=3, **QUICK)
    longest = (LIMITS.audio_slot - 1) // tokenizer.num_codebooks / tokenizer.frame_rate
    assert all(0 < audio.seconds <= longest + 1 / tokenizer.frame_rate for audio in free)
    assert pipe.text_to_speech("a dog", seed=4, **QUICK).samples.tobytes() == free[1].samples.tobytes()
    for wrong in (0, -1, 60, float("nan"), float("inf")):
        assert "seconds must lie between" in message_of(lambda wrong=wrong: pipe.text_to_speech("a cat", seconds=wrong))


def test_completing_keeps_what_is_there(pipe):
    for text, given in zip(pipe.complete(["a picture of", "there is"], **QUICK), ("a picture of", "there is")):
        assert text.startswith(given)
    assert isinstance(pipe.complete("", **QUICK), str)
    assert "expected a text, got NoneType" in message_of(lambda: pipe.complete(None))


def test_chains_end_where_their_parts_do(pipe, image, tone):
    heard, drawn = pipe.speech_to_image(tone, seed=3, **QUICK)
    assert heard == pipe.transcribe(tone, seed=3)
    assert drawn.size == image.size
    seen, spoken = pipe.image_to_speech(image, seed=3, seconds=0.5, **QUICK)
    assert seen == pipe.caption(image, seed=3)
    assert spoken.seconds == pytest.approx(0.5, abs=0.1)


def test_a_chain_does_not_stop_at_words_it_made_itself(knows_words, tone):
    heard, _ = knows_words.speech_to_image(tone, **QUICK)
    assert set(heard.split()) - set(words(SMALL)), "it made none: nothing was tested"


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
    assert "seed must be a whole number" in message_of(lambda: pipe.text_to_image("a cat", seed="x"))
    assert "2^64 - 1, got 184" in message_of(lambda: pipe.fill([canvas], SamplingConfig(), 2**64))


# -- filling in -------------------------------------------------------------------------------------------------------


def test_infill_leaves_other_pixels_alone(pipe, image):
    side = int(pipe.bundle.image.tokens_per_image**0.5)
    cell = image.width // side
    box = (cell, 2 * cell, 3 * cell, 3 * cell)
    for text in ("a cat", None):
        filled = pixels(pipe.infill_image(image, box, text, **QUICK))
        outside = np.ones(filled.shape[:2], bool)
        outside[box[1] : box[3], box[0] : box[2]] = False
        assert (filled[outside] == pixels(image)[outside]).all()
        assert (filled != pixels(image)).any()


def test_a_box_that_touches_a_code_paints_all_of_it(pipe, image):
    side = int(pipe.bundle.image.tokens_per_image**0.5)
    cell = image.width // side
    exact = pipe.infill_image(image, (cell, cell, 2 * cell, 2 * cell), "a cat", seed=1, **QUICK)
    touched = pipe.infill_image(image, (cell + 1, cell + 2, cell + 3, 2 * cell), "a cat", seed=1, **QUICK)
    assert exact.tobytes() == touched.tobytes()


def test_infill_of_a_image_of_another_size_keeps_its_pixels(pipe, image):
    large = image.resize((150, 100))
    filled = pixels(pipe.infill_image(large, (0, 0, 40, 30), "a cat", **QUICK))
    assert filled.shape == (100, 150, 3)
    assert (filled[50:] == pixels(large)[50:]).all()
    assert (filled[:, 80:] == pixels(large)[:, 80:]).all()


def test_repaint_box_changes_nothing_outside_of_the_box(pipe, image):
    box = (5, 7, 20, 9)
    whole = pipe.repainted_box(image.size, box)
    by_code, by_box = (
        pixels(pipe.infill_image(image, box, "a cat", repaint=repaint, **QUICK)) for repaint in ("codes", "box")
    )
    for filled, (left, top, right, bottom) in ((by_code, whole), (by_box, box)):
        outside = np.ones(filled.shape[:2], bool)
        outside[top:bottom, left:right] = False
        assert (filled[outside] == pixels(image)[outside]).all()
    inside = (slice(box[1], box[3]), slice(box[0], box[2]))
    assert (by_code[inside] == by_box[inside]).all()
    assert (by_code != by_box).any(), "the codes are larger than the box"
    assert "repaint must be codes, box or all" in message_of(lambda: pipe.infill_image(image, box, repaint="some"))


@pytest.mark.parametrize("size", [(64, 64), (150, 100), (37, 90)])
def test_repainted_box_says_which_pixels_change(pipe, image, size):
    rng = np.random.default_rng(0)
    other = image.resize(size)
    for _ in range(5):
        left, top = rng.integers(0, size[0] - 3), rng.integers(0, size[1] - 3)
        box = (int(left), int(top), int(rng.integers(left + 1, size[0] + 1)), int(rng.integers(top + 1, size[1] + 1)))
        changed = (pixels(pipe.infill_image(other, box, **QUICK)) != pixels(other)).any(-1)
        allowed = np.zeros_like(changed)
        x0, y0, x1, y1 = pipe.repainted_box(size, box)
        allowed[y0:y1, x0:x1] = True
        assert not (changed & ~allowed).any()
        assert x0 <= box[0] < box[2] <= x1
        assert y0 <= box[1] < box[3] <= y1


@pytest.mark.parametrize(
    "box", [(0, 0, 0, 5), (5, 0, 2, 5), (-1, 0, 5, 5), (0, 0, 65, 5), (0, 0, 5, 999), (0, 0, 5), (0.5, 0, 5, 5)]
)
def test_boxes_must_lie_within_the_image(pipe, image, box):
    found = message_of(lambda: pipe.infill_image(image, box))
    assert f"the box must be left, top, right, bottom within 64 x 64 pixels, got {box}" in found


def test_gaps_are_filled_and_the_rest_is_kept(pipe, image, tone):
    for beside in ({}, {"image": image}, {"audio": tone}):
        filled = pipe.infill_text("a picture of ___ red ___", **beside, **QUICK)
        assert filled.startswith("a picture of")
        assert " red" in filled
        assert "___" not in filled
    assert "expected a text with gaps, written ___" in message_of(lambda: pipe.infill_text("a cat"))
    both = {"image": image, "audio": tone}
    assert "not both" in message_of(lambda: pipe.infill_text("a ___", **both))


def test_infilled_audio_keeps_its_other_tokens(pipe, tone, monkeypatch):
    tokenizer = pipe.bundle.audio
    before = tokenizer.encode([tone])[0]
    decoded = []
    monkeypatch.setattr(tokenizer, "decode", lambda ids: decoded.extend(ids) or ids)
    first, last = 3, 6
    interval = (0.12, 0.24)  # frames of 40 ms
    for text in ("a cat", None):
        pipe.infill_audio(tone, interval, text, **QUICK)
        (after,) = decoded
        decoded.clear()
        inside = np.zeros(len(before), bool)
        inside[first * tokenizer.num_codebooks : last * tokenizer.num_codebooks] = True
        assert (after[~inside] == before[~inside]).all()
        assert (after >= 0).all()
        assert (after[inside] != before[inside]).any()
    pipe.infill_audio(tone, (0.25, float("inf")), **QUICK)  # to the end
    assert (decoded[0][: len(before) // 4] == before[: len(before) // 4]).all()


@pytest.mark.parametrize(
    "interval", [(0.3, 0.2), (-0.1, 0.2), (0.2, 0.2), (5.0, 6.0), (float("nan"), 1.0), (0.1,), (0.1, float("nan"))]
)
def test_intervals_must_lie_within_the_audio(pipe, tone, interval):
    assert "must be two times within the 0.50 s of the audio" in message_of(lambda: pipe.infill_audio(tone, interval))


# -- what comes in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_images_of_any_mode_and_size(pipe, image, mode):
    assert pipe._inputs.image(image.resize((90, 41)).convert(mode)).ids.shape == (pipe.bundle.image.tokens_per_image,)


def test_what_is_transparent_is_white(pipe):
    size = (pipe.bundle.image.resolution,) * 2
    clear = Image.new("RGBA", size, (0, 0, 0, 0))
    assert pipe._inputs.image(clear).ids.tolist() == pipe._inputs.image(Image.new("RGB", size, "white")).ids.tolist()


def test_a_sound_of_another_rate_is_the_same_sound(pipe, tone):
    twice = Audio(np.interp(np.arange(16_000) / 2, np.arange(8000), tone.samples).astype(np.float32), 32_000)
    ids, again = pipe._inputs.audio(tone).ids, pipe._inputs.audio(twice).ids
    assert len(ids) == len(again)
    assert (ids == again).mean() > 0.8


def test_a_model_trained_without_open_ends_needs_a_length(pipe, image, tone):
    plain = Pipeline(pipe.model, pipe.bundle, Limits(seq_len=224, text_slot=None, audio_slot=None), preset="scenes")
    for call in (
        lambda: plain.caption(image),
        lambda: plain.answer(image, "is there a cat?"),
        lambda: plain.transcribe(tone),
        lambda: plain.complete("a cat"),
    ):
        assert "trained without open ends" in message_of(call)
        assert "num_tokens=N (--num-tokens N)" in message_of(call)
    prompt = len(pipe.bundle.text.encode(["is there a cat?"])[0])
    decoded = pipe.bundle.text.decode
    for call in (
        lambda n: plain.caption(image, num_tokens=n, **QUICK),
        lambda n: plain.answer(image, "is there a cat?", num_tokens=n, **QUICK),
        lambda n: plain.transcribe(tone, num_tokens=n, **QUICK),
        lambda n: plain.complete("a cat", num_tokens=n, **QUICK),
    ):
        assert isinstance(call(5), str)
    assert plain.speech_to_image(tone, num_tokens=5, **QUICK)[1].size == image.size
    assert plain.image_to_speech(image, 0.4, num_tokens=5, **QUICK)[1].seconds == pytest.approx(0.4)
    span = plain._inputs.text_to_write("is there a cat?", 7)
    assert (len(span.ids), span.num_masked) == (prompt + 7, 7)
    assert decoded([span.ids[:prompt]]) == ["is there a cat?"]
    assert "num_tokens must be a whole number of at least 1, got 0" in message_of(
        lambda: plain.complete("a cat", num_tokens=0)
    )
    assert "num_tokens must be at most 217 after the 2 tokens of 'a cat', got 500" in message_of(
        lambda: plain.complete("a cat", num_tokens=500)
    )
    assert "give it with seconds=S" in message_of(lambda: plain.text_to_speech("a cat"))
    assert plain.text_to_speech("a cat", seconds=0.4, **QUICK).seconds == pytest.approx(0.4)
    assert "between 0.04 and 8.76" in message_of(lambda: plain.text_to_speech("a cat", seconds=9))


def test_a_request_longer_than_a_sequence_is_refused(pipe, image):
    short = Pipeline(pipe.model, pipe.bundle, Limits(seq_len=40, text_slot=None, audio_slot=None), preset="scenes")
    assert isinstance(short.caption(image, num_tokens=19, **QUICK), str)  # 1 + 18 + 21 = 40
    assert "the request has 41 tokens in all" in message_of(lambda: short.caption(image, num_tokens=20, **QUICK))


def test_white_space_is_kept_unless_the_model_has_a_word_list(pipe, knows_words):
    text = "a cat\n\n  and  a dog "
    assert pipe.complete(text, num_tokens=1, **QUICK).startswith(text)
    assert pipe.infill_text("a cat\n___ and", **QUICK).startswith("a cat\n")
    assert knows_words.complete(" A cat\n and ", num_tokens=1, **QUICK).startswith("a cat and")


def test_wrong_inputs_are_refused_in_one_line(pipe, image, tone):
    assert "there is no file 'cat.png'" in message_of(lambda: pipe.caption("cat.png"))
    assert "expected an image (path, bytes, PIL image or array), got Audio" in message_of(
        lambda: pipe.infill_image(tone, (0, 0, 9, 9))
    )
    assert "there is no file 'cat.wav'" in message_of(lambda: pipe.transcribe("cat.wav"))
    assert "expected audio" in message_of(lambda: pipe.transcribe(5))
    assert "the box must be left, top, right, bottom" in message_of(lambda: pipe.infill_image(image, None))
    assert "the interval must be two times" in message_of(lambda: pipe.infill_audio(tone, 5))
    assert "the interval must be two times" in message_of(lambda: pipe.infill_audio(tone, ("a", "b")))
    assert "seconds must be a number, got '1'" in message_of(lambda: pipe.text_to_speech("a cat", "1"))
    assert "got no samples" in message_of(lambda: pipe.transcribe(Audio(np.zeros(0, np.float32), 16_000)))
    assert "expected a text, got int" in message_of(lambda: pipe.text_to_image([5]))
    for empty in ("", "  \n"):
        assert "expected a text, got an empty one" in message_of(lambda empty=empty: pipe.text_to_image(empty))
    long = Audio(np.zeros(16_000 * 20, np.float32), 16_000)
    assert "the audio is 20.0 s long, and this model takes at most" in message_of(lambda: pipe.transcribe(long))


def test_images_and_audio_come_as_paths_arrays_and_bytes(pipe, image, tone, tmp_path):
    image.save(tmp_path / "a.png")
    expected = pipe.caption(image, **QUICK)
    for given in (tmp_path / "a.png", str(tmp_path / "a.png"), np.asarray(image), (tmp_path / "a.png").read_bytes()):
        assert pipe.caption(given, **QUICK) == expected
    tone.save(tmp_path / "a.wav")
    stored = Audio.load(tmp_path / "a.wav")
    expected = pipe.transcribe(stored, **QUICK)
    for given in (tmp_path / "a.wav", (stored.samples, 16_000), (tmp_path / "a.wav").read_bytes()):
        assert pipe.transcribe(given, **QUICK) == expected


def test_a_prompt_that_is_too_long(pipe):
    text = "a cat and a dog " * 8
    for call in (pipe.text_to_image, pipe.complete, pipe.text_to_speech):
        found = message_of(lambda call=call: call(text))
        assert "this model takes at most 15" in found
        assert "Shorten it." in found


# -- words ------------------------------------------------------------------------------------------------------------


def test_the_words_of_the_world_are_those_it_says():
    rng = np.random.default_rng(0)
    said = set()
    for _ in range(4000):
        scene = SMALL.sample(rng)
        text = document(scene, place(scene, rng, SMALL), rng, SMALL)
        said |= set(text.replace(".", "").replace("?", "").split())
    assert said <= set(words(SMALL))
    assert set(words(SMALL)) - said <= set(PLURALS.values()) | {"one"}, "a word that is never said"


def test_an_unknown_word_is_named_with_the_nearest_known_one(knows_words, image):
    pipe = knows_words
    knows = f"It knows {len(words(SMALL))} words; `triptych info MODEL --list-words` lists them."
    expected = f"this model does not know the word 'elefant'. Did you mean 'elephant' or 'elephants'? {knows}"
    assert message_of(lambda: pipe.text_to_image("a red elefant")) == expected
    assert message_of(lambda: pipe.complete("an elefant")) == expected
    assert message_of(lambda: pipe.infill_text("___ elefant")) == expected
    assert message_of(lambda: pipe.answer(image, "is there an elefant?")) == expected
    for far in ("zzxqj", "giraffe"):
        assert message_of(lambda far=far: pipe.text_to_image(f"a {far}")) == (
            f"this model does not know the word {far!r}. {knows}"
        )
    assert "'7'" in message_of(lambda: pipe.text_to_image("7 cats"))
    assert "'ca'" in message_of(lambda: pipe.text_to_image("a ca")), "a part of a word is not a word"


def test_capitals_do_not_matter_to_a_model_that_knows_none(knows_words):
    spoken = [
        knows_words._inputs.text(text).ids.tolist() for text in ("A Cat left of two DOGS.", "a cat left of two dogs.")
    ]
    assert spoken[0] == spoken[1]


def test_without_a_list_any_word_will_do(pipe):
    assert len(pipe._inputs.text("zebra").ids) > 0
    assert pipe._inputs.text("Cat").ids.tolist() != pipe._inputs.text("cat").ids.tolist()


# -- settings ---------------------------------------------------------------------------------------------------------


def test_unknown_names_are_answered_with_the_nearest(pipe, image):
    draw = pipe.text_to_image
    assert "unknown argument 'guidence_scale'. Did you mean 'guidance_scale'?" in message_of(
        lambda: draw("a cat", guidence_scale=2)
    )
    assert "unknown preset 'papr'. Did you mean 'paper'?" in message_of(lambda: draw("a cat", preset="papr"))
    found = message_of(lambda: draw("a cat", sampler="maskgitt"))
    assert "unknown sampler 'maskgitt'. Did you mean 'maskgit'?" in found
    assert "no option 'gama'" in message_of(lambda: draw("a cat", options={"gama": 1}))
    assert "guidance needs a known text to hide" in message_of(lambda: pipe.caption(image, guidance_scale=2.0))
    assert "unknown preset 'scene'" in message_of(lambda: Pipeline(pipe.model, pipe.bundle, LIMITS, preset="scene"))


def test_settings_change_the_preset_of_what_is_made(pipe, image, monkeypatch):
    used = []

    def fill(self, canvases, settings, seed=0, callback=None):
        used.append(settings)
        return [Canvas(known(Modality.TEXT, [0]), canvas.media) for canvas in canvases]

    monkeypatch.setattr(Pipeline, "fill", fill)
    pipe.caption(image, preset="paper", temperature=0.7)
    pipe.caption(image, sampler="remdm", options={"eta": 0.2})
    pipe.caption(image)
    pipe.answer(image, "is there a cat?")
    assert (used[0].sampler, used[0].temperature) == ("random_order", 0.7)
    assert (used[1].sampler, used[1].options) == ("remdm", {"eta": 0.2})
    assert used[2] == SAMPLING_PRESETS["scenes"]["caption"]
    assert used[3] == SAMPLING_PRESETS["scenes"][Modality.TEXT]


@pytest.mark.parametrize(
    ("keyword", "hint"),
    [
        ("num_inference_steps", "use num_steps=N"),
        ("generator", "use seed=N"),
        ("negative_prompt", "guidance_scale pushes away"),
        ("max_new_tokens", "use num_tokens=N"),
        ("guidance", "use guidance_scale=S"),
    ],
)
def test_keywords_of_other_libraries_say_what_to_use_instead(pipe, keyword, hint):
    assert hint in message_of(lambda: pipe.text_to_image("a cat", **{keyword: 1}))


# -- any to any -------------------------------------------------------------------------------------------------------


def test_the_call_finds_the_direction(pipe, image, tone):
    box, interval = (0, 0, 16, 16), (0.1, 0.2)
    same = [
        (pipe(output="image", text="a cat", **QUICK), pipe.text_to_image("a cat", **QUICK)),
        (pipe(output="text", image=image, **QUICK), pipe.caption(image, **QUICK)),
        (pipe(output="text", image=image, text="a cat?", **QUICK), pipe.answer(image, "a cat?", **QUICK)),
        (pipe(output="text", image=image, text="a ___", **QUICK), pipe.infill_text("a ___", image=image, **QUICK)),
        (pipe(output="text", text="a cat", **QUICK), pipe.complete("a cat", **QUICK)),
        (pipe(output="text", audio=tone, **QUICK), pipe.transcribe(tone, **QUICK)),
        (pipe(output="image", audio=tone, **QUICK), pipe.speech_to_image(tone, **QUICK)[1]),
        (
            pipe(output="image", image=image, text="a cat", box=box, **QUICK),
            pipe.infill_image(image, box, "a cat", **QUICK),
        ),
    ]
    for found, expected in same:
        assert found == expected
    spoken = [
        (pipe(output="audio", text="a cat", **QUICK), pipe.text_to_speech("a cat", **QUICK)),
        (pipe(output="audio", image=image, seconds=0.4, **QUICK), pipe.image_to_speech(image, 0.4, **QUICK)[1]),
        (pipe(output="audio", audio=tone, interval=interval, **QUICK), pipe.infill_audio(tone, interval, **QUICK)),
    ]
    for found, expected in spoken:
        assert found.samples.tobytes() == expected.samples.tobytes()
    for call in (lambda: pipe("a cat"), lambda: pipe(prompt="a cat"), lambda: pipe(text="a cat")):
        assert 'say what to make: pipe(output="image", text="a cat")' in message_of(call)
    assert "'prompt': use text=TEXT" in message_of(lambda: pipe(output="image", prompt="a cat"))
    assert "output must be text, image or audio, got 'video'" in message_of(lambda: pipe(output="video", text="a"))
    assert "there is no direction from audio and image to text" in message_of(
        lambda: pipe(output="text", image=image, audio=tone)
    )


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
    assert loaded.preset == knows_words.preset
    ours, theirs = (pipe.text_to_image("a cat", seed=1, **QUICK) for pipe in (knows_words, loaded))
    assert ours.tobytes() == theirs.tobytes()
    assert {path.name for path in saved.iterdir()} >= {"config.json", "model.safetensors", "tokenizers"}
    assert json.loads((saved / "config.json").read_text())["limits"]["words"] == list(words(SMALL))


def test_weights_are_stored_in_half_precision_on_request(pipe, saved, tmp_path):
    small = Pipeline(pipe.model, pipe.bundle, LIMITS, card="# mine\n", license="mit")
    small.save_pretrained(tmp_path / "half", dtype="float16")
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (tmp_path / "half", saved)]
    assert sizes[0] < 0.6 * sizes[1]
    loaded = Pipeline.from_pretrained(str(tmp_path / "half"))
    assert (loaded.card, loaded.license) == ("# mine\n", "mit")
    for name, weight in loaded.model.state_dict().items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, pipe.model.state_dict()[name].half().float())
    wrong = message_of(lambda: pipe.save_pretrained(tmp_path / "x", dtype="float8"))
    assert wrong == "dtype must be 'float32' or 'float16' or 'bfloat16' or None, got 'float8'."


def test_a_model_runs_in_bfloat16(saved, image):
    pipe = Pipeline.from_pretrained(saved, dtype="bfloat16")
    assert {parameter.dtype for parameter in pipe.model.parameters()} == {torch.bfloat16}
    assert pipe.text_to_image("a cat", **QUICK).size == image.size
    assert isinstance(pipe.caption(image, **QUICK), str)


def test_devices_that_are_not_there_are_one_line(pipe, saved):
    if not torch.cuda.is_available():
        assert "'cuda' cannot be used: PyTorch finds no CUDA device" in message_of(lambda: pipe.to("cuda"))
    assert "unknown device 'cudda'" in message_of(lambda: Pipeline.from_pretrained(saved, device="cudda"))
    assert "'torch_dtype': use dtype=DTYPE" in message_of(
        lambda: Pipeline.from_pretrained(saved, torch_dtype="float16")
    )
    assert "'device_map': use device=DEVICE" in message_of(lambda: Pipeline.from_pretrained(saved, device_map="auto"))
    assert "unknown argument 'devise'. Did you mean 'device'?" in message_of(
        lambda: Pipeline.from_pretrained(saved, devise="cpu")
    )
    assert "`to` takes a device" in message_of(lambda: pipe.to(torch.float16))
    half = Pipeline.from_pretrained(saved, dtype=torch.bfloat16)
    assert next(half.model.parameters()).dtype == torch.bfloat16
    assert repr(half).startswith("Pipeline(0.1M parameters, 2,085 ids, preset 'scenes', cpu)")


def changed(folder, **fields):
    """Change a model on purpose: its checksums are those of the new files."""
    write_checksums(folder, {**read_raw_config(folder), **fields})


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
    changed(copy)
    found = message_of(lambda: Pipeline.from_pretrained(copy))
    assert "norm.weight is (17,), expected (16,)" in found
    save_file({k: v for k, v in weights.items() if k != "norm.weight"}, copy / "model.safetensors")
    changed(copy)
    assert "norm.weight is None, expected (16,)" in message_of(lambda: Pipeline.from_pretrained(copy))
    (copy / "model.safetensors").write_bytes(b"nothing")
    changed(copy)
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
    changed(copy)
    assert "the folder tokenizers is missing" in message_of(lambda: Pipeline.from_pretrained(copy))
    (copy / "config.json").unlink()
    assert "holds neither a saved model (config.json) nor a run" in message_of(lambda: Pipeline.from_pretrained(copy))


def test_a_name_of_nothing():
    assert "Did you mean 'scenes'?" in message_of(lambda: Pipeline.from_pretrained("scene"))


def test_a_built_in_model_names_its_tokenizers_and_holds_no_copy(pipe, tmp_path):
    pipe.save_pretrained(tmp_path / "model", builtin_tokenizers="scenes")
    assert not (tmp_path / "model/tokenizers").exists()
    assert Pipeline.from_pretrained(tmp_path / "model").complete("a cat", seed=3) == pipe.complete("a cat", seed=3)


def test_a_model_saved_by_an_earlier_version_loads(pipe, tmp_path):
    """`places` and `embedded_tokenizers` were the names of two keys."""
    pipe.save_pretrained(tmp_path / "model", builtin_tokenizers="scenes")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    config["model"]["places"] = config["model"].pop("max_learned_positions")
    config["embedded_tokenizers"] = config.pop("builtin_tokenizers")
    del config["license"], config["limits"]["examples"], config["files"], config["checksum"]
    path.write_text(json.dumps(config))
    with pytest.warns(DamageWarning, match="has no checksums"):
        loaded = Pipeline.from_pretrained(tmp_path / "model")
    assert loaded.complete("a cat", seed=3) == pipe.complete("a cat", seed=3)
