import numpy as np
from PIL import Image

from triptych.cli.main import main
from triptych.scenes.tokenizer_report import contact_sheet, evaluate_tokenizers
from triptych.tokenizers.bundle import TokenizerBundle


class Lossy:
    """An image tokenizer that decodes everything to white."""

    def encode(self, items):
        return [np.zeros(64, np.int32)] * len(items)

    def decode(self, ids):
        return [Image.new("RGB", (64, 64), "white") for _ in ids]


class FakeBundle:
    def __init__(self, bundle, image):
        self.text, self.image = bundle.text, image


def test_losses_are_measured():
    bundle = TokenizerBundle.load("scenes")
    good = evaluate_tokenizers(bundle, num_images=12, num_speech=0, progress=lambda _: None)
    bad = evaluate_tokenizers(FakeBundle(bundle, Lossy()), num_images=12, num_speech=0, progress=lambda _: None)
    assert good["text_exact"] == bad["text_exact"] == 1
    assert good["judge_original"] == bad["judge_original"]
    assert good["judge_reconstructed"]["overall"] == 1
    assert bad["judge_reconstructed"]["overall"] == 0
    assert good["psnr_db"] > bad["psnr_db"] + 15
    assert good["code_entropy"] > bad["code_entropy"] == 0


def test_the_sheet_shows_originals_above_reconstructions(tmp_path):
    bundle = TokenizerBundle.load("scenes")
    sheet = contact_sheet(bundle, columns=2, rows=1)
    assert sheet.size == (132, 132)
    path = tmp_path / "deep" / "sheet.png"
    assert main(["eval", "tokenizers", "--images", "2", "--speech", "0", "--sheet", str(path)]) == 0
    assert path.exists()
