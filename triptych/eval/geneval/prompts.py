"""Prompts of GenEval: what they say, and what an image must show.

    single_object   a photo of a bench
    two_object      a photo of a bench and a clock
    counting        a photo of three buses
    colors          a photo of a purple pizza
    position        a photo of a bird below a skateboard
    color_attr      a photo of a white dog and a blue vase

The official 553 prompts are `sample_prompts()`: its defaults draw them from the same generator in the same order. They
are also a file, evaluation_metadata.jsonl, and `read_prompts` reads any file of its format: one JSON object per line,
with `tag`, `prompt`, `include` (all must be shown) and optionally `exclude` (none may be shown).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triptych.errors import DataError, UserError
from triptych.utils.json_files import parse_json, read_text

CATEGORIES = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
POSITIONS = ("left of", "right of", "above", "below")
COCO_CLASSES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet",
    "tv", "laptop", "computer mouse", "tv remote", "computer keyboard", "cell phone", "microwave", "oven", "toaster",
    "sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip
"""The classes of COCO, named as in GenEval's prompts."""
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_OFFICIAL_SEED = 43


@dataclass(frozen=True)
class Clause:
    """Objects of one class that must, or must not, be shown."""

    name: str
    """Class of the objects."""
    count: int = 1
    """As many at least."""
    color: str | None = None
    position: tuple[str, int] | None = None
    """One of `POSITIONS`, and the number of the earlier clause whose objects it is relative to."""


@dataclass(frozen=True)
class GenEvalPrompt:
    """A prompt, and what is required of its images."""

    category: str
    text: str
    include: tuple[Clause, ...]
    exclude: tuple[Clause, ...] = ()

    @property
    def classes(self) -> set[str]:
        return {clause.name for clause in (*self.include, *self.exclude)}

    @property
    def needs_color(self) -> bool:
        return any(clause.color is not None for clause in self.include)

    @property
    def as_json(self) -> dict[str, Any]:
        """In the official format."""
        content: dict[str, Any] = {"tag": self.category, "include": [_clause_json(each) for each in self.include]}
        if self.exclude:
            content["exclude"] = [_clause_json(each) for each in self.exclude]
        return content | {"prompt": self.text}


def _clause_json(clause: Clause) -> dict[str, Any]:
    content: dict[str, Any] = {"class": clause.name, "count": clause.count}
    if clause.color is not None:
        content["color"] = clause.color
    if clause.position is not None:
        content["position"] = list(clause.position)
    return content


# -- files ------------------------------------------------------------------------------------------------------------


