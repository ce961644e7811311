"""The vocabulary and the three tokenizers that a model was trained with, saved beside it.

    vocab.json  text/tokenizer.json ...  image/tokenizer.json ...  audio/tokenizer.json ...

A part is loaded when it is first used, so text work never loads an image decoder, and a bundle may lack parts.
"""

import shutil
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, cast, final

from triptych.errors import CheckpointError, UserError, did_you_mean
from triptych.tokenizers.base import AudioTokenizer, ImageTokenizer, Tokenizer, read_spec
from triptych.vocab import Modality, Vocabulary

BUILTIN_TOKENIZERS = {"scenes": Path(__file__).parent.parent / "assets" / "tokenizers"}
"""Bundles that come with the package, by name."""


@final
class TokenizerBundle:
    """Parts come from memory (`text`, `image`, `audio`) or, after `load`, from the subfolders of `folder`."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        text: Tokenizer[str] | None = None,
        image: ImageTokenizer | None = None,
        audio: AudioTokenizer | None = None,
    ):
        self.vocabulary = vocabulary
        self.folder: Path | None = None
        self._parts: dict[Modality, Tokenizer[Any]] = {}
        given = {Modality.TEXT: text, Modality.IMAGE: image, Modality.AUDIO: audio}
        for modality, tokenizer in given.items():
            if tokenizer is not None:
                self._keep(modality, tokenizer)

    @classmethod
    def load(cls, source: str | Path) -> "TokenizerBundle":
        """Open a saved bundle by its folder, or an embedded one by name ("scenes")."""
        folder = BUILTIN_TOKENIZERS.get(str(source), Path(source))
        if not folder.is_dir():
            known = did_you_mean(str(source), list(BUILTIN_TOKENIZERS))
            raise UserError(f"{str(source)!r} is neither a folder nor the name of embedded tokenizers.{known}")
        if not (folder / "vocab.json").exists():
            raise CheckpointError(f"{folder} holds no tokenizers: vocab.json is missing.")
        bundle = cls(Vocabulary.load(folder / "vocab.json"))
        bundle.folder = folder
        return bundle

    # -- parts --------------------------------------------------------------------------------------------------------

    @property
    def text(self) -> Tokenizer[str]:
        return self[Modality.TEXT]

    @property
    def image(self) -> ImageTokenizer:
        return cast(ImageTokenizer, self[Modality.IMAGE])

    @property
    def audio(self) -> AudioTokenizer:
        return cast(AudioTokenizer, self[Modality.AUDIO])

    def __getitem__(self, modality: Modality) -> Tokenizer[Any]:
        if modality not in self:
            origin = self.folder or "this tokenizer bundle"
            raise CheckpointError(f"{origin} has no {modality.name.lower()} tokenizer, which is needed here.")
        if modality not in self._parts:
            self._keep(modality, _load(modality, self._folder_of(modality)))
        return self._parts[modality]

    def __contains__(self, modality: Modality) -> bool:
        """Whether there is a tokenizer for this modality; does not load it."""
        return modality in self._parts or (self.folder is not None and self._folder_of(modality).is_dir())

    def _folder_of(self, modality: Modality) -> Path:
        assert self.folder is not None
        return self.folder / modality.name.lower()

    def _keep(self, modality: Modality, tokenizer: Tokenizer[Any]) -> None:
        expected, found = self.vocabulary.data_size(modality), tokenizer.vocab_size
        if tokenizer.modality != modality or found != expected:
            raise CheckpointError(
                f"the vocabulary has {expected} ids for {modality.name.lower()}, "
                f"but the tokenizer makes {found} ids for {tokenizer.modality.name.lower()}."
            )
        self._parts[modality] = tokenizer

    # -- fingerprints -------------------------------------------------------------------------------------------------

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """By modality ("text", "image", "audio"), for the parts there are.

        Those of a saved bundle are read from its files, so that starting never hashes a gigabyte; `verify` does.
        """
        return {m.name.lower(): self._stored(m) or self[m].fingerprint for m in Modality if m in self}

    def _stored(self, modality: Modality) -> str | None:
        if self.folder is None:
            return None
        return read_spec(self._folder_of(modality)).get("fingerprint")

    def verify(self, modalities: Iterable[Modality] = Modality) -> None:
        """Load parts and compare their weights with the fingerprints they were saved with."""
        for modality in modalities:
            name = modality.name.lower()
            if name not in self.fingerprints:
                continue
            expected = self.fingerprints[name]
            found = self[modality].fingerprint
            if found != expected:
                raise CheckpointError(
                    f"the {name} tokenizer in {self.folder} is not the one that was saved: "
                    f"its fingerprint is {found[:12]}…, expected {expected[:12]}…."
                )

    # -- saving -------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write all parts there are. What came from a folder is copied byte for byte."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for modality in Modality:
            target = folder / modality.name.lower()
            if self.folder is None and modality in self:
                self[modality].save(target)
            elif modality in self and target.resolve() != self._folder_of(modality).resolve():
                shutil.copytree(self._folder_of(modality), target, dirs_exist_ok=True)
        self.vocabulary.save(folder / "vocab.json")


def _load(modality: Modality, folder: Path) -> Tokenizer[Any]:
    # Imported here, because the image and audio tokenizers bring torch, which text-only work can do without.
    match modality:
        case Modality.TEXT:
            from triptych.tokenizers.text import load_text_tokenizer

            return load_text_tokenizer(folder)
        case Modality.IMAGE:
            from triptych.tokenizers.image import load_image_tokenizer

            return load_image_tokenizer(folder)
        case Modality.AUDIO:
            from triptych.tokenizers.audio import load_audio_tokenizer

            return load_audio_tokenizer(folder)
