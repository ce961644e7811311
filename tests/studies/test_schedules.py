"""The study of masking schedules on synthetic records with planted answers, and its trials."""

import argparse
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from train_fakes import world_changes

from triptych.diffusion.schedule import Cosine, Polynomial
from triptych.errors import UserError
from triptych.recipes.proxy import proxy
from triptych.studies import schedules
from triptych.studies.sample_quality import METRICS
from triptych.studies.schedules_findings import claims, findings, losses, scales
from triptych.studies.schedules_findings import schedules as best_schedules
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.utils.config import override
from triptych.vocab import Modality

SCALES = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    schedules.STUDY.add_arguments(parser)
    args = parser.parse_args(words)
    args.out = None
    return args


def records(
    best: str | None = "polynomial", image_scale: float = 8.0, audio_scale: float = 2.0, seeds: int = 3
) -> list[dict]:
    """The named schedule is better in everything; None: all are the same. Each modality has a best guidance scale."""
    rng, made = np.random.default_rng(0), []
    names = ("linear", "cosine", "polynomial", "geometric")
    planted = {name: 0.0 if name == best else 0.2 for name in names} if best else dict.fromkeys(names, 0.1)
    for seed in range(seeds):
        for name in names:
            loss = 2.0 + planted[name] + 0.01 * rng.standard_normal()
            made.append({"key": f"train {name} seed {seed}", "schedule": name, "seed": seed, "loss": loss})
            for modality, centre, metrics in (
                ("image", image_scale, {"kid": 1, "judge": -1}),
                ("audio", audio_scale, {"fad": 1, "wer": 1}),
            ):
                for scale in SCALES:
                    bad = 0.5 + planted[name] + 2.0 * np.log(scale / centre) ** 2
                    scores = {
                        metric: {"value": sign * (bad + 0.01 * rng.standard_normal()) + (2 if sign < 0 else 0)}
                        for metric, sign in metrics.items()
                    }
                    setting = {"modality": modality, "guidance_scale": scale}
                    key = f"{name} seed {seed} {modality} guidance {scale:g}"
                    made.append({"key": key, "schedule": name, "seed": seed, **setting, "scores": scores})
    return made


def verdicts(made: list[dict]) -> list[str]:
    return [claim.verdict for claim in claims(made)]


# -- findings ---------------------------------------------------------------------------------------------------------


def test_a_planted_schedule_and_guidance_scale_are_recovered() -> None:
    made = records()
    assert losses(made).best == "polynomial"
    assert losses(made).is_decided
    for name in ("kid", "judge", "fad", "wer"):
        metric = METRICS[name]
        compared = best_schedules(made, metric)
        assert compared is not None
        assert (compared.best, compared.is_decided) == ("polynomial", True)
        wanted = 8.0 if metric.modality == Modality.IMAGE else 2.0
        assert {c.best for c in scales(made, metric).values()} == {wanted}
        assert all(c.is_decided for c in scales(made, metric).values())
    lines = findings(made)
    assert "best: polynomial" in lines[0]
    assert any(line.startswith("KID, linear: best guidance scale 8 (decided), ") for line in lines)
    assert "KID: best mean at 7 guidance scales: linear at 0, cosine at 0, polynomial at 7, geometric at 0" in lines
    assert verdicts(made) == ["agrees"] * 4


def test_another_best_schedule_disagrees_with_the_paper() -> None:
    made = records(best="cosine", image_scale=2.0, audio_scale=8.0)
    assert losses(made).best == "cosine"
    assert verdicts(made) == ["disagrees"] * 4


def test_equal_schedules_are_undecided() -> None:
    made = records(best=None)
    assert not losses(made).is_decided
    assert "undecided" in findings(made)[0]
    by_text = {claim.paper: claim.verdict for claim in claims(made)}
    assert [verdict for text, verdict in by_text.items() if "schedule" in text] == ["undecided"] * 2
    assert [verdict for text, verdict in by_text.items() if "guidance" in text] == ["agrees"] * 2


def test_equal_values_have_no_leader() -> None:
    made = [
        {**r, "scores": {"judge": {"value": 0.0}}} if r.get("modality") == "image" else r for r in records(best=None)
    ]
    lines = findings(made)
    assert "images right by the judge: best mean at 7 guidance scales: " + ", ".join(
        f"{name} at 0" for name in ("linear", "cosine", "polynomial", "geometric")
    ) in lines  # fmt: skip
    assert any(line.startswith("images right") and line.endswith("undecided: all are equal") for line in lines)


def test_one_seed_decides_nothing() -> None:
    made = records(seeds=1)
    assert "undecided: with one seed" in findings(made)[0]
    assert set(verdicts(made)) == {"undecided"}


def test_a_diverged_run_is_named_and_left_out() -> None:
    made = records()
    made[0] = {**made[0], "loss": None}
    lines = findings(made)
    assert lines[0] == f"diverged: {made[0]['key']}"
    assert losses(made).num_blocks == 2


