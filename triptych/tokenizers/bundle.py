"""The vocabulary and the tokenizers of a model, saved in one folder.

    vocab.json  text/tokenizer.json ...  image/tokenizer.json ...  audio/tokenizer.json ...

A tokenizer is loaded on first use, so text-only work never loads an image decoder. A bundle may lack tokenizers.
"""

import json
import shutil
from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast, final

from triptych.errors import CheckpointError, UserError, did_you_mean
from triptych.tokenizers.base import AudioTokenizer, ImageTokenizer, Tokenizer, read_spec
from triptych.utils.checksums import checksums, differing_files
from triptych.utils.files import write_atomically
from triptych.utils.json_files import read_json
from triptych.vocab import Modality, Vocabulary, paper_vocabulary

_ASSETS = Path(__file__).parent.parent / "assets" / "tokenizers"
BUILTIN_TOKENIZERS = {name: _ASSETS / name for name in ("scenes", "scenes-full")}
"""Bundles in the package, by name: the demo tokenizers, fitted to the presets `small` and `full` of the toy dataset."""

PAPER_TOKENIZERS = "tokenizers/paper"
"""Folder, relative to the working directory, in which the paper's recipes expect the paper's tokenizers."""

_CHECKSUMS = "checksums.json"
"""Sizes and SHA-256 of the files of a folder of tokenizers; earlier versions wrote none."""

_MAKE_PAPER = (
    "triptych tokenizers make {folder} "
    "--text cl100k_base --image movqgan_270M.ckpt --audio bosonai/higgs-audio-v2-tokenizer"
)


def vocabulary_of(source: str | Path) -> Vocabulary:
    """The vocabulary of a bundle. Sizes of the paper's are known, so plans need no `PAPER_TOKENIZERS` folder."""
    if Path(source) == Path(PAPER_TOKENIZERS) and not Path(source).exists():
        return paper_vocabulary()
    return TokenizerBundle.load(source).vocabulary


