"""Pictures and sounds from and to files, for people: what cannot be read is said in one line."""

from pathlib import Path

from PIL import Image

from triptych.data.transforms import open_image, open_sound
from triptych.errors import DataError, UserError
from triptych.tokenizers.base import Audio


def read_picture(path: str | Path) -> Image.Image:
    try:
        return open_image(str(_existing(path)))
    except DataError as error:
        raise UserError(str(error)) from error


def read_sound(path: str | Path) -> Audio:
    import soundfile

    try:
        return open_sound(str(_existing(path)))
    except DataError as error:
        if isinstance(error.__cause__, soundfile.SoundFileError):  # its own words name the stream, not the file
            raise UserError(f"{path} is not a sound in one of the formats WAV, FLAC, OGG, MP3.") from error
        raise UserError(str(error)) from error


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r}.")
    return path


def with_ending(out: Path, ending: str) -> Path:
    """The path with its ending added if it has none; another one is an error."""
    if not out.name:
        raise UserError(f"expected the name of a {ending} file, got --out {str(out)!r}.")
    if out.suffix and out.suffix.lower() != ending:
        raise UserError(f"this makes a {ending} file, got --out {out}.")
    return out if out.suffix else out.with_name(out.name + ending)


def write_media(item: Image.Image | Audio, out: Path | None, name: str, number: int | None) -> Path:
    """Write a PNG or WAV; without a path, into the working folder under the direction's name."""
    path = with_ending(out or Path(name), ".png" if isinstance(item, Image.Image) else ".wav")
    if number is not None:
        path = path.with_name(f"{path.stem}-{number}{path.suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(item, Image.Image):
        item.save(path)
    else:
        import soundfile

        soundfile.write(path, item.samples, item.rate)
    return path
