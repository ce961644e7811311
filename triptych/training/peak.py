"""Peak speed of matrix products on this machine, which training speed is compared with."""

import time

import torch


def products_dtype(precision: str) -> torch.dtype:
    """Precision of the matrix products on a CPU, by `parallel.precision`."""
    return torch.bfloat16 if precision == "bfloat16-products" else torch.float32


def matmul_peak(device: torch.device, dtype: torch.dtype = torch.float32, seconds: float = 0.5) -> float:
    """FLOP/s of the fastest of several square products, with the current number of threads."""
    best = 0.0
    for size in (512, 1024, 2048):
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = a @ b
        first = time.perf_counter()
        while time.perf_counter() - first < seconds / 3:
            start = time.perf_counter()
            torch.mm(a, b, out=out)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best
