"""What a server and the process of a replica send each other."""

import pickle
import traceback
from dataclasses import dataclass

from triptych.errors import UserError
from triptych.serve.job import Event, Failed, Job, JobError


@dataclass(frozen=True)
class Ready:
    """A replica takes jobs."""


@dataclass(frozen=True)
class Beat:
    """A replica lives."""


@dataclass(frozen=True)
class Cancel:
    name: str


@dataclass(frozen=True)
class Told:
    """An event of a job."""

    name: str
    event: Event


@dataclass(frozen=True)
class Round:
    """What a `RoundObserver` is called with."""

    num_passes: int
    num_tokens: int
    seconds: float


ToReplica = Job | Cancel
FromReplica = Ready | Beat | Told | Round


def portable(event: Event) -> Event:
    """An event that another process can read: an error may hold what cannot be pickled."""
    if not isinstance(event, Failed):
        return event
    error = event.error
    if not isinstance(error, UserError | JobError):
        error.add_note("".join(traceback.format_exception(error)))  # the traceback itself stays in this process
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return Failed(RuntimeError("".join(traceback.format_exception(error))))
    return event
