#!/usr/bin/env bash
# One machine, all of its GPUs:  launch/node.sh paper_base --out runs/base data=data/text,data/pictures,data/speech
# A rank that dies takes the others with it; all begin again from the newest checkpoint, three times at most.
set -euo pipefail
gpus=$(nvidia-smi --list-gpus | wc -l)
exec triptych train "$@" --device cuda --nproc "$gpus"
