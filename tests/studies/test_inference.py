"""The study of sampling settings on synthetic records with planted answers, its trials, and saved presets."""

import argparse
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from triptych.errors import UserError
from triptych.sample.config import SamplingConfig
from triptych.studies import inference
from triptych.studies.inference_findings import better_settings, claims, findings, gain, is_worse, sweep
from triptych.studies.sample_quality import METRICS, NUM_PARTS
from triptych.vocab import Modality

DEFAULT = SamplingConfig(num_steps=8, guidance_scale=1.0, temperature=1.0, top_p=0.9)
LOWER, HIGHER = ("kid", "fad", "wer"), ("judge",)
_METRICS = {Modality.IMAGE: ("judge", "kid"), Modality.AUDIO: ("wer", "fad")}


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    inference.STUDY.add_arguments(parser)
    return parser.parse_args(words)


def distance(metric: str, config: SamplingConfig, best: dict[str, float]) -> float:
    """0 at the best settings. `best` may name a metric's own value, as in "fad guidance_scale"."""
    assert config.num_steps is not None
    scale = best.get(f"{metric} guidance_scale", best["guidance_scale"])
    steps = max(0.0, np.log2(best["num_steps"] / config.num_steps)) ** 2
    return float(
        0.1 * steps
        + 0.5 * np.log(config.guidance_scale / scale) ** 2
        + 2.0 * (config.temperature - best["temperature"]) ** 2
        + 4.0 * (config.top_p - best["top_p"]) ** 2
    )


def record(trial, best: dict[str, float], noise: float, rng: np.random.Generator) -> dict:
    modality = Modality[trial.settings["modality"].upper()]
    config, scores = inference.sampling_of(trial, DEFAULT), {}
    prompts = np.random.default_rng(trial.settings["seed"]).standard_normal(NUM_PARTS)  # the same for all settings
    for name in _METRICS[modality]:
        sign = -1 if name in HIGHER else 1
        parts = 1 + sign * distance(name, config, best) + 0.3 * prompts + noise * rng.standard_normal(NUM_PARTS)
        scores[name] = {"value": float(parts.mean()), "parts": parts.tolist()}
    default = {field: getattr(DEFAULT, field) for field in inference.FIELDS}
    return {"key": trial.key, **trial.settings, "scores": scores, "default": default}


def records(best: dict[str, float], noise: float = 0.002, confirmed: bool = True) -> list[dict]:
    rng = np.random.default_rng(5)
    args = options("--steps", "1,2,4,8,16")
    made = [
        record(trial, best, noise, rng) for modality in _METRICS for trial in inference.trials(args, modality, DEFAULT)
    ]
    for modality in _METRICS if confirmed else ():
        settings = better_settings(made, modality.name.lower())
        made += [record(trial, best, noise, rng) for trial in inference.confirmation_trials(modality, settings)]
    return made


PLANTED = {"num_steps": 8, "guidance_scale": 3.0, "temperature": 0.7, "top_p": 0.9, "fad guidance_scale": 1.5}
AT_DEFAULT = {"num_steps": 8, "guidance_scale": 1.0, "temperature": 1.0, "top_p": 0.9}


# -- findings ---------------------------------------------------------------------------------------------------------


def test_planted_best_values_are_recovered() -> None:
    made = records(PLANTED)
    for name in ("judge", "kid", "wer"):
        for field in ("guidance_scale", "temperature", "top_p"):
            comparison = sweep(made, field, METRICS[name])
            assert comparison is not None
            assert (comparison.best, comparison.is_decided) == (PLANTED[field], True)
    steps = sweep(made, "num_steps", METRICS["kid"])
    assert steps is not None
    assert set(steps.tied) == {8.0, 16.0}, "more steps than needed are as good"
    assert better_settings(made, "image") == {"guidance_scale": 3.0, "temperature": 0.7}
    lines = findings(made)
    assert any(line.startswith("image, KID, guidance_scale: best 3, ") and line.endswith("decided") for line in lines)
    assert any("audio, FAD (Whisper encoder), guidance_scale: best 1.5" in line for line in lines)
    assert any(line.startswith("image, together guidance_scale 3, temperature 0.7, against") for line in lines)


