"""A bundle of given tokenizers: the paper's from their published files, or saved ones."""

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
    `audio` a folder or hub name for `transformers`. Each may also be the folder of a tokenizer that was saved.
    """
    parts: dict[str, Any] = {}
    if text is not None:
        from triptych.tokenizers.text import Tiktoken, load_text_tokenizer

        parts["text"] = load_text_tokenizer(Path(text)) if is_saved(text) else Tiktoken.from_pretrained(text)
    if image is not None:
        from triptych.tokenizers.image import MoVQ, load_image_tokenizer

        if is_saved(image):
            parts["image"] = load_image_tokenizer(Path(image))
        elif Path(image).is_dir():
            parts["image"] = MoVQ.from_folder(image, resolution)
        else:
            parts["image"] = MoVQ.from_sber(image, image_size, resolution)
    if audio is not None:
        from triptych.tokenizers.audio import Dac, HiggsAudio, load_audio_tokenizer

        load = {"higgs": HiggsAudio.from_pretrained, "dac": Dac.from_pretrained}[codec]
        parts["audio"] = load_audio_tokenizer(Path(audio)) if is_saved(audio) else load(audio, codebooks)
    if not parts:
        raise UserError("no tokenizer was given: give the source of the text, image or audio tokenizer.")
    sizes = {name: getattr(paper_vocabulary(), name) for name in ("text", "image", "audio")}
    sizes |= {name: tokenizer.vocab_size for name, tokenizer in parts.items()}
    return TokenizerBundle(Vocabulary(**sizes), **parts)


def is_saved(source: str) -> bool:
    """Whether this is the folder of a saved tokenizer."""
    return (Path(source) / "tokenizer.json").exists()
