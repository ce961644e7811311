#!/usr/bin/env bash
# Teach a model to answer new questions from 200 examples, without forgetting what it knows.
#
#   examples/finetune.sh
#   MODEL=models/mine REPLAY=data/mine examples/finetune.sh questions/rows.jsonl
#
# Rows have prompt, response and, if they are about an image or audio, file_name. Only the response is predicted.
set -euo pipefail
MODEL=${MODEL:-scenes}                # its shape, tokenizers and limits are taken over
[ -d "$MODEL/tokenizers" ] && own=$MODEL/tokenizers || own=scenes
TOKENIZERS=${TOKENIZERS:-$own}        # those of the model
STEPS=${STEPS:-800}
SHARE=${SHARE:-0.5}                   # of the sequences come from older data
EXAM=${EXAM:-120}                     # samples of each direction in the evaluation
WORK=${WORK:-out/finetune}
CHANGES=${CHANGES:-optimizer.lr=1e-3}  # higher than the default of fine-tuning: the answers are spelled in unused tokens

# 0. Questions that the model cannot answer yet, and older data.
if [ $# -eq 0 ]; then
    [ -f "$WORK/questions/test/rows.jsonl" ] || python "$(dirname "$0")/questions.py" "$WORK/questions" ${EXAMPLE_OPTIONS:-}
    set -- "$WORK/questions/train/rows.jsonl"
fi
if [ -z "${REPLAY:-}" ]; then
    REPLAY=$WORK/older/train
    # shellcheck disable=SC2086
    triptych scenes make "$WORK/older" ${OLDER:---text 1000 --images 4000 --speech 800 --validation 100}
fi

# 1. Tokens: prompt and response of every row; the border between them is kept.
triptych tokenize "$@" --out "$WORK/data" --tokenizers "$TOKENIZERS"

# 2. A run that starts from the model.
# shellcheck disable=SC2086
triptych train own data="$WORK/data" replay="$REPLAY" replay_share="$SHARE" init_from="$MODEL" num_steps="$STEPS" \
    --out "$WORK/run" $CHANGES
triptych export "$WORK/run" --out "$WORK/model" --dtype float16 --force

# 3. What it learned, and what it forgot.
if [ -f "$WORK/questions/test/rows.jsonl" ]; then
    for each in "$MODEL" "$WORK/model"; do
        echo "$each:"
        python "$(dirname "$0")/questions.py" "$WORK/questions" --ask "$each"
        triptych eval scenes --model "$each" --images "$EXAM" --speech "$((EXAM / 3))" --only text-to-image \
            --only caption --only answer --only transcribe
    done
fi