def test_the_combination_is_compared_on_other_prompts() -> None:
    made = records(PLANTED)
    measured = gain(made, METRICS["kid"])
    expected = distance("kid", DEFAULT, PLANTED)
    assert measured is not None
    assert measured.low < expected < measured.high
    assert measured.low > 0
    assert not is_worse(made, "image")
    assert gain(records(PLANTED, confirmed=False), METRICS["kid"]) is None


def test_a_combination_that_is_worse_is_noticed() -> None:
    made = records(PLANTED)
    combined = next(each for each in made if each["modality"] == "image" and "combined" in each)
    combined["scores"]["judge"]["parts"] = [part - 5 for part in combined["scores"]["judge"]["parts"]]
    assert is_worse(made, "image")


def test_a_default_that_is_best_stays() -> None:
    made = records(AT_DEFAULT)
    assert better_settings(made, "image") == better_settings(made, "audio") == {}
    lines = findings(made)
    assert "image: no value is better than the model's own settings beyond the intervals" in lines
    assert any(", the default; decided" in line for line in lines)


def test_noise_decides_nothing() -> None:
    made = records(AT_DEFAULT, noise=5.0)
    assert better_settings(made, "image") == {}
    assert any("cannot be told apart" in line for line in findings(made))
    assert {claim.verdict for claim in claims(made)} == {"undecided"}


def test_claims_follow_the_records() -> None:
    assert [claim.verdict for claim in claims(records(PLANTED))] == ["agrees"] * 6
    reversed_case = {"num_steps": 1, "guidance_scale": 6.0, "temperature": 1.2, "top_p": 0.5}
    made = records({**reversed_case, "wer guidance_scale": 1.0})
    # Steps beyond the first neither help nor harm, so these two claims are undecided; FAD wants more guidance than WER.
    expected = ["undecided", "disagrees", "disagrees", "disagrees", "undecided", "disagrees"]
    assert [claim.verdict for claim in claims(made)] == expected


def test_the_figure_is_drawn_from_records(tmp_path: Path) -> None:
    inference.STUDY.draw(records(PLANTED), tmp_path / "figure.png")
    assert min(Image.open(tmp_path / "figure.png").size) > 500


# -- trials -----------------------------------------------------------------------------------------------------------


def test_trials_change_one_field_and_skip_the_default() -> None:
    args = options("--steps", "4,8", "--scales", "1,2", "--temperatures", "0,1", "--top-ps", "0.9,1")
    keys = [trial.key for trial in inference.trials(args, Modality.IMAGE, DEFAULT)]
    changes = ("default", "num_steps 4", "guidance_scale 2", "temperature 0", "top_p 1")
    assert keys == [f"image {change} seed {seed}" for seed in (0, 1) for change in changes]
    text = [trial.key for trial in inference.trials(args, Modality.TEXT, DEFAULT)]
    assert not any("guidance" in key for key in text), "texts have no guidance"
    changed = inference.sampling_of(inference.trials(args, Modality.IMAGE, DEFAULT)[1], DEFAULT)
    assert changed == SamplingConfig(num_steps=4, guidance_scale=1.0, temperature=1.0, top_p=0.9)
    assert isinstance(changed.num_steps, int)


def test_presets_are_refused_where_they_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="built-in model 'scenes' cannot be changed: name a folder"):
        inference.check_target("scenes", "")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match="is not the folder of a saved model"):
        inference.check_target(str(tmp_path / "run"), "")
    with pytest.raises(UserError, match="is not empty"):
        inference.check_target("scenes", str(tmp_path))
    inference.check_target("scenes", str(tmp_path / "copy"))
    inference.check_target("scenes", None)


def test_values_that_no_sampler_takes_are_refused_first() -> None:
    with pytest.raises(UserError, match="top_p must be a number above 0 and at most 1"):
        inference.STUDY.fixed_options(options("--top-ps", "1.5"))
    with pytest.raises(SystemExit):
        options("--temperatures", "-1")


