"""Masking schedules: which one gives the best likelihood, images and speech, and with which guidance scale?

The same run is trained once per schedule and seed, with ELBO weights that belong to the schedule, so that all of them
minimise the same loss in expectation (`triptych.diffusion.schedule`). Validation does not use the schedule: it draws
the number of masked tokens uniformly. Then every model generates images and speech at every guidance scale.

Models are kept in FOLDER/models until the study is finished and may be deleted then: if one is missing and still
needed, it is trained again.
"""

import argparse
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from triptych.cli.args import positive_float, positive_floats, positive_int
from triptych.diffusion.schedule import SCHEDULES, Polynomial, Schedule
from triptych.errors import UserError, did_you_mean
from triptych.hub.format import Limits, SavedModel, write_model
from triptych.hub.pipeline import Pipeline
from triptych.recipes.proxy import proxy_per_module, scaled_proxy
from triptych.sample.config import SamplingConfig
from triptych.studies.base import Study
from triptych.studies.sample_quality import SampleQuality, need_validation_data
from triptych.studies.schedules_figure import draw
from triptych.studies.schedules_findings import claims, findings
from triptych.tokenizers.bundle import BUILTIN_TOKENIZERS, TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.in_memory import Outcome, train_model
from triptych.utils.config import to_json
from triptych.utils.trials import Trial, TrialRecords, run_trials
from triptych.vocab import Modality

_NAMED = {kind.__name__.lower(): kind for kind in SCHEDULES}
_ELBO_NORMS = ("sequence", "tokens")
# The sampling of the paper's ablation, but for the numbers of steps.
_SAMPLING = {
    Modality.IMAGE: SamplingConfig(sampler="random_order", temperature=0.9, top_p=0.9),
    Modality.AUDIO: SamplingConfig(sampler="random_order", temperature=1.0, top_p=0.9),
}


def schedule_named(name: str) -> Schedule:
    """A schedule by its name; "polynomial=3" is a polynomial one with power 3."""
    kind, _, power = name.partition("=")
    if kind not in _NAMED:
        raise UserError(f"unknown schedule {kind!r}.{did_you_mean(kind, list(_NAMED))}")
    if not power:
        return _NAMED[kind]()
    try:
        number = float(power)
    except ValueError:
        number = 0.0
    if kind != "polynomial" or not number > 0:
        raise UserError(f"expected a schedule such as linear or polynomial=3, got {name!r}.")
    return Polynomial(number)


def _schedules(text: str) -> list[str]:
    try:
        for name in text.split(","):
            schedule_named(name)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return list(dict.fromkeys(text.split(",")))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    names = list(_NAMED)
    parser.add_argument(
        "--schedules", type=_schedules, default=names, metavar="NAME,NAME", help=f"default: {','.join(names)}"
    )
    scales = [1.0, 2.0, 3.0, 5.0, 7.0, 8.0, 9.0, 10.0]
    parser.add_argument(
        "--scales",
        type=positive_floats,
        default=scales,
        metavar="X,X",
        help=f"guidance scales (default: {','.join(f'{scale:g}' for scale in scales)})",
    )
    parser.add_argument("--seeds", type=positive_int, default=3, metavar="N", help="models per schedule (default: 3)")
    parser.add_argument(
        "--tokens",
        type=positive_float,
        default=5.0,
        metavar="X",
        help="tokens per run, as a multiple of the base run's (default: 5)",
    )
    parser.add_argument("--images", type=positive_int, default=32, metavar="N", help="images per setting (default: 32)")
    parser.add_argument("--clips", type=positive_int, default=16, metavar="N", help="clips per setting (default: 16)")
    parser.add_argument(
        "--image-steps", type=positive_int, metavar="N", help="sampler steps per image (default: one per token)"
    )
    parser.add_argument(
        "--audio-steps", type=positive_int, default=32, metavar="N", help="sampler steps per clip (default: 32)"
    )


def _base() -> RunConfig:
    return replace(proxy_per_module(), norm="sequence")


def training_trials(args: argparse.Namespace) -> list[Trial]:
    return [
        Trial(f"train {name} seed {seed}", {"schedule": name, "seed": seed})
        for seed in range(args.seeds)
        for name in args.schedules
    ]


