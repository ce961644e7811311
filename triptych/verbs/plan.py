"""The verb that shows what a recipe comes to before it is run."""

import argparse
from typing import Any

from triptych.verbs.base import Verb


def _describe_plan(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Show what a recipe comes to: the size of the model, how far it is from where its hyperparameters were tuned, and every
weight's own initial size, learning rate, betas, epsilon and weight decay, with the rules that made them.

examples:
  triptych plan scenes
  triptych plan paper_3b
  triptych plan scenes model.width=384 loader.global_batch=160 --json

m_N and m_L are width and depth over those of the base, kappa the size of a step in the noise's own time:
kappa = (base tokens / tokens)^gamma (batch / base batch)."""
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("changes", metavar="KEY=VALUE", nargs="*", help="fields of the recipe that are to differ")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def _run_plan(args: argparse.Namespace) -> None:
    import json

    import torch

    from triptych.model.count import parameters
    from triptych.model.transformer import Transformer, tagged_parameters
    from triptych.recipes import recipe
    from triptych.tokenizers.bundle import TokenizerBundle
    from triptych.train.config import override
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
    if args.json:
        print(json.dumps({**facts, "groups": [line.as_json for line in lines]}, indent=2))
    else:
        _print(facts, lines)


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


VERBS = {"plan": Verb("what a recipe comes to: sizes and every weight's hyperparameters", _describe_plan, _run_plan)}
