"""How long one waits for the first sign of life: help, the first word, the first picture, each in a new process.

    python bench/startup.py [--short] [--json FILE]

As multiples of what Python takes to import torch, measured in turns; help does not need it.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from measure import arguments, begin, in_turns, save, table

TRIPTYCH = [sys.executable, "-m", "triptych"]


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    args = arguments(__doc__).parse_args()
    begin(args)
    with tempfile.TemporaryDirectory() as folder:
        picture = str(Path(folder) / "cat.png")
        calls = {
            "python -c pass": lambda: run(sys.executable, "-c", "pass"),
            "import torch": lambda: run(sys.executable, "-c", "import torch"),
            "triptych --help": lambda: run(*TRIPTYCH, "--help"),
            "triptych train --help": lambda: run(*TRIPTYCH, "train", "--help"),
            "triptych generate text": lambda: run(*TRIPTYCH, "generate", "text", "there is a"),
            "triptych generate image": lambda: run(*TRIPTYCH, "generate", "image", "a cat", "--out", picture),
        }
        found = in_turns(calls, 1 if args.short else 5)
    rows = [{"what": name, "over importing torch": value / found["import torch"]} for name, value in found.items()]
    table("From a command to its answer", rows)
    save(args, startup=rows)


if __name__ == "__main__":
    main()
