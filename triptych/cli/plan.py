"""The verb that shows what a recipe comes to before it is run."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from triptych.cli.args import positive
from triptych.cli.command import Command
from triptych.cli.scaling import interval_text, recipe_and_changes
from triptych.errors import UserError
from triptych.utils.units import human_number


def _describe_plan(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Show what a recipe comes to: the size of the model, how far it is from where its hyperparameters were tuned, and every
weight's own initial size, learning rate, betas, epsilon and weight decay, with the rules that made them. With --gpus
also tokens, FLOPs, memory per rank, checkpoints, hours and cost on such GPUs, and warnings (docs/planning.md).

With --budget, instead, how large a model of the recipe's family should be, on how many tokens and in which batches: by
published laws, and by your own runs with --law (docs/scaling.md). `triptych plan grid` plans many runs.

examples:
  triptych plan scenes
  triptych plan paper_3b
  triptych plan scenes model.width=384 loader.global_batch=160 --json
  triptych plan paper_3b parallel.precision=bfloat16 --gpus 256 --gpu h100 --price-per-hour 2.5
  triptych plan paper_3b --gpus 128 --rehearse            build, shard and step it on ranks that do not exist
  triptych plan scenes --gpus 1 --gpu cpu
  triptych plan --budget 1e21
  triptych fit runs.csv --save fit.json && triptych plan family --budget 1e14 --law fit.json

m_N and m_L are width and depth over those of the base, kappa the size of a step in the noise's own time:
kappa = (base tokens / tokens)^gamma (batch / base batch)."""
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="with --budget, of the family (default: aspect_8)")
    parser.add_argument("changes", metavar="KEY=VALUE", nargs="*", help="fields of the recipe that are to differ")
    parser.add_argument("--gpus", type=int, metavar="N", help="how many, one rank each")
    parser.add_argument(
        "--gpu", metavar="NAME", help="h100 (default), h200, a100, b200, l40s, rtx4090; cpu for this machine"
    )
    parser.add_argument("--mfu", type=float, metavar="SHARE", help="of the peak that is reached (default 0.4)")
    parser.add_argument("--price-per-hour", type=float, metavar="DOLLARS", help="of one GPU")
    parser.add_argument(
        "--rehearse", action="store_true", help="also do one step of one rank, on tensors without numbers"
    )
    parser.add_argument("--budget", type=positive, metavar="FLOPS", help="what model and tokens are best for it")
    parser.add_argument("--law", type=Path, metavar="FILE", help="with --budget: what `triptych fit --save` wrote")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def _check(args: argparse.Namespace) -> None:
    if args.recipe is None:
        raise UserError("which recipe? `triptych plan scenes`, or `triptych plan --budget 1e21` for the best size.")
    if args.law is not None:
        raise UserError("--law needs --budget FLOPS: it says what is best for it.")
    if args.gpus is None:
        for name in ("gpu", "mfu", "price_per_hour", "rehearse"):
            if getattr(args, name) not in (None, False):
                raise UserError(f"--{name.replace('_', '-')} needs --gpus N: how many ranks there are.")
    elif args.gpus < 1:
        raise UserError(f"--gpus must be at least 1, got {args.gpus}.")
    if args.mfu is not None and not 0 < args.mfu <= 1:
        raise UserError(f"--mfu is a share of the peak, above 0 and at most 1, got {args.mfu:g}.")
    if args.price_per_hour is not None and not 0 <= args.price_per_hour < float("inf"):
        raise UserError(
            f"--price-per-hour must be a number of dollars that is not negative, got {args.price_per_hour:g}."
        )


