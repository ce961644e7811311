"""Tokenizers fitted to files: sizes by the data, held-out samples, exact resume, mistakes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from triptych.cli.main import main
from triptych.data.fit import FitConfig, FitSamples, Sizes, fit_tokenizers
from triptych.data.fit import samples as samples_module
from triptych.data.fit.samples import open_sources, read_samples
from triptych.data.sources import ReadOptions
from triptych.data.tokenize import tokenize
from triptych.errors import CheckpointError, UserError
from triptych.tokenizers import fit_state
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.paper import paper_bundle
from triptych.tokenizers.reconstruction import poor_reconstruction, psnr
from triptych.utils.media import Audio
from triptych.vocab import Modality

SMALL: dict[str, Any] = {
    "resolution": 16,
    "factor": 8,
    "image_codes": 8,
    "image_steps": 12,
    "codebooks": 1,
    "audio_codes": 8,
    "audio_steps": 12,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """notes/, photos/ with captions and calls/ with transcripts."""
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    for name in ("notes", "photos", "calls"):
        (folder / name).mkdir()
    (folder / "notes" / "a.txt").write_text("a zebra and an okapi. " * 40)
    (folder / "notes" / "b.txt").write_text("an okapi met a zebra. " * 40)
    for number in range(24):
        quarters = rng.choice([0, 80, 160, 255], size=(2, 2, 3)).astype(np.uint8)
        Image.fromarray(quarters.repeat(8, 0).repeat(8, 1)).save(folder / "photos" / f"{number}.png")
        (folder / "photos" / f"{number}.txt").write_text(f"zebra number {number}")
        time = np.arange(16_000) / 16_000
        wave = 0.3 * np.sin(2 * np.pi * (200 + 20 * number) * time) * np.abs(np.sin(3 * np.pi * time))
        Audio(wave.astype(np.float32), 16_000).save(folder / "calls" / f"{number}.wav")
        (folder / "calls" / f"{number}.txt").write_text(f"okapi number {number}")
    return folder


def inputs(files: Path) -> list[str]:
    return [str(files / name) for name in ("notes", "photos", "calls")]


@pytest.fixture(scope="module")
def fitted(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fitted") / "mine"
    fit_tokenizers(inputs(files), out, report=len, **SMALL)
    return out


def test_a_bundle_of_all_modalities_tokenizes_the_files(files: Path, fitted: Path, tmp_path: Path) -> None:
    bundle = TokenizerBundle.load(fitted)
    assert set(bundle.fingerprints) == {"text", "image", "audio"}
    bundle.verify()
    assert bundle.image.tokens_per_image == 4
    assert (bundle.vocabulary.image, bundle.vocabulary.audio) == (8, 8)
    assert len(bundle.text.encode(["a zebra"])[0]) == 2, "captions and notes are one vocabulary"
    for name in ("photos", "calls", "notes"):
        assert tokenize(files / name, tmp_path / name, tokenizers=fitted, progress=False).num_samples


def test_drawings_get_codes_of_patches_and_photographs_a_network(files: Path, fitted: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    assert json.loads((fitted / "image" / "tokenizer.json").read_text())["kind"] == "patch-vq"
    noise, rng = tmp_path / "noise", np.random.default_rng(0)
    noise.mkdir()
    for number in range(4):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(noise / f"{number}.png")
        (noise / f"{number}.txt").write_text("noise")
    fit_tokenizers(str(noise), tmp_path / "photographs", report=lines.append, **SMALL)
    assert json.loads((tmp_path / "photographs" / "image" / "tokenizer.json").read_text())["kind"] == "movq"
    assert any("movq, 16 x 16 pixels, 2 x 2 tokens of 8 codes" in line for line in lines)


def test_rebuilt_drawings_are_near(files: Path, tmp_path: Path) -> None:
    settings = SMALL | {"image_codes": None}
    bundle = fit_tokenizers(str(files / "photos"), tmp_path / "mine", report=len, **settings).bundle
    image = Image.open(files / "photos" / "0.png")
    assert psnr(image, bundle.image.decode(bundle.image.encode([image]))[0]) > 20
    assert Modality.AUDIO not in bundle
    assert bundle.vocabulary.audio == 1, "a vocabulary has all three ranges"


@pytest.mark.parametrize("part", ["image step", "audio: decoder step"])
def test_a_stopped_fit_resumes_exactly(part: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped at its last report, after saves at every step: the weights are those of a fit that was not stopped."""
    settings = SMALL | {"image_kind": "movq"}
    whole = fit_tokenizers(inputs(files)[1:], tmp_path / "whole", report=len, **settings).bundle.fingerprints
    monkeypatch.setattr(fit_state.FitState.__init__, "__defaults__", (None, 0.0))

    def stop(line: str) -> None:
        if line.startswith(part):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_tokenizers(inputs(files)[1:], tmp_path / "stopped", report=stop, **settings)
    state = tmp_path / "stopped" / ".fit" / f"{'image' if 'image' in part else 'audio'}.safetensors"
    assert state.exists()
    assert not (tmp_path / "stopped" / "vocab.json").exists()
    lines: list[str] = []
    resumed = fit_tokenizers(inputs(files)[1:], tmp_path / "stopped", report=lines.append, **settings)
    assert resumed.bundle.fingerprints == whole
    assert "text: finished before" in lines
    assert not state.exists()


