"""Pictures and sounds from and to files, for people: what cannot be read is said in one line."""

from pathlib import Path

from PIL import Image

from triptych.data.transforms import open_image, open_sound
from triptych.errors import UserError
from triptych.tokenizers.base import Sound


def read_picture(path: str | Path) -> Image.Image:
    return open_image(str(_existing(path)))


def read_sound(path: str | Path) -> Sound:
    return open_sound(str(_existing(path)))


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r}.")
    return path


def write_media(item: Image.Image | Sound, out: Path | None, name: str, number: int | None) -> Path:
    """Write a PNG or WAV; without a path, into the working folder under the direction's name."""
    ending = ".png" if isinstance(item, Image.Image) else ".wav"
    path = out or Path(name + ending)
    if path.suffix.lower() != ending:
        if path.suffix:
            raise UserError(f"this makes a {ending} file, got --out {path}.")
        path = path.with_suffix(ending)
    if number is not None:
        path = path.with_name(f"{path.stem}-{number}{path.suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(item, Image.Image):
        item.save(path)
    else:
        import soundfile

        soundfile.write(path, item.samples, item.rate)
    return path
