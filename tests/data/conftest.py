from pathlib import Path

import pytest

from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.text import ByteBPE
from triptych.vocab import Vocabulary


@pytest.fixture(scope="session")
def text_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved bundle with a real text tokenizer and nothing else."""
    folder = tmp_path_factory.mktemp("bundle") / "tokenizers"
    text = ByteBPE.train(["the cat sat on the mat and the dog lay on the cat"] * 3, 280)
    TokenizerBundle(Vocabulary(text=text.vocab_size, image=16, audio=16), text=text).save(folder)
    return folder
