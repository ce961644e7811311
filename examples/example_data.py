#!/usr/bin/env python3
"""Draw and speak a small dataset in words that the built-in models do not know, for examples/train_on_your_data.sh.

    python examples/example_data.py FOLDER [--images 400] [--clips 240] [--texts 2000]

FOLDER/photos    lighthouses, tents, sailboats, cacti, kites and teapots in five colours, with captions
FOLDER/speech    the captions of other pictures, spoken by espeak-ng if it is installed, with transcripts
FOLDER/notes     stories of a few sentences, one per line
"""

import argparse
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw

SIZE = 96
COLORS = {
    "crimson": (196, 30, 58),
    "teal": (0, 128, 128),
    "ochre": (204, 119, 34),
    "violet": (127, 0, 200),
    "navy": (16, 32, 110),
}
PLACES = {"left": 24, "middle": 48, "right": 72}
GROUNDS = {
    "in the desert": ((250, 222, 170), (226, 186, 120)),
    "by the sea": ((190, 225, 250), (40, 110, 190)),
    "in the snow": ((205, 215, 230), (250, 250, 255)),
}
Draw = ImageDraw.ImageDraw


def lighthouse(draw: Draw, x: int, color: tuple[int, int, int]) -> None:
    draw.polygon([(x - 9, 70), (x - 5, 32), (x + 5, 32), (x + 9, 70)], fill="white", outline="black")
    for top in (38, 52):
        draw.rectangle((x - 7, top, x + 7, top + 7), fill=color)
    draw.rectangle((x - 5, 24, x + 5, 32), fill=(255, 230, 90), outline="black")
    draw.polygon([(x - 7, 24), (x, 16), (x + 7, 24)], fill=color)


def tent(draw: Draw, x: int, color: tuple[int, int, int]) -> None:
    draw.polygon([(x - 18, 70), (x, 38), (x + 18, 70)], fill=color, outline="black")
    draw.polygon([(x - 5, 70), (x, 52), (x + 5, 70)], fill=(40, 30, 30))


def sailboat(draw: Draw, x: int, color: tuple[int, int, int]) -> None:
    draw.line([(x, 66), (x, 28)], fill="black", width=2)
    draw.polygon([(x + 2, 30), (x + 2, 60), (x + 18, 60)], fill=color)
    draw.polygon([(x - 18, 64), (x + 18, 64), (x + 10, 74), (x - 10, 74)], fill=(120, 70, 30))


def cactus(draw: Draw, x: int, color: tuple[int, int, int]) -> None:
    draw.rounded_rectangle((x - 5, 34, x + 5, 70), 5, fill=color)
    for side in (-1, 1):
        arm = sorted((x + 5 * side, x + 14 * side))
        draw.rounded_rectangle((arm[0], 52, arm[1], 58), 3, fill=color)
        draw.rounded_rectangle((x + 11 * side - 3, 42, x + 11 * side + 3, 58), 3, fill=color)


def kite(draw: Draw, x: int, color: tuple[int, int, int]) -> None:
    draw.polygon([(x, 12), (x + 12, 26), (x, 46), (x - 12, 26)], fill=color, outline="black")
    draw.line([(x, 46), (x - 6, 56), (x + 4, 64), (x, 76)], fill="black", width=1)


def teapot(draw: Draw, x: int, color: tuple[int, int, int]) -> None:
    draw.arc((x + 6, 48, x + 20, 64), -90, 90, fill=color, width=3)
    draw.line([(x - 10, 60), (x - 20, 48)], fill=color, width=5)
    draw.ellipse((x - 13, 44, x + 13, 72), fill=color)
    draw.ellipse((x - 3, 38, x + 3, 44), fill="black")


THINGS: dict[str, Callable[[Draw, int, tuple[int, int, int]], None]] = {
    thing.__name__: thing for thing in (lighthouse, tent, sailboat, cactus, kite, teapot)
}


def draw_scene(rng: random.Random) -> tuple[Image.Image, str]:
    """A picture and its caption."""
    name, color = rng.choice(list(THINGS)), rng.choice(list(COLORS))
    place, ground = rng.choice(list(PLACES)), rng.choice(list(GROUNDS))
    above, below = GROUNDS[ground]
    image = Image.new("RGB", (SIZE, SIZE), above)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 66, SIZE, SIZE), fill=below)
    THINGS[name](draw, PLACES[place] + rng.randint(-4, 4), COLORS[color])
    return image, f"a {color} {name} {ground}, on the {place}" if place != "middle" else f"a {color} {name} {ground}"


def tell(rng: random.Random) -> str:
    """A few sentences in the same words."""
    owner, color, name = (
        rng.choice(["Wren", "Idris", "Noor", "Tove"]),
        rng.choice(list(COLORS)),
        rng.choice(list(THINGS)),
    )
    ground, other = rng.choice(list(GROUNDS)), rng.choice(list(THINGS))
    ends = (
        f"It was more {color} than any {other} before it.",
        f"Nobody asked about the {other}.",
        f"Then {owner} went home and drew a {other}.",
    )
    return f"{owner} had a {color} {name} {ground}. Every morning {owner} looked at the {name}. {rng.choice(ends)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--clips", type=int, default=240)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    photos, speech, notes = (args.folder / name for name in ("photos", "speech", "notes"))
    photos.mkdir(parents=True, exist_ok=True)
    for number in range(args.images):
        image, caption = draw_scene(rng)
        image.save(photos / f"{number:04d}.png")
        (photos / f"{number:04d}.txt").write_text(caption)
    notes.mkdir(parents=True, exist_ok=True)
    (notes / "stories.txt").write_text("".join(f"{tell(rng)}\n" for _ in range(args.texts)))
    espeak = shutil.which("espeak-ng")
    if espeak is None or not args.clips:
        print("no speech: espeak-ng is not installed" if args.clips else "no speech")
        return
    speech.mkdir(parents=True, exist_ok=True)
    for number in range(args.clips):
        _, caption = draw_scene(rng)
        subprocess.run([espeak, "-s", "160", "-w", speech / f"{number:04d}.wav", caption], check=True)
        (speech / f"{number:04d}.txt").write_text(caption)


if __name__ == "__main__":
    main()
