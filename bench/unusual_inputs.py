"""Input checks of a model: AUROC of inputs that are unlike its data, false alarms on test data, and the cost.

    python bench/unusual_inputs.py [--model scenes] [--raw FOLDER] [--num-samples 1000] [--json FILE]

FOLDER has the raw files validation/text, validation/image-text, validation/audio-text and the same of the split test,
as `triptych scenes write` makes them; without --raw they are made. A model that has not been calibrated is calibrated
on the validation files. The usual inputs of every AUROC are the test files, which are neither in the training data nor
in the calibration.
"""

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import base_parser, print_table, progress, save_results, start_benchmark, time_interleaved
from PIL import Image

from triptych.data.sources import open_source
from triptych.errors import UnusualInputWarning, require
from triptych.eval.scores import auroc
from triptych.hub.calibrate import calibrate
from triptych.hub.input_checks import InputCheck
from triptych.hub.measures import Measures
from triptych.hub.pipeline import Pipeline
from triptych.sample.canvas import known
from triptych.utils.media import Audio, read_audio, read_image
from triptych.vocab import Modality

RATE = 16_000
TASKS = ("text", "image-text", "audio-text")


# -- inputs -----------------------------------------------------------------------------------------------------------


def images(usual: Sequence[Image.Image], size: int, count: int, rng: np.random.Generator) -> dict[str, list[Any]]:
    def flat(colour: Any) -> Image.Image:
        return Image.new("RGB", (size, size), tuple(int(each) for each in colour))

    def gradient() -> Image.Image:
        one, other = rng.integers(0, 256, (2, 3))
        ramp = np.linspace(0, 1, size)[:, None, None]
        pixels = (one * (1 - ramp) + other * ramp) * np.ones((1, size, 1))
        return Image.fromarray((pixels if rng.random() < 0.5 else pixels.swapaxes(0, 1)).astype(np.uint8))

    def crop(photo: np.ndarray) -> Image.Image:
        side = int(rng.integers(64, min(photo.shape[:2]) + 1))
        top, left = (int(rng.integers(length - side + 1)) for length in photo.shape[:2])
        return Image.fromarray(photo[top : top + side, left : left + side]).resize((size, size))

    def shuffled(image: Image.Image, side: int = 4) -> Image.Image:
        width = size // side
        cells = np.asarray(image.resize((size, size))).reshape(side, width, side, width, 3).swapaxes(1, 2)
        cells = rng.permutation(cells.reshape(-1, width, width, 3)).reshape(side, side, width, width, 3)
        return Image.fromarray(cells.swapaxes(1, 2).reshape(size, size, 3))

    photos = require("sklearn.datasets", "hpo", "photos").load_sample_images().images
    few = usual[:count]
    noise = rng.normal(128, 60, (count, size, size, 3)).clip(0, 255).astype(np.uint8)
    return {
        "Gaussian noise": [Image.fromarray(each) for each in noise],
        "flat grey": [flat([level] * 3) for level in rng.integers(32, 224, count)],
        "empty (white)": [flat([255] * 3)],
        "black": [flat([0] * 3)],
        "colour gradient": [gradient() for _ in range(count)],
        "photo": [crop(photos[i % len(photos)]) for i in range(count)],
        "negative of a test image": [Image.fromarray(255 - np.asarray(each)) for each in few],
        "test image, tiles shuffled": [shuffled(each) for each in few],
    }


