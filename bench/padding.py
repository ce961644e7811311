"""What padding costs: useful tokens a second with and without it, on the paper's lengths.

    python bench/padding.py [--short] [--json FILE]

The paper pads every pair of a picture or a sound with a text to 3,256 positions. Here the same sequences are trained on
as padded rows, of which every position is computed (and nothing masked out, which would cost more), and as Triptych
does: real positions only, attention within each sequence. Forward and backward passes of a small model, in turns: of
all but the head, which costs the same either way; and with the head, which is two thirds of so small a model with the
paper's vocabulary (a softmax per modality), and an eighth of the paper's largest.
"""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from loader import write_mix
from measure import arguments, begin, in_turns, save, table

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
            made = micro_inputs(step, replace(run, loader=config), paper_vocabulary(), CPU, Ranks())
            inputs[name] = [
                replace(each, segments=whole_rows(*each.tokens.shape, CPU)) if name == "padded rows" else each
                for each in made
            ]
            tokens[name] = step.num_tokens
            positions[name] = sum(sum(each.segments.lengths) for each in inputs[name])

    def passes(name: str, has_head: bool) -> None:
        for each in inputs[name]:
            if has_head:
                model(each.tokens, each.positions, each.segments, each.targets).total.backward()
            else:
                hidden = model(each.tokens, each.positions, each.segments, query_idx=each.targets.rows_n)
                hidden.backward(torch.ones_like(hidden))
        model.zero_grad()

    calls = {(name, has_head): partial(passes, name, has_head) for name in layouts for has_head in (False, True)}
    seconds = in_turns(calls, 1 if short else 2)
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
    args = arguments(__doc__).parse_args()
    begin(args)
    rows = measure(args.short)
    table("Padding, with the paper's lengths", rows)
    save(args, padding=rows)


if __name__ == "__main__":
    main()