@final
class TokenizerBundle:
    """Tokenizers from memory (`text`, `image`, `audio`), or, after `load`, from the subfolders of `folder`."""

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
                self._add(modality, tokenizer)

    @classmethod
    def load(cls, source: str | Path) -> "TokenizerBundle":
        """Open a saved bundle by its folder, or a built-in one by its name ("scenes", "scenes-full")."""
        folder = BUILTIN_TOKENIZERS.get(str(source), Path(source))
        if not folder.is_dir():
            known = did_you_mean(str(source), list(BUILTIN_TOKENIZERS))
            make = _MAKE_PAPER.format(folder=source)
            raise UserError(
                f"{str(source)!r} is neither a folder of tokenizers nor the name of built-in ones.{known} "
                f"Make a folder of the paper's tokenizers with `{make}`."
            )
        if not (folder / "vocab.json").exists():
            raise CheckpointError(f"{folder} holds no tokenizers: vocab.json is missing.")
        if folder in BUILTIN_TOKENIZERS.values():
            _check_files_once(folder)
        return cls._of(folder)

    @classmethod
    def _of(cls, folder: Path) -> "TokenizerBundle":
        """The tokenizers in a folder, unchecked."""
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
            self._add(modality, _load(modality, self._folder_of(modality)))
        return self._parts[modality]

    def __contains__(self, modality: Modality) -> bool:
        """Whether there is a tokenizer for this modality; does not load it."""
        return modality in self._parts or (self.folder is not None and self._folder_of(modality).is_dir())

    def _folder_of(self, modality: Modality) -> Path:
        assert self.folder is not None
        return self.folder / modality.name.lower()

    def _add(self, modality: Modality, tokenizer: Tokenizer[Any]) -> None:
        expected, actual = self.vocabulary.data_size(modality), tokenizer.vocab_size
        if tokenizer.modality != modality or actual != expected:
            raise CheckpointError(
                f"the vocabulary has {expected} ids for {modality.name.lower()}, "
                f"but the tokenizer makes {actual} ids for {tokenizer.modality.name.lower()}."
            )
        self._parts[modality] = tokenizer

    # -- fingerprints -------------------------------------------------------------------------------------------------

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the tokenizers by modality: "text", "image", "audio".

        Those of a saved bundle are read from `tokenizer.json`, without hashing the weights; `verify` hashes them.
        """
        return {m.name.lower(): self._stored(m) or self[m].fingerprint for m in Modality if m in self}

    def _stored(self, modality: Modality) -> str | None:
        if self.folder is None:
            return None
        return read_spec(self._folder_of(modality)).get("fingerprint")

    def verify(self, modalities: Iterable[Modality] = Modality) -> None:
        """Load tokenizers and compare their weights with the fingerprints they were saved with, and files if listed."""
        if self.folder is not None and (self.folder / _CHECKSUMS).exists():
            _check_files(self.folder)
        self._verify_fingerprints(modalities)

    def _verify_fingerprints(self, modalities: Iterable[Modality] = Modality) -> None:
        for modality in modalities:
            name = modality.name.lower()
            if name not in self.fingerprints:
                continue
            expected = self.fingerprints[name]
            actual = self[modality].fingerprint
            if actual != expected:
                raise CheckpointError(
                    f"the {name} tokenizer in {self.folder} is not the one that was saved: "
                    f"its fingerprint is {actual[:12]}…, expected {expected[:12]}…."
                )

    # -- saving -------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write all tokenizers with their checksums. Those from a folder are copied byte for byte, as are these."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for modality in Modality:
            target = folder / modality.name.lower()
            if self.folder is None and modality in self:
                self[modality].save(target)
            elif modality in self and target.resolve() != self._folder_of(modality).resolve():
                shutil.copytree(self._folder_of(modality), target, dirs_exist_ok=True)
        if self.folder is None or not (self.folder / _CHECKSUMS).exists():
            finish_bundle(folder, self.vocabulary)
        elif folder.resolve() != self.folder.resolve():
            for name in ("vocab.json", _CHECKSUMS):
                shutil.copy(self.folder / name, folder / name)


def finish_bundle(folder: Path, vocabulary: Vocabulary) -> None:
    """Make a folder of saved tokenizers a bundle: write its vocabulary and its checksums."""
    vocabulary.save(folder / "vocab.json")
    _write_checksums(folder)


def write_bundle_checksums(folder: Path) -> None:
    """Write the checksums of a folder of tokenizers that fit their fingerprints."""
    TokenizerBundle._of(folder)._verify_fingerprints()
    _write_checksums(folder)


def _write_checksums(folder: Path) -> None:
    content = json.dumps(checksums(folder, _files_of(folder)), indent=1)
    write_atomically(folder / _CHECKSUMS, (content + "\n").encode())


def _check_files(folder: Path) -> None:
    try:
        problems = differing_files(folder, _files_of(folder), dict(read_json(folder / _CHECKSUMS)))
    except (OSError, ValueError, TypeError) as error:
        problems = [f"{_CHECKSUMS} cannot be read ({error})"]
    if problems:
        raise CheckpointError(
            f"the tokenizers in {folder} are damaged: {'; '.join(problems)}. Restore them from a copy, or install "
            "Triptych again if they are its own; or, if you have edited their files yourself, accept them with "
            f"`triptych verify {folder} --update`."
        )


_check_files_once = cache(_check_files)


def _files_of(folder: Path) -> set[str]:
    """The files of a bundle that are ever read; a report beside them is of the user."""
    parts = (path for modality in Modality for path in (folder / modality.name.lower()).rglob("*"))
    paths = (path for path in (folder / "vocab.json", *parts) if path.is_file() and path.name[0] != ".")
    return {path.relative_to(folder).as_posix() for path in paths}


def _load(modality: Modality, folder: Path) -> Tokenizer[Any]:
    # Imported here: image and audio tokenizers import torch, which text-only work does not need.
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