def audio(usual: Sequence[Audio], count: int, rng: np.random.Generator) -> dict[str, list[Any]]:
    lengths = [usual[i % len(usual)].seconds for i in range(count)]
    times = [np.arange(max(1, round(seconds * RATE))) / RATE for seconds in lengths]

    def clip(samples: np.ndarray, rate: int = RATE) -> Audio:
        return Audio(np.clip(samples, -1, 1).astype(np.float32), rate)

    def music(time: np.ndarray) -> np.ndarray:
        """A few chords, each of three decaying notes with overtones."""
        wave = np.zeros_like(time)
        for part in np.array_split(np.arange(len(time)), max(1, round(2 * time[-1]))):
            base, since = 110 * 2 ** (rng.integers(24) / 12), time[part] - time[part[0]]
            for step in ((0, 4, 7), (0, 3, 7), (0, 5, 9))[rng.integers(3)]:
                for overtone in range(1, 5):
                    note = np.sin(2 * np.pi * base * 2 ** (step / 12) * overtone * since)
                    wave[part] += 0.1 * note / overtone * np.exp(-2 * since)
        return wave

    few = usual[:count]
    return {
        "silence": [clip(0 * time) for time in times],
        "white noise": [clip(rng.normal(0, 0.1, len(time))) for time in times],
        "faint white noise": [clip(rng.normal(0, 1e-3, len(time))) for time in times],
        "music (chords)": [clip(music(time)) for time in times],
        "tone": [clip(0.3 * np.sin(2 * np.pi * rng.uniform(100, 2000) * time)) for time in times],
        "test clip, reversed": [clip(each.samples[::-1], each.sample_rate) for each in few],
    }


def texts(usual: Sequence[str], words: Sequence[str], count: int, rng: np.random.Generator) -> dict[str, list[Any]]:
    def shuffled(text: str) -> str:
        return " ".join(rng.permutation(text.rstrip(".?").split()))

    sets = {"words shuffled": [shuffled(text) for text in usual[:count] if len(text.split()) > 3]}
    if words:
        sets["random known words"] = [" ".join(rng.choice(words, rng.integers(3, 8))) for _ in range(count)]
    beginnings = [" ".join(text.split()[: rng.integers(1, 1 + len(text.split()))]) for text in usual[:count]]
    return sets | {"beginning of a test text (usual)": beginnings}


def num_tokens(pipe: Pipeline, text: str) -> int:
    return len(pipe.bundle.text.encode([text])[0])


# -- measuring --------------------------------------------------------------------------------------------------------


def compare(
    kind: str, usual: Sequence[Any], others: dict[str, list[Any]], check: Callable[[list[Any]], list[InputCheck]]
) -> list[dict[str, Any]]:
    progress(f"{kind}: {len(usual)} test inputs")
    expected = check(list(usual))
    distances = [each.distance for each in expected]
    rows = [{"input": kind, "set": "test data", "n": len(usual), "warned": np.mean([e.is_unusual for e in expected])}]
    for name, items in others.items():
        progress(f"{kind}: {name}")
        checks = check(items)
        warned = np.mean([each.is_unusual for each in checks])
        area = auroc(distances, [each.distance for each in checks])
        rows.append({"input": kind, "set": name, "n": len(items), "warned": warned, "AUROC": area})
    return [{key: float(value) if key in ("warned", "AUROC") else value for key, value in row.items()} for row in rows]


def by_number_of_masks(
    pipe: Pipeline, pictures: Sequence[Image.Image], captions: Sequence[str]
) -> list[dict[str, Any]]:
    """AUROC of the mean surprise alone, in which a token is predicted with 0 to 7/8 of the others in view."""
    rng, size, rows = np.random.default_rng(0), pipe.bundle.image.resolution, []
    others = images(pictures, size, len(pictures), rng)
    hard = {name: others[name] for name in ("flat grey", "photo", "test image, tiles shuffled")}
    codes = {name: pipe.bundle.image.encode(items) for name, items in {"usual": pictures, **hard}.items()}
    tokens = {
        name: [pipe._inputs.encoded_text(text, cut=True)[1] for text in items]
        for name, items in {"usual": captions, **texts(captions, pipe.words, len(captions), rng)}.items()
    }
    for num_masks in (1, 2, 4, 8):
        progress(f"{num_masks} masks")
        measures = Measures(pipe.model, pipe.bundle, pipe.limits, text_masks=num_masks, media_masks=num_masks)
        surprise = {
            name: [measures.media_surprise(known(Modality.IMAGE, ids)) for ids in codes[name]] for name in codes
        }
        row: dict[str, Any] = {"masks": num_masks}
        row |= {name: auroc(surprise["usual"], surprise[name]) for name in hard}
        wording = {name: [measures.text(ids, "image")["mean surprise"] for ids in tokens[name]] for name in tokens}
        rows.append(row | {name: auroc(wording["usual"], wording[name]) for name in tokens if name != "usual"})
    return rows


