"""`triptych plan`: the model and hyperparameters of a recipe, and what a run takes on given hardware."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from triptych.cli.args import positive_float
from triptych.cli.command import PLAN, Command, add_json, write_json
from triptych.cli.run_settings import mixture_text, run_settings, schedule_text
from triptych.errors import UserError
from triptych.utils.units import human_bytes, human_number


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Show a recipe before it is trained: the size of the model, how it is scaled from the model that was tuned, batch,
sequence length, mixture, warm-up, learning-rate floor and z-loss, and the initial standard deviation, learning rate,
betas, epsilon and weight decay of every weight, with the formulas behind them. With --gpus, also the tokens, FLOPs,
memory per rank, checkpoint size, hours and cost, and warnings (docs/planning.md).

With --budget, show the compute-optimal model, tokens and batch size instead, by published scaling laws, and by a law
fitted to your own runs with --law (docs/scaling.md). `triptych plan grid` plans an isoFLOP grid.

examples:
  triptych plan scenes
  triptych plan paper_3b
  triptych plan scenes model.width=384 loader.global_batch=160 --json
  triptych plan paper_3b --gpus 256 --gpu h100 --price-per-hour 2.5
  triptych plan paper_3b --gpus 128 --dry-run           also take one step on simulated ranks
  triptych plan scenes --gpus 1 --gpu cpu               on this machine
  triptych plan --budget 1e21
  triptych plan --budget 1e21 transfer.per_module=paper with the paper's multipliers per module
  triptych fit runs.csv --save fit.json && triptych plan proxy --budget 1e14 --law fit.json

m_N and m_L are width and depth relative to the tuned model. kappa is the step size of the stochastic differential
equation relative to the tuned run: kappa = (base tokens / tokens)^gamma (batch / base batch)."""
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="recipe (default with --budget: aspect_8)")
    parser.add_argument("changes", metavar="KEY=VALUE", nargs="*", help="fields of the recipe to change")
    parser.add_argument("--gpus", type=int, metavar="N", help="number of GPUs, one rank each")
    parser.add_argument(
        "--gpu", metavar="NAME", help="h100 (default), h200, a100, b200, l40s, rtx4090, or cpu for this machine"
    )
    parser.add_argument(
        "--mfu",
        type=float,
        metavar="SHARE",
        help="share of the peak that is reached (default: from a model of the GPU; 0.4 for cpu)",
    )
    parser.add_argument("--price-per-hour", type=float, metavar="DOLLARS", help="price of one GPU")
    parser.add_argument(
        "--dry-run", action="store_true", help="also build, shard and step the model on simulated ranks"
    )
    parser.add_argument("--budget", type=positive_float, metavar="FLOPS", help="show the compute-optimal model for it")
    parser.add_argument("--law", type=Path, metavar="FILE", help="with --budget: a fit saved by `triptych fit --save`")
    add_json(parser)


def _check(args: argparse.Namespace) -> None:
    if args.recipe is None:
        raise UserError(
            "a recipe is missing: try `triptych plan scenes`, or `triptych plan --budget 1e21` for the best model size."
        )
    if args.law is not None:
        raise UserError("--law needs --budget FLOPS.")
    if args.gpus is None:
        for name in ("gpu", "mfu", "price_per_hour", "dry_run"):
            if getattr(args, name) not in (None, False):
                raise UserError(f"--{name.replace('_', '-')} needs --gpus N, the number of ranks.")
    elif args.gpus < 1:
        raise UserError(f"--gpus must be at least 1, got {args.gpus}.")
    if args.mfu is not None and not 0 < args.mfu <= 1:
        raise UserError(f"--mfu is a share of the peak, above 0 and at most 1, got {args.mfu:g}.")
    if args.price_per_hour is not None and not 0 <= args.price_per_hour < float("inf"):
        raise UserError(f"--price-per-hour must be a non-negative number of dollars, got {args.price_per_hour:g}.")