class _Pipe:
    def __init__(self, calls: list[str]):
        self.bundle = SimpleNamespace(fingerprints={})
        self.limits = SimpleNamespace(text_slot=None)
        self.sampling: dict = {}
        self.saved: list[Path] = []

    def sampling_config(self, modality: Modality) -> SamplingConfig:
        return DEFAULT

    def save_pretrained(self, folder: Path) -> None:
        self.saved.append(folder)


def _prepare(monkeypatch: pytest.MonkeyPatch, best: dict[str, float], fail_at: list[int]) -> tuple[_Pipe, list, list]:
    calls: list[str] = []
    stored: list[tuple] = []
    pipe, rng = _Pipe(calls), np.random.default_rng(5)

    class Quality:
        def __init__(self, *args: object):
            pass

        def prepare(self) -> dict[Modality, list[str]]:
            return {modality: list(names) for modality, names in _METRICS.items()}

        def measure(
            self, pipe: object, modality: Modality, names: list[str], config: SamplingConfig, seed: int
        ) -> dict:
            calls.append(f"{modality.name} {config} {seed}")
            if fail_at and len(calls) == fail_at[0]:
                raise KeyboardInterrupt
            prompts = np.random.default_rng(seed).standard_normal(NUM_PARTS)
            scores = {}
            for name in names:
                sign = -1 if name in HIGHER else 1
                parts = 1 + sign * distance(name, config, best) + prompts + 0.002 * rng.standard_normal(NUM_PARTS)
                scores[name] = {"value": float(parts.mean()), "parts": parts.tolist()}
            return scores

    monkeypatch.setattr(inference, "SampleQuality", Quality)
    monkeypatch.setattr(inference, "model_fingerprint", lambda pipe: "one")
    monkeypatch.setattr(inference.Pipeline, "from_pretrained", lambda *args, **options: pipe)
    monkeypatch.setattr(inference, "store_sampling", lambda folder, sampling: stored.append((folder, sampling)))
    return pipe, calls, stored


def _arguments(tmp_path: Path) -> argparse.Namespace:
    args = options("--steps", "4,8", "--scales", "1,3", "--temperatures", "0.7,1", "--top-ps", "0.5,0.9")
    args.out, args.save_presets = tmp_path / "out", str(tmp_path / "copy")
    args.out.mkdir()
    return args


def test_a_stopped_study_resumes_and_saves_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at = [4]
    pipe, calls, stored = _prepare(monkeypatch, PLANTED, fail_at)
    args, config, bundle = _arguments(tmp_path), SimpleNamespace(validation_data=()), SimpleNamespace(fingerprints={})
    with pytest.raises(KeyboardInterrupt):
        inference.run(args, config, bundle)
    assert not stored
    fail_at.clear()
    assert inference.run(args, config, bundle)
    sweep_trials, confirmations = 2 * 2 * 5, 2 * 2
    assert len(calls) == sweep_trials + confirmations + 1, "the stopped trial is repeated, no other one is"
    assert len(set(calls)) == sweep_trials + confirmations
    better = {"guidance_scale": 3.0, "temperature": 0.7}
    assert stored == [(tmp_path / "copy", {"image": better, "audio": better})]
    assert pipe.saved == [tmp_path / "copy"]


def test_nothing_is_saved_if_nothing_is_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, _, stored = _prepare(monkeypatch, AT_DEFAULT, [])
    assert inference.run(_arguments(tmp_path), SimpleNamespace(validation_data=()), SimpleNamespace(fingerprints={}))
    assert not stored
    assert not pipe.saved


def test_other_tokenizers_and_other_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _prepare(monkeypatch, AT_DEFAULT, [])
    args, config = _arguments(tmp_path), SimpleNamespace(validation_data=())
    with pytest.raises(UserError, match="other tokenizers than those of the model"):
        inference.run(args, config, SimpleNamespace(fingerprints={"text": "other"}))
    inference.run(args, config, SimpleNamespace(fingerprints={}))
    monkeypatch.setattr(inference, "model_fingerprint", lambda pipe: "another")
    with pytest.raises(UserError, match="are of another model"):
        inference.run(args, config, SimpleNamespace(fingerprints={}))
