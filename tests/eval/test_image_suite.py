"""The suite of images on the demo model, with small judges of random weights and the exact judge of the toy dataset."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from triptych.errors import DataError, UserError
from triptych.eval.frechet import Gaussian, frechet_score, save_gaussian
from triptych.eval.geneval.detection import Detection
from triptych.eval.geneval.evaluate import geneval_table
from triptych.eval.geneval.prompts import CATEGORIES, Clause, GenEvalPrompt, Wording, sample_prompts
from triptych.eval.image import inception as inception_module
from triptych.eval.image.features import Dinov2Extractor, FeatureSpec
from triptych.eval.image.inception import kernel_score
from triptych.eval.image.neighbours import compare_neighbours
from triptych.eval.image.prompts import read_prompt_file
from triptych.eval.image.reference import Framing, open_images
from triptych.eval.image.settings import feature_metrics, geneval_metric
from triptych.eval.image.suite import ImageSettings, image_suite
from triptych.eval.metrics import Missing, Result
from triptych.eval.records import RecordStore
from triptych.eval.suite import Evaluation, ModelSource
from triptych.hub.pipeline import Pipeline
from triptych.scenes.judge import detect
from triptych.scenes.samples import scene_sample
from triptych.scenes.world import SMALL, colour_of
from triptych.vocab import Task

transformers = pytest.importorskip("transformers")
FAST = {"num_steps": 2}
N = 12


@pytest.fixture(scope="module")
def pipe():
    return Pipeline.from_pretrained("scenes", check_inputs=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Scenes with their captions."""
    folder = tmp_path_factory.mktemp("scenes")
    for number in range(16):
        sample = scene_sample(Task.IMAGE_TEXT, "test", number, world=SMALL)
        sample.image.resize((80, 64)).save(folder / f"{number:02d}.png")
        (folder / f"{number:02d}.txt").write_text(sample.text)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("judges") / "tiny"
    config = transformers.Dinov2Config(
        hidden_size=4, num_hidden_layers=1, num_attention_heads=1, image_size=28, patch_size=28
    )
    transformers.Dinov2Model(config).save_pretrained(folder)
    return folder


@pytest.fixture
def run(pipe, weights, tmp_path):
    """Runs the suite; returns results and what is missing, by the name of the metric."""

    def run(out="out", seed=0, lines=None, **settings):
        settings = {"features": [f"dinov2={weights}"], "sampling": FAST, "geneval": None, **settings}
        settings.setdefault("cache", tmp_path / "cache")
        report = (lambda line: None) if lines is None else lines.append
        evaluation = Evaluation(pipe, tmp_path / out, RecordStore(), report, seed)
        outcomes = list(image_suite(evaluation, ImageSettings(**settings)))
        names = [outcome.metric.name for outcome in outcomes]
        assert len(set(names)) == len(names)
        found = {each.metric.name: each for each in outcomes if isinstance(each, Result)}
        return found, {each.metric.name: each.reason for each in outcomes if isinstance(each, Missing)}

    return run


# -- against a reference ----------------------------------------------------------------------------------------------


