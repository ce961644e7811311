"""How probable the tokens of a text were when they were filled in, as OpenAI's `logprobs`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triptych.errors import UserError
from triptych.hub.pipeline import Pipeline
from triptych.sample.canvas import MASKED
from triptych.sample.config import SamplingConfig
from triptych.serve.canvases import pieces_of, text_segment
from triptych.serve.job import Step
from triptych.vocab import Modality

_IMPOSSIBLE = -9999.0  # OpenAI's logarithm of 0


@dataclass(frozen=True)
class TokenProbability:
    """The probability of a token when it was filled in, and of the likeliest ones then."""

    logprob: float
    likeliest: Sequence[tuple[str, float]]
    """Texts of tokens with their logarithms, best first."""


@dataclass
class Probabilities:
    """Collects the probabilities of a text's tokens from the steps that fill them in."""

    pipe: Pipeline
    top_k: int
    at: dict[int, TokenProbability] = field(default_factory=dict)
    """By index in the text. A token that is drawn together with the length of its text has none."""

    def see(self, step: Step) -> None:
        outlook = step.outlook
        assert outlook is not None
        segment = text_segment(step.tokens, self.pipe.vocabulary)
        for row, position in enumerate(outlook.positions.tolist()):
            index = position - segment.start
            if 0 <= index < len(segment.ids) and segment.ids[index] != MASKED:
                likeliest = self._likeliest(outlook.ids[row], outlook.prob[row])
                self.at[index] = TokenProbability(_log(outlook.confidence[position]), likeliest)

    def _likeliest(self, ids: np.ndarray, prob: np.ndarray) -> list[tuple[str, float]]:
        is_data = ids < self.pipe.vocabulary.data_size(Modality.TEXT)  # the end of a text has no text
        texts = pieces_of(self.pipe, ids[is_data][: self.top_k])
        return [(text or "", _log(each)) for text, each in zip(texts, prob[is_data])]

    def for_completions(self, ids: np.ndarray, indices: Sequence[int]) -> dict[str, Any]:
        """As `/v1/completions` has them, for these tokens of a text."""
        tokens = [text or "" for text in pieces_of(self.pipe, ids)]
        offsets = np.cumsum([0, *map(len, tokens)]).tolist()
        known = [self.at.get(index) for index in indices]
        return {
            "tokens": [tokens[index] for index in indices],
            "token_logprobs": [each.logprob if each else None for each in known],
            "top_logprobs": [dict(reversed(each.likeliest)) if each else None for each in known],
            "text_offset": [offsets[index] for index in indices],
        }

    def for_chat(self, ids: np.ndarray, first: int) -> dict[str, Any]:
        """As `/v1/chat/completions` has them, for the tokens from `first` on."""
        content = []
        for index, text in enumerate(pieces_of(self.pipe, ids[first:]), first):
            known = self.at.get(index)
            likeliest = [_entry(*each) for each in known.likeliest] if known else []
            content.append({**_entry(text or "", known.logprob if known else None), "top_logprobs": likeliest})
        return {"content": content, "refusal": None}


def _entry(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def check_probabilities(config: SamplingConfig, stream: bool | None, count: int, most: int) -> None:
    """Refuse probabilities that there are none of."""
    if count > most:
        raise UserError(f"the probabilities of at most {most} tokens are reported for each position, got {count}.")
    if stream:
        raise UserError("logprobs are not streamed: leave out stream or logprobs.")
    if config.best_of > 1:
        raise UserError("logprobs are those of the only candidate: use best_of=1.")
    if config.single_pass:
        raise UserError("logprobs come from steps, and this model writes such a text in one pass.")


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else _IMPOSSIBLE