def _run(args: argparse.Namespace) -> None:
    if args.budget is not None:
        from triptych.cli.plan_budget import run_budget

        run_budget(args)
        return
    _check(args)
    import torch

    from triptych.model.flops import count_parameters
    from triptych.model.transformer import Transformer, tagged_parameters
    from triptych.recipes import configure
    from triptych.recipes.paper import BASE_BATCH, BASE_STEPS
    from triptych.tokenizers.bundle import PAPER_TOKENIZERS, vocabulary_of
    from triptych.transfer.explain import explain
    from triptych.utils.config import override

    config = configure(args.recipe, args.changes)
    vocabulary = vocabulary_of(config.tokenizers)
    transfer = config.resolved
    with torch.device("meta"):
        model = Transformer(transfer.scaled_shape, vocabulary)
    reports = explain(transfer, tagged_parameters(model))
    count = count_parameters(config.model, vocabulary)
    m_n, m_l, exponent = transfer.ratios
    summary: dict[str, Any] = {
        "recipe": config.recipe,
        "parameters": count.total,
        "non_embedding": count.blocks,
        "rule": config.transfer.rule,
        "m_N": m_n,
        "m_L": m_l,
        "depth_exponent": exponent,
        "kappa": transfer.kappa,
        "virtual_batch": None if transfer.sde is None else transfer.sde.virtual_batch,
        "virtual_steps": None if transfer.sde is None else transfer.sde.virtual_steps,
        "residual_scale": transfer.scaled_shape.residual_scale,
        "logit_scale": transfer.scaled_shape.logit_scale,
        **run_settings(config),
    }
    if transfer.sde is None and config.tokenizers == PAPER_TOKENIZERS:
        base_run = [f"transfer.base_batch={BASE_BATCH}", f"transfer.base_steps={BASE_STEPS}"]
        summary["if_scaled"] = {"changes": base_run, "kappa": override(config, base_run).resolved.kappa}
    run, optimal, warnings = None, dict[str, float](), list[str]()
    if args.gpus is not None:
        from triptych.plan.estimate import estimate
        from triptych.plan.machines import find_machine
        from triptych.plan.warnings import warnings_for
        from triptych.scaling.published import PAPER
        from triptych.training.peak import products_dtype

        machine = find_machine(args.gpu or "h100", args.gpus, products_dtype(config.parallel.precision))
        run = estimate(config, vocabulary, machine, args.gpus, mfu=args.mfu, price=args.price_per_hour)
        # The law was fitted to non-embedding parameters, but the paper's 480B tokens for 3B are at total parameters.
        optimal = {
            "optimal_tokens": float(PAPER.tokens(count.blocks)),
            "optimal_tokens_of_total": float(PAPER.tokens(count.total)),
        }
        warnings = warnings_for(run, optimal["optimal_tokens"])
    simulated = None
    if args.dry_run:
        from triptych.plan.dry_run import dry_run

        simulated = dry_run(config, vocabulary, args.gpus)
    if args.json is not None:
        result = dict(summary)
        if run is not None:
            result["estimate"] = {**run.as_json, **optimal, "warnings": warnings}
        if simulated is not None:
            result["dry_run"] = asdict(simulated)
        write_json({**result, "groups": [report.as_json for report in reports]}, args.json)
        return
    _print_recipe(summary, reports)
    if run is not None:
        _print_estimate(run, optimal, warnings)
    if simulated is not None:
        print(
            f"\ndry run in {simulated.seconds:.0f} s: one step of rank 0 of {simulated.ranks} ({simulated.mesh}, "
            f"copies x shards) on {simulated.rows} rows of {simulated.row_length:,}; the rank holds "
            f"{simulated.weights:,} elements of weights and {simulated.optimizer:,} of the optimizer"
        )


def _print_recipe(summary: dict[str, Any], reports: list[Any]) -> None:
    print(
        f"{summary['recipe']}: {summary['parameters'] / 1e6:,.1f}M parameters, "
        f"{summary['non_embedding'] / 1e6:,.1f}M without embeddings"
    )
    ratios = f"m_N {summary['m_N']:g}, m_L {summary['m_L']:g}, a {summary['depth_exponent']:g}"
    print(f"  width and depth    {summary['rule']}, {ratios}")
    noise = "not scaled: the recipe sets no transfer.base_batch"
    if "if_scaled" in summary:
        scaled = summary["if_scaled"]
        noise += f"; with {' '.join(scaled['changes'])}, the paper's base run, kappa is {scaled['kappa']:.3g}"
    if summary["virtual_batch"] is not None:
        noise = (
            f"kappa {summary['kappa']:.4g}, equivalent to {summary['virtual_steps']:,.0f} steps of "
            f"{summary['virtual_batch']:,.1f} sequences with the tuned values"
        )
    print(f"  batch and tokens   {noise}")
    print(f"  in the model       branches x {summary['residual_scale']:.4g}, logits x {summary['logit_scale']:.4g}")
    print(
        f"  a step             {summary['global_batch']:,} sequences of up to {summary['seq_len']:,} positions: "
        f"{mixture_text(summary)}"
    )
    print(
        f"  in the run         {summary['num_steps']:,} steps, warm-up {summary['warmup_steps']:,} steps, "
        f"{schedule_text(summary)}\n"
    )
    columns = ("init", "lr", "beta1", "beta2", "eps", "decay")
    print(f"{'role':18} {'layers':7} {'weights':>13} " + " ".join(f"{name:>9}" for name in columns))
    for report in reports:
        digits = {"beta1": 5, "beta2": 5}  # betas matter by their distance from 1
        values = " ".join(f"{getattr(report.values, name):9.{digits.get(name, 4)}g}" for name in columns)
        print(f"{report.role:18} {report.layers:7} {report.count:13,} {values}")
    roles_by_formulas: dict[str, list[str]] = {}
    for report in reports:
        formulas = "   ".join(f"{name} {formula}" for name, formula in report.formulas.items())
        layers = f" {report.layers}" if report.layers not in ("", "all") else ""
        roles_by_formulas.setdefault(formulas, []).append(report.role + layers)
    if set(roles_by_formulas) != {""}:
        print("\nfactors on the global values:")
    for formulas, roles in roles_by_formulas.items():
        if formulas:
            print(f"  {', '.join(roles)}:\n      {formulas}")


