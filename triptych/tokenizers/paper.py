"""A bundle of the paper's tokenizers from their published files."""

from pathlib import Path
from typing import Any

from triptych.errors import UserError
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.vocab import Vocabulary, paper_vocabulary


def paper_bundle(
    *,
    text: str | None = None,
    image: str | None = None,
    audio: str | None = None,
    image_size: str = "270M",
    resolution: int = 256,
    codec: str = "higgs",
    codebooks: int = 4,
) -> TokenizerBundle:
    """Load the given tokenizers. The others keep ids reserved at the paper's sizes, so that they can be added later.

    `text` is "cl100k_base", a ranks file or a folder with one; `image` an original .ckpt or a diffusers folder;
    `audio` a folder or hub name for `transformers`.
    """
    parts: dict[str, Any] = {}
    if text is not None:
        from triptych.tokenizers.text import Tiktoken

        parts["text"] = Tiktoken.from_pretrained(text)
    if image is not None:
        from triptych.tokenizers.image import MoVQ

        is_folder = Path(image).is_dir()
        parts["image"] = (
            MoVQ.from_folder(image, resolution) if is_folder else MoVQ.from_sber(image, image_size, resolution)
        )
    if audio is not None:
        from triptych.tokenizers.audio import Dac, HiggsAudio

        load = {"higgs": HiggsAudio.from_pretrained, "dac": Dac.from_pretrained}[codec]
        parts["audio"] = load(audio, codebooks)
    if not parts:
        raise UserError("no tokenizer was given: give the source of the text, image or audio tokenizer.")
    sizes = {name: getattr(paper_vocabulary(), name) for name in ("text", "image", "audio")}
    sizes |= {name: tokenizer.vocab_size for name, tokenizer in parts.items()}
    return TokenizerBundle(Vocabulary(**sizes), **parts)
