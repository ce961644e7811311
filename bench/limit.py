"""What this machine can do at most: the best matrix product and the fastest copy, by number of threads and precision.

python bench/limit.py [--json FILE]

Other benchmarks measure the same again beside what they compare with it.
"""

import os
import time

import torch
from measure import arguments, bandwidth_limit, begin, flops_limit, save, table


def product(dtype: torch.dtype, size: int, seconds: float) -> float:
    a, b = torch.randn(2, size, size).to(dtype)
    a @ b
    best, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        a @ b
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def main() -> None:
    args = arguments(__doc__).parse_args()
    begin(args)
    seconds, rows = (0.5 if args.short else 2.0), []
    for threads in sorted({1, os.cpu_count() or 1}):
        torch.set_num_threads(threads)
        peak = flops_limit(seconds)
        rows.append(
            {
                "threads": threads,
                "float32, GFLOP/s": peak / 1e9,
                "bfloat16 over float32": product(torch.bfloat16, 1024, seconds) / peak,
                "copy, GB/s": bandwidth_limit(seconds) / 1e9,
            }
        )
    table("Limits of this machine", rows)
    save(args, limits=rows)


if __name__ == "__main__":
    main()