def test_a_damaged_state_is_named(files: Path, tmp_path: Path) -> None:
    state = tmp_path / "mine" / ".fit" / "image.safetensors"
    fit_tokenizers(inputs(files)[:1], tmp_path / "other", report=len)
    state.parent.mkdir(parents=True)
    state.write_bytes(b"noise")
    with pytest.raises(CheckpointError, match="is not the state of this fit; delete it"):
        fit_state.FitState(state).read("mean")


def test_a_part_of_a_single_long_text_is_held_out(tmp_path: Path) -> None:
    lines = [f"line {number} of a long document\n" for number in range(4000)]
    (tmp_path / "book.txt").write_text("".join(lines))
    samples = read_samples(open_sources([str(tmp_path / "book.txt")], ReadOptions()))
    together = "".join(samples.texts + samples.held_out_texts)
    assert sorted(together.splitlines(keepends=True)) == sorted(lines), "cut between lines, and nothing is lost"
    assert samples.held_out_texts
    assert not set("".join(samples.held_out_texts).splitlines()) & set("".join(samples.texts).splitlines())


def test_held_out_samples_are_not_fitted_to(files: Path) -> None:
    sources = open_sources(inputs(files), ReadOptions())
    samples = read_samples(sources)
    assert (len(samples.images), len(samples.held_out_images)) == (22, 2)
    assert (len(samples.clips), len(samples.held_out_clips)) == (22, 2)
    assert not set(samples.texts) & set(samples.held_out_texts)
    again = read_samples(sources)
    assert again.held_out_texts == samples.held_out_texts


def test_reading_stops_at_the_limits(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_module, "MAX_IMAGES", 10)
    monkeypatch.setattr(samples_module, "MAX_AUDIO_SECONDS", 5.0)
    samples = read_samples(open_sources(inputs(files), ReadOptions()))
    assert len(samples.images) + len(samples.held_out_images) == 10
    assert samples.audio_seconds + sum(clip.seconds for _, clip in samples.held_out_clips) == pytest.approx(5.0)


def test_sizes_follow_the_data() -> None:
    config = FitConfig(inputs=("x",))
    small = FitSamples(texts=["x" * 1000], images=[Image.new("RGB", (70, 90))] * 10)
    sizes = Sizes.choose(config, small)
    assert (sizes.vocab_size, sizes.image, sizes.audio) == (512, (64, 8, 64), (0, 0))
    clip = Audio(np.zeros(16_000 * 30, np.float32), 16_000)
    large = FitSamples(texts=["x" * 3_000_000], images=[Image.new("RGB", (640, 480))] * 400, clips=[clip] * 40)
    sizes = Sizes.choose(config, large)
    assert (sizes.vocab_size, sizes.image, sizes.audio) == (8192, (256, 16, 4096), (2, 1024))
    given = FitConfig(inputs=("x",), vocab_size=300, resolution=32, factor=4, image_codes=7, codebooks=3, audio_codes=9)
    assert Sizes.choose(given, large) == Sizes(vocab_size=300, image=(32, 4, 7), audio=(3, 9))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"factor": 5}, "--factor must be 4, 8, 16, 32, got 5"),
        ({"resolution": 20, "factor": 8}, "--resolution must be a multiple of --factor 8, got 20"),
        ({"vocab_size": 10}, "--vocab-size must be between 256"),
        ({"image_kind": "movqq"}, "unknown image kind 'movqq'. Did you mean 'movq'"),
        ({"codebooks": 0}, "--codebooks must be at least 1"),
        ({"audio_codes": 4096}, "4096 codes need at least 328 s of audio, got 22 s"),
        ({"vocabsize": 300}, "no argument 'vocabsize'. Did you mean 'vocab_size'"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], message: str, files: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        fit_tokenizers(inputs(files), tmp_path / "mine", report=len, **(SMALL | settings))
    assert not (tmp_path / "mine" / "vocab.json").exists()


