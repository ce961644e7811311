"""Throughput and FLOP efficiency against the batch of a rank and the number of ranks.

Measured here: the base run on one, two and four processes, each one rank with one thread, which communicate through
gloo. Modelled for GPUs (triptych.plan.roofline): a recipe on nodes of eight, with one row per sequence. A record holds
all batch sizes of one start of the processes; several starts give the intervals.
"""

import argparse
import os
import warnings
from dataclasses import replace
from typing import Any

import torch

from triptych.cli.args import distinct_ints, positive_float, positive_int, positive_ints
from triptych.errors import UserError
from triptych.model.flops import flops
from triptych.plan.lengths import BatchSample, sample_batches
from triptych.plan.machines import Machine, find_machine
from triptych.plan.roofline import Workload, assumptions, step_seconds
from triptych.recipes import recipe
from triptych.scaling.grid import LengthStats
from triptych.studies.base import Study
from triptych.studies.runtime_figure import draw
from triptych.studies.runtime_findings import claims, findings
from triptych.studies.step_times import TIMED_STEPS, UNTIMED_STEPS, step_times
from triptych.tokenizers.bundle import TokenizerBundle, vocabulary_of
from triptych.training.config import RunConfig
from triptych.training.peak import matmul_peak
from triptych.utils.locks import lock_file
from triptych.utils.trials import Trial, TrialRecords, run_trials
from triptych.vocab import Vocabulary

_MOST_LOAD = 0.5  # of the cores; the load is a mean over a minute
_MODELLED_BATCHES = (1, 2, 4, 8, 16, 32)  # sequences per GPU
_MODELLED_NODES = (1, 2, 4, 8, 16, 32)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks", type=positive_ints, default=[1, 2, 4], metavar="N,N", help="numbers of processes (default: 1,2,4)"
    )
    parser.add_argument(
        "--batches",
        type=distinct_ints,
        default=[1, 2, 4, 8, 16, 32, 64],
        metavar="N,N",
        help="sequences per step of one rank (default: 1,2,4,8,16,32,64)",
    )
    parser.add_argument(
        "--starts", type=positive_int, default=3, metavar="N", help="times all of it is measured (default: 3)"
    )
    parser.add_argument("--gpu", default="h100", metavar="NAME", help="GPU to model (default: h100)")
    parser.add_argument(
        "--model", default="paper_base", metavar="RECIPE", help="recipe to model on GPUs (default: paper_base)"
    )
    parser.add_argument(
        "--horizon",
        type=positive_float,
        default=13e9,
        metavar="TOKENS",
        help="tokens of the modelled run (default: 13e9)",
    )


def _trials(args: argparse.Namespace) -> list[Trial]:
    measured = [
        Trial(f"{ranks} ranks start {start}", {"ranks": ranks, "start": start})
        for start in range(args.starts)
        for ranks in args.ranks
    ]
    settings = {"gpu": args.gpu, "recipe": args.model, "horizon": args.horizon}
    return [*measured, Trial(f"{args.model} on {args.gpu}", settings)]


def configure(run: RunConfig, batch: int, ranks: int) -> RunConfig:
    """The run with this many sequences per rank, long enough to be timed."""
    loader = replace(run.loader, global_batch=batch * ranks)
    return replace(run, loader=loader, num_steps=UNTIMED_STEPS + TIMED_STEPS)


def _missing_runs(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> list[RunConfig]:
    recorded = TrialRecords(args.out).keys
    return [
        configure(config, batch, trial.settings["ranks"])
        for trial in _trials(args)
        if "ranks" in trial.settings and trial.key not in recorded
        for batch in args.batches
    ]


def _run_study(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> bool:
    machine = find_machine(args.gpu, 1) if args.gpu.lower() != "cpu" else None
    if machine is None:
        raise UserError("--gpu must be a GPU: this machine's CPU is measured, not modelled.")
    trials = _trials(args)

    def run(trial: Trial) -> dict[str, Any]:
        if "ranks" not in trial.settings:
            return modelled(recipe(args.model), machine)
        with open(args.out / "timing.lock", "a") as lock:
            lock_file(lock)  # two processes that time at once would time each other
            return measured(config, bundle.vocabulary, args.batches, trial.settings["ranks"])

    return run_trials(args.out, trials, run).keys() == {trial.key for trial in trials}


def measured(run: RunConfig, vocabulary: Vocabulary, batches: list[int], ranks: int) -> dict[str, Any]:
    """Times of a step for each batch size, beside the peak of one thread of this machine."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    if load > _MOST_LOAD * cores:
        warnings.warn(
            f"the load is {load:.1f} on {cores} cores: times are of a busy machine; run this study alone", stacklevel=2
        )
    runs = [configure(run, batch, ranks) for batch in batches]
    times = step_times(runs, vocabulary, ranks)
    per_token = _flops_per_token(run, vocabulary, sample_batches(run, vocabulary))
    rows = [
        {"batch": batch, "step_seconds": seconds, "tokens": tokens, "flops": per_token * tokens}
        for batch, (seconds, tokens) in zip(batches, times)
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        peak = matmul_peak(torch.device("cpu"))
    finally:
        torch.set_num_threads(threads)
    return {"rows": rows, "peak": peak, "cores": cores, "load": round(load, 2)}


def _flops_per_token(run: RunConfig, vocabulary: Vocabulary, batches: BatchSample) -> float:
    """Training FLOPs as they are computed: logits of predicted tokens only."""
    context = LengthStats.from_lengths(batches.lengths).context
    per_view = flops(run.model, vocabulary, context, predicted=batches.predicted, columns=batches.columns)
    return per_view.training * run.num_views


def modelled(run: RunConfig, machine: Machine) -> dict[str, Any]:
    """Times of a step on GPUs for several batches per GPU and numbers of nodes, with full rows."""
    vocabulary = vocabulary_of(run.tokenizers)
    batches = sample_batches(run, vocabulary)
    lengths = LengthStats.from_lengths(batches.lengths)
    per_token = _flops_per_token(run, vocabulary, batches)
    rows = []
    for nodes in _MODELLED_NODES:
        for batch in _MODELLED_BATCHES:
            ranks, tokens = nodes * machine.per_node, batch * lengths.mean
            work = Workload(
                model=run.model,
                vocabulary=vocabulary,
                positions=tokens,
                predicted=batches.predicted * tokens,
                columns=vocabulary.size if batches.columns is None else batches.columns,
                context=lengths.context,
                micro_batches=run.num_views,
                shards=ranks,
                is_compiled=run.parallel.compile,
            )
            seconds = step_seconds(work, machine)
            rows.append(
                {
                    "nodes": nodes,
                    "ranks": ranks,
                    "batch": batch,
                    "step_seconds": seconds.total,
                    "exposed": seconds.exposed,
                    "tokens": ranks * tokens,
                    "flops": per_token * ranks * tokens,
                }
            )
    return {"rows": rows, "peak": machine.peak, "assumptions": assumptions(machine)}


def _fixed(args: argparse.Namespace) -> dict[str, Any]:
    return {"batches": args.batches, "gpu": args.gpu, "model": args.model, "horizon": args.horizon}


STUDY = Study(_add_arguments, _run_study, _missing_runs, findings, draw, claims=claims, fixed_options=_fixed)