def _run_plan(args: argparse.Namespace) -> None:
    if args.budget is not None:
        _run_budget(args)
        return
    _check(args)
    import json

    import torch

    from triptych.model.count import parameters
    from triptych.model.transformer import Transformer, tagged_parameters
    from triptych.recipes import recipe
    from triptych.tokenizers.bundle import TokenizerBundle
    from triptych.training.config import override
    from triptych.transfer.explain import explain
    from triptych.vocab import paper_vocabulary

    config = override(recipe(args.recipe), args.changes)
    # The paper's tokenizers need files of their own; how many ids they have is known without.
    is_paper = config.tokenizers == "paper"
    vocabulary = paper_vocabulary() if is_paper else TokenizerBundle.load(config.tokenizers).vocabulary
    transfer = config.resolved
    with torch.device("meta"):
        model = Transformer(transfer.scaled_shape, vocabulary)
    lines = explain(transfer, tagged_parameters(model))
    count = parameters(config.model, vocabulary)
    m_n, m_l, exponent = transfer.ratios
    facts: dict[str, Any] = {
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
        "warmup_steps": config.warmup_steps,
        "clip": config.clip,
    }
    found = None
    if args.gpus is not None:
        from triptych.plan.estimate import estimate, machine_named

        machine = machine_named(args.gpu or "h100", args.gpus)
        found = estimate(config, vocabulary, machine, args.gpus, mfu=args.mfu or 0.4, price=args.price_per_hour)
    rehearsal = None
    if args.rehearse:
        from triptych.plan.dry_run import rehearse

        rehearsal = rehearse(config, vocabulary, args.gpus)
    if args.json:
        on_machine = {} if found is None else {"estimate": found.as_json}
        on_machine |= {} if rehearsal is None else {"rehearsal": asdict(rehearsal)}
        print(json.dumps({**facts, **on_machine, "groups": [line.as_json for line in lines]}, indent=2))
        return
    _print(facts, lines)
    if found is not None:
        _print_estimate(found)
    if rehearsal is not None:
        print(
            f"\nrehearsed in {rehearsal.seconds:.0f} s: one step of rank 0 of {rehearsal.ranks} ({rehearsal.mesh}, "
            f"copies x shards) on {rehearsal.rows} rows of {rehearsal.row_length:,}; it keeps {rehearsal.weights:,} "
            f"weights and {rehearsal.optimizer:,} numbers of the optimizer"
        )


def _print(facts: dict[str, Any], lines: list[Any]) -> None:
    print(
        f"{facts['recipe']}: {facts['parameters'] / 1e6:,.1f}M parameters, "
        f"{facts['non_embedding'] / 1e6:,.1f}M without embeddings"
    )
    ratios = f"m_N {facts['m_N']:g}, m_L {facts['m_L']:g}, a {facts['depth_exponent']:g}"
    print(f"  width and depth    {facts['rule']}, {ratios}")
    noise = "not scaled: the recipe names no base batch"
    if facts["virtual_batch"] is not None:
        noise = (
            f"kappa {facts['kappa']:.4g}, as {facts['virtual_steps']:,.0f} steps of {facts['virtual_batch']:,.1f} "
            "sequences are at the base"
        )
    print(f"  batch and tokens   {noise}")
    print(f"  in the model       branches x {facts['residual_scale']:.4g}, logits x {facts['logit_scale']:.4g}")
    clip = "none" if facts["clip"] is None else f"{facts['clip']:.4g}"
    print(f"  in the run         warm-up {facts['warmup_steps']:,} steps, largest norm of the gradient {clip}\n")
    numbers = ("init", "lr", "beta1", "beta2", "eps", "decay")
    print(f"{'role':18} {'layers':7} {'weights':>13} " + " ".join(f"{name:>9}" for name in numbers))
    for line in lines:
        digits = {"beta1": 5, "beta2": 5}  # what matters of a beta is how far it is from 1
        values = " ".join(f"{getattr(line.values, name):9.{digits.get(name, 4)}g}" for name in numbers)
        print(f"{line.role:18} {line.layers:7} {line.count:13,} {values}")
    made_by: dict[str, list[str]] = {}
    for line in lines:
        made = "   ".join(f"{name} {formula}" for name, formula in line.made_by.items())
        made_by.setdefault(made, []).append(line.role + (f" {line.layers}" if line.layers not in ("", "all") else ""))
    if set(made_by) != {""}:
        print("\nwhat made them, where they are not the global values:")
    for made, roles in made_by.items():
        if made:
            print(f"  {', '.join(roles)}:\n      {made}")


_ITEMS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "moments of AdamW",
    "ema": "running mean",
    "gathered": "gathered weights",
    "activations": "activations",
    "head": "loss head",
}


