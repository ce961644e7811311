"""A bundle of the paper's tokenizers."""

import pytest

from triptych.errors import CheckpointError, UserError
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.image import MoVQ
from triptych.tokenizers.paper import paper_bundle
from triptych.vocab import Modality


def test_ids_of_missing_tokenizers_are_reserved(tmp_path):
    MoVQ.small(16, channels=(32, 32), codes=16_384).save(tmp_path / "movq")
    bundle = paper_bundle(image=str(tmp_path / "movq"), resolution=16)
    bundle.save(tmp_path / "bundle")
    loaded = TokenizerBundle.load(tmp_path / "bundle")
    assert loaded.vocabulary.size == 117_698
    assert [modality in loaded for modality in Modality] == [False, True, False]
    assert loaded.image.tokens_per_image == 64
    with pytest.raises(CheckpointError, match="has no text tokenizer"):
        _ = loaded.text


def test_at_least_one_tokenizer_is_needed():
    with pytest.raises(UserError, match="no tokenizer was given"):
        paper_bundle()


def test_a_missing_file_is_one_clear_line(tmp_path):
    for part in ("text", "image", "audio"):
        with pytest.raises(UserError) as caught:
            paper_bundle(**{part: str(tmp_path / "nothing")})
        assert "\n" not in str(caught.value)
        assert "nothing" in str(caught.value)
