"""Sets of reference images, and their features in the cache."""

import io
import json
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from triptych.errors import DataError, UserError
from triptych.eval.frechet import Gaussian
from triptych.eval.image import reference as module
from triptych.eval.image.features import FeatureSpec
from triptych.eval.image.reference import Framing, full_path, open_images, reference_features

SPEC = FeatureSpec("dinov2", "unused")
WHOLE = Framing("original")


class Means:
    """A network without weights: the mean colour of an image, and its size."""

    name, dimension, sha256 = "means", 5, "0" * 64

    def __init__(self):
        self.seen = 0

    def __call__(self, images):
        self.seen += len(images)
        rows = [[*np.asarray(image, np.float32).mean((0, 1)), *image.size] for image in images]
        return np.array(rows, np.float32).reshape(-1, 5)


def png(seed, size=(12, 8)):
    content = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


@pytest.fixture
def folder(tmp_path):
    images = tmp_path / "images"
    (images / "more").mkdir(parents=True)
    for number in range(23):
        (images / ("more" if number % 3 else ".") / f"{number:02d}.png").write_bytes(png(number))
    (images / "notes.md").write_text("not an image")
    (images / ".hidden.png").write_bytes(b"not read")
    return images


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 5)


def contents(data):
    return [item if isinstance(item, bytes) else item.read_bytes() for _, item in open_images(data)]


# -- sets of images ---------------------------------------------------------------------------------------------------


def test_a_folder_has_all_images_in_it_with_or_without_captions(folder):
    images = open_images(folder)
    names = [name for name, _ in images]
    assert images.size == len(names) == 23
    assert names == sorted(names)
    (folder / "00.txt").write_text("a caption")
    assert [name for name, _ in open_images(folder)] == names
    assert open_images(folder).fingerprint == images.fingerprint


def test_the_fingerprint_knows_names_sizes_and_times_but_not_the_place(folder, tmp_path):
    import os

    before = open_images(folder).fingerprint
    moved = folder.rename(tmp_path / "elsewhere")
    assert open_images(moved).fingerprint == before
    os.utime(moved / "00.png", ns=(1, 1))
    changed = open_images(moved).fingerprint
    (moved / "00.png").rename(moved / "renamed.png")
    assert len({before, changed, open_images(moved).fingerprint}) == 3


def test_tars_need_no_captions(folder, tmp_path):
    shards = tmp_path / "shards"
    shards.mkdir()
    for number in range(2):
        with tarfile.open(shards / f"{number}.tar", "w") as tar:
            for index in range(3):
                for name, content in ((f"{index}.png", png(10 * number + index)), (f"{index}.json", b"{}")):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    expected = [png(seed) for seed in (0, 1, 2, 10, 11, 12)]
    assert contents(shards) == expected
    assert contents(f"{shards}/{{0..1}}.tar") == expected
    assert contents(shards / "1.tar") == expected[3:]


