import numpy as np
from PIL import Image

from triptych.cli.main import main
from triptych.scenes.tokenizer_report import check_tokenizers, contact_sheet
from triptych.tokenizers.bundle import TokenizerBundle


class Lossy:
    """An image tokenizer that forgets everything."""

    def encode(self, items):
        return [np.zeros(64, np.int32)] * len(items)

    def decode(self, ids):
        return [Image.new("RGB", (64, 64), "white") for _ in ids]


class FakeBundle:
    def __init__(self, bundle, image):
        self.text, self.image = bundle.text, image


def test_what_is_lost_is_seen():
    bundle = TokenizerBundle.load("scenes")
    good = check_tokenizers(bundle, pictures=12, sounds=0, report=lambda _: None)
    bad = check_tokenizers(FakeBundle(bundle, Lossy()), pictures=12, sounds=0, report=lambda _: None)
    assert good["text_exact"] == bad["text_exact"] == 1
    assert good["judge_true"] == bad["judge_true"]
    assert good["judge_rebuilt"]["overall"] == 1
    assert bad["judge_rebuilt"]["overall"] == 0
    assert good["psnr_db"] > bad["psnr_db"] + 15
    assert good["code_entropy"] > bad["code_entropy"] == 0


def test_the_sheet_shows_originals_above_round_trips(tmp_path):
    bundle = TokenizerBundle.load("scenes")
    sheet = contact_sheet(bundle, columns=2, rows=1)
    assert sheet.size == (132, 132)
    path = tmp_path / "deep" / "sheet.png"
    assert main(["eval", "tokenizers", "--pictures", "2", "--sounds", "0", "--sheet", str(path)]) == 0
    assert path.exists()
