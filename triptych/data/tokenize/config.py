"""What decides the content of a dataset. A stopped run can be resumed only with an equal configuration."""

from dataclasses import dataclass
from typing import Literal, get_args

from triptych.errors import UserError
from triptych.utils.arguments import check_fields
from triptych.vocab import Task

ImageTransform = Literal["pad", "paper"]
TooLong = Literal["skip", "cut"]


class TokenizeFailed(UserError):
    """The machine stopped the run, not its input. Finished shards are kept; running again resumes."""

    exit_code = 1


@dataclass(frozen=True, kw_only=True)
class TokenizeConfig:
    """Everything but the number of processes and the output folder: equal configurations give equal bytes."""

    inputs: tuple[str, ...]
    """Files, folders and patterns; see `triptych.data.sources`."""
    tokenizers: str
    """Folder of a tokenizer bundle, or the name of a built-in one ("scenes")."""
    format: str | None = None
    """Name of one of `triptych.data.sources.FORMATS`, or None to detect it."""
    task: str | None = None
    """Label of a `Task` ("text", "image-text", "audio-text"), or None to detect it."""
    text_key: str | None = None
    """Column or field of the text, or None to try the usual names."""
    prompt_key: str | None = None
    """Column or field of a prompt that is given before the text, or None to try the usual names."""
    media_key: str | None = None
    """Column or field of the image or audio, or of its path; None to try the usual names."""
    per_line: bool = False
    """Whether every line of a .txt file is a document."""
    image_transform: ImageTransform = "pad"
    """`pad`: the whole image on a white square. `paper`: with even odds that, or a random crop."""
    views: int = 1
    """Number of independently transformed versions that are stored of every image."""
    max_seconds: float = 30.0
    """Longest audio clip."""
    too_long: TooLong = "cut"
    """Whether a longer audio clip is shortened ("cut", as in the paper) or left out ("skip"). Its text stays whole."""
    samples_per_shard: int = 4096
    """Samples read per shard, bad ones included; fewer if texts are long. A killed run loses at most one shard."""
    seed: int = 0
    """Seed of the random crops."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.inputs:
            raise UserError("inputs is empty; give at least one file or folder.")
        for name in ("views", "samples_per_shard"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.views > 1000:
            raise UserError(f"views must be at most 1000, got {self.views}.")
        if not 0 < self.max_seconds <= 86_400:
            raise UserError(f"max_seconds must be above 0 and at most 86,400 (a day), got {self.max_seconds}.")
        if self.seed < 0:
            raise UserError(f"seed must not be negative, got {self.seed}.")
        for name, choice in (("image_transform", ImageTransform), ("too_long", TooLong)):
            if getattr(self, name) not in get_args(choice):
                raise UserError(f"{name} must be one of {', '.join(get_args(choice))}, got {getattr(self, name)!r}.")
        if self.task is not None and self.task not in (labels := [task.label for task in Task]):
            raise UserError(f"task must be one of {', '.join(labels)}, got {self.task!r}.")
        if self.views > 1 and self.image_transform == "pad":
            raise UserError("several views of an image differ only by random crops: use --image-transform paper.")