def test_another_fit_is_not_overwritten(files: Path, fitted: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds tokenizers of another fit: seed was 0, is 1. Use --overwrite"):
        fit_tokenizers(inputs(files), fitted, report=len, seed=1, **SMALL)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear zebra")
    with pytest.raises(UserError, match="holds other files"):
        fit_tokenizers(inputs(files), tmp_path / "letters", report=len, **SMALL)
    first = fit_tokenizers(inputs(files)[:1], tmp_path / "mine", report=len).bundle.fingerprints
    again = fit_tokenizers(inputs(files)[:1], tmp_path / "mine", report=len, overwrite=True, vocab_size=260)
    assert again.bundle.fingerprints != first


def test_a_fitted_tokenizer_is_mixed_with_others(fitted: Path, tmp_path: Path) -> None:
    bundle = paper_bundle(text=str(fitted / "text"), image=str(fitted / "image"), audio=str(fitted / "audio"))
    assert bundle.fingerprints == TokenizerBundle.load(fitted).fingerprints
    bundle.save(tmp_path / "mixed")
    TokenizerBundle.load(tmp_path / "mixed").verify()


def test_the_command_reports_on_held_out_samples(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from triptych.eval.codecs import fitted as report_module

    monkeypatch.setattr(report_module, "transcribe", lambda clips: ["okapi number two"] * len(clips))
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    main(["tokenizers", "fit", *inputs(files), "--out", str(tmp_path / "mine"), *options])
    said = capsys.readouterr()
    assert said.out.startswith(f"{tmp_path / 'mine'}: text, image, audio; a vocabulary of ")
    result = json.loads((tmp_path / "mine" / "report.json").read_text())
    assert result["text"]["exact"] == 1
    assert result["text"]["bytes_per_token"] > 2
    assert result["image"]["psnr"] > 10
    assert -1 <= result["audio"]["stoi"] <= 1
    assert result["audio"]["wer"] > 0
    assert Image.open(tmp_path / "mine" / "report" / "images.png").size == (2 * 18, 2 * 18)
    assert (tmp_path / "mine" / "report" / "0-rebuilt.wav").exists()
    assert "KID: needs 32 held-out images, got 2" in said.err


def test_tokenizing_other_images_warns(
    fitted: Path, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Compared with the report on held-out samples; without a report nothing is said."""
    rng = np.random.default_rng(0)
    for name in ("same", "other"):
        (tmp_path / name).mkdir()
        for number in range(6):
            image = Image.open(files / "photos" / f"{number}.png")
            if name == "other":
                image = Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8))
            image.save(tmp_path / name / f"{number}.png")
            (tmp_path / name / f"{number}.txt").write_text("zebra")
    folder = tmp_path / "tokenizers"
    shutil.copytree(fitted, folder)
    said = {}
    for report in (None, {"image": {"psnr": 21.0, "psnr_low": 14.0}, "audio": {"log_mel": 0.2, "log_mel_high": 0.3}}):
        if report is not None:
            (folder / "report.json").write_text(json.dumps(report))
        for name in ("same", "other"):
            tokenize(tmp_path / name, tmp_path / f"{name}-{report is None}", tokenizers=folder)
            said[name, report is None] = capsys.readouterr().err
    assert "warning: these images are reconstructed with" in said["other", False]
    assert "triptych tokenizers fit" in said["other", False]
    for key in (("same", False), ("same", True), ("other", True)):
        assert "warning" not in said[key]


def test_clicks_are_poorly_reconstructed_speech(fitted: Path, files: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tokenizers"
    shutil.copytree(fitted, folder)
    (folder / "report.json").write_text(json.dumps({"audio": {"log_mel": 0.5, "log_mel_high": 1.5}}))
    bundle = TokenizerBundle.load(folder)
    noise = Audio(np.random.default_rng(0).uniform(-1, 1, 16_000).astype(np.float32), 16_000)
    assert "these recordings" in (poor_reconstruction(bundle, clips=[noise]) or "")
    assert poor_reconstruction(bundle, clips=[Audio.load(files / "calls" / "0.wav")]) is None
