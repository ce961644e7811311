"""How time and memory grow with width, depth, length and batch size: measured and predicted exponents.

    python bench/growth.py [--short] [--json FILE]

Forward and backward passes of models with a small vocabulary, half of the positions predicted. An exponent is the
slope of a line fitted in log-log space. "computed" is the exponent of the FLOPs (`triptych.model.flops`) or bytes
(`triptych.model.memory`) of the same shapes. A time exponent below the computed one means that small models use the
machine less efficiently.
"""

from typing import Any

import numpy as np
import torch
from measure import base_parser, peak_bytes, print_table, progress, save_results, start_benchmark, time_interleaved

from triptych.model.flops import flops
from triptych.model.memory import MemoryInputs, memory
from triptych.model.transformer import ModelConfig, Targets, Transformer, initialise
from triptych.vocab import Vocabulary

VOCABULARY = Vocabulary(text=1000, image=500, audio=500)
BASE = {"width": 256, "layers": 4, "length": 256, "rows": 4}
GRID = {
    "width": (128, 256, 512, 1024),
    "layers": (2, 4, 8, 16),
    "length": (128, 256, 512, 1024, 2048),
    "rows": (1, 2, 4, 8, 16),
}


class Case:
    """A model, and targets for one batch."""

    def __init__(self, width: int, layers: int, length: int, rows: int):
        self.shape = ModelConfig(num_layers=layers, width=width, num_heads=width // 64, d_ff=width * 11 // 4)
        self.length, self.rows = length, rows
        self.model = Transformer(self.shape, VOCABULARY)
        initialise(self.model, 0)
        half = rows * length // 2
        self.targets = Targets(
            torch.arange(half),
            torch.zeros(half, dtype=torch.int64),
            torch.full((half,), 1 / half),
            torch.zeros(half),
            (half, 0, 0),
        )

    def passes(self) -> None:
        """One forward and backward pass."""
        tokens = torch.zeros(self.rows, self.length, dtype=torch.int64)
        positions = torch.arange(self.length).expand(self.rows, -1)
        self.model.loss(tokens, positions, None, self.targets).total.backward()
        self.model.zero_grad()

    @property
    def flops(self) -> float:
        per_token = flops(self.shape, VOCABULARY, self.length, predicted=0.5).training
        return per_token * self.rows * self.length

    @property
    def bytes(self) -> int:
        """Predicted memory beyond weights and optimizer moments, which exist before the pass."""
        inputs = MemoryInputs(rows=self.rows, row_length=self.length, predicted=0.5)
        needed = memory(self.shape, VOCABULARY, inputs)
        return needed.total - needed.weights - needed.optimizer


def slope(x: Any, y: Any) -> float:
    return float(np.polyfit(np.log(list(x)), np.log(list(y)), 1)[0])


def main() -> None:
    args = base_parser(__doc__).parse_args()
    start_benchmark(args)
    rows = []
    for axis, values in GRID.items():
        values = values[: 3 if args.short else None]
        progress(f"over {axis}: {values}")
        cases = {str(value): Case(**{**BASE, axis: value}) for value in values}
        seconds = time_interleaved({name: case.passes for name, case in cases.items()}, 1 if args.short else 5)
        peaks = {name: peak_bytes(case.passes) for name, case in cases.items()}
        rows.append(
            {
                "over": axis,
                "from": values[0],
                "to": values[-1],
                "time": slope(values, seconds.values()),
                "computed FLOPs": slope(values, [case.flops for case in cases.values()]),
                "memory": slope(values, peaks.values()),
                "computed bytes": slope(values, [case.bytes for case in cases.values()]),
            }
        )
    print_table("Exponents of growth", rows)
    save_results(args, growth=rows)


if __name__ == "__main__":
    main()
