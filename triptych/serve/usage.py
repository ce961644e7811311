"""Tokens of a request as OpenAI's API counts them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from triptych.sample.canvas import Canvas
from triptych.vocab import Modality


@dataclass
class Usage:
    """Tokens that were given and tokens that were generated, by modality."""

    given: Counter[Modality] = field(default_factory=Counter)
    generated: Counter[Modality] = field(default_factory=Counter)

    def add(self, asked: Canvas, filled: Canvas) -> None:
        """Count a canvas as it was asked for, and as it was filled."""
        for before, after in zip(asked.spans, filled.spans):
            if not before.unconditional:
                num_given = len(before.ids) - before.num_masked
                self.given[before.modality] += num_given
                self.generated[before.modality] += max(0, len(after.ids) - num_given)

    @property
    def for_text(self) -> dict[str, Any]:
        """As completions have it."""
        return {
            "prompt_tokens": self.given.total(),
            "completion_tokens": self.generated.total(),
            "total_tokens": self.given.total() + self.generated.total(),
            "prompt_tokens_details": _details(self.given),
            "completion_tokens_details": _details(self.generated),
        }

    @property
    def for_media(self) -> dict[str, Any]:
        """As images and audio have it."""
        return {
            "type": "tokens",
            "input_tokens": self.given.total(),
            "output_tokens": self.generated.total(),
            "total_tokens": self.given.total() + self.generated.total(),
            "input_tokens_details": _details(self.given),
            "output_tokens_details": _details(self.generated),
        }


def usage_of(asked: Canvas, filled: Iterable[Canvas]) -> Usage:
    usage = Usage()
    for each in filled:
        usage.add(asked, each)
    return usage


def _details(counts: Counter[Modality]) -> dict[str, int]:
    return {f"{modality.name.lower()}_tokens": counts[modality] for modality in Modality}
