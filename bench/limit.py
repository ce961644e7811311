"""Limits of this machine: the fastest matrix product and memory copy, by number of threads and precision.

    python bench/limit.py [--json FILE]

Other benchmarks measure these limits again, interleaved with what they compare.
"""

import os
import time

import torch
from measure import bandwidth_limit, base_parser, flops_limit, print_table, save_results, start_benchmark


def product_flops(dtype: torch.dtype, size: int, seconds: float) -> float:
    """FLOP/s of the fastest product of two square matrices within some time."""
    a, b = torch.randn(2, size, size).to(dtype)
    a @ b
    best, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.perf_counter()
        a @ b
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def main() -> None:
    args = base_parser(__doc__).parse_args()
    start_benchmark(args)
    seconds, rows = (0.5 if args.short else 2.0), []
    for threads in sorted({1, os.cpu_count() or 1}):
        torch.set_num_threads(threads)
        peak = flops_limit(seconds)
        rows.append(
            {
                "threads": threads,
                "float32, GFLOP/s": peak / 1e9,
                "bfloat16 over float32": product_flops(torch.bfloat16, 1024, seconds) / peak,
                "copy, GB/s": bandwidth_limit(seconds) / 1e9,
            }
        )
    print_table("Limits of this machine", rows)
    save_results(args, limits=rows)


if __name__ == "__main__":
    main()
