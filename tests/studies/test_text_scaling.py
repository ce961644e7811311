"""The law of text alone: its models and data, and findings on records of a known law."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triptych.errors import UserError
from triptych.recipes.proxy import proxy
from triptych.scaling.law import ADDITIVE, Law
from triptych.scaling.optimal import FlopsPerToken, Frontier
from triptych.studies import text_scaling
from triptych.studies.base import join
from triptych.studies.text_scaling import REFERENCE, text_model, text_only
from triptych.utils.trials import TrialRecords

TEXT = Law.from_raw(ADDITIVE, E=0.8, A=150, B=400, a=0.45, b=0.40)
TOGETHER = Law.from_raw(ADDITIVE, E=0.8, A=150, B=1600, a=0.45, b=0.40)
COST = FlopsPerToken(matrices=6, unembedding=20_000)


def records(law: Law, noise: float = 0.002, seed: int = 0) -> list[dict]:
    rng, made = np.random.default_rng(seed), []
    for budget in np.geomspace(1e11, 1e13, 6):
        for width in (16, 24, 32, 48, 64, 96, 128):
            size = 0.9 * width**3
            tokens = budget / float(COST(size))
            loss = float(law.loss(size, tokens)) * np.exp(noise * rng.standard_normal())
            curve = [[tokens * share, loss / share**0.1] for share in (0.1, 0.5, 1.0)]
            made.append(
                {
                    "key": f"{budget:.4g} {width}", "budget": float(budget), "width": width, "layers": width // 32,
                    "batch": 1024 // width, "num_steps": 10, "seed": 0, "loss": loss, "N": round(size),
                    "D": tokens, "C": float(budget), "curve": curve, "held_out": {"text": loss},
                }
            )  # fmt: skip
    return made


def test_models_follow_completep_without_the_batch_size_rule() -> None:
    run = replace(proxy(), transfer=replace(proxy().transfer, base_batch=16, base_steps=400, warmup_mode="share"))
    for width, batch in ((32, 32), (64, 16), (128, 8)):
        model = text_model(run, width, seed=3)
        assert (model.model.width, model.model.num_layers) == (width, width // 32)
        assert (model.loader.global_batch, model.resolved.sde, model.seed) == (batch, None, 3)
        assert (model.transfer.rule, model.transfer.base_width) == ("completep", 64)


def test_only_text_is_trained_and_validated_on(world: Path) -> None:
    tasks = ("text", "image-text", "audio-text")
    run = replace(
        proxy(),
        data=tuple(str(world / "train" / task) for task in tasks),
        validation_data=tuple(str(world / "validation" / task) for task in tasks),
    )
    chosen = text_only(run)
    assert (chosen.data, chosen.validation_data) == ((run.data[0],), (run.validation_data[0],))
    assert dict(chosen.loader.task_weights) == {"text": 1.0}
    with pytest.raises(UserError, match="expected a text dataset to train on"):
        text_only(replace(run, data=run.data[1:]))


def test_a_planted_law_and_its_difference_from_all_modalities_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "scaling"
    folder.mkdir()
    (folder / "records.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records(TOGETHER, seed=1)))
    reference = text_scaling._laws(list(map(json.loads, (folder / "records.jsonl").open())))
    made = [{"key": REFERENCE, "folder": str(folder), **reference}, *records(TEXT)]
    lines = text_scaling.STUDY.findings(made)
    assert lines[0].startswith("42 runs on text, 0 diverged: 6 budgets")
    assert "batch by width: 16: 64, 24: 42, 32: 32" in lines[0]
    assert any(line.startswith("at N = ") and "times the tokens of text alone" in line for line in lines)
    truth = float(Frontier.from_law(TOGETHER).tokens(1e4) / Frontier.from_law(TEXT).tokens(1e4))
    fits = text_scaling._fits(made)
    value, (low, high) = text_scaling.tokens_ratio(fits[1], text_scaling._reference(made, "additive"), 1e4)
    assert low < truth < high
    assert value == pytest.approx(truth, rel=0.5)
    verdicts = [claim.verdict for claim in text_scaling.STUDY.claims(made)]
    assert verdicts[0] == "agrees"
    assert verdicts[-1] == "agrees"
    text_scaling.STUDY.draw(made, tmp_path / "figure.png")
    assert min(Image.open(tmp_path / "figure.png").size) > 800


def test_without_a_scaling_study_there_is_no_comparison() -> None:
    made = records(TEXT)
    assert not any("all modalities" in line for line in text_scaling.STUDY.findings(made))
    assert {claim.place for claim in text_scaling.STUDY.claims(made)} == {"Figure 23 a", "Figure 23 b"}


def test_the_defaults_are_a_grid_of_six_budgets_with_two_seeds() -> None:
    parser = argparse.ArgumentParser()
    text_scaling.STUDY.add_arguments(parser)
    args = parser.parse_args([])
    assert (args.low, args.high, args.budgets, args.seeds) == (5e10, 2e12, 6, 2)
    assert args.scaling == Path("studies/scaling")


def test_the_law_to_compare_with_is_that_of_the_study_as_it_is_now(tmp_path: Path) -> None:
    folder, own = tmp_path / "scaling", TrialRecords(tmp_path / "text")
    join(folder, "scaling", proxy(), {})

    def write(law: Law) -> None:
        (folder / "records.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records(law)))

    write(TEXT)
    text_scaling._record_reference(folder, own)
    text_scaling._record_reference(folder, own)
    assert len(list(own)) == 1, "the same runs are recorded once"
    write(TOGETHER)
    text_scaling._record_reference(folder, own)
    assert len(list(own)) == 2
    latest, wanted = text_scaling._reference(list(own), "additive")[0], records(TOGETHER)[0]
    assert float(latest.loss(wanted["N"], wanted["D"])) == pytest.approx(wanted["loss"], rel=0.02)


def test_losses_of_an_earlier_version_are_not_compared_with(tmp_path: Path, capsys) -> None:
    folder, own = tmp_path / "scaling", TrialRecords(tmp_path / "text")
    join(folder, "scaling", proxy(), {})
    described = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps(described | {"loss_version": 1}))
    (folder / "records.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records(TEXT)))
    text_scaling._record_reference(folder, own)
    assert list(own) == []
    assert "is not compared with" in capsys.readouterr().out
