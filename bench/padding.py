"""The cost of padding: useful tokens per second with and without it, for the paper's sequence lengths.

    python bench/padding.py [--short] [--json FILE]

The paper pads every image-text and audio-text pair to 3,256 positions. Here the same sequences are trained in two
layouts. In padded rows every position is computed, and attention is not masked, which would cost more. In Triptych's
layout only real positions are computed, and attention stays within each sequence. Timed are forward and backward passes
of a small model, without and with the loss head, whose cost does not depend on the layout. With the paper's vocabulary
and a softmax per modality, the head is two thirds of the cost of this model, and an eighth for the paper's largest.
"""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from loader import write_mix
from measure import base_parser, print_table, save_results, start_benchmark, time_interleaved

from triptych.data.loader import Loader, LoaderConfig
from triptych.data.pack import Packed, Padded
from triptych.model.segments import whole_rows
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.recipes import recipe
from triptych.training.ranks import Ranks
from triptych.training.step import ModelInput, micro_inputs
from triptych.vocab import paper_vocabulary

SEQ_LEN = 3256
CPU = torch.device("cpu")


def measure(short: bool) -> list[dict[str, Any]]:
    shape = ModelConfig(num_layers=4, width=128 if short else 256, num_heads=4, d_ff=704, softmax_scope="modality")
    model = Transformer(shape, paper_vocabulary())
    initialise(model, 0)
    run = replace(recipe("paper_base"), model=shape)
    layouts = {
        "padded rows": Padded(micro_batch_rows=3),
        "real positions": Packed(row_length=3 * SEQ_LEN, micro_batch_rows=1),
    }
    inputs: dict[str, list[ModelInput]] = {}
    tokens, positions = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        datasets = write_mix(Path(folder), "paper")
        for name, layout in layouts.items():
            config = LoaderConfig(seq_len=SEQ_LEN, global_batch=3 if short else 9, layout=layout, prefetch=0)
            with Loader(datasets, config) as loader:
                step = next(loader)
            micro_batches = micro_inputs(step, replace(run, loader=config), paper_vocabulary(), CPU, Ranks())
            inputs[name] = [
                replace(batch, segments=whole_rows(*batch.tokens.shape, CPU)) if name == "padded rows" else batch
                for batch in micro_batches
            ]
            tokens[name] = step.num_tokens
            positions[name] = sum(sum(batch.segments.lengths) for batch in inputs[name])

    def passes(name: str, has_head: bool) -> None:
        for batch in inputs[name]:
            if has_head:
                model.loss(batch.tokens, batch.positions, batch.segments, batch.targets).total.backward()
            else:
                query_idx = batch.targets.query_idx
                hidden = model.hidden_states(batch.tokens, batch.positions, batch.segments, query_idx=query_idx)
                hidden.backward(torch.ones_like(hidden))
        model.zero_grad()

    calls = {(name, has_head): partial(passes, name, has_head) for name in layouts for has_head in (False, True)}
    seconds = time_interleaved(calls, 1 if short else 2)
    return [
        {
            "layout": name,
            "positions computed": positions[name],
            "of them real": tokens[name] / positions[name],
            "useful tokens/s over padded": seconds["padded rows", False] / seconds[name, False],
            "with this model's head": seconds["padded rows", True] / seconds[name, True],
        }
        for name in layouts
    ]


def main() -> None:
    args = base_parser(__doc__).parse_args()
    start_benchmark(args)
    rows = measure(args.short)
    print_table("Padding, with the paper's lengths", rows)
    save_results(args, padding=rows)


if __name__ == "__main__":
    main()
