"""Startup time of commands: help, a first text, a first image, each in a new process.

    python bench/startup.py [--short] [--json FILE]

Times are multiples of the time to import torch, measured interleaved. Help does not import torch.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from measure import base_parser, print_table, save_results, start_benchmark, time_interleaved

TRIPTYCH = [sys.executable, "-m", "triptych"]


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    args = base_parser(__doc__).parse_args()
    start_benchmark(args)
    with tempfile.TemporaryDirectory() as folder:
        image = str(Path(folder) / "cat.png")
        calls = {
            "python -c pass": lambda: run(sys.executable, "-c", "pass"),
            "import torch": lambda: run(sys.executable, "-c", "import torch"),
            "triptych --help": lambda: run(*TRIPTYCH, "--help"),
            "triptych train --help": lambda: run(*TRIPTYCH, "train", "--help"),
            "triptych generate complete": lambda: run(*TRIPTYCH, "generate", "complete", "there is a"),
            "triptych generate text-to-image": lambda: run(
                *TRIPTYCH, "generate", "text-to-image", "a cat", "--out", image, "--force"
            ),
        }
        seconds = time_interleaved(calls, 1 if args.short else 5)
    rows = [{"what": name, "over importing torch": value / seconds["import torch"]} for name, value in seconds.items()]
    print_table("From a command to its answer", rows)
    save_results(args, startup=rows)


if __name__ == "__main__":
    main()
