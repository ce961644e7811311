import numpy as np
import pytest
from PIL import Image

from triptych.cli.main import main
from triptych.hub.pipeline import Pipeline
from triptych.scenes import tokenizer_report
from triptych.scenes.tokenizer_report import evaluate_tokenizers, scenes_sheet
from triptych.scenes.world import FULL, SMALL
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.media import Audio


class Lossy:
    """An image tokenizer that decodes everything to white."""

    def encode(self, items):
        return [np.zeros(64, np.int32)] * len(items)

    def decode(self, ids):
        return [Image.new("RGB", (64, 64), "white") for _ in ids]


class FakeBundle:
    def __init__(self, bundle, image):
        self.text, self.image = bundle.text, image


def measured(bundle, world, **options):
    return evaluate_tokenizers(
        bundle, 12, options.pop("num_speech", 0), world=world, progress=lambda _: None, **options
    )


def test_losses_are_measured():
    bundle = TokenizerBundle.load("scenes")
    good, bad = measured(bundle, SMALL), measured(FakeBundle(bundle, Lossy()), SMALL)
    assert good["text_exact"] == bad["text_exact"] == 1
    assert good["judge_original"] == bad["judge_original"]
    assert good["judge_reconstructed"]["overall"] == 1
    assert bad["judge_reconstructed"]["overall"] == 0
    assert good["psnr_db"] > bad["psnr_db"] + 15
    assert good["code_entropy"] > bad["code_entropy"] == 0


def test_the_full_preset_is_measured_by_category(full_model):
    results = measured(Pipeline.from_pretrained(full_model).bundle, FULL)
    assert results["text_exact"] == 1
    assert results["judge_original"]["overall"] == 1
    assert results["judge_reconstructed"]["overall"] < 0.5  # its image tokenizer is not fitted


def test_speech_is_measured_by_voice(tmp_path, monkeypatch):
    for name in ("emma", "sarah"):
        (tmp_path / f"{name}.json").write_text("{}")
    clip = Audio(np.zeros(1600, np.float32), 16_000)
    monkeypatch.setattr(tokenizer_report, "speakable", lambda scene, split, rng, names, *rest: (scene, "cat", names[0]))
    monkeypatch.setattr(tokenizer_report, "synthesize", lambda text, rng, world, voice, folder: clip)
    monkeypatch.setattr(tokenizer_report, "transcribe", lambda clips: ["a cat"] * len(clips))
    monkeypatch.setattr(tokenizer_report, "dnsmos", lambda clips: np.full((len(clips), 3), 3.0))
    results = measured(TokenizerBundle.load("scenes-full"), FULL, num_speech=2, voices=tmp_path)
    assert list(results["speech"]) == ["emma", "sarah", "all"]
    assert results["speech"]["sarah"]["mos_original"] == 3
    results = measured(TokenizerBundle.load("scenes"), SMALL, num_speech=2, voices=tmp_path)
    assert list(results["speech"]) == ["all"], "the preset small has one voice, whatever the folder"


@pytest.mark.parametrize(("split", "columns"), [("test", 2), ("train", 3)])
def test_the_sheet_shows_originals_above_reconstructions(split, columns):
    sheet = scenes_sheet(TokenizerBundle.load("scenes"), split, columns=columns, rows=1, world=SMALL)
    assert sheet.size == (66 * columns, 132)


def test_the_command_chooses_the_preset_of_the_tokenizers(tmp_path, full_model, capsys):
    path = tmp_path / "deep" / "sheet.png"
    words = ["eval", "tokenizers", "--images", "2", "--speech", "0"]
    assert main([*words, "--sheet", str(path)]) == 0
    with Image.open(path) as sheet:
        assert sheet.width == 10 * (SMALL.image_size + 2)
    assert main([*words, "--tokenizers", str(full_model / "tokenizers"), "--sheet", str(path)]) == 0
    with Image.open(path) as sheet:
        assert sheet.width == 10 * (FULL.image_size + 2)
    assert "images: PSNR" in capsys.readouterr().out