def test_parquet_and_tables_are_read_with_their_captions(folder, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = {"image": [{"bytes": png(seed), "path": None} for seed in range(4)], "caption": list("abcd")}
    parquet.write_table(pyarrow.table(rows), tmp_path / "data.parquet")
    assert contents(tmp_path / "data.parquet") == [png(seed) for seed in range(4)]
    # An image with two captions is one image of the reference.
    lines = [{"file_name": f"images/{name}.png", "text": "x"} for name in ("00", "03", "00")]
    (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert contents(tmp_path / "table.jsonl") == [png(0), png(3)]


@pytest.mark.parametrize("kind", ["empty folder", "text", "nothing"])
def test_data_without_images_are_refused(tmp_path, kind):
    path = tmp_path / "data"
    if kind == "empty folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("no image")
    with pytest.raises(DataError, match="no such file" if kind == "nothing" else "found no images in") as caught:
        open_images(path)
    assert "\n" not in str(caught.value)


# -- framing ----------------------------------------------------------------------------------------------------------


def test_framing_makes_images_square():
    image = Image.new("RGB", (60, 20), "red")
    image.paste((0, 0, 255), (20, 0, 40, 20))  # the middle
    pad, crop = (np.asarray(Framing(mode, 30)(image)) for mode in ("pad", "crop"))
    assert pad.shape == crop.shape == (30, 30, 3)
    assert (pad[:9] == 255).all()
    assert (pad[-9:] == 255).all()
    assert (crop == (0, 0, 255)).all()
    assert Framing("original")(image) is image
    with pytest.raises(UserError, match="framing must be one of pad, crop, original"):
        Framing("stretch")


# -- features in the cache --------------------------------------------------------------------------------------------


def test_features_are_computed_once(folder, tmp_path, small_chunks):
    network, lines = Means(), []
    options = {"cache": tmp_path / "cache", "extractor": network, "progress": lines.append}
    first = reference_features(open_images(folder), SPEC, WHOLE, **options)
    expected = Means()([Image.open(path) for path in sorted(folder.rglob("[0-9]*.png"))])
    np.testing.assert_array_equal(first.features, expected)
    assert network.seen == 23
    assert (first.num_unreadable, first.judge.name) == (0, "means")
    np.testing.assert_allclose(first.gaussian.mean, Gaussian.of_features(expected).mean)
    again = reference_features(open_images(folder), SPEC, WHOLE, **options)
    assert network.seen == 23
    np.testing.assert_array_equal(again.features, expected)
    np.testing.assert_array_equal(again.gaussian.factor, first.gaussian.factor)  # kept as well
    assert "23 images from the cache" in lines[-1]
    assert not list((tmp_path / "cache").rglob("chunk-*"))
    # Another framing, another network, other images: computed anew.
    reference_features(open_images(folder), SPEC, Framing("crop", 8), **options)
    assert network.seen == 46
    network.sha256 = "1" * 64
    reference_features(open_images(folder), SPEC, WHOLE, **options)
    assert network.seen == 69
    (folder / "new.png").write_bytes(png(99))
    assert len(reference_features(open_images(folder), SPEC, WHOLE, **options).features) == 24


def test_a_stopped_computation_resumes(folder, tmp_path, small_chunks):
    class Stops(Means):
        def __call__(self, images):
            if self.seen >= 10:
                raise KeyboardInterrupt
            return super().__call__(images)

    options = {"cache": tmp_path / "cache"}
    with pytest.raises(KeyboardInterrupt):
        reference_features(open_images(folder), SPEC, WHOLE, extractor=Stops(), **options)
    kept = sorted((tmp_path / "cache").rglob("chunk-*"))
    assert len(kept) == 2
    kept[1].write_bytes(kept[1].read_bytes()[:100])  # damaged: computed again
    network, lines = Means(), []
    found = reference_features(open_images(folder), SPEC, WHOLE, extractor=network, progress=lines.append, **options)
    assert network.seen == 23 - 5
    assert "5 images kept from an earlier run" in lines[0]
    whole = reference_features(open_images(folder), SPEC, WHOLE, extractor=Means(), cache=tmp_path / "other")
    np.testing.assert_array_equal(found.features, whole.features)


def test_a_damaged_cache_is_computed_again(folder, tmp_path):
    options = {"cache": tmp_path / "cache", "extractor": Means()}
    first = np.array(reference_features(open_images(folder), SPEC, WHOLE, **options).features)
    path = next((tmp_path / "cache").rglob("features.npy"))
    path.write_bytes(path.read_bytes()[:200])
    np.testing.assert_array_equal(reference_features(open_images(folder), SPEC, WHOLE, **options).features, first)


@pytest.mark.slow
def test_several_processes_give_the_same_features(folder, tmp_path, small_chunks):
    transformers = pytest.importorskip("transformers")
    config = transformers.Dinov2Config(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=28, patch_size=14
    )
    transformers.Dinov2Model(config).save_pretrained(tmp_path / "weights")
    spec = FeatureSpec.parse(f"dinov2={tmp_path / 'weights'}")
    one, two = (
        reference_features(open_images(folder), spec, WHOLE, cache=tmp_path / f"cache-{nproc}", nproc=nproc)
        for nproc in (1, 2)
    )
    assert one.features.shape == (23, 8)
    np.testing.assert_allclose(two.features, one.features, atol=1e-5)


# -- bad images -------------------------------------------------------------------------------------------------------


def test_a_corrupt_image_is_named(folder, tmp_path):
    (folder / "05x.png").write_bytes(png(5)[:60])
    with pytest.raises(DataError, match=r"1 of 24 images in .* cannot be read, such as .*05x\.png") as caught:
        reference_features(open_images(folder), SPEC, WHOLE, cache=tmp_path / "cache", extractor=Means())
    assert "\n" not in str(caught.value)


def test_one_corrupt_image_in_a_hundred_is_left_out(folder, tmp_path):
    for number in range(100):
        (folder / f"extra-{number:03d}.png").write_bytes(png(number) if number else b"")
    lines = []
    options = {"cache": tmp_path / "cache", "extractor": Means(), "progress": lines.append}
    found = reference_features(open_images(folder), SPEC, WHOLE, **options)
    assert (len(found.features), found.num_unreadable) == (122, 1)
    assert any("1 of 123 images left out, such as" in line and "extra-000.png" in line for line in lines)
    assert reference_features(open_images(folder), SPEC, WHOLE, **options).num_unreadable == 1


def test_a_truncated_tar_is_named(tmp_path):
    path = tmp_path / "data.tar"
    with tarfile.open(path, "w") as tar:
        for index in range(5):
            member = tarfile.TarInfo(f"{index}.png")
            member.size = len(png(index))
            tar.addfile(member, io.BytesIO(png(index)))
    path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises(DataError, match=r"cannot be read, such as .*data\.tar.*unreadable"):
        reference_features(open_images(path), SPEC, WHOLE, cache=tmp_path / "cache", extractor=Means())


def test_features_that_are_not_finite_are_refused(folder, tmp_path):
    class Overflows(Means):
        def __call__(self, images):
            return super().__call__(images) * np.float32(np.inf)

    with pytest.raises(DataError, match="means gives features that are not finite"):
        reference_features(open_images(folder), SPEC, WHOLE, cache=tmp_path / "cache", extractor=Overflows())


def test_one_image_is_no_reference(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "one.png").write_bytes(png(0))
    with pytest.raises(DataError, match="has 1 images that can be read; a reference needs at least 2"):
        reference_features(open_images(tmp_path / "images"), SPEC, WHOLE, cache=tmp_path / "c", extractor=Means())


def test_two_processes_that_fill_one_cache_compute_it_once(folder, tmp_path, small_chunks):
    """The second one waits for the first, and uses its result."""
    started, may_go_on = threading.Event(), threading.Event()

    class Slow(Means):
        def __call__(self, images):
            started.set()
            assert may_go_on.wait(10)
            return super().__call__(images)

    slow, second, lines = Slow(), Means(), []

    def waiting(line):
        lines.append(line)
        may_go_on.set()

    options = {"cache": tmp_path / "cache"}
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(reference_features, open_images(folder), SPEC, WHOLE, extractor=slow, **options)
        assert started.wait(10)
        other = pool.submit(
            reference_features, open_images(folder), SPEC, WHOLE, extractor=second, progress=waiting, **options
        )
        results = [each.result(20) for each in (one, other)]
    assert (slow.seen, second.seen) == (23, 0)
    assert "waiting for process" in lines[0]
    np.testing.assert_array_equal(results[0].features, results[1].features)


def test_a_broken_link_is_an_unreadable_image(folder, tmp_path):
    (folder / "broken.png").symlink_to(tmp_path / "nowhere.png")
    assert open_images(folder).size == 24
    with pytest.raises(DataError, match=r"1 of 24 images in .* cannot be read, such as .*broken\.png"):
        reference_features(open_images(folder), SPEC, WHOLE, cache=tmp_path / "cache", extractor=Means())


def test_a_relative_path_is_the_same_set(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(png(0))
    (tmp_path / "table.jsonl").write_text(json.dumps({"file_name": "a.png", "text": "x"}))
    monkeypatch.chdir(tmp_path)
    assert open_images("table.jsonl").fingerprint == open_images(tmp_path / "table.jsonl").fingerprint
    assert full_path("table.jsonl") == str(tmp_path / "table.jsonl")
