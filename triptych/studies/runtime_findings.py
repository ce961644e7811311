"""What the times of steps say: speed-ups by ranks and by the batch of a rank, and the share of the peak."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from triptych.errors import UserError
from triptych.scaling.intervals import Interval, ratio_interval
from triptych.studies.base import Claim, StudyRecords
from triptych.studies.verdict import Verdict, verdict
from triptych.utils.units import human_duration

HALVES = (1.7, 2.05)  # speed-up by twice the ranks that counts as "approximately twice as fast"
_COMMON = 4  # sequences per GPU that the modelled numbers of nodes are compared at


@dataclass(frozen=True)
class Times:
    """Measured steps: for each number of ranks and batch of a rank, one row per start."""

    rows: dict[tuple[int, int], list[dict[str, float]]]
    cores: int

    @property
    def ranks(self) -> list[int]:
        """Numbers of ranks with a core each: more of them share cores."""
        return sorted({ranks for ranks, _ in self.rows if ranks <= self.cores})

    @property
    def batches(self) -> list[int]:
        return sorted({batch for _, batch in self.rows})

    def values(self, ranks: int, batch: int, name: str) -> np.ndarray:
        """`tokens_per_second`, or `efficiency`, the share of the peak of the cores in use, by start."""
        rows = self.rows[ranks, batch]
        if name == "tokens_per_second":
            return np.array([row["tokens"] / row["step_seconds"] for row in rows])
        used = min(ranks, self.cores)
        return np.array([row["flops"] / row["step_seconds"] / row["peak"] / used for row in rows])

    def ratio(self, name: str, of: tuple[int, int], to: tuple[int, int]) -> Interval:
        """How many times as large the value of one pair of ranks and batch is as that of another."""
        above, below = self.values(*of, name), self.values(*to, name)
        count = min(len(above), len(below))
        return ratio_interval(above[:count] / below[:count])


def measured_times(records: StudyRecords) -> Times:
    measured = sorted((record for record in records if "ranks" in record), key=lambda record: record["start"])
    if not measured:
        raise UserError("no run has been timed yet.")
    rows: dict[tuple[int, int], list[dict[str, float]]] = {}
    for record in measured:
        for row in record["rows"]:
            rows.setdefault((record["ranks"], row["batch"]), []).append({**row, "peak": record["peak"]})
    return Times(rows, measured[0]["cores"])


def modelled_record(records: StudyRecords) -> dict[str, Any] | None:
    """The modelled steps; None before they are recorded."""
    return next((record for record in records if "gpu" in record), None)


def run_seconds(record: dict[str, Any], row: dict[str, Any]) -> float:
    """Of the whole modelled run."""
    return float(record["horizon"] / row["tokens"] * row["step_seconds"])


def efficiency(record: dict[str, Any], row: dict[str, Any]) -> float:
    """Share of the peak of all GPUs."""
    return float(row["flops"] / row["step_seconds"] / (row["ranks"] * record["peak"]))


def findings(records: StudyRecords) -> list[str]:
    times = measured_times(records)
    first, last = times.batches[0], times.batches[-1]
    lines = [f"measured on {times.cores} cores, {first} to {last} sequences per rank and step"]
    for ranks in sorted({ranks for ranks, _ in times.rows}):
        shares = ", ".join(
            f"{batch}: {times.values(ranks, batch, 'tokens_per_second').mean():,.0f} "
            f"({times.values(ranks, batch, 'efficiency').mean():.0%})"
            for batch in times.batches
        )
        shared = "" if ranks <= times.cores else f", which share {times.cores} cores"
        named = f"{ranks} rank{'s' if ranks > 1 else ''}{shared}"
        lines.append(f"{named}: tokens per second (share of the peak) by batch of a rank: {shares}")
    for few, many in zip(times.ranks, times.ranks[1:]):
        ratios = ", ".join(
            f"{batch}: {times.ratio('tokens_per_second', (many, batch), (few, batch)).shown('.2f')}"
            for batch in times.batches
        )
        lines.append(f"{many} ranks are as many times as fast as {few}, by batch of a rank: {ratios}")
    return [*lines, *_modelled_lines(records)]


def _modelled_lines(records: StudyRecords) -> list[str]:
    record = modelled_record(records)
    if record is None:
        return []
    rows = {(row["nodes"], row["batch"]): row for row in record["rows"]}
    nodes, batches = sorted({node for node, _ in rows}), sorted({batch for _, batch in rows})
    named = f"modelled, {record['recipe']} on {record['gpu']}"
    times = ", ".join(f"{node}: {human_duration(run_seconds(record, rows[node, _COMMON]))}" for node in nodes)
    shares = ", ".join(
        f"{batch}: {efficiency(record, rows[nodes[0], batch]):.0%} and {efficiency(record, rows[nodes[-1], batch]):.0%}"
        for batch in batches
    )
    return [
        f"{named}: time for {record['horizon']:.3g} tokens with {_COMMON} sequences per GPU, by nodes: {times}",
        f"{named}: share of the peak on {nodes[0]} and {nodes[-1]} nodes, by sequences per GPU: {shares}",
        *(f"{named}, assumption: {line}" for line in record["assumptions"]),
    ]


def claims(records: StudyRecords) -> list[Claim]:
    times = measured_times(records)
    first, last = times.batches[0], times.batches[-1]
    saturated = times.ratio("efficiency", (1, last), (1, first)) if (1, first) in times.rows else None
    made = []
    if len(times.ranks) > 1:
        few, many = times.ranks[0], times.ranks[-1]
        doublings = np.log2(many / few)
        faster = times.ratio("tokens_per_second", (many, last), (few, last))
        per_doubling = Interval(*(float(end ** (1 / doublings)) for end in (faster.value, faster.low, faster.high)))
        by_batch = times.ratio("tokens_per_second", (few, last), (few, times.batches[-2]))
        made += [
            Claim(
                "Figure 20 a",
                "More nodes shorten a run more than filling each device with a larger batch does.",
                f"twice the ranks: {per_doubling.shown('.2f')} times as fast; from {times.batches[-2]} to {last} "
                f"sequences per rank: {by_batch.shown('.2f')} times",
                _is_larger(per_doubling, by_batch),
            ),
            Claim(
                "Figure 20 b",
                "Twice the nodes take about half of the time.",
                f"{per_doubling.shown('.2f')} times as fast with {last} sequences per rank",
                verdict(per_doubling.ends, *HALVES),
            ),
            Claim(
                "Figure 20 c",
                "More nodes use their FLOPs less well at the same batch per device.",
                f"{times.ratio('efficiency', (many, last), (few, last)).shown('.2f')} times the share of the peak on "
                f"{many} ranks as on {few}, with {last} sequences per rank",
                verdict(times.ratio("efficiency", (many, last), (few, last)).ends, high=1.0),
            ),
        ]
    if saturated is not None and first < last:
        made.append(
            Claim(
                "Figure 20 c",
                "A device with a large batch uses its FLOPs much better than one with a small batch.",
                f"{saturated.shown('.2f')} times the share of the peak with {last} sequences per rank as with {first}",
                verdict(saturated.ends, low=1.0),
            )
        )
    return made


def _is_larger(one: Interval, other: Interval) -> Verdict:
    if not np.isfinite([one.low, other.low]).all():
        return "undecided"
    if one.low > other.high:
        return "agrees"
    return "disagrees" if one.high < other.low else "undecided"