_MEMORY_ITEMS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "AdamW moments",
    "ema": "EMA",
    "gathered": "gathered weights",
    "activations": "activations",
    "head": "loss head",
}


def _print_estimate(run: Any, optimal: dict[str, float], warnings: list[str]) -> None:
    from triptych.plan.lengths import ORIGINS

    config, machine, step_layout, memory = run.config, run.machine, run.step_layout, run.memory
    kind, dtype, host = ("GPU", "bfloat16", "host") if machine.is_gpu else ("rank", "float32", "rank")
    size, speed = f"{machine.memory / 1e9:,.0f} GB", f"{machine.peak / 1e12:,.3g} TFLOP/s in {dtype}"
    print(f"\n{config.recipe} on {run.ranks:,} x {machine.name}, each {size} and {speed}")

    def row(name: str, *parts: str) -> None:
        print(f"  {name:18} {'; '.join(parts)}")

    checkpoint, rank_hours = run.checkpoint_bytes, run.hours * run.ranks
    cost = "" if run.cost is None else f", ${run.cost:,.0f} at ${run.price:g}"
    row(
        "tokens",
        f"{human_number(run.tokens)} in {human_number(run.positions)} positions and {config.num_steps:,} steps",
        f"{1 - run.tokens / run.positions:.1%} padding, {ORIGINS[run.batches.origin]}",
    )
    of_blocks, of_total = optimal["optimal_tokens"], optimal["optimal_tokens_of_total"]
    row(
        "compute-optimal",
        f"{human_number(of_blocks)} tokens by the paper's law for N = {human_number(run.count.blocks)}, without "
        "embeddings, as the law counts",
        f"the run has {run.tokens / of_blocks:.3g} x as many",
    )
    row(
        "",
        f"{human_number(of_total)} tokens for N = {human_number(run.count.total)}, with embeddings, as in the paper's "
        "480B for 3B",
        f"the run has {run.tokens / of_total:.3g} x as many",
    )
    row(
        "a step",
        f"{step_layout.sequences:,} sequences in {step_layout.filled_rows:,.0f} rows",
        f"micro-batches per rank: {step_layout.micro_batches:,} of {step_layout.micro_batch_rows:,} x "
        f"{step_layout.row_length:,}",
        f"mean attention context {step_layout.context:,.0f}",
    )
    row("FLOPs, whole head", f"{run.flops_per_token / 1e9:.3g}G per token, {run.flops:.3g} in all")
    row(
        "FLOPs, predicted",
        f"{run.flops_per_token_predicted / 1e9:.3g}G per token, {run.flops_predicted:.3g} in all",
        f"logits of {run.batches.predicted:.0%} of the tokens",
    )
    row("memory per rank", f"{human_bytes(memory.total)} of {size}", f"peak during: {memory.phase}")
    for name, part in memory.items.items():
        if part or name not in ("ema", "gathered"):
            print(f"    {_MEMORY_ITEMS[name]:16} {human_bytes(part):>9}")
    row(
        "checkpoint",
        f"{human_bytes(checkpoint)}, {human_bytes(checkpoint / run.ranks)} from each rank",
        f"{config.keep_last_checkpoints} are kept",
        f"writing it takes {human_bytes(checkpoint / memory.inputs.shards)} per rank of the {host}'s memory",
    )
    row(
        "time",
        f"{run.hours:,.1f} hours at {run.mfu:.0%} of the peak",
        f"{rank_hours:,.{0 if rank_hours >= 100 else 1}f} {kind}-hours{cost}",
    )
    row("", f"MFU without padding, as `triptych train` reports it: {run.mfu_of_tokens:.1%}")
    if run.step_seconds is not None:
        _print_step_seconds(run, row)
    if warnings:
        print("\nwarnings:")
    for line in warnings:
        print(f"  - {line}")


def _print_step_seconds(run: Any, row: Any) -> None:
    from triptych.plan.roofline import assumptions

    seconds = run.step_seconds
    row(
        "a step takes",
        f"{seconds.total:.3g} s by a model of the GPU: blocks {seconds.blocks / seconds.total:.0%}, loss head "
        f"{seconds.head / seconds.total:.0%}, optimizer {seconds.optimizer / seconds.total:.1%}, waiting for "
        f"communication {seconds.exposed / seconds.total:.1%}",
        "set --mfu if you know yours",
    )
    for line in assumptions(run.machine):
        row("", line)


COMMANDS = {"plan": Command("size, hyperparameters, memory, hours and cost of a recipe", _describe, _run, group=PLAN)}
