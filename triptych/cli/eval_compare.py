"""`triptych eval compare`: which of two models is better, metric by metric."""

import argparse

from triptych.cli.command import USE, Command, add_json, write_json
from triptych.errors import UserError


def _describe_compare(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Compare the results of two models: the difference of every metric with its 95 % interval, and a verdict. Results on the
same samples are compared in pairs; otherwise the two intervals are used, which misses small differences. A verdict
needs a p-value of at most 0.05 after Holm's correction for the number of metrics. Results under different conditions
(data, settings, seed, judge) are not compared; the difference is named.

examples:
  triptych eval compare out/eval/a out/eval/b
  triptych eval compare scenes mine --metric "scenes/text to image" --metric "scenes/caption"
  triptych eval compare out/eval/fast out/eval/full --allow sampling --json out/samplers.json"""
    parser.add_argument("first", metavar="A", help="folder of results, or a model: those in out/eval/NAME")
    parser.add_argument("second", metavar="B", help="the same for the other model")
    parser.add_argument(
        "--metric", action="append", default=[], metavar="NAME", help="only this; may be repeated, may have a *"
    )
    parser.add_argument("--parts", action="store_true", help="also categories of metrics, and baselines")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="SETTING", help="a setting that may differ; may be repeated"
    )
    add_json(parser)


def _run_compare(args: argparse.Namespace) -> None:
    from triptych.eval.compare import compare
    from triptych.eval.results import find_results

    first, second = find_results(args.first), find_results(args.second)
    if first.folder.resolve() == second.folder.resolve():
        raise UserError(f"both are the folder {first.folder}; give the results of two models.")
    result = compare(first, second, metrics=args.metric, allow=args.allow, parts=args.parts)
    if not result.comparisons:
        reason = result.not_compared[0]
        raise UserError(
            f"no metric can be compared. {reason.metric.title}: {reason.reason}. --allow SETTING takes a setting that "
            "may differ."
        )
    if args.json != "-":
        print(result.table)
    if args.json is not None:
        write_json(result.as_json, args.json)


COMMANDS = {"eval compare": Command("which of two models is better", _describe_compare, _run_compare, group=USE)}
