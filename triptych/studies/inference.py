"""Sampling settings: steps, guidance scale, temperature and top-p, one at a time around a model's own settings.

For each modality that a model generates, every trial changes one field of the model's sampling configuration. All
trials of a modality and seed have the same prompts and noise; each of two seeds has half of the samples. Changes that
are better beyond the interval of their difference are then combined, and the combination is compared with the default
on other prompts: settings that were each chosen alone need not go together, and the best of several measurements is
partly luck.

`--save-presets` writes the combinations into a saved model, except those that turned out worse.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from triptych.cli.args import positive_floats, positive_int, positive_ints
from triptych.errors import DataError, UserError
from triptych.eval.records import model_fingerprint
from triptych.hub.format import store_sampling
from triptych.hub.pipeline import Pipeline
from triptych.hub.source import BUILTIN_MODELS, CONFIG, check_source, is_run
from triptych.sample.config import SamplingConfig
from triptych.studies.base import Study
from triptych.studies.inference_figure import draw
from triptych.studies.inference_findings import (
    CONFIRMATION_SEED,
    FIELDS,
    SWEEP_SEEDS,
    better_settings,
    claims,
    findings,
    is_worse,
)
from triptych.studies.sample_quality import SampleQuality, need_validation_data
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.utils.files import write_atomically
from triptych.utils.json_files import read_json
from triptych.utils.trials import Trial, TrialRecords, run_trials
from triptych.vocab import Modality

_GRIDS: dict[str, list[float]] = {
    "num_steps": [1, 2, 4, 8, 16, 32],
    "guidance_scale": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
    "temperature": [0.0, 0.5, 0.7, 0.85, 1.0, 1.2],
    "top_p": [0.5, 0.7, 0.8, 0.9, 0.95, 1.0],
}
_OPTIONS = {"num_steps": "steps", "guidance_scale": "scales", "temperature": "temperatures", "top_p": "top-ps"}


def _temperatures(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [-1.0]
    if not all(0 <= value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"expected numbers of at least 0 separated by commas, got {text!r}")
    return values


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        default="scenes",
        metavar="MODEL",
        help="built-in name, folder of a saved model or of a run, or hf://OWNER/NAME (default: scenes); the data must "
        "be made with its tokenizers: name the --recipe it was trained with, or tokenizers=FOLDER",
    )
    kinds = {"num_steps": positive_ints, "temperature": _temperatures}
    for field, values in _GRIDS.items():
        shown = ",".join(f"{value:g}" for value in values)
        parser.add_argument(
            f"--{_OPTIONS[field]}",
            dest=field,
            type=kinds.get(field, positive_floats),
            default=values,
            metavar="X,X",
            help=f"values of {field} (default: {shown})",
        )
    parser.add_argument("--images", type=positive_int, default=96, metavar="N", help="images per setting (default: 96)")
    parser.add_argument("--clips", type=positive_int, default=48, metavar="N", help="clips per setting (default: 48)")
    parser.add_argument(
        "--save-presets",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="write the settings that are better than the model's own into the model, or into a copy of it in FOLDER",
    )


def trials(args: argparse.Namespace, modality: Modality, default: SamplingConfig) -> list[Trial]:
    """For each seed the default, and one trial for every other value of every field."""
    name = modality.name.lower()
    changes = [
        {"field": field, "value": value}
        for field in FIELDS
        for value in dict.fromkeys(getattr(args, field))
        if value != getattr(default, field) and not (field == "guidance_scale" and modality == Modality.TEXT)
    ]
    return [
        Trial(f"{name} {_shown(change)} seed {seed}", {"modality": name, **change, "seed": seed})
        for seed in SWEEP_SEEDS
        for change in [{"field": None}, *changes]
    ]


def _shown(change: Mapping[str, Any]) -> str:
    return "default" if change["field"] is None else f"{change['field']} {change['value']:g}"


def confirmation_trials(modality: Modality, settings: Mapping[str, float]) -> list[Trial]:
    """The default and a combination of better settings, on other prompts; nothing if nothing is better."""
    if not settings:
        return []
    name, shared = modality.name.lower(), {"field": None, "seed": CONFIRMATION_SEED}
    combined = " ".join(f"{field} {value:g}" for field, value in settings.items())
    return [
        Trial(f"{name} default, other prompts", {"modality": name, **shared}),
        Trial(f"{name} {combined}, other prompts", {"modality": name, "combined": dict(settings), **shared}),
    ]


def sampling_of(trial: Trial, default: SamplingConfig) -> SamplingConfig:
    settings = trial.settings
    changes = dict(settings.get("combined", {}))
    if settings["field"] is not None:
        changes[settings["field"]] = settings["value"]
    if "num_steps" in changes:
        changes["num_steps"] = int(changes["num_steps"])
    return replace(default, **changes)


def run(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> bool:
    pipe = Pipeline.from_pretrained(args.model, device="cpu", check_inputs=False)
    if pipe.bundle.fingerprints != bundle.fingerprints:
        raise UserError(
            f"the data were made with other tokenizers than those of the model {args.model}: give --data made with "
            "the model's tokenizers, and --recipe or tokenizers=FOLDER of the model."
        )
    _check_model(args.out, args.model, pipe)
    num_seeds = len(SWEEP_SEEDS)
    quality = SampleQuality(config.validation_data, bundle, args.images // num_seeds, args.clips // num_seeds)
    names = quality.prepare()
    if pipe.limits.text_slot is None and "answers" in names.get(Modality.TEXT, []):
        names[Modality.TEXT].remove("answers")  # answers have open ends
    names = {modality: each for modality, each in names.items() if each}
    defaults = {modality: pipe.sampling_config(modality) for modality in names}

    def measure(trial: Trial) -> dict[str, Any]:
        modality = Modality[trial.settings["modality"].upper()]
        default = defaults[modality]
        scores = quality.measure(pipe, modality, names[modality], sampling_of(trial, default), trial.settings["seed"])
        return {"scores": scores, "default": {field: getattr(default, field) for field in FIELDS}}

    sweep = [trial for modality, default in defaults.items() for trial in trials(args, modality, default)]
    recorded = run_trials(args.out, sweep, measure)
    if recorded.keys() != {trial.key for trial in sweep}:
        return False
    every = list(recorded.values())
    confirmation = [trial for m in defaults for trial in confirmation_trials(m, better_settings(every, m.name.lower()))]
    confirmed = run_trials(args.out, confirmation, measure)
    if confirmed.keys() != {trial.key for trial in confirmation}:
        return False
    if args.save_presets is not None:
        _save_presets(args, pipe, [*every, *confirmed.values()])
    return True


# -- the model --------------------------------------------------------------------------------------------------------


def _check_model(out: Path, source: str, pipe: Pipeline) -> None:
    """All trials of a folder are of one model; its fingerprint is kept beside the records."""
    path, fingerprint = Path(out) / "model.json", model_fingerprint(pipe)
    if not path.exists():
        write_atomically(path, (json.dumps({"model": source, "fingerprint": fingerprint}, indent=2) + "\n").encode())
        return
    try:
        before = read_json(path)["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not describe the model of a study ({error!r}).") from error
    if before != fingerprint and list(TrialRecords(out)):
        raise UserError(f"the records in {out} are of another model than {source}: choose another --out.")


def check_target(model: str, save_presets: str | None) -> None:
    """Refuse a model that presets cannot be written into, before anything is measured."""
    check_source(model)
    if save_presets is None:
        return
    if save_presets == "":
        if model in BUILTIN_MODELS:
            raise UserError(
                f"the built-in model {model!r} cannot be changed: name a folder for a copy, --save-presets FOLDER."
            )
        if not (Path(model) / CONFIG).is_file() or is_run(Path(model)):
            raise UserError(
                f"{model} is not the folder of a saved model: name a folder for a copy, --save-presets FOLDER."
            )
    elif Path(save_presets).exists() and any(Path(save_presets).iterdir()):
        raise UserError(f"{save_presets} is not empty: name a new folder for the copy of the model.")


def _save_presets(args: argparse.Namespace, pipe: Pipeline, records: list[dict[str, Any]]) -> None:
    chosen: dict[str, dict[str, Any]] = {name: dict(changes) for name, changes in pipe.sampling.items()}
    for modality in Modality:
        name = modality.name.lower()
        settings = better_settings(records, name)
        if not settings or is_worse(records, name):
            continue
        config = sampling_of(Trial("", {"field": None, "combined": settings}), SamplingConfig())
        chosen[name] = chosen.get(name, {}) | {field: getattr(config, field) for field in settings}
    if chosen == pipe.sampling:
        print("no setting is better than the model's own beyond the intervals: nothing is saved")
        return
    folder = Path(args.save_presets or args.model)
    if args.save_presets:
        pipe.save_pretrained(folder)
    store_sampling(folder, chosen)
    print(f"saved in {folder}: {json.dumps(chosen)}")


def _fixed_options(args: argparse.Namespace) -> dict[str, Any]:
    check_target(args.model, args.save_presets)
    for field in FIELDS:
        for value in getattr(args, field):
            SamplingConfig(**{field: value})  # refuses what no sampler takes
    return {"images": args.images, "clips": args.clips}


STUDY = Study(
    _add_arguments,
    run,
    lambda args, config, bundle: [],
    findings,
    draw,
    claims,
    fixed_options=_fixed_options,
    check=need_validation_data,
)
