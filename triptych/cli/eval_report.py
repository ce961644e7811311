"""`triptych eval report`: results as one HTML page and JSON."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from triptych.cli.command import USE, Command, add_device, add_json, write_json
from triptych.cli.eval_common import progress
from triptych.errors import UserError

if TYPE_CHECKING:
    from triptych.eval.report.page import Curves
    from triptych.eval.report.samples import Samples
    from triptych.eval.results import StoredResults

_FOLDER = Path("out/report")


def _describe_report(parser: argparse.ArgumentParser) -> None:
    parser.description = f"""\
Make a page of the results of a model: the paper's table beside it, radar charts, samples, every result with its
interval, settings and judge, and what is missing. Two models also get a table of their differences. The page is one
file that loads nothing; a JSON file for each model is written beside it.

examples:
  triptych eval report scenes
  triptych eval report out/eval/mine --html mine.html --run runs/mine
  triptych eval report out/eval/a out/eval/b --html {_FOLDER}/a-and-b.html"""
    parser.add_argument(
        "results", metavar="RESULTS", nargs="+", help="folder of results, or a model: those in out/eval/NAME"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help=f"default: {_FOLDER}/NAME.html")
    parser.add_argument("--title", help="of the page")
    parser.add_argument(
        "--run", metavar="FOLDER", help="training run of the model, for its curve (default: the model, if it is a run)"
    )
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="for samples; may be repeated")
    parser.add_argument("--no-samples", action="store_true", help="do not load the model to generate samples")
    add_device(parser)
    add_json(parser)


def _run_report(args: argparse.Namespace) -> None:
    if args.html is not None and args.html.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--html must be a .html file, got {str(args.html)!r}.")
    from triptych.eval.results import find_results

    stored = [find_results(each) for each in args.results]
    from triptych.eval.report.page import ReportedModel, group_by_model, report_json, report_page, unique_names
    from triptych.utils.files import write_atomically

    groups = group_by_model(stored)
    if args.run is not None and len(groups) > 1:
        raise UserError(f"--run is the training run of one model, but there are {len(groups)}; leave it out.")
    models = []
    for name, group in zip(unique_names(groups), groups):
        models.append(ReportedModel(name, group, _samples(group, args), _curves(group, args.run)))
    html = args.html or _FOLDER / f"{'-and-'.join(model.name for model in models)}.html"
    page = report_page(models, args.title or "")
    html.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(html, page.encode())
    written = [html]
    for model in models:
        path = (
            html.with_suffix(".json") if len(models) == 1 else html.with_name(f"{html.stem}-{_plain(model.name)}.json")
        )
        write_atomically(path, (json.dumps(report_json(model), indent=2) + "\n").encode())
        written.append(path)
    for model in models:
        for note in model.notes:
            progress(f"note: {note}")
    if args.json is None:
        print(*written, sep="\n")
    else:
        reports = [report_json(model) for model in models]
        write_json(reports[0] if len(reports) == 1 else reports, args.json)


def _plain(name: str) -> str:
    return "".join(each if each.isalnum() or each in "._-" else "-" for each in name)


def _samples(group: "list[StoredResults]", args: argparse.Namespace) -> "Samples":
    """Samples that are kept, or new ones of the model if it is where the results say."""
    from triptych.eval.report.samples import SAMPLES, Samples, make_samples, read_samples, suite_samples

    shown = [each for stored in group for each in suite_samples(stored.folder)]
    folder = group[0].folder / SAMPLES
    kept = read_samples(folder)
    if args.no_samples:
        return Samples([*(kept.samples if kept else ()), *shown], kept.notes if kept else ())
    info = group[0].model
    from triptych.eval.records import model_fingerprint
    from triptych.hub.pipeline import Pipeline

    try:
        pipe = Pipeline.from_pretrained(info.source, device=args.device, check_inputs=False)
    except UserError as error:
        notes = [f"no new samples: the model {info.source!r} cannot be loaded from here ({error})"]
        return Samples([*(kept.samples if kept else ()), *shown], notes)
    if model_fingerprint(pipe) != info.fingerprint:
        notes = [f"no new samples: {info.source!r} holds other weights than those that were evaluated"]
        return Samples([*(kept.samples if kept else ()), *shown], notes)
    progress(f"samples of {info.name}:")
    made = make_samples(pipe, folder, progress, args.prompt or ())
    return Samples([*made.samples, *shown], made.notes)


def _curves(group: "list[StoredResults]", run: str | None) -> "Curves":
    """The training curve of a run: loss by step, of all tokens and of every modality."""
    from triptych.hub.source import is_run
    from triptych.training.logging import read_records

    folder = Path(run if run is not None else group[0].model.source)
    records = folder / "records.jsonl"
    if run is not None and not records.is_file():
        raise UserError(f"--run must be the folder of a training run, but {records} does not exist.")
    if not records.is_file() or not (run or is_run(folder)):
        return {}
    steps = [event for event in read_records(records) if event.get("kind") == "step" and not event.get("skipped")]
    lines = {"all": [(float(e["step"]), float(e["loss"])) for e in steps if e.get("loss") is not None]}
    for name in ("text", "image", "audio"):
        values = [(e["step"], (e.get("nll") or {}).get(name)) for e in steps]
        lines[name] = [(float(step), float(value)) for step, value in values if value is not None]
    return {name: _thinned(line) for name, line in lines.items() if line}


def _thinned(line: list[tuple[float, float]], most: int = 400) -> list[tuple[float, float]]:
    """Means of neighbouring points: a chart has no room for more."""
    size = -(-len(line) // most)
    groups = [line[start : start + size] for start in range(0, len(line), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


COMMANDS = {"eval report": Command("results as one HTML page and JSON", _describe_report, _run_report, group=USE)}
