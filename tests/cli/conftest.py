"""A small model that knows nothing, for commands that need one."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from triptych.hub.format import Limits
    from triptych.hub.pipeline import Pipeline
    from triptych.model.transformer import ModelConfig, Transformer, initialise
    from triptych.tokenizers.bundle import TokenizerBundle

    bundle = TokenizerBundle.load("scenes")
    shape = ModelConfig(num_layers=1, width=16, num_heads=2, d_ff=24, softmax_scope="modality", init_std=0.3)
    network = Transformer(shape, bundle.vocabulary)
    initialise(network, 1)
    limits = Limits(seq_len=224, text_slot=12, audio_slot=32)
    return Pipeline(network, bundle, limits, preset="scenes").save_pretrained(
        tmp_path_factory.mktemp("models") / "small", builtin_tokenizers="scenes"
    )
