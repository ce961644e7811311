"""Six panels: run time over the batch, over the ranks, and FLOP efficiency; measured above, modelled for GPUs below."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triptych.studies.base import StudyRecords
from triptych.studies.runtime_findings import Times, efficiency, measured_times, modelled_record, run_seconds
from triptych.utils.plotting import pyplot, save

_MEASURED_TOKENS = 1e6


def draw(records: StudyRecords, path: Path) -> None:
    record = modelled_record(records)
    figure, panels = pyplot().subplots(2 if record else 1, 3, figsize=(12.6, 7.4 if record else 3.8), squeeze=False)
    _measured(panels[0], measured_times(records))
    if record is not None:
        _modelled(panels[1], record)
    figure.tight_layout()
    save(figure, path)


def _measured(panels: Sequence[Any], times: Times) -> None:
    numbers = sorted({ranks for ranks, _ in times.rows})
    for ranks in numbers:
        batches = [batch for batch in times.batches if (ranks, batch) in times.rows]
        speeds = [times.values(ranks, batch, "tokens_per_second") for batch in batches]
        shares = [times.values(ranks, batch, "efficiency") for batch in batches]
        label = f"{ranks} rank{'s' if ranks > 1 else ''}" + ("" if ranks <= times.cores else " (cores shared)")
        _line(panels[0], [ranks * batch for batch in batches], [_MEASURED_TOKENS / each for each in speeds], label)
        _line(panels[2], batches, [100 * each for each in shares], label)
    for batch in times.batches[::2]:
        pairs = [(ranks, times.values(ranks, batch, "tokens_per_second")) for ranks in numbers]
        label = f"{batch} per rank"
        _line(panels[1], [ranks for ranks, _ in pairs], [_MEASURED_TOKENS / each for _, each in pairs], label)
    _decorate(panels, f"measured here, {times.cores} cores", "seconds per million tokens", "rank", "ranks")


def _modelled(panels: Sequence[Any], record: dict[str, Any]) -> None:
    rows = {(row["nodes"], row["batch"]): row for row in record["rows"]}
    nodes, batches = sorted({node for node, _ in rows}), sorted({batch for _, batch in rows})
    for node in nodes:
        mine = [rows[node, batch] for batch in batches]
        label = f"{node} node{'s' if node > 1 else ''}"
        hours = [run_seconds(record, row) / 3600 for row in mine]
        panels[0].plot([row["ranks"] * row["batch"] for row in mine], hours, "o-", ms=3, label=label)
        panels[2].plot(batches, [100 * efficiency(record, row) for row in mine], "o-", ms=3, label=label)
    for batch in batches[::2]:
        hours = [run_seconds(record, rows[node, batch]) / 3600 for node in nodes]
        line = panels[1].plot(nodes, hours, "o-", ms=3, label=f"{batch} per GPU")[0]
        panels[1].plot(nodes, [hours[0] * nodes[0] / node for node in nodes], ":", lw=0.8, color=line.get_color())
    title = f"modelled: {record['recipe']} on {record['gpu']}, nodes of 8"
    _decorate(panels, title, f"hours for {record['horizon'] / 1e9:g}B tokens", "GPU", "nodes (dotted: without loss)")


def _line(panel: Any, x: Sequence[float], values: Sequence[Any], label: str) -> None:
    """The means over starts, and each start as a point."""
    line = panel.plot(x, [each.mean() for each in values], "-", label=label)[0]
    for at, each in zip(x, values):
        panel.plot([at] * len(each), each, ".", ms=4, color=line.get_color())


def _decorate(panels: Sequence[Any], title: str, time: str, device: str, number: str) -> None:
    for panel in panels:
        panel.set_xscale("log", base=2)
        panel.legend(fontsize=7)
    for panel in panels[:2]:
        panel.set_yscale("log")
        panel.set_ylabel(time)
    panels[0].set_xlabel("global batch, sequences")
    panels[1].set_xlabel(number)
    panels[2].set(xlabel=f"sequences per {device}", ylabel="share of the peak, %")
    panels[2].set_ylim(0)
    panels[1].set_title(title, fontsize=9)
