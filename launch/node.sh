#!/usr/bin/env bash
# One machine, all of its GPUs:  launch/node.sh paper_base --out runs/base data=data/text,data/images,data/speech
# If a rank crashes, all ranks are restarted from the newest checkpoint, at most three times.
set -euo pipefail
gpus=$(nvidia-smi --list-gpus | wc -l)
exec triptych train "$@" --device cuda --nproc "$gpus"
