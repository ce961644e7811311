"""Speed of the suite of image generation against a plain loop, and of FID against the usual formula.

    python bench/image_suite.py [--model scenes] [--samples 40] [--short] [--json FILE]

First table: samples per second from the prompt to FID with Inception-v3, for the suite (batches, records of every
sample, all its metrics) and for a loop that generates and judges one image at a time. Both are timed in turns in one
process; their features must be equal. Reference features are computed before. The same for its two parts alone.

Second table: FID of the same features, 2048 wide, in seconds of the processor. "matrix root" is the formula of
pytorch-fid and clean-fid, `scipy.linalg.sqrtm` of the product of the covariances, without an interval; ours includes
the 95 % interval.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
from measure import base_parser, print_table, progress, save_results, start_benchmark, time_interleaved

from triptych.eval.frechet import Gaussian, frechet_score
from triptych.eval.image.features import FeatureSpec
from triptych.eval.image.inception import FEATURE_SIZE, inception_features
from triptych.eval.image.reference import Framing, open_images, reference_features
from triptych.eval.image.suite import ImageSettings, image_suite
from triptych.eval.records import RecordStore
from triptych.eval.suite import Evaluation
from triptych.hub.pipeline import Pipeline
from triptych.scenes.samples import scene_sample
from triptych.scenes.world import SMALL
from triptych.vocab import Task


def write_reference(folder: Path, count: int) -> None:
    """Scenes with captions."""
    for number in range(count):
        sample = scene_sample(Task.IMAGE_TEXT, "test", number, world=SMALL)
        assert sample.image is not None
        sample.image.save(folder / f"{number:04d}.png")
        (folder / f"{number:04d}.txt").write_text(sample.text)


def suite_speed(pipe: Pipeline, num_samples: int, rounds: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        write_reference(folder / "data", num_samples)
        settings = ImageSettings(data=folder / "data", geneval=None, cache=folder / "cache")
        framing = Framing("pad", pipe.bundle.image.resolution)
        spec = FeatureSpec.parse("inception")
        reference = reference_features(open_images(folder / "data"), spec, framing, cache=folder / "cache")
        texts = [path.read_text() for path in sorted((folder / "data").glob("*.txt"))]
        texts = [texts[i] for i in np.random.default_rng(0).permutation(len(texts))]  # the order of the suite
        features: dict[str, np.ndarray] = {}

        def suite() -> None:
            evaluation = Evaluation(pipe, folder / "out", RecordStore(), lambda line: None)
            list(image_suite(evaluation, settings))
            features["suite"] = np.load(next((folder / "out").glob("image-inception-*.npy")))

        def loop() -> None:
            images = [pipe.text_to_image(text, seed=seed) for seed, text in enumerate(texts)]
            rows = [inception_features([image]) for image in images]
            features["loop"] = np.concatenate(rows)
            frechet_score(features["loop"], reference.gaussian)

        seconds = time_interleaved({"suite": suite, "loop": loop}, rounds, warm=1)
        np.testing.assert_allclose(features["suite"], features["loop"], atol=1e-3)
        few, image = texts[:10], pipe.text_to_image(texts[0])
        parts = time_interleaved(
            {
                ("generate", "batch"): lambda: pipe.text_to_image(few),
                ("generate", "single"): lambda: [pipe.text_to_image(text, seed=i) for i, text in enumerate(few)],
                ("judge", "batch"): lambda: inception_features([image] * len(few)),
                ("judge", "single"): lambda: [inception_features([image]) for _ in few],
            },
            rounds,
        )
    rows = [("prompt to FID", num_samples, seconds["suite"], seconds["loop"])]
    for part in ("generate", "judge"):
        rows.append((f"{part} only", len(few), parts[part, "batch"], parts[part, "single"]))
    return [
        {
            "what": what,
            "samples": count,
            "suite, samples/s": count / ours,
            "loop, samples/s": count / plain,
            "speedup": plain / ours,
        }
        for what, count, ours, plain in rows
    ]


def fid_speed(sizes: list[int]) -> list[dict[str, Any]]:
    rows = []
    for n in sizes:
        rng = np.random.default_rng(0)
        one, other = (np.maximum(rng.normal(shift, 1, size=(n, FEATURE_SIZE)), 0) for shift in (0, 0.1))
        progress(f"FID of {n} samples")
        began = time.process_time()
        score, _ = frechet_score(one, Gaussian.of_features(other))
        ours = time.process_time() - began
        began = time.process_time()
        covariances = [np.cov(each, rowvar=False) for each in (one, other)]
        root = scipy.linalg.sqrtm(covariances[0] @ covariances[1])
        offset = np.square(one.mean(0) - other.mean(0)).sum()
        expected = float(offset + np.trace(covariances[0] + covariances[1]) - 2 * np.trace(root).real)
        usual = time.process_time() - began
        rows.append(
            {
                "samples": n,
                "ours with interval, s": ours,
                "matrix root, s": usual,
                "speedup": usual / ours,
                "FID": score.value,
                "difference": abs(score.value - expected) / expected,
            }
        )
    return rows


def main() -> None:
    parser: argparse.ArgumentParser = base_parser(__doc__)
    parser.add_argument("--model", default="scenes")
    parser.add_argument("--samples", type=int, default=40)
    args = parser.parse_args()
    start_benchmark(args)
    pipe = Pipeline.from_pretrained(args.model, check_inputs=False)
    speed = suite_speed(pipe, 20 if args.short else args.samples, 1 if args.short else 3)
    print_table("Samples per second", speed)
    fid = fid_speed([500] if args.short else [500, 3000, 10_000])
    print_table("FID of 2048 features", fid)
    save_results(args, suite=speed, fid=fid)


if __name__ == "__main__":
    main()
