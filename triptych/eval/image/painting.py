"""Generated images of some prompts: drawn by the model, or read where they were kept."""

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from triptych.errors import DataError, UserError
from triptych.eval.records import model_fingerprint
from triptych.eval.suite import Evaluation, ModelSource
from triptych.hub.pipeline import Pipeline
from triptych.utils.files import write_atomically
from triptych.utils.json_files import read_json
from triptych.utils.media import read_image
from triptych.utils.workers import one_thread

_SHOWN = 16  # images that are stored beside the results, for a report


@dataclass(frozen=True)
class Painter:
    """Generates the images of some prompts, or reads those that are kept. Picklable."""

    model: ModelSource | Pipeline
    texts: tuple[str, ...]
    seed: int
    sampling: Mapping[str, Any]
    files: tuple[Path, ...] | None
    """Where images are kept."""
    shown: tuple[Path, ...] = ()
    """Where the first images are stored beside the results."""

    def start(self) -> Callable[[range], list[Image.Image]]:
        pipe = self.model.load() if isinstance(self.model, ModelSource) else self.model

        def paint(batch: range) -> list[Image.Image]:
            images = {i: image for i in batch if (image := self._kept(i)) is not None}
            new = [i for i in batch if i not in images]
            if new:
                was_checking, pipe.check_inputs = pipe.check_inputs, False  # prompts of a benchmark may be unusual
                try:
                    seeds = [self.seed + i for i in new]
                    drawn = pipe.text_to_image([self.texts[i] for i in new], seed=seeds, **self.sampling)
                finally:
                    pipe.check_inputs = was_checking
                for i, image in zip(new, drawn):
                    images[i] = image
                    if self.files is not None:
                        _save(image, self.files[i])
            for i in batch:
                if i < len(self.shown):
                    _save(images[i], self.shown[i])
            return [images[i] for i in batch]

        return paint

    def _kept(self, i: int) -> Image.Image | None:
        if self.files is None or not self.files[i].is_file():
            return None
        try:
            return read_image(self.files[i])
        except DataError:  # damaged: generated again
            return None


def _save(image: Image.Image, path: Path) -> None:
    content = io.BytesIO()
    image.save(content, "PNG")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content.getvalue())


def content_hash(content: Any) -> str:
    """Short hash of what can be written as JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:12]


def keep_folder(folder: Path, evaluation: Evaluation, texts: Sequence[str], shared: Mapping[str, Any]) -> Path:
    """A folder for the images of these samples; one that has images of others is refused."""
    what = {
        "model": model_fingerprint(evaluation.pipe),
        "texts": content_hash(list(texts)),
        "seed": evaluation.seed,
        **shared,
    }
    manifest = folder / "images.json"
    try:
        known = read_json(manifest)["key"]
    except (OSError, ValueError, KeyError, TypeError):
        known = None
    if known not in (None, content_hash(what)) or (known is None and folder.is_dir() and any(folder.iterdir())):
        raise UserError(
            f"{folder} holds other files or images of another evaluation: choose another keep_images folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    content = {"key": content_hash(what), "samples": len(texts), **what, "prompts": list(texts)}
    write_atomically(manifest, (json.dumps(content, indent=1, default=str) + "\n").encode())
    return folder


def show_samples(folder: Path, texts: Sequence[str], key: str) -> tuple[Path, ...]:
    """Files for the first images of a set of samples, named by its key, and what they show in FOLDER/prompts.json.

    The list names the files of other sets after those of the newest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    listing = folder / "prompts.json"
    listed = [{"file": f"{key}-{i:03d}.png", "prompt": text} for i, text in enumerate(texts[:_SHOWN])]
    files = {row["file"] for row in listed}
    try:
        others = [row for row in read_json(listing) if row["file"] not in files]
    except (OSError, ValueError, KeyError, TypeError):
        others = []
    write_atomically(listing, (json.dumps(listed + others, indent=1) + "\n").encode())
    return tuple(folder / row["file"] for row in listed)


def threads(evaluation: Evaluation) -> AbstractContextManager[None]:
    """One thread for each of several processes."""
    return one_thread() if evaluation.nproc > 1 else nullcontext()


def model_of(evaluation: Evaluation) -> ModelSource | Pipeline:
    """What processes load; this process has the model already."""
    return evaluation.model if evaluation.nproc > 1 else evaluation.pipe
