"""From the objects in an image to right or wrong: the rules of GenEval, as functions without side effects.

objects    of each class, those above the threshold, at most 16, the most confident first
include    at least `count` objects; of these, the `count` most confident are looked at further
color      all of them have the colour
position   all of them stand in the relation to all objects of the earlier clause
exclude    fewer than `count` objects
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from triptych.eval.geneval.detection import Box, Detection
from triptych.eval.geneval.prompts import Clause, GenEvalPrompt

Objects = Mapping[str, Sequence[Detection]]
"""Objects by class, the most confident first."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Thresholds of the official evaluation."""

    threshold: float = 0.3
    """Objects count if the detector is more confident than this."""
    counting_threshold: float = 0.9
    """The same for prompts of the category "counting"."""
    max_objects: int = 16
    """Of one class."""
    max_overlap: float = 1.0
    """Intersection over union from which the less confident of two boxes of a class is dropped; 1 drops none."""
    margin: float = 0.1
    """Share of both objects' size that an offset must exceed before it counts as a position."""


OFFICIAL_RULES = Rules()


@dataclass(frozen=True)
class Verdict:
    is_right: bool
    reason: str = ""
    """What is wrong, empty if nothing is."""


def score_detections(detections: Sequence[Detection], prompt: GenEvalPrompt, rules: Rules = OFFICIAL_RULES) -> Verdict:
    """Whether an image with these objects shows what the prompt asks for; if it names colours, theirs are known."""
    return judge_objects(select_objects(detections, prompt.category, rules), prompt, rules)


def select_objects(
    detections: Sequence[Detection], category: str, rules: Rules = OFFICIAL_RULES
) -> dict[str, list[Detection]]:
    """The objects that count, by class, the most confident first."""
    threshold = rules.counting_threshold if category == "counting" else rules.threshold
    objects: dict[str, list[Detection]] = {}
    for detection in sorted(detections, key=lambda each: -each.score):
        if detection.score > threshold:
            objects.setdefault(detection.name, []).append(detection)
    return {
        name: _without_overlaps(candidates[: rules.max_objects], rules.max_overlap)
        for name, candidates in objects.items()
    }


def _without_overlaps(candidates: Sequence[Detection], max_overlap: float) -> list[Detection]:
    kept: list[Detection] = []
    for detection in candidates:
        if max_overlap == 1 or all(overlap(other.box, detection.box) < max_overlap for other in kept):
            kept.append(detection)
    return kept


def judge_objects(objects: Objects, prompt: GenEvalPrompt, rules: Rules = OFFICIAL_RULES) -> Verdict:
    """The verdict on selected objects."""
    problems: list[str] = []
    shown: list[Sequence[Detection] | None] = []  # of every clause; None if it is not satisfied
    for clause in prompt.include:
        candidates = list(objects.get(clause.name, ()))[: clause.count]
        problem = _problem_of(candidates, clause, shown, rules)
        problems += [problem] if problem else []
        shown.append(None if problem else candidates)
    for clause in prompt.exclude:
        count = len(objects.get(clause.name, ()))
        if count >= clause.count:
            problems.append(f"expected fewer than {clause.count} {clause.name}, found {count}")
    return Verdict(not problems, "; ".join(problems))


def _problem_of(
    candidates: Sequence[Detection], clause: Clause, shown: Sequence[Sequence[Detection] | None], rules: Rules
) -> str:
    """Why a clause is not satisfied, or an empty text."""
    if len(candidates) < clause.count:
        return f"expected {clause.count} {clause.name}, found {len(candidates)}"
    if clause.color is not None:
        colors = [detection.color for detection in candidates]
        assert None not in colors, "colours are found before objects are judged"
        if colors.count(clause.color) < clause.count:
            return f"expected {clause.count} {clause.color} {clause.name}, found {', '.join(map(str, colors))}"
    if clause.position is not None:
        relation, number = clause.position
        targets = shown[number]
        if targets is None:
            return f"nothing for {clause.name} to be {relation}"
        for detection in candidates:
            for target in targets:
                relations = relative_positions(detection.box, target.box, rules.margin)
                if relation not in relations:
                    seen = " and ".join(sorted(relations)) or "in no clear position"
                    return f"expected {clause.name} {relation} {target.name}, found it {seen}"
    return ""


def relative_positions(box: Box, target: Box, margin: float = 0.1) -> frozenset[str]:
    """Where a box is, seen from another: none, one or two of left of, right of, above, below.

    The offset of the centres is shortened on each axis by `margin` times the sizes of both boxes. A direction counts
    if what is left is more than half of the length of the whole offset, so one that is far off the diagonal counts
    alone.
    """
    corners = np.array([box, target], float).reshape(2, 2, 2)
    offset = np.subtract(*corners.mean(axis=1))
    sizes = np.abs(corners[:, 1] - corners[:, 0]).sum(axis=0)
    remaining = np.sign(offset) * np.maximum(np.abs(offset) - margin * sizes, 0)
    if (np.abs(remaining) < 1e-3).all():
        return frozenset()
    right, down = remaining / np.linalg.norm(offset)
    directions = {"left of": -right, "right of": right, "above": -down, "below": down}
    return frozenset(name for name, share in directions.items() if share > 0.5)


def overlap(one: Box, other: Box) -> float:
    """Intersection over union of two boxes whose edges are pixels that belong to them."""
    shared = (max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3]))
    intersection = _area(shared)
    union = _area(one) + _area(other) - intersection
    return intersection / union if union else 0.0


def _area(box: Box) -> float:
    return max(box[2] - box[0] + 1, 0) * max(box[3] - box[1] + 1, 0)