def cost(pipe: Pipeline, text: str, image: Image.Image, clip: Audio, rounds: int) -> list[dict[str, Any]]:
    """Time with checks over time without."""

    def call(method: str, given: Any, is_on: bool) -> Callable[[], None]:
        def run() -> None:
            pipe.check_inputs = is_on
            pipe._checker._latest.clear()  # a repeated input is checked once
            getattr(pipe, method)(given, seed=0)

        return run

    inputs = {"text_to_image": text, "caption": image, "text_to_speech": text, "transcribe": clip, "complete": text}
    calls = {(method, is_on): call(method, given, is_on) for method, given in inputs.items() for is_on in (False, True)}
    seconds = time_interleaved(calls, rounds)
    return [{"method": each, "with checks over without": seconds[each, True] / seconds[each, False]} for each in inputs]


def main() -> None:
    parser = base_parser(__doc__)
    parser.add_argument("--model", default="scenes")
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--num-samples", type=int, default=1000)
    args = parser.parse_args()
    start_benchmark(args)
    warnings.simplefilter("ignore", UnusualInputWarning)
    rng, count = np.random.default_rng(0), 20 if args.short else 100
    num_samples = 200 if args.short else args.num_samples
    with tempfile.TemporaryDirectory() as temporary:
        raw = args.raw or Path(temporary)
        if args.raw is None:
            for split, number in (("validation", num_samples), ("test", 4 * count)):
                command = [sys.executable, "-m", "triptych", "scenes", "write", str(raw), "--split", split]
                subprocess.run(
                    [*command, "--num-samples", str(number), "--quiet"], check=True, stdout=subprocess.DEVNULL
                )
        plain = Pipeline.from_pretrained(args.model, device="cpu")
        paths = [str(raw / "validation" / task) for task in TASKS]
        checks = plain.input_checks or calibrate(plain, paths, num_samples=num_samples, report=progress)
        test = {task: list(open_source([str(raw / "test" / task)]))[: 4 * count] for task in TASKS}
        pipe = Pipeline(plain.model, plain.bundle, plain.limits, preset=plain.preset, input_checks=checks)
        pictures = [read_image(sample.media) for sample in test["image-text"]]  # type: ignore[union-attr, arg-type]
        clips = [read_audio(sample.media) for sample in test["audio-text"]]  # type: ignore[union-attr, arg-type]
    captions, spoken, documents = (
        [sample.text for sample in test[task]]  # type: ignore[union-attr]
        for task in ("image-text", "audio-text", "text")
    )
    clips = clips[: 2 * count]
    rows = [
        *compare("image", pictures, images(pictures, pipe.bundle.image.resolution, count, rng), pipe.check_image),
        *compare("audio", clips, audio(clips, count, rng), pipe.check_audio),
    ]
    for kind, beside, usual in (
        ("text with image", "image", captions),
        ("text with audio", "audio", spoken),
        ("text", None, documents),
    ):
        check: Any = lambda items, beside=beside: pipe.check_text(items, beside)  # noqa: E731
        sets = texts(usual, pipe.words, count, rng)
        fits = pipe.limits.longest(pipe.limits.text_slot)
        sets = {name: [text for text in sets[name] if num_tokens(pipe, text) <= fits] for name in sets}
        rows += compare(kind, [text for text in usual if num_tokens(pipe, text) <= fits], sets, check)
    print_table("Unusual inputs", rows)
    costs = cost(
        pipe, next(text for text in captions if "?" not in text), pictures[0], clips[0], 3 if args.short else 9
    )
    print_table("Cost of the checks", costs)
    masks = by_number_of_masks(pipe, pictures[: 2 * count], captions[: 2 * count])
    print_table("AUROC of the mean surprise by the number of masks", masks)
    save_results(args, unusual=rows, cost=costs, masks=masks)


if __name__ == "__main__":
    main()
