"""Requests computed in parts: with a record for each, in one process or several, and resumable."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from triptych.eval.records import Compute, Progress, Record, RecordStore, run_part_in_processes
from triptych.eval.suite import ModelSource
from triptych.eval.text.generate import GenerationConfig, GenerationRequest, complete
from triptych.eval.text.likelihood import LikelihoodConfig, LikelihoodEstimator, TextRequest
from triptych.hub.pipeline import Pipeline

Question = Sequence[TextRequest]
"""All answers of a question, which are computed together."""


@dataclass(frozen=True)
class ScoreQuestions:
    """Builds the function that computes log-likelihoods; picklable if the model is a `ModelSource`."""

    model: ModelSource | Pipeline
    config: LikelihoodConfig
    questions: Sequence[Question]

    def __call__(self) -> Compute:
        estimate = LikelihoodEstimator(_loaded(self.model).model, self.config)

        def compute(numbers: range) -> list[Record]:
            results = iter(estimate([request for number in numbers for request in self.questions[number]]))
            records = []
            for number in numbers:
                of_question = [next(results) for _ in self.questions[number]]
                records.append(
                    {"nats": [each.nats for each in of_question], "greedy": [each.is_greedy for each in of_question]}
                )
            return records

        return compute

    @property
    def digest(self) -> str:
        settings = {**asdict(self.config), "batch_size": None}  # which does not change results
        requests = [request for question in self.questions for request in question]
        numbers = [(request.question, request.choice, request.is_last) for request in requests]
        return _digest(settings, numbers, [ids for request in requests for ids in (request.prompt, request.answer)])


@dataclass(frozen=True)
class CompletePrompts:
    """Builds the function that completes prompts; picklable if the model is a `ModelSource`."""

    model: ModelSource | Pipeline
    config: GenerationConfig
    requests: Sequence[GenerationRequest]

    def __call__(self) -> Compute:
        pipe = _loaded(self.model)

        def compute(numbers: range) -> list[Record]:
            texts = complete(pipe.model, pipe.bundle.text, [self.requests[n] for n in numbers], self.config)
            return [{"text": text} for text in texts]

        return compute

    @property
    def digest(self) -> str:
        rest = [(each.max_tokens, each.until, each.temperature, each.number) for each in self.requests]
        return _digest(asdict(self.config), rest, [request.prompt for request in self.requests])


@dataclass(frozen=True)
class Runner:
    """Where records are kept, and how many processes compute them."""

    records: RecordStore
    progress: Progress
    nproc: int = 1

    def run(self, name: str, work: ScoreQuestions | CompletePrompts) -> list[Record]:
        """The records of a work, in its order.

        The digest of the requests is a part of the name: records of other questions or settings are never taken for
        these.
        """
        size = len(work.questions) if isinstance(work, ScoreQuestions) else len(work.requests)
        part = f"{name} {work.digest[:12]}"
        nproc = self.nproc if isinstance(work.model, ModelSource) else 1

        def progress(line: str) -> None:
            self.progress(line.replace(part, name))

        return run_part_in_processes(self.records, part, size, work, progress, nproc=nproc)


def number_of(*parts: Any) -> int:
    """64 bits that identify something: equal for equal JSON."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _digest(settings: Any, rest: Any, arrays: Sequence[np.ndarray]) -> str:
    sha256 = hashlib.sha256(json.dumps([settings, rest, [len(ids) for ids in arrays]], sort_keys=True).encode())
    for ids in arrays:
        sha256.update(ids.astype("<i8").tobytes())
    return sha256.hexdigest()


def _loaded(model: ModelSource | Pipeline) -> Pipeline:
    return model if isinstance(model, Pipeline) else model.load()


def token_array(ids: Sequence[int]) -> np.ndarray:
    return np.asarray(ids, np.int64)
