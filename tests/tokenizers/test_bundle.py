"""Bundles: loading on first use, fingerprints, saving, names."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from triptych.errors import CheckpointError, UserError
from triptych.tokenizers import bundle as bundle_module
from triptych.tokenizers.base import hash_arrays, write_spec
from triptych.tokenizers.bundle import (
    BUILTIN_TOKENIZERS,
    PAPER_TOKENIZERS,
    TokenizerBundle,
    vocabulary_of,
    write_bundle_checksums,
)
from triptych.tokenizers.text import ByteBPE
from triptych.utils.media import Audio
from triptych.vocab import Modality, Vocabulary, paper_vocabulary


class Fake:
    """An image or audio tokenizer that counts how often it is loaded and hashed."""

    loads = 0
    hashes = 0

    def __init__(self, modality: Modality, vocab_size: int, weight: float = 0.0):
        self.modality, self.vocab_size, self.weight = modality, vocab_size, weight

    @property
    def fingerprint(self) -> str:
        Fake.hashes += 1
        return hash_arrays({}, {"weight": np.array(self.weight)})

    def encode(self, items):
        return [np.zeros(1, np.int32) for _ in items]

    def decode(self, ids):
        return [Audio(np.zeros(1, np.float32), 1) for _ in ids]

    def save(self, folder):
        kind = "movq" if self.modality == Modality.IMAGE else "dac"
        write_spec(folder, kind, fingerprint=self.fingerprint, size=self.vocab_size)
        (folder / "weight").write_text(str(self.weight))

    @classmethod
    def load(cls, modality, folder):
        Fake.loads += 1
        size = json.loads((folder / "tokenizer.json").read_text())["size"]
        return cls(modality, size, float((folder / "weight").read_text()))


@pytest.fixture
def fakes(monkeypatch):
    original = bundle_module._load

    def load(modality, folder):
        return original(modality, folder) if modality == Modality.TEXT else Fake.load(modality, folder)

    monkeypatch.setattr(bundle_module, "_load", load)
    Fake.loads = Fake.hashes = 0


@pytest.fixture
def bundle(fakes) -> TokenizerBundle:
    text = ByteBPE.train(["a cat and a cat"] * 3, 260)
    vocabulary = Vocabulary(text=260, image=64, audio=32)
    return TokenizerBundle(vocabulary, text=text, image=Fake(Modality.IMAGE, 64), audio=Fake(Modality.AUDIO, 32))


def test_saved_and_loaded(bundle, tmp_path):
    bundle.save(tmp_path / "tokenizers")
    for source in (tmp_path / "tokenizers", str(tmp_path / "tokenizers")):
        loaded = TokenizerBundle.load(source)
        assert loaded.vocabulary == bundle.vocabulary
        assert loaded.fingerprints == bundle.fingerprints
        assert set(loaded.fingerprints) == {"text", "image", "audio"}
        np.testing.assert_array_equal(loaded.text.encode(["a cat"]), bundle.text.encode(["a cat"]))


def test_tokenizers_are_loaded_on_first_use_and_once(bundle, tmp_path):
    bundle.save(tmp_path)
    Fake.hashes = 0
    loaded = TokenizerBundle.load(tmp_path)
    assert all(modality in loaded for modality in Modality)
    assert len(loaded.fingerprints) == 3
    assert (Fake.loads, Fake.hashes) == (0, 0)
    assert loaded.audio is loaded[Modality.AUDIO]
    assert Fake.loads == 1


def test_text_work_does_not_import_torch(bundle, tmp_path):
    bundle.save(tmp_path)
    code = (
        "import sys; from triptych.tokenizers.bundle import TokenizerBundle;"
        f"b = TokenizerBundle.load({str(tmp_path)!r}); b.text.encode(['x']); b.fingerprints;"
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"


def test_missing_tokenizers_are_an_error_only_when_used(bundle, tmp_path):
    partial = TokenizerBundle(bundle.vocabulary, text=bundle.text)
    partial.save(tmp_path)
    for one in (partial, TokenizerBundle.load(tmp_path)):
        assert one.text.decode(one.text.encode(["a cat"])) == ["a cat"]
        assert list(one.fingerprints) == ["text"]
        assert Modality.IMAGE not in one
        with pytest.raises(CheckpointError, match="has no image tokenizer"):
            _ = one.image


def test_tokenizers_must_match_the_vocabulary(bundle, tmp_path):
    with pytest.raises(CheckpointError, match="has 64 ids for image, but the tokenizer makes 63"):
        TokenizerBundle(bundle.vocabulary, image=Fake(Modality.IMAGE, 63))
    with pytest.raises(CheckpointError, match="32 ids for audio, but the tokenizer makes 32 ids for image"):
        TokenizerBundle(bundle.vocabulary, audio=Fake(Modality.IMAGE, 32))
    bundle.save(tmp_path)
    Vocabulary(text=261, image=64, audio=32).save(tmp_path / "vocab.json")
    loaded = TokenizerBundle.load(tmp_path)
    assert loaded.image.vocab_size == 64
    with pytest.raises(CheckpointError, match="261 ids for text"):
        _ = loaded.text


def test_verify_notices_changed_weights(bundle, tmp_path):
    bundle.save(tmp_path)
    TokenizerBundle.load(tmp_path).verify()
    (tmp_path / "audio" / "weight").write_text("1.0")
    changed = TokenizerBundle.load(tmp_path)
    assert changed.fingerprints == bundle.fingerprints  # trusted until verified
    with pytest.raises(CheckpointError, match=r"audio/weight is damaged: .* `triptych verify .* --update`"):
        changed.verify()
    (tmp_path / "checksums.json").unlink()  # as an earlier version wrote it
    with pytest.raises(CheckpointError, match=r"the audio tokenizer in .* is not the one that was saved"):
        changed.verify()


def test_a_tokenizer_saved_without_fingerprint_is_hashed(bundle, tmp_path):
    bundle.save(tmp_path)
    write_spec(tmp_path / "image", "movq", size=64)
    loaded = TokenizerBundle.load(tmp_path)
    assert loaded.fingerprints == bundle.fingerprints
    assert Fake.loads == 1


def test_saving_a_loaded_bundle_copies_its_files(bundle, tmp_path):
    bundle.save(tmp_path / "a")
    (tmp_path / "a" / "image" / "note.txt").write_text("kept")
    loaded = TokenizerBundle.load(tmp_path / "a")
    loaded.save(tmp_path / "b")
    assert Fake.loads == 0
    files = {path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert len(files) == 9
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)
    loaded.save(tmp_path / "a")  # onto itself
    assert TokenizerBundle.load(tmp_path / "a").fingerprints == bundle.fingerprints


def test_built_in_bundles_have_names(bundle, tmp_path, monkeypatch):
    bundle.save(tmp_path)
    write_bundle_checksums(tmp_path)
    monkeypatch.setitem(bundle_module.BUILTIN_TOKENIZERS, "scenes", tmp_path)
    assert TokenizerBundle.load("scenes").fingerprints == bundle.fingerprints
    with pytest.raises(UserError, match="Did you mean 'scenes'"):
        TokenizerBundle.load("scene")
    with pytest.raises(CheckpointError, match=r"vocab\.json"):
        TokenizerBundle.load(tmp_path / "text")


@pytest.mark.parametrize("name", ["text/bpe.json", "image/codebook.png", "vocab.json", "checksums.json"])
def test_damage_of_built_in_tokenizers_is_noticed(name, tmp_path, monkeypatch):
    folder = shutil.copytree(BUILTIN_TOKENIZERS["scenes-full"], tmp_path / "bundle")
    path, before = folder / name, (folder / name).read_bytes()
    for number, damaged in enumerate((before[:-2], bytes([*before[:20], before[20] ^ 4, *before[21:]]), None)):
        copy = shutil.copytree(folder, tmp_path / str(number))  # a folder is checked once in a process
        monkeypatch.setitem(bundle_module.BUILTIN_TOKENIZERS, "scenes", copy)
        (copy / name).unlink() if damaged is None else (copy / name).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"are damaged: .*install Triptych again|vocab\.json"):
            TokenizerBundle.load("scenes")
    assert path.read_bytes() == before


def test_a_missing_folder_is_one_line_with_the_command_that_makes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source in (PAPER_TOKENIZERS, "elsewhere"):
        with pytest.raises(
            UserError, match=f"`triptych tokenizers make {source} --text .* --image .* --audio "
        ) as caught:
            TokenizerBundle.load(source)
        assert "\n" not in str(caught.value)


def test_the_vocabulary_of_the_paper_is_known_without_its_tokenizers(bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source in (PAPER_TOKENIZERS, f"./{PAPER_TOKENIZERS}/"):
        assert vocabulary_of(source) == paper_vocabulary()
    with pytest.raises(UserError, match="neither a folder of tokenizers nor the name of built-in ones"):
        vocabulary_of("tokenizers/other")
    bundle.save(tmp_path / PAPER_TOKENIZERS)
    assert vocabulary_of(PAPER_TOKENIZERS) == bundle.vocabulary


def test_a_tokenizer_of_an_unknown_kind_is_refused(bundle, tmp_path):
    bundle.save(tmp_path)
    write_spec(tmp_path / "text", "mystery")
    with pytest.raises(CheckpointError, match="byte-bpe, tiktoken"):
        _ = TokenizerBundle.load(tmp_path).text
