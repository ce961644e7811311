"""What finds objects and colours: detectors of transformers with random weights, CLIP, the judge of the toy dataset."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from triptych.errors import CheckpointError, UserError
from triptych.eval.geneval import colors as colors_module
from triptych.eval.geneval.colors import ColorClassifier, cut_out, with_colors
from triptych.eval.geneval.detection import Detection
from triptych.eval.geneval.detectors import BoxDetector, InstanceSegmenter, load_detector, mask_box, read_instances
from triptych.eval.geneval.prompts import Clause, GenEvalPrompt, Wording, sample_prompts
from triptych.eval.geneval.scoring import score_detections, select_objects
from triptych.eval.pretrained import find_pretrained
from triptych.scenes.image import scene_image
from triptych.scenes.judge import detect, matches
from triptych.scenes.world import SMALL, ObjectGroup, Scene, colour_of

transformers = pytest.importorskip("transformers")
LABELS = {0: "cat", 1: "sofa", 2: "tvmonitor"}  # COCO's names in files of transformers
NAMES = {"cat", "couch", "tv"}  # GenEval's


def picture(size=(48, 32), seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


# -- detectors of transformers ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def yolos(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("detectors") / "yolos-tiny"
    config = transformers.YolosConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=[32, 48],
        patch_size=16,
        num_detection_tokens=12,
        id2label=LABELS,
        label2id={name: number for number, name in LABELS.items()},
    )
    transformers.YolosForObjectDetection(config).save_pretrained(folder)
    preprocessing = {"image_processor_type": "YolosImageProcessor", "size": {"height": 32, "width": 48}}
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    return folder


def test_boxes_are_those_of_the_model(yolos):
    detector = load_detector(str(yolos))
    assert isinstance(detector, BoxDetector)
    assert detector.name == "yolos (yolos-tiny)"
    assert detector.sha256 == find_pretrained(yolos, (), "test").sha256
    assert detector.classes == NAMES
    given = [picture(seed=seed) for seed in range(2)]
    found = detector(given)
    assert found == [detector([image])[0] for image in given]

    model = transformers.YolosForObjectDetection.from_pretrained(yolos).eval()
    pixels = np.asarray(given[0], np.float32) / 255
    pixels = (pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    with torch.inference_mode():
        output = model(pixel_values=torch.from_numpy(pixels.transpose(2, 0, 1)).float()[None])
    scores, labels = output.logits[0].softmax(-1)[:, :-1].max(-1)
    x, y, width, height = output.pred_boxes[0].T * torch.tensor([[48], [32], [48], [32]])
    boxes = torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], 1)
    expected = sorted(
        (("cat", "couch", "tv")[label], round(score, 4), [round(edge, 2) for edge in box])
        for label, score, box in zip(labels.tolist(), scores.tolist(), boxes.tolist())
        if score > 0.05
    )
    assert expected
    assert (
        sorted((each.name, round(each.score, 4), [round(edge, 2) for edge in each.box]) for each in found[0])
        == expected
    )


@pytest.fixture(scope="module")
def mask2former(tmp_path_factory):
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("detectors") / "mask2former-tiny"
    swin = transformers.SwinConfig(
        image_size=64,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 1, 1],
        window_size=2,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = transformers.Mask2FormerConfig(
        backbone_config=swin,
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=16,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        dim_feedforward=16,
        num_queries=5,
        id2label=LABELS,
        label2id={name: number for number, name in LABELS.items()},
    )
    transformers.Mask2FormerForUniversalSegmentation(config).save_pretrained(folder)
    preprocessing = {"image_processor_type": "Mask2FormerImageProcessor", "size": {"height": 64, "width": 64}}
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    return folder


def test_instances_have_masks_and_the_boxes_around_them(mask2former):
    detector = load_detector(str(mask2former))
    assert isinstance(detector, InstanceSegmenter)
    assert detector.classes == NAMES
    found = detector([picture(size=(90, 60))])[0]
    assert found
    for each in found:
        assert each.name in NAMES
        assert each.mask.shape == (60, 90)
        rows, columns = np.nonzero(each.mask)
        assert each.box == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        assert 0.05 < each.score <= 1


def test_scores_of_instances_are_class_times_mask():
    # Two queries, two classes and "no object".
    class_logits = torch.log(torch.tensor([[0.7, 0.1, 0.2], [0.2, 0.5, 0.3]]))
    mask_logits = torch.full((2, 4, 4), -5.0)
    mask_logits[0, 1:3, 1:4] = torch.logit(torch.tensor(0.9))
    mask_logits[0, 1, 1] = torch.logit(torch.tensor(0.6))
    mask_logits[1, 0, 0] = torch.logit(torch.tensor(0.8))
    instances = read_instances(class_logits, mask_logits)
    mean = (5 * 0.9 + 0.6) / 6
    expected = [(0, 0.7 * mean), (1, 0.5 * 0.8), (0, 0.2 * 0.8), (1, 0.1 * mean)]
    assert [(label, pytest.approx(score)) for label, score, _ in instances] == expected
    assert mask_box(instances[0][2]) == (1, 1, 4, 3)
    assert mask_box(instances[1][2]) == (0, 0, 1, 1)
    assert read_instances(class_logits, torch.full((2, 4, 4), -1.0)) == []  # nothing inside a mask


def test_a_detector_must_name_its_classes(yolos, tmp_path):
    config = json.loads((yolos / "config.json").read_text())
    config["id2label"] = {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("model.safetensors", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((yolos / name).read_bytes())
    with pytest.raises(CheckpointError, match="does not name its classes"):
        load_detector(str(tmp_path))
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match="no processor that can be loaded"):
        load_detector(str(tmp_path))
    with pytest.raises(UserError, match="there is no folder"):
        load_detector("nothing-here")


# -- colours ----------------------------------------------------------------------------------------------------------


class FakeClip:
    """Knows colours: the embedding of an image is its mean colour, that of a text the colour that it names."""

    def __init__(self):
        self.values = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1)}
        self.texts = []

    def image_features(self, images):
        return np.array([np.asarray(image, float).mean((0, 1)) / 255 for image in images])

    def text_features(self, texts):
        self.texts += texts
        return np.array([next(value for name, value in self.values.items() if name in text) for text in texts], float)


def two_halves():
    """Left half red, right half blue."""
    image = Image.new("RGB", (40, 20), "red")
    image.paste((0, 0, 255), (20, 0, 40, 20))
    return image


def test_colours_are_judged_in_the_box_of_the_object():
    clip = FakeClip()
    classifier = ColorClassifier(clip, ("red", "green", "blue"))
    left, right = Detection("dog", (0, 0, 20, 20), 0.9), Detection("dog", (20.4, 0, 40.2, 20), 0.8)
    assert classifier(two_halves(), [left, right]) == ["red", "blue"]
    assert classifier(two_halves(), []) == []
    assert clip.texts[:3] == ["a photo of a red dog", "a photo of a red-colored dog", "a photo of a red object"]
    classifier(two_halves(), [left])
    assert len(clip.texts) == 9  # texts about a class are read once


def test_the_surroundings_of_a_mask_are_grey():
    mask = np.zeros((20, 40), bool)
    mask[5:10, 18:22] = True
    cut = np.asarray(cut_out(two_halves(), Detection("dog", (16, 4, 24, 11), 0.9, mask=mask)))
    assert cut.shape == (7, 8, 3)
    assert cut[0, 0].tolist() == [0x99, 0x99, 0x99]
    assert cut[1, 2].tolist() == [255, 0, 0]
    assert cut[1, 5].tolist() == [0, 0, 255]


@pytest.mark.parametrize("box", [(-5, -5, 3, 3), (38, 18, 90, 90), (10, 10, 10, 10), (60, 60, 70, 70)])
def test_boxes_beyond_the_image_have_pixels(box):
    assert min(cut_out(two_halves(), Detection("dog", box, 0.9)).size) >= 1


def test_only_the_objects_that_are_judged_get_colours():
    asked = []

    def classifier(image, found):
        asked.append([each.score for each in found])
        return ["red"] * len(found)

    prompt = GenEvalPrompt("colors", "two red dogs and a cat", (Clause("dog", 2, color="red"), Clause("cat")))
    dogs = [Detection("dog", (0, 0, 9, 9), score) for score in (0.9, 0.8, 0.7)]
    cat = Detection("cat", (0, 0, 9, 9), 0.9)
    objects = select_objects([*dogs, cat], "colors")
    colored = with_colors(objects, prompt, two_halves(), classifier)
    assert asked == [[0.9, 0.8]]
    assert [each.color for each in colored["dog"]] == ["red", "red", None]
    assert colored["cat"][0].color is None
    assert with_colors({"dog": dogs[:1]}, prompt, two_halves(), None) == {"dog": dogs[:1]}  # too few anyway


def test_clip_names_all_ten_colours(monkeypatch):
    seen = {}

    class Recorder:
        def __init__(self, clip, labels, texts):
            seen["labels"], seen["texts"] = labels, texts

        def __call__(self, images):
            return ["red"] * len(images)

    monkeypatch.setattr(colors_module, "ZeroShotClassifier", Recorder)
    assert ColorClassifier(None)(two_halves(), [Detection("hot dog", (0, 0, 9, 9), 0.9)]) == ["red"]
    assert len(seen["labels"]) == len(seen["texts"]) == 10
    assert seen["texts"][4][0] == "a photo of a blue hot dog"


# -- an exact judge as a detector -------------------------------------------------------------------------------------


class SceneDetector:
    """The judge of the toy dataset, which also knows colours."""

    name, sha256, names_colors = "exact judge of the toy dataset", "", True
    classes = frozenset(SMALL.kinds)

    def __call__(self, images):
        return [
            [
                Detection(
                    item.look[0],
                    (item.x, item.y, item.x + item.width, item.y + item.width),
                    1.0,
                    colour_of(item.look) or "several",
                )
                for item in found.picture.objects
            ]
            for found in detect(images, SMALL)
        ]


def scene_of(prompt):
    """The scene that a prompt describes."""
    groups = [ObjectGroup(clause.name, clause.color, clause.count) for clause in prompt.include]
    relation = next((clause.position[0] for clause in prompt.include if clause.position), None)
    return Scene(tuple(groups[::-1] if relation else groups), relation)


def test_drawn_scenes_are_right_and_scenes_of_other_prompts_are_judged_alike_by_both():
    """GenEval's rules with the exact judge against the judge's own verdict on the whole scene."""
    plain = ("cat", "dog", "owl", "fox", "tree", "star")
    prompts = sample_prompts(plain, ("red", "blue"), n=6, seed=2, uncolored=None, wording=Wording(prefix=""))
    colored = sample_prompts(
        ("heart", "hat", "car"), ("red", "blue", "green"), n=6, seed=2, uncolored=None, wording=Wording(prefix="")
    )
    prompts = [each for each in prompts if not each.needs_color] + [each for each in colored if each.needs_color]
    detector, rng = SceneDetector(), np.random.default_rng(0)
    images = [scene_image(scene_of(each), rng, SMALL) for each in prompts]
    found = detector(images)
    assert all(score_detections(objects, prompt).is_right for objects, prompt in zip(found, prompts))
    shifted = found[1:] + found[:1]
    others = images[1:] + images[:1]
    agree = []
    for image, objects, prompt in zip(others, shifted, prompts):
        exact = matches(detect([image], SMALL)[0], scene_of(prompt), SMALL)
        geneval = score_detections(objects, prompt).is_right
        assert geneval or not exact  # GenEval allows additional objects; the judge does not
        agree.append(geneval == exact)
    assert np.mean(agree) > 0.9
