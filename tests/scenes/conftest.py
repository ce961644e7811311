"""Small models of random weights for both presets."""

import pytest

from triptych.hub.pipeline import Limits, Pipeline
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.scenes.spoken import VOICE_REQUEST
from triptych.scenes.vocabulary import model_words
from triptych.scenes.voices import TRAINING_VOICES
from triptych.scenes.world import FULL, SMALL
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.patch_vq import PatchVQ, PatchVQConfig
from triptych.tokenizers.text import ByteBPE
from triptych.vocab import Vocabulary


def random_model(bundle, world, text_slot):
    shape = ModelConfig(num_layers=1, width=16, num_heads=2, d_ff=24, softmax_scope="modality", init_std=0.3)
    network = Transformer(shape, bundle.vocabulary)
    initialise(network, 1)
    voices = {} if world.plain_language else {"voices": TRAINING_VOICES, "voice_request": VOICE_REQUEST}
    limits = Limits(seq_len=320, text_slot=text_slot, audio_slot=176, words=model_words(world), **voices)
    return Pipeline(network, bundle, limits)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """The folder of a model of the preset `small`."""
    pipe = random_model(TokenizerBundle.load("scenes"), SMALL, 32)
    return pipe.save_pretrained(tmp_path_factory.mktemp("models") / "small", builtin_tokenizers="scenes")


@pytest.fixture(scope="session")
def full_model(tmp_path_factory):
    """The folder of a model of the preset `full`. Its image and text tokenizers are hardly fitted."""
    known = model_words(FULL)
    text = ByteBPE.train([*known, *(f"a {word}" for word in known)], 1024)
    image = PatchVQ.untrained(PatchVQConfig(codes=16))
    audio = TokenizerBundle.load("scenes").audio
    vocabulary = Vocabulary(text=text.vocab_size, image=16, audio=audio.vocab_size)
    bundle = TokenizerBundle(vocabulary, text=text, image=image, audio=audio)
    return random_model(bundle, FULL, 64).save_pretrained(tmp_path_factory.mktemp("models") / "full")