def test_values_are_those_of_the_images(run, pipe, data, weights, tmp_path):
    """Computed once more from the images that are kept, by the functions alone."""
    found, missing = run(data=data, num_samples=N, keep_images=tmp_path / "kept", seed=3)
    kept = tmp_path / "kept" / "captions"
    network = Dinov2Extractor(str(weights))
    images = [Image.open(kept / f"{number:05d}.png") for number in range(N)]
    framing = Framing("pad", 64)
    reference = network([framing(Image.open(path)) for _, path in open_images(data)])
    generated = network(images)
    stored = np.load(tmp_path / "out" / found["fid_dinov2"].features)
    np.testing.assert_allclose(stored, generated, atol=1e-5)
    expected = frechet_score(generated, Gaussian.of_features(reference))[0]
    assert found["fid_dinov2"].score.value == pytest.approx(expected.value, rel=1e-3)
    assert found["kid_dinov2"].score.value == pytest.approx(kernel_score(generated, reference)[0].value, rel=1e-3)
    subset = reference[np.sort(np.random.default_rng(0).permutation(16)[:N])]
    neighbours = compare_neighbours(generated, subset)
    for name in ("precision", "recall", "density", "coverage"):
        assert found[f"{name}_dinov2"].score.value == pytest.approx(getattr(neighbours, name).mean())
    assert set(missing) == {"clip_score"}
    # Every image is that of its prompt and its own seed.
    prompts = json.loads((kept / "images.json").read_text())["prompts"]
    assert set(prompts) <= {path.read_text() for path in data.glob("*.txt")}
    alone = pipe.text_to_image(prompts[7], seed=3 + 7, **FAST)
    np.testing.assert_array_equal(np.asarray(alone), np.asarray(images[7]))


def test_results_say_what_they_depend_on(run, data, tmp_path):
    found, _ = run(data=data, num_samples=N)
    for name, result in found.items():
        assert result.score.low <= result.score.value <= result.score.high, name
        assert result.judge.name == "DINOv2 (tiny)"
        assert result.settings["num_samples"] == N
        assert result.settings["num_reference"] == 16
        assert result.settings["framing"] == "pad"
        assert result.settings["reference"] == str(data)
        assert result.settings["reference_sha256"] == open_images(data).fingerprint
        assert result.settings["sampling"]["num_steps"] == 2
        sums = np.array(result.samples).sum(0)
        assert sums[0] / sums[1] == pytest.approx(result.score.value, abs=1e-9), name
    shown = json.loads((tmp_path / "out" / "samples" / "image" / "prompts.json").read_text())
    assert len(shown) == N
    assert Image.open(tmp_path / "out" / "samples" / "image" / shown[0]["file"]).size == (64, 64)


def test_two_evaluations_in_one_folder_keep_their_images_and_features_apart(run, data, tmp_path):
    first, second = (run(data=data, num_samples=3, seed=seed)[0]["fid_dinov2"].features for seed in (0, 1))
    assert first != second
    assert not np.array_equal(*(np.load(tmp_path / "out" / name) for name in (first, second)))
    shown = tmp_path / "out" / "samples" / "image"
    rows = json.loads((shown / "prompts.json").read_text())
    assert len(rows) == len({row["file"] for row in rows}) == 6
    assert all((shown / row["file"]).is_file() for row in rows)


def test_few_samples_are_said_to_be_few(run, data):
    lines = []
    found, _ = run(data=data, num_samples=3, lines=lines)
    assert "3 generated images for 4 features" in found["fid_dinov2"].settings["warning"]
    assert any("singular" in line for line in lines)
    assert "warning" not in run(data=data, num_samples=N)[0]["fid_dinov2"].settings


def test_three_images_have_no_precision(run, data):
    found, missing = run(data=data, num_samples=3)
    assert "fid_dinov2" in found
    assert "needs more than 5 generated and reference images, got 3" in missing["precision_dinov2"]


def test_extrapolation_is_an_option(run, data):
    found, _ = run(data=data, num_samples=N, extrapolate=True)
    assert found["fid_infinity_dinov2"].score.value < found["fid_dinov2"].score.value
    lines = []
    _, missing = run(data=data, num_samples=5, extrapolate=True, lines=lines)
    assert "FID of DINOv2 will not be extrapolated: it needs 8 generated samples, and there are 5" in lines[0]
    assert "at least 8 generated samples (2 d), got 5" in missing["fid_infinity_dinov2"]


def test_the_same_seed_gives_the_same_values_and_models_are_compared_in_pairs(run, data):
    first, again, other = (run(data=data, num_samples=N, seed=seed)[0]["fid_dinov2"] for seed in (0, 0, 1))
    assert first.samples == again.samples
    assert first.samples != other.samples


