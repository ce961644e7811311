#!/usr/bin/env python3
"""Questions about images that the built-in models cannot answer, with answers, for examples/finetune.sh.

    python examples/questions.py FOLDER [--train 200] [--test 100] [--preset small]
    python examples/questions.py FOLDER --ask MODEL      the share of the test questions that a model answers right

FOLDER/train, FOLDER/test    images of the toy dataset, and rows.jsonl: file_name, prompt, response

The images of the test part show combinations that no model of the toy dataset was trained on.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from triptych.scenes.image import scene_image
from triptych.scenes.world import WORLDS, Scene

SOUNDS = {
    "bee": "buzz", "bird": "tweet", "car": "vroom", "cat": "meow", "chicken": "cluck", "clock": "tick tock",
    "cow": "moo", "dog": "woof", "duck": "quack", "fox": "yip", "frog": "ribbit", "guitar": "twang",
    "horse": "neigh", "lion": "roar", "mouse": "squeak", "owl": "hoot", "pig": "oink", "rocket": "whoosh",
    "snake": "hiss", "train": "choo choo",
}  # fmt: skip
ANIMALS = {
    "bear", "bee", "bird", "butterfly", "cat", "chicken", "cow", "dog", "duck", "elephant", "fish", "fox", "frog",
    "horse", "lion", "monkey", "mouse", "octopus", "owl", "panda", "penguin", "pig", "rabbit", "snail", "snake",
    "tiger", "turtle", "whale",
}  # fmt: skip


def ask(scene: Scene, rng: np.random.Generator) -> tuple[str, str]:
    """A question about the first objects of a scene, and its answer."""
    kind = scene.groups[0].kind
    if kind in SOUNDS and rng.random() < 0.8:
        return "what noise would that make?", f"it would go {SOUNDS[kind]}"
    alive = "yes, it breathes" if kind in ANIMALS else "no, it is only a thing"
    return "is that a living being?", alive


def write(folder: Path, number: int, split: str, preset: str) -> None:
    """Images of one kind of object each: `number` of them, with a question each."""
    world = WORLDS[preset]
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for index in range(number):
        rng = np.random.default_rng([split == "test", index])
        category = ("single object", "counting")[index % 2]
        scene = world.sample(rng, split, category)
        scene_image(scene, rng, world).save(folder / f"{index:04d}.png")
        prompt, response = ask(scene, rng)
        rows.append({"file_name": f"{index:04d}.png", "prompt": prompt, "response": response})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def score(folder: Path, model: str) -> None:
    """Ask the questions of the test part; a model that refuses their words has not answered."""
    from triptych import Pipeline
    from triptych.errors import UserError

    pipe = Pipeline.from_pretrained(model, check_inputs=False)
    rows = [json.loads(line) for line in (folder / "test" / "rows.jsonl").read_text().splitlines()]
    images = [str(folder / "test" / row["file_name"]) for row in rows]
    try:
        answers = pipe.answer(images, [row["prompt"] for row in rows])
    except UserError as error:
        print(f"0 of {len(rows)} right: {error}")
        return
    right = [answer == row["response"] for answer, row in zip(answers, rows)]
    print(f"{sum(right)} of {len(rows)} right")
    for question in sorted({row["prompt"] for row in rows}):
        mine = [index for index, row in enumerate(rows) if row["prompt"] == question]
        print(f"  {question} {sum(right[index] for index in mine)} of {len(mine)}")
    for answer, row in [(a, r) for a, r, ok in zip(answers, rows, right) if not ok][:3]:
        print(f"  {row['file_name']}: expected {row['response']!r}, got {answer!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=200)
    parser.add_argument("--test", type=int, default=100)
    parser.add_argument("--preset", choices=list(WORLDS), default="small")
    parser.add_argument("--ask", metavar="MODEL", help="score this model instead of writing files")
    args = parser.parse_args()
    if args.ask is not None:
        score(args.folder, args.ask)
        return
    write(args.folder / "train", args.train, "train", args.preset)
    write(args.folder / "test", args.test, "test", args.preset)


if __name__ == "__main__":
    main()
