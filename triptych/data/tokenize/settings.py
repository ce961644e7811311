"""What decides the content of a data set. A run may go on where another stopped only if all of it is equal."""

from dataclasses import dataclass
from typing import Literal, get_args

from triptych.errors import UserError
from triptych.vocab import Task

ImageTransform = Literal["pad", "paper"]
TooLong = Literal["skip", "cut"]


class RunFailed(UserError):
    """A run stopped by the machine, not by its input: what is finished is kept, and running again goes on."""

    exit_code = 1


@dataclass(frozen=True, kw_only=True)
class TokenizeSettings:
    """Everything but the number of processes and the folder: the same settings give the same bytes."""

    inputs: tuple[str, ...]
    """Files, folders and patterns; see `triptych.data.sources`."""
    tokenizers: str
    """Folder of a tokenizer bundle, or the name of an embedded one."""
    format: str | None = None
    """One of `triptych.data.sources.FORMATS`, or None to find out."""
    task: str | None = None
    """Label of a `Task`, or None to find out."""
    text_key: str | None = None
    media_key: str | None = None
    per_line: bool = False
    image_transform: ImageTransform = "pad"
    """`pad`: the whole picture on white. `paper`: with even odds that, or a random crop."""
    views: int = 1
    """How many times every picture is stored, each transformed anew."""
    max_seconds: float = 30.0
    too_long: TooLong = "skip"
    """What happens to a sound longer than `max_seconds`."""
    samples_per_shard: int = 4096
    """Samples read per shard, bad ones included. What a killed run loses is at most one shard."""
    seed: int = 0
    """Of the random crops."""

    def __post_init__(self) -> None:
        for name in ("views", "samples_per_shard"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.views > 1000:
            raise UserError(f"views must be at most 1000, got {self.views}.")
        if not 0 < self.max_seconds <= 86_400:
            raise UserError(f"max_seconds must lie between 0 and 86,400, a day; got {self.max_seconds}.")
        if self.seed < 0:
            raise UserError(f"seed must not be negative, got {self.seed}.")
        for name, choice in (("image_transform", ImageTransform), ("too_long", TooLong)):
            if getattr(self, name) not in get_args(choice):
                raise UserError(f"{name} must be one of {', '.join(get_args(choice))}, got {getattr(self, name)!r}.")
        if self.task is not None and self.task not in (labels := [task.label for task in Task]):
            raise UserError(f"task must be one of {', '.join(labels)}, got {self.task!r}.")
        if self.views > 1 and self.image_transform == "pad":
            raise UserError("several views of a picture differ only by random crops: use --image-transform paper.")