def read_prompts(path: str | Path, colors: Sequence[str] | None = COLORS) -> list[GenEvalPrompt]:
    """Read a file of the official format; the first line that does not have it is an error.

    `colors` are those that a judge can name: CLIP chooses among the official ones. None takes any, for a detector that
    names colours itself.
    """
    try:
        lines = read_text(Path(path)).split("\n")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read as GenEval prompts ({getattr(error, 'strerror', None) or error})."
        ) from error
    prompts = [_parsed(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    for number, prompt in zip((n for n, line in enumerate(lines, 1) if line.strip()), prompts):
        wrong = [each.color for each in (*prompt.include, *prompt.exclude) if each.color is not None]
        wrong = [color for color in wrong if colors is not None and color not in colors]
        if colors is not None and wrong:
            raise DataError(
                f"{path}:{number}: expected a color among {', '.join(colors)}, got {wrong[0]!r}: no judge names it; a "
                "detector that does takes read_prompts(path, colors=None)."
            )
    if not prompts:
        raise DataError(f"{path} holds no prompts: expected lines of JSON like GenEval's evaluation_metadata.jsonl.")
    return prompts


def _parsed(line: str, where: str) -> GenEvalPrompt:
    try:
        content = parse_json(line)
        include = tuple(_clause(each) for each in content["include"])
        exclude = tuple(_clause(each) for each in content.get("exclude", ()))
        prompt = GenEvalPrompt(str(content["tag"]), str(content["prompt"]), include, exclude)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(
            f"{where} is no GenEval prompt ({reason}); expected an object with tag, prompt, include."
        ) from error
    if not prompt.text.strip() or not prompt.include:
        raise DataError(f"{where} is no GenEval prompt: its prompt or its include is empty.")
    for number, clause in enumerate(prompt.include):
        if clause.position is not None and (
            clause.position[0] not in POSITIONS or not 0 <= clause.position[1] < number
        ):
            raise DataError(
                f"{where}: position must be one of {', '.join(POSITIONS)} and the number of an earlier clause, "
                f"got {list(clause.position)}."
            )
    return prompt


def _clause(content: Mapping[str, Any]) -> Clause:
    position = content.get("position")
    if position is not None:
        relation, target = position
        position = (str(relation), int(target))
    color = content.get("color")
    count = content["count"]
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count must be a whole number of at least 1, got {count!r}")
    return Clause(str(content["class"]), count, None if color is None else str(color), position)


# -- sampling ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Wording:
    """How prompts are put into words."""

    prefix: str = "a photo of "
    plurals: Mapping[str, str] | None = None
    """Plurals that are not formed by adding s, or es after s."""

    def single(self, name: str) -> str:
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"

    def several(self, count: int, name: str) -> str:
        regular = f"{name}es" if name.endswith("s") else f"{name}s"
        return f"{_NUMBERS[count]} {(self.plurals or {}).get(name, regular)}"


OFFICIAL_WORDING = Wording()


def sample_prompts(
    classes: Sequence[str] = COCO_CLASSES,
    colors: Sequence[str] = COLORS,
    *,
    n: int = 100,
    seed: int = _OFFICIAL_SEED,
    max_count: int = 4,
    uncolored: str | None = "person",
    wording: Wording = OFFICIAL_WORDING,
) -> list[GenEvalPrompt]:
    """Draw prompts: one for each class, and `n` for each other category; repeated ones are dropped.

    With the defaults these are the 553 official prompts. `uncolored` is a class without colours.
    """
    classes, colors = tuple(classes), tuple(colors)
    num_colored = len(classes) - (uncolored in classes)
    if num_colored < 2 or len(colors) < 2 or len(set(classes)) != len(classes) or len(set(colors)) != len(colors):
        raise UserError(f"GenEval needs two different classes and colors at least, got {classes} and {colors}.")
    if not 2 <= max_count < len(_NUMBERS) or n < 1:
        raise UserError(
            f"GenEval counts from 2 to at most 10, for n of at least 1, got max_count {max_count} and n {n}."
        )
    draw = _Draw(classes, colors, np.random.default_rng(seed), max_count, uncolored, wording)
    prompts = draw.single_objects()
    makers: tuple[Callable[[], GenEvalPrompt], ...] = (
        draw.two_objects,
        draw.counting,
        draw.colored,
        draw.position,
        draw.color_attribution,
    )
    prompts += [make() for make in makers for _ in range(n)]
    return list(dict.fromkeys(prompts))


@dataclass
class _Draw:
    """Draws from one generator. The order of the draws decides which prompts come out, so it is GenEval's."""

    classes: tuple[str, ...]
    colors: tuple[str, ...]
    rng: np.random.Generator
    max_count: int
    uncolored: str | None
    wording: Wording

    def _prompt(self, category: str, words: str, *include: Clause, exclude: tuple[Clause, ...] = ()) -> GenEvalPrompt:
        return GenEvalPrompt(category, self.wording.prefix + words, include, exclude)

    def single_objects(self) -> list[GenEvalPrompt]:
        order = self.rng.choice(len(self.classes), size=len(self.classes), replace=False)
        names = [self.classes[index] for index in order]
        return [self._prompt("single_object", self.wording.single(name), Clause(name)) for name in names]

    def _pair(self) -> tuple[str, str]:
        first, second = self.rng.choice(len(self.classes), size=2, replace=False)
        return self.classes[first], self.classes[second]

    def two_objects(self) -> GenEvalPrompt:
        first, second = self._pair()
        words = f"{self.wording.single(first)} and {self.wording.single(second)}"
        return self._prompt("two_object", words, Clause(first), Clause(second))

    def counting(self) -> GenEvalPrompt:
        name = self.classes[self.rng.choice(len(self.classes))]
        count = int(self.rng.integers(2, self.max_count, endpoint=True))
        too_many = (Clause(name, count + 1),)
        return self._prompt("counting", self.wording.several(count, name), Clause(name, count), exclude=too_many)

    def _colored_classes(self) -> tuple[str, ...]:
        """The classes that have colours, from the one after `uncolored` on."""
        if self.uncolored not in self.classes:
            return self.classes
        start = self.classes.index(self.uncolored)
        return self.classes[start + 1 :] + self.classes[:start]

    def colored(self) -> GenEvalPrompt:
        candidates = self._colored_classes()
        name = candidates[self.rng.choice(len(candidates))]
        color = self.colors[self.rng.choice(len(self.colors))]
        return self._prompt("colors", f"{self.wording.single(color)} {name}", Clause(name, color=color))

    def position(self) -> GenEvalPrompt:
        first, second = self._pair()
        position = POSITIONS[self.rng.choice(len(POSITIONS))]
        words = f"{self.wording.single(first)} {position} {self.wording.single(second)}"
        return self._prompt("position", words, Clause(second), Clause(first, position=(position, 0)))

    def color_attribution(self) -> GenEvalPrompt:
        candidates = self._colored_classes()
        names = [candidates[index] for index in self.rng.choice(len(candidates), size=2, replace=False)]
        colors = [self.colors[index] for index in self.rng.choice(len(self.colors), size=2, replace=False)]
        words = " and ".join(f"{self.wording.single(color)} {name}" for color, name in zip(colors, names))
        clauses = (Clause(name, color=color) for color, name in zip(colors, names))
        return self._prompt("color_attr", words, *clauses)