def generation_trials(args: argparse.Namespace, trained: Trial, modality: Modality) -> list[Trial]:
    """The trials of one modality that use the model of a training trial."""
    name = modality.name.lower()
    return [
        Trial(
            f"{trained.key.removeprefix('train ')} {name} guidance {scale:g}",
            {**trained.settings, "modality": name, "guidance_scale": scale},
        )
        for scale in dict.fromkeys(args.scales)
    ]


def configure(trial: Trial, args: argparse.Namespace, run: RunConfig) -> RunConfig:
    """The base run with a schedule, for all modalities."""
    schedule = schedule_named(trial.settings["schedule"])
    scaled = scaled_proxy(run, tokens=args.tokens, seed=trial.settings["seed"])
    return replace(scaled, corrupt=replace(scaled.corrupt, schedule=schedule, text_schedule=None))


def _missing_runs(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> list[RunConfig]:
    recorded = TrialRecords(args.out).keys
    return [configure(trial, args, config) for trial in training_trials(args) if trial.key not in recorded]


def _check(config: RunConfig) -> None:
    if config.norm not in _ELBO_NORMS:
        raise UserError(
            f"the loss norm {config.norm!r} is an ELBO with no schedule or with one of them alone: compare schedules "
            "with norm=sequence."
        )
    need_validation_data(config)


def run(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> bool:
    quality = SampleQuality(config.validation_data, bundle, args.images, args.clips)
    names = {modality: each for modality, each in quality.prepare().items() if modality in _SAMPLING}
    training = {trial.key: trial for trial in training_trials(args)}

    def train(trial: Trial) -> dict[str, Any]:
        return _train(trial, args, config, bundle).as_json

    trained = run_trials(args.out, list(training.values()), train)
    source = {
        each.key: trial
        for key, trial in training.items()
        if key in trained and not trained[key]["diverged"]
        for modality in names
        for each in generation_trials(args, trial, modality)
    }
    wanted = [each for trial in training.values() for m in names for each in generation_trials(args, trial, m)]

    def generate(trial: Trial) -> dict[str, Any]:
        modality = Modality[trial.settings["modality"].upper()]
        pipe = _model_of(source[trial.key], args, config, bundle)
        sampling = _sampling(args, modality, trial.settings["guidance_scale"])
        return {"scores": quality.measure(pipe, modality, names[modality], sampling, trial.settings["seed"])}

    generated = run_trials(args.out, [trial for trial in wanted if trial.key in source], generate)
    return trained.keys() == training.keys() and generated.keys() == source.keys()


def _sampling(args: argparse.Namespace, modality: Modality, guidance_scale: float) -> SamplingConfig:
    num_steps = args.image_steps if modality == Modality.IMAGE else args.audio_steps
    return replace(_SAMPLING[modality], num_steps=num_steps, guidance_scale=guidance_scale)


def _folder_of(trial: Trial, args: argparse.Namespace) -> Path:
    return Path(args.out) / "models" / f"{trial.settings['schedule']}-{trial.settings['seed']}"


def _train(trial: Trial, args: argparse.Namespace, run: RunConfig, bundle: TokenizerBundle) -> Outcome:
    """Train a model and save it whole: a folder of models is complete or not there."""
    config, folder = configure(trial, args, run), _folder_of(trial, args)
    model, outcome = train_model(config, bundle)
    if outcome.diverged:
        return outcome
    saved = SavedModel(model, bundle, Limits.of_run(to_json(config)), config.sampling_preset)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    builtin = config.tokenizers if config.tokenizers in BUILTIN_TOKENIZERS else None
    write_model(unfinished, saved, builtin_tokenizers=builtin)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(unfinished, folder)
    return outcome


def _model_of(trial: Trial, args: argparse.Namespace, run: RunConfig, bundle: TokenizerBundle) -> Pipeline:
    folder = _folder_of(trial, args)
    if not folder.is_dir():
        print(f"{folder} is missing: training it again", flush=True)
        _train(trial, args, run, bundle)
    return Pipeline.from_pretrained(folder, device="cpu", check_inputs=False)


STUDY = Study(
    _add_arguments,
    run,
    _missing_runs,
    findings,
    draw,
    claims,
    fixed_options=lambda args: {
        name: getattr(args, name) for name in ("tokens", "images", "clips", "image_steps", "audio_steps")
    },
    base=_base,
    check=_check,
)