def test_metrics_that_were_not_measured_are_left_out() -> None:
    made = [record for record in records() if record.get("modality") != "audio"]
    assert not any("WER" in line for line in findings(made))
    assert len(claims(made)) == 2


def test_the_figure_is_drawn_from_records(tmp_path: Path) -> None:
    schedules.STUDY.draw(records(), tmp_path / "figure.png")
    assert min(Image.open(tmp_path / "figure.png").size) > 500


# -- trials -----------------------------------------------------------------------------------------------------------


def test_runs_differ_in_their_schedule_alone() -> None:
    run = schedules.STUDY.base()
    args = options("--schedules", "cosine,polynomial=3", "--seeds", "2", "--tokens", "0.5")
    cosine, cubic, other_seed = (schedules.configure(t, args, run) for t in schedules.training_trials(args)[:3])
    assert (cosine.corrupt.schedule, cubic.corrupt.schedule) == (Cosine(), Polynomial(3.0))
    assert cosine.norm == cubic.norm == "sequence"
    assert cosine.num_steps == cubic.num_steps == run.num_steps // 2
    assert (cosine.seed, cubic.seed, other_seed.seed) == (0, 0, 1)


def test_schedules_have_names() -> None:
    assert schedules.schedule_named("polynomial=0.5") == Polynomial(0.5)
    for wrong, message in (("cosin", "unknown schedule 'cosin'"), ("linear=2", "such as linear or polynomial=3")):
        with pytest.raises(UserError, match=message):
            schedules.schedule_named(wrong)


def test_a_norm_that_is_no_elbo_for_every_schedule_is_refused() -> None:
    with pytest.raises(UserError, match="norm=sequence"):
        schedules.STUDY.check(proxy())
    with pytest.raises(UserError, match="give --validation-data FOLDER"):
        schedules.STUDY.check(override(schedules.STUDY.base(), ["validation_data=none"]))


class _Quality:
    """Stands in for the measurement of samples; counts what it was asked for."""

    def __init__(self, *args: object):
        self.asked: list[tuple] = []

    def prepare(self) -> dict[Modality, list[str]]:
        return {Modality.IMAGE: ["kid"], Modality.AUDIO: ["wer"]}

    def measure(self, pipe: object, modality: Modality, names: list[str], config: object, seed: int) -> dict:
        _CALLS.append((pipe, modality, config, seed))
        if _FAIL_AFTER and len(_CALLS) == _FAIL_AFTER[0]:
            raise KeyboardInterrupt
        return {names[0]: {"value": 1.0, "parts": [1.0]}}


_CALLS: list[tuple] = []
_FAIL_AFTER: list[int] = []


def test_a_stopped_study_resumes_without_repeating_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []

    def train(trial, args, config, bundle):
        trained.append(trial.key)
        diverged = trial.key == "train cosine seed 0"
        return SimpleNamespace(as_json={"loss": None if diverged else 1.0, "diverged": diverged})

    monkeypatch.setattr(schedules, "_train", train)
    monkeypatch.setattr(schedules, "_model_of", lambda trial, *rest: trial.key)
    monkeypatch.setattr(schedules, "SampleQuality", _Quality)
    _CALLS.clear()
    _FAIL_AFTER[:] = [3]
    args = options("--schedules", "linear,cosine", "--seeds", "1", "--scales", "1,4")
    args.out = tmp_path
    with pytest.raises(KeyboardInterrupt):
        schedules.run(args, proxy(), None)
    _FAIL_AFTER.clear()
    assert schedules.run(args, proxy(), None)
    assert trained == ["train linear seed 0", "train cosine seed 0"]
    assert {call[0] for call in _CALLS} == {"train linear seed 0"}, "a diverged model generates nothing"
    assert len(_CALLS) == 2 * 2 + 1
    assert [call[2].guidance_scale for call in _CALLS] == [1, 4, 1, 1, 4]
    assert {call[2].num_steps for call in _CALLS if call[1] == Modality.AUDIO} == {32}
    assert schedules.run(args, proxy(), None)
    assert len(_CALLS) == 5


# -- models -----------------------------------------------------------------------------------------------------------


def test_a_deleted_model_is_trained_again_to_the_same_weights(world: Path, tmp_path: Path) -> None:
    run = override(schedules.STUDY.base(), [*world_changes(world), "validation.sequences=8"])
    bundle = TokenizerBundle.load(run.tokenizers)
    args = options("--tokens", "0.005", "--schedules", "geometric")
    args.out = tmp_path
    (trial,) = schedules.training_trials(args)[:1]
    outcome = schedules._train(trial, args, run, bundle)
    first = schedules._model_of(trial, args, run, bundle).model.state_dict()
    assert not outcome.diverged
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["geometric-0"]
    shutil.rmtree(tmp_path / "models")
    again = schedules._model_of(trial, args, run, bundle).model.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
