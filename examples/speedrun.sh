#!/usr/bin/env bash
# The built-in world from nothing: data, training, evaluation, samples. A day on two cores with the defaults.
#
#   examples/speedrun.sh                        the recipe scenes, 26,000 steps
#   STEPS=2000 IMAGES=10000 examples/speedrun.sh
set -euo pipefail
STEPS=${STEPS:-26000}
IMAGES=${IMAGES:-120000}
TEXTS=${TEXTS:-50000}
SPEECH=${SPEECH:-24000}
VALIDATION=${VALIDATION:-1000}
EXAM=${EXAM:-600}
WORK=${WORK:-out/speedrun}
CHANGES=${CHANGES:-}  # further fields of the recipe, such as parallel.precision=bfloat16-products

triptych scenes make "$WORK/data" --text "$TEXTS" --images "$IMAGES" --speech "$SPEECH" --validation "$VALIDATION"
# shellcheck disable=SC2086
triptych train scenes --out "$WORK/run" num_steps="$STEPS" data="$WORK/data/train" \
    validation_data="$WORK/data/validation" $CHANGES
triptych export "$WORK/run" --out "$WORK/model" --force
triptych eval scenes --model "$WORK/model" --images "$EXAM" --speech "$(((EXAM + 2) / 3))" --json "$WORK/scenes.json"
triptych generate text-to-image "three red hearts" --model "$WORK/model" --out "$WORK/hearts.png"
