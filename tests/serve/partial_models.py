"""A server of small models that have only some of text, images and audio."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server_process import ServerProcess, running

from triptych.hub.pipeline import Limits, Pipeline
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.tokenizers.patch_vq import PatchVQ, PatchVQConfig
from triptych.tokenizers.text import ByteBPE
from triptych.vocab import Vocabulary

SHAPE = ModelConfig(num_layers=1, width=16, num_heads=2, d_ff=24)
LIMITS = Limits(seq_len=64, text_slot=16, audio_slot=None, caption_prompt="an image of")
TEXT = ByteBPE([])
IMAGE = PatchVQ.untrained(PatchVQConfig(resolution=16, patch=8, codes=12))


@contextmanager
def partial_models(folder: Path) -> Iterator[ServerProcess]:
    """The models "text", "pair" (text and images) and "image"."""
    models = {
        "text": _save(folder / "text", text=TEXT),
        "pair": _save(folder / "pair", text=TEXT, image=IMAGE),
        "image": _save(folder / "image", image=IMAGE),
    }
    with running(*(word for name, path in models.items() for word in ("--model", f"{name}={path}"))) as process:
        yield process
        assert '"trace"' not in process.log


def _save(folder: Path, **tokenizers: object) -> str:
    sizes = {name: getattr(tokenizers.get(name), "vocab_size", 7) for name in ("text", "image", "audio")}
    model = Transformer(SHAPE, Vocabulary(**sizes))
    initialise(model, 0)
    bundle = TokenizerBundle(model.vocabulary, **tokenizers)  # type: ignore[arg-type]
    return str(Pipeline(model, bundle, LIMITS).save_pretrained(folder))