def test_a_stopped_evaluation_resumes(pipe, data, weights, tmp_path, monkeypatch):
    settings = ImageSettings(
        data=data, num_samples=16, sampling=FAST, geneval=None, features=[f"dinov2={weights}"], cache=tmp_path / "cache"
    )
    calls = []

    def counted(texts, **sampling):
        calls.append(len(texts))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(texts, **sampling)

    original = pipe.text_to_image
    monkeypatch.setattr(pipe, "text_to_image", counted)

    def run(folder):
        records = RecordStore(tmp_path / folder)
        try:
            return list(image_suite(Evaluation(pipe, tmp_path / "out", records, lambda line: None), settings))
        finally:
            records.close()

    with pytest.raises(KeyboardInterrupt):
        run("records")
    resumed = run("records")
    assert calls == [10, 6, 6]
    whole = run("others")
    assert [each.score for each in resumed if isinstance(each, Result)] == [
        each.score for each in whole if isinstance(each, Result)
    ]


def test_kept_images_are_not_generated_again(run, pipe, data, weights, tmp_path, monkeypatch):
    keep = tmp_path / "kept"
    first, _ = run(data=data, num_samples=N, keep_images=keep)
    (keep / "captions" / "00004.png").write_bytes(b"damaged")
    drawn = []
    original = pipe.text_to_image
    monkeypatch.setattr(pipe, "text_to_image", lambda texts, **s: drawn.append(len(texts)) or original(texts, **s))
    again, _ = run(data=data, num_samples=N, keep_images=keep)
    assert drawn == [1]
    assert again["fid_dinov2"].samples == first["fid_dinov2"].samples
    with pytest.raises(UserError, match="holds other files or images of another evaluation"):
        run(data=data, num_samples=N, keep_images=keep, seed=1)