def _print_estimate(found: Any) -> None:
    from triptych.plan.estimate import optimal_tokens, warnings
    from triptych.plan.lengths import ORIGINS

    config, machine, step_layout, memory = found.config, found.machine, found.step_layout, found.memory
    kind, unit, host = ("GPU", "bfloat16", "host") if machine.is_gpu else ("rank", "float32", "rank")
    size, speed = f"{machine.memory / 1e9:,.0f} GB", f"{machine.peak / 1e12:,.3g} TFLOP/s in {unit}"
    print(f"\n{config.recipe} on {found.ranks:,} x {machine.name}, each {size} and {speed}")

    def tell(name: str, *parts: str) -> None:
        print(f"  {name:18} {'; '.join(parts)}")

    best = optimal_tokens(found.count.blocks)
    saved, spent = found.checkpoint_bytes, found.hours * found.ranks
    cost = "" if found.cost is None else f", ${found.cost:,.0f} at ${found.price:g}"
    tell(
        "tokens",
        f"{human_number(found.tokens)} in {human_number(found.positions)} positions and {config.num_steps:,} steps",
        f"{1 - found.tokens / found.positions:.1%} is padding, {ORIGINS[found.batches.origin]}",
    )
    tell(
        "compute-optimal",
        f"{human_number(best)} tokens by the paper's law",
        f"the run has {found.tokens / best:.3g} x as many",
    )
    tell(
        "a step",
        f"{step_layout.sequences:,} sequences in {step_layout.rows:,.0f} rows",
        f"micro-batches per rank: {step_layout.micro_batches:,} of {step_layout.micro_batch_rows:,} x {step_layout.row_length:,}",
        f"a token sees {step_layout.context:,.0f}",
    )
    tell("FLOPs, whole head", f"{found.flops_per_token / 1e9:.3g}G per token, {found.flops:.3g} in all")
    tell(
        "FLOPs, predicted",
        f"{found.flops_per_token_predicted / 1e9:.3g}G per token, {found.flops_predicted:.3g} in all",
        f"logits of {found.batches.predicted:.0%} of the tokens",
    )
    tell("memory per rank", f"{_bytes(memory.total)} of {size}", f"fullest moment: {memory.moment}")
    for name, part in memory.items.items():
        if part or name not in ("ema", "gathered"):
            print(f"    {_ITEMS[name]:16} {_bytes(part):>9}")
    tell(
        "checkpoint",
        f"{_bytes(saved)}, {_bytes(saved / found.ranks)} from each rank",
        f"{config.keep_last_checkpoints} are kept",
        f"while it is written, a copy of {_bytes(saved / memory.load.shards)} per rank in the {host}'s memory",
    )
    tell(
        "time",
        f"{found.hours:,.1f} hours at {found.mfu:.0%} of the peak",
        f"{spent:,.{0 if spent >= 100 else 1}f} {kind}-hours{cost}",
    )
    tell("", f"without padding, as `triptych train` counts, at {found.mfu_of_tokens:.1%} of the peak")
    lines = warnings(found)
    if lines:
        print("\nwarnings:")
    for line in lines:
        print(f"  - {line}")


def _bytes(number: float) -> str:
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if number >= size:
            return f"{number / size:,.3g} {unit}" if number < 1000 * size else f"{number / size:,.0f} {unit}"
    return f"{number / 1e3:,.3g} kB"


# -- for a budget -----------------------------------------------------------------------------------------------------


def _run_budget(args: argparse.Namespace) -> None:
    import json

    from triptych.plan.estimate import KAPPA_1_PERCENT, KAPPA_10_PERCENT
    from triptych.scaling.advice import advise
    from triptych.scaling.family import family_for
    from triptych.scaling.fit_file import read_fit

    if any(getattr(args, name) is not None for name in ("gpus", "gpu", "mfu", "price_per_hour")) or args.rehearse:
        raise UserError("--budget goes without --gpus and its options: plan the recipe that comes out with them.")
    family = family_for(*recipe_and_changes(args))
    advice = advise(family, args.budget, None if args.law is None else read_fit(args.law))
    if args.json:
        print(json.dumps({"budget": args.budget, "advice": [each.as_json for each in advice]}, indent=2))
        return
    print(f"{args.budget:g} FLOPs, {family}")
    print(f"  {'by':24} {'N':>7}  {'D':>7}  {'D/N':>6}   {'nearest model':>13} {'N':>7}  {'D':>7}  {'batch':>6}  steps")
    for each in advice:
        if each.best is None:
            print(f"  {each.law:24} no size is best for so many FLOPs")
            continue
        model, best = "none of the family", each.best
        if each.cell is not None:
            run, cell = each.cell.config, each.cell
            shape, batch = f"{run.model.num_layers} x {run.model.width}", run.loader.global_batch
            model = f"{shape:>13} {human_number(cell.N):>7}  {human_number(cell.D):>7}  {batch:6,}  {run.num_steps:,}"
        note = f"   ({each.note})" if each.note else ""
        print(
            f"  {each.law:24} {human_number(best.N):>7}  {human_number(best.D):>7}  {best.tokens_per_parameter:6.3g}   {model}{note}"
        )
        if each.intervals:
            reach = [f"{name} {interval_text(*ends)}" for name, ends in each.intervals.items()]
            print(f"  {'':24} 90% intervals: {', '.join(reach)}")
    print(
        f"\nN is without embeddings (Chinchilla counts them). kappa is 1 in these batches; up to {KAPPA_1_PERCENT:g} x "
        f"as large, exp(loss) rises by at most 1 %, up to {KAPPA_10_PERCENT:g} x by 10 % (studies/batch-size)."
    )
    first = next((each.command for each in advice if each.command), None)
    if first is not None:
        print(f"the first of these models: {first}")


COMMANDS = {"plan": Command("what a recipe comes to, or which model suits a budget", _describe_plan, _run_plan)}
