#!/usr/bin/env bash
# From folders of text, captioned images and transcribed speech to one model of all of them.
#
#   examples/train_on_your_data.sh                        draws and speaks a small dataset of its own
#   examples/train_on_your_data.sh notes/ photos/ calls/  your folders, any of the three kinds (docs/your-data.md)
#
# HOURS is the time for training; the size of the model follows from it. Every command resumes after a stop.
set -euo pipefail
HOURS=${HOURS:-0.3}
WORK=${WORK:-out/your_data}  # everything is written here
OPTIONS=${OPTIONS:-}         # further options of `triptych tokenizers fit`

# 0. Data: plain text, image.png beside image.txt, clip.wav beside clip.txt; also JSONL, tar, Parquet, manifests.
if [ $# -eq 0 ]; then
    [ -d "$WORK/files" ] || python "$(dirname "$0")/example_data.py" "$WORK/files" ${EXAMPLE_OPTIONS:-}
    set -- "$WORK"/files/*/
fi

# 1. Tokenizers that fit the data, with a report on samples that were held out.
# shellcheck disable=SC2086
triptych tokenizers fit "$@" --out "$WORK/tokenizers" $OPTIONS

# 2. Token datasets, one per folder.
for folder in "$@"; do
    triptych tokenize "$folder" --out "$WORK/data/$(basename "$folder")" --tokenizers "$WORK/tokenizers"
done
triptych data show "$WORK/data" -n 1

# 3. A model. A twentieth of the data is held out for validation; the last line compares the predicted loss with it.
triptych train own data="$WORK/data" --hours "$HOURS" --out "$WORK/run"

# 4. How good it is on the held-out data, and the model as a folder that can be moved or uploaded.
triptych eval elbo "$WORK/run"
triptych export "$WORK/run" --out "$WORK/model" --dtype float16 --force
triptych info "$WORK/model"