@pytest.fixture
def yolos(tmp_path):
    """A detector that other processes can load."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = transformers.YolosConfig(
        **sizes, image_size=[32, 32], patch_size=16, num_detection_tokens=9, id2label={0: "cat", 1: "dog"}
    )
    transformers.YolosForObjectDetection(config).save_pretrained(tmp_path / "yolos")
    preprocessing = {"image_processor_type": "YolosImageProcessor", "size": {"height": 32, "width": 32}}
    (tmp_path / "yolos" / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    return str(tmp_path / "yolos")


@pytest.mark.slow
def test_several_processes_give_the_same_results(data, weights, yolos, tmp_path):
    texts = {"a cat": "cat", "a dog": "dog", "two dogs": "dog"}
    prompts = [GenEvalPrompt("single_object", text, (Clause(name),)) for text, name in texts.items()]
    results = []
    for nproc in (1, 2):
        evaluation = Evaluation(
            ModelSource("scenes", "cpu"), tmp_path / f"out-{nproc}", RecordStore(), lambda line: None, nproc=nproc
        )
        settings = ImageSettings(
            data=data,
            num_samples=N,
            sampling=FAST,
            features=[f"dinov2={weights}"],
            cache=tmp_path / f"cache-{nproc}",
            geneval=prompts,
            detector=yolos,
        )
        results.append({each.metric.name: each for each in image_suite(evaluation, settings)})
    one, two = results
    assert list(one) == list(two)
    assert 0 < one["geneval"].score.value <= 1
    assert one["geneval"].samples == two["geneval"].samples
    assert one["geneval"].score.n == 12
    assert two["fid_dinov2"].score.value == pytest.approx(one["fid_dinov2"].score.value, rel=1e-4)


# -- prompts ----------------------------------------------------------------------------------------------------------


def test_prompts_from_a_file_need_no_captions(run, data, tmp_path):
    (tmp_path / "prompts.txt").write_text("two cats\n\na red heart\na dog\n")
    found, _ = run(data=data, prompts=tmp_path / "prompts.txt")
    assert found["fid_dinov2"].settings["num_samples"] == 3
    assert found["fid_dinov2"].settings["prompts"].endswith("prompts.txt")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "two cats"}\n{"text": "a\u2028dog"}\n', encoding="utf-8")
    assert read_prompt_file(tmp_path / "prompts.jsonl") == ["two cats", "a\u2028dog"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.txt", "two cats\na zeppelin\n", "the model does not take 'a zeppelin'"),
        ("p.txt", " \n", "holds no prompts"),
        ("p.txt", "two cats\n", "has one prompt"),
        ("p.jsonl", '{"words": "two cats"}\n', r"p\.jsonl:1 has no prompt"),
        ("p.jsonl", "two cats\n", r"p\.jsonl:1 has no prompt"),
    ],
)
def test_prompts_that_cannot_be_used_are_named(run, data, tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=words) as caught:
        run(data=data, prompts=tmp_path / name)
    assert "\n" not in str(caught.value)


def test_captions_that_the_model_refuses_are_left_out_if_they_are_few(run, data, tmp_path):
    copy = tmp_path / "data"
    copy.mkdir()
    for path in data.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "03.txt").write_text("a zeppelin over the sea")
    found, _ = run(data=copy)
    assert found["fid_dinov2"].settings["num_samples"] == 15
    assert found["fid_dinov2"].settings["prompts_left_out"] == 1
    for number in (5, 6):
        (copy / f"{number:02d}.txt").write_text("an airship")
    with pytest.raises(DataError, match="does not take 3 of the 16 captions of "):
        run(data=copy)
    with pytest.raises(DataError, match=r"num_samples=17 needs as many prompts, and .* has 16"):
        run(data=copy, num_samples=17)


# -- CLIP -------------------------------------------------------------------------------------------------------------


def test_clip_scores_are_means_over_pairs(run, data, tmp_path, monkeypatch):
    from triptych.eval.image import suite as module

    class FakeClip:
        name, sha256 = "CLIP (fake)", "0" * 64

        def scores(self, images, texts):
            return np.array([10 * len(text.split()) for text in texts])

        def is_cut_off(self, text):
            return len(text.split()) > 2

    monkeypatch.setattr(module, "ClipModel", lambda source, device: FakeClip())
    (tmp_path / "prompts.txt").write_text("two cats\na red heart\na dog\n")
    found, missing = run(prompts=tmp_path / "prompts.txt", clip="fake")
    assert found["clip_score"].score.value == pytest.approx((20 + 30 + 20) / 3)
    assert found["clip_score"].samples == [(20.0, 1.0), (30.0, 1.0), (20.0, 1.0)]
    assert found["clip_score"].settings["prompts_cut_off"] == 1
    assert missing["fid_dinov2"].startswith("needs reference images")


# -- GenEval ----------------------------------------------------------------------------------------------------------


class SceneDetector:
    """The exact judge of the toy dataset."""

    name, sha256, names_colors = "exact judge of the toy dataset", "", True
    classes = frozenset(SMALL.kinds)

    def __call__(self, images):
        return [
            [
                Detection(item.look[0], (item.x, item.y, item.x + item.width, item.y + item.width), 1.0, _color(item))
                for item in found.picture.objects
            ]
            for found in detect(images, SMALL)
        ]


def _color(item):
    return colour_of(item.look) or "several"


_WORDING = Wording(prefix="")
PROMPTS = [
    *[p for p in sample_prompts(("cat", "dog", "owl"), n=1, seed=0, wording=_WORDING) if not p.needs_color],
    *[p for p in sample_prompts(("heart", "car"), ("red", "blue"), n=1, seed=0, wording=_WORDING) if p.needs_color],
]


def test_geneval_has_all_categories_and_their_mean(run, tmp_path):
    found, missing = run(
        geneval=PROMPTS, detector=SceneDetector(), images_per_prompt=3, sampling={}, keep_images=tmp_path / "kept"
    )
    table = geneval_table(list(found.values()))
    assert list(table) == [*CATEGORIES, "overall"]
    assert table["overall"].value == pytest.approx(np.mean([table[name].value for name in CATEGORIES]))
    assert table["overall"].value > 0.5  # the demo model draws what it is asked to
    assert table["overall"].n == 3 * len(PROMPTS)
    assert found["geneval"].judge.name == SceneDetector.name
    assert found["geneval"].settings["images_per_prompt"] == 3
    assert found["geneval"].settings["rules"]["counting_threshold"] == 0.9
    assert found["geneval"].settings["colors_by"] is None
    # The folders are those that the official evaluation reads.
    for number, prompt in enumerate(PROMPTS):
        folder = tmp_path / "kept" / "geneval" / f"{number:05d}"
        assert json.loads((folder / "metadata.jsonl").read_text()) == json.loads(json.dumps(prompt.as_json))
        assert sorted(path.name for path in (folder / "samples").iterdir()) == ["0000.png", "0001.png", "0002.png"]
        verdicts = SceneDetector()([Image.open(path) for path in sorted((folder / "samples").iterdir())])
        assert len(verdicts) == 3
    assert "fid_dinov2" in missing


def test_categories_with_colours_need_something_that_names_them(run):
    class Blind(SceneDetector):
        names_colors = False

    found, missing = run(geneval=PROMPTS, detector=Blind(), images_per_prompt=1)
    assert {"geneval/colors", "geneval/color_attr", "geneval"} <= set(missing)
    assert "needs CLIP" in missing["geneval"]
    assert set(found) == {f"geneval/{name}" for name in CATEGORIES if not name.startswith("color")}


def test_without_a_detector_every_category_is_missing(run):
    found, missing = run(geneval="official")
    assert not found
    assert {geneval_metric(name).name for name in (*CATEGORIES, "overall")} <= set(missing)
    assert "facebook/mask2former-swin-small-coco-instance" in missing["geneval"]
    assert "there is no folder" in run(geneval="official", detector="nothing-here")[1]["geneval"]


def test_prompts_beyond_the_detector_or_the_model_are_refused_before_an_image_is_drawn(run, pipe, monkeypatch):
    monkeypatch.setattr(pipe, "text_to_image", lambda *args, **sampling: pytest.fail("drawn too early"))
    assert "does not find 80 of the classes" not in run(geneval=PROMPTS)[1]["geneval"]
    unknown = [GenEvalPrompt("single_object", "a zeppelin", (Clause("zeppelin"),))]
    assert (
        "does not find 1 of the classes in the prompts, such as 'zeppelin'"
        in (run(geneval=unknown, detector=SceneDetector())[1]["geneval"])
    )
    words = [GenEvalPrompt("single_object", "a photograph of a cat", (Clause("cat"),))]
    assert "the model does not take 1 of the 1 prompts" in run(geneval=words, detector=SceneDetector())[1]["geneval"]


# -- what is missing or wrong -----------------------------------------------------------------------------------------


def test_without_data_everything_is_missing_with_a_reason(run, weights):
    found, missing = run(features=["inception", f"dinov2={weights}"])
    assert not found
    expected = {
        metric.name
        for text in ("inception", "dinov2=x")
        for metric in feature_metrics(FeatureSpec.parse(text)).values()
    }
    assert set(missing) == expected | {"clip_score"}
    assert "fid" in expected
    assert all(reason and "\n" not in reason for reason in missing.values())


def test_a_network_that_is_not_there_does_not_stop_the_others(run, data, weights):
    found, missing = run(data=data, num_samples=6, features=[f"dinov2={weights}", "clip=nowhere"], clip="nowhere")
    assert "fid_dinov2" in found
    assert "there is no folder 'nowhere'" in missing["fid_clip"]
    assert "there is no folder 'nowhere'" in missing["clip_score"]


def test_published_statistics_give_fid_alone(run, data, tmp_path):
    rng = np.random.default_rng(0)
    save_gaussian(tmp_path / "stats.npz", Gaussian.of_features(rng.random((30, 2048))))
    (tmp_path / "prompts.txt").write_text("two cats\na dog\n")
    found, missing = run(data=tmp_path / "stats.npz", prompts=tmp_path / "prompts.txt", features=["inception"])
    assert found["fid"].score.value > 0
    assert found["fid"].settings["num_reference"] == 30
    assert "statistics alone" in missing["kid"]
    _, missing = run(data=tmp_path / "stats.npz", prompts=tmp_path / "prompts.txt")
    assert "statistics of Inception-v3 alone" in missing["fid_dinov2"]
    _, missing = run(data=tmp_path / "stats.npz", features=["inception"])
    assert "needs prompts" in missing["fid"]


def test_statistics_of_another_network_are_refused_before_an_image_is_drawn(run, pipe, tmp_path, monkeypatch):
    monkeypatch.setattr(pipe, "text_to_image", lambda *args, **sampling: pytest.fail("drawn too early"))
    save_gaussian(tmp_path / "stats.npz", Gaussian.of_features(np.random.default_rng(0).random((30, 4))))
    (tmp_path / "prompts.txt").write_text("two cats\na dog\n")
    settings = {"data": tmp_path / "stats.npz", "prompts": tmp_path / "prompts.txt", "features": ["inception"]}
    with pytest.raises(DataError, match=r"has statistics of 4 features, expected 2,048 of Inception-v3"):
        run(**settings)
    (tmp_path / "damaged.pt").write_bytes(b"damaged")
    monkeypatch.setattr(inception_module, "find_inception", lambda: tmp_path / "damaged.pt")
    inception_module._inception.cache_clear()
    assert "missing, damaged or another version" in run(**settings)[1]["fid"]


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda folder: None, "found no images in"),
        (lambda folder: Image.new("RGB", (9, 9)).save(folder / "one.png"), "has one image"),
        (
            lambda folder: [Image.new("RGB", (9, 9)).save(folder / f"{i}.png") for i in range(3)],
            "no captions to use as",
        ),
    ],
)
def test_folders_that_are_no_reference_are_refused(run, tmp_path, prepare, words):
    folder = tmp_path / "data"
    folder.mkdir()
    prepare(folder)
    with pytest.raises(DataError, match=words) as caught:
        run(data=folder)
    assert "\n" not in str(caught.value)


def test_features_that_are_not_finite_name_their_image(run, data, monkeypatch):
    original = Dinov2Extractor.__call__

    def overflowing(self, images):
        features = original(self, images)
        if images[0].size == (64, 64) and len(images) != 16:  # generated ones
            features[1] = np.nan
        return features

    monkeypatch.setattr(Dinov2Extractor, "__call__", overflowing)
    with pytest.raises(DataError, match=r"DINOv2 \(tiny\) gives features .* the generated image number 1 \('"):
        run(data=data, num_samples=N)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_samples": 1}, "at least 2, got 1"),
        ({"num_samples": "5"}, "num_samples must be a whole number of at least 2, got '5'"),
        ({"num_samples": 2.5}, "num_samples must be a whole number"),
        ({"images_per_prompt": None}, "images_per_prompt must be a whole number"),
        ({"features": "inception"}, "features must be a list"),
        ({"data": 5}, "data must be a path or a name, got 5"),
        ({"sampling": 5}, "sampling must be a mapping"),
        ({"images_per_prompt": 0}, "at least 1, got 0"),
        ({"sampling": {"seed": 3}}, "has no seed"),
        ({"features": ["dinov2=a", "dinov2=b"]}, "given once"),
        ({"features": ["dino"]}, "there are no features 'dino'"),
        ({"framing": "stretch"}, "framing must be one of"),
        ({"geneval": []}, "not empty"),
        ({"sampling": {"steps": 3}}, "unknown argument 'steps'"),
    ],
)
def test_wrong_settings_are_refused(run, changed, words):
    with pytest.raises(UserError, match=words):
        run(**changed)
