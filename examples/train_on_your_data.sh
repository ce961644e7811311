#!/usr/bin/env bash
# From a folder of captioned images to a model that captions them, in two minutes on one CPU core.
#
#   examples/train_on_your_data.sh                    draws a small folder of its own
#   examples/train_on_your_data.sh PHOTOS             your folder: PHOTOS/train and PHOTOS/validation, cat.png + cat.txt
#
# The built-in tokenizers are fitted to the toy dataset. Captions of your images can be learned with them; the images
# themselves come out badly. docs/tokenizers.md says how to use the paper's tokenizers.
set -euo pipefail
STEPS=${STEPS:-400}          # training steps
WORK=${WORK:-out/your_data}  # everything is written here
PHOTOS=${1:-$WORK/photos}

# 0. Data. Each image has a text file of the same name.
if [ $# -eq 0 ] && [ ! -d "$PHOTOS" ]; then
    python - "$PHOTOS" <<'PYTHON'
import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw

COLORS = {"crimson": (200, 30, 60), "navy": (20, 40, 120), "olive": (110, 120, 20), "teal": (0, 130, 130)}


def draw(folder: Path, count: int, rng: random.Random) -> None:
    folder.mkdir(parents=True)
    for i in range(count):
        color, shape, row = rng.choice(list(COLORS)), rng.choice(["ring", "bar"]), rng.choice(["top", "bottom"])
        x, y = rng.randint(4, 50), 4 if row == "top" else 52
        image = Image.new("RGB", (96, 96), "white")
        if shape == "ring":
            ImageDraw.Draw(image).ellipse((x, y, x + 40, y + 40), outline=COLORS[color], width=9)
        else:
            ImageDraw.Draw(image).rectangle((x, y + 12, x + 40, y + 28), fill=COLORS[color])
        image.save(folder / f"{i:04d}.png")
        (folder / f"{i:04d}.txt").write_text(f"a {color} {shape} at the {row}")


draw(Path(sys.argv[1]) / "train", 600, random.Random(0))
draw(Path(sys.argv[1]) / "validation", 40, random.Random(1))
PYTHON
fi

# 1. Tokenize: one dataset for training, one for validation. A stopped command resumes when it is run again.
triptych tokenize "$PHOTOS/train" --out "$WORK/data/train"
triptych tokenize "$PHOTOS/validation" --out "$WORK/data/validation"
triptych data show "$WORK/data" -n 2

# 2. Train. The recipe `nano` is made for the toy dataset: tasks without data get the weight 0, and its word list and
#    caption prompt are cleared. Run the same command again to resume.
triptych train nano \
    data="$WORK/data/train" validation_data="$WORK/data/validation" \
    loader.task_weights.text=0 loader.task_weights.audio-text=0 \
    prompts.words= prompts.caption_prompt= prompts.examples= \
    num_steps="$STEPS" --out "$WORK/run"

# 3. Use it. A run is a model; `export` writes one that can be moved or uploaded.
triptych info "$WORK/run"
triptych generate caption "$(find "$PHOTOS/validation" -name '*.png' | sort | head -n 1)" --model "$WORK/run"
triptych export "$WORK/run" --out "$WORK/model" --dtype float16 --force
