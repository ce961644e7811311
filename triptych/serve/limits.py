"""The limits of the server: the one place of their numbers. docs/serving.md lists them from here."""

from dataclasses import Field, dataclass, fields
from typing import Any

from triptych.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ServeLimits:
    """What one request may ask for and how many there may be. The command line has an option for each."""

    body_bytes: int = 32 * 2**20
    """Size of a request's body, and of a file that is fetched."""
    held_bytes: int = 256 * 2**20
    """Size of all bodies that are being answered; more are refused with 503."""
    json_values: int = 200_000
    """Values in a JSON body."""
    json_depth: int = 32
    """Levels of a JSON body."""
    text_chars: int = 100_000
    """Characters of one text."""
    messages: int = 100
    """Messages of a chat."""
    media: int = 8
    """Images and recordings in one request."""
    pixels: int = 16_000_000
    """Width times height of an image."""
    audio_seconds: float = 120.0
    """Length of a recording."""
    num_steps: int = 4096
    """Sampler steps of one result."""
    results: int = 16
    """Results of one request (`n` times `best_of`)."""
    top_k: int = 20
    """Likeliest ids reported for each position."""
    seconds: float = 300.0
    """Time for one request, waiting included."""
    head_seconds: float = 20.0
    """Time for a client to send a request, and to go on reading its answer."""
    fetch_seconds: float = 10.0
    """Time to fetch a file from a host of `media_hosts`."""
    running: int = 64
    """Results that share forward passes."""
    queue: int = 256
    """Results that wait; more are refused with 429."""
    backlog_bytes: int = 8 * 2**20
    """Steps of one result that its client has not read; beyond, the request ends."""
    connections: int = 1024
    """Open connections."""
    drain_seconds: float = 30.0
    """Time for requests in flight to finish after SIGTERM."""
    media_hosts: tuple[str, ...] = ()
    """Hosts from which images and audio may be fetched."""

    def __post_init__(self) -> None:
        for field in numbers():
            value = getattr(self, field.name)
            if not 0 < value < 1e12:
                raise UserError(f"the limit {field.name} must be positive, got {value!r}.")


def numbers() -> "list[Field[Any]]":
    """The limits that are numbers."""
    return [field for field in fields(ServeLimits) if field.type in (int, float)]
