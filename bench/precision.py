"""Training steps in float32 and with products in bfloat16 (`parallel.precision=bfloat16-products`), in turns.

    python bench/precision.py [--short] [--json FILE]

Whole steps of models of the recipe `scenes`, on random tokens: masks, forward and backward pass, clipping, AdamW. The
gain depends on the CPU; one without bfloat16 instructions loses.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import base_parser, print_table, random_data, save_results, start_benchmark, time_interleaved

from triptych.data.loader import Loader
from triptych.recipes import recipe
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import ParallelConfig
from triptych.training.step import build_model, build_optimizer, train_step

PRECISIONS = ("float32", "bfloat16-products")
SHAPES = ((6, 192, 4, 512), (6, 208, 4, 560), (8, 256, 8, 688), (4, 512, 8, 1408))  # layers, width, heads, d_ff


def measure(short: bool) -> list[dict[str, Any]]:
    rows, bundle = [], TokenizerBundle.load("scenes")
    with tempfile.TemporaryDirectory() as folder:
        base = replace(recipe("scenes"), data=random_data(Path(folder), bundle), validation_data=())
        with Loader(list(base.data), replace(base.loader, prefetch=0), num_steps=1) as loader:
            step = next(loader)
        for layers, width, heads, d_ff in SHAPES[:1] if short else SHAPES:
            shape = replace(base.model, num_layers=layers, width=width, num_heads=heads, d_ff=d_ff)
            calls: dict[str, Callable[[], Any]] = {}
            losses = {}
            for name in PRECISIONS:
                config = replace(base, model=shape, parallel=ParallelConfig(precision=name))  # type: ignore[arg-type]
                model = build_model(config, bundle.vocabulary)
                optimizer = build_optimizer(model, config.resolved)
                calls[name] = partial(
                    train_step, model, optimizer, step, config, bundle.vocabulary, torch.device("cpu")
                )
                losses[name] = calls[name]()[0].loss
            seconds = time_interleaved(calls, 2 if short else 5)
            rows += [
                {
                    "model": f"{layers} x {width}",
                    "precision": name,
                    "steps/s over float32": seconds["float32"] / seconds[name],
                    "loss of the first step": losses[name],
                }
                for name in PRECISIONS
            ]
    return rows


def main() -> None:
    args = base_parser(__doc__).parse_args()
    start_benchmark(args)
    rows = measure(args.short)
    print_table("Precision of products", rows)
    save_results(args, precision=rows)


if __name__ == "__main__":
    main()
