"""Sampled batches have the lengths and masks that training sees."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from train_fakes import TINY, make_world, tiny_run

from triptych.cli.main import main
from triptych.data.loader import Loader
from triptych.data.pack import Padded
from triptych.data.sequences import OpenEnds
from triptych.diffusion.corrupt import CorruptConfig
from triptych.diffusion.schedule import Cosine, Polynomial
from triptych.plan.lengths import predicted_tokens, sample_batches
from triptych.plan.step_layout import lay_out_step
from triptych.recipes import recipe
from triptych.training.ranks import Ranks
from triptych.training.step import micro_inputs
from triptych.utils.config import override
from triptych.vocab import Task, paper_vocabulary


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("planned"))


@pytest.mark.parametrize("complementary_masks", [False, True])
def test_predicted_share_matches_training(world: Path, complementary_masks: bool) -> None:
    config = tiny_run(world, layout=Padded(), complementary_masks=complementary_masks)
    sample = sample_batches(config, TINY)
    assert (sample.origin, len(sample.lengths)) == ("measured", 114)  # 1,024 sequences in batches of 9
    counts, passed = np.zeros(3), 0
    for step in Loader(config.data, config.loader, num_steps=114):
        for inputs in micro_inputs(step, config, TINY, torch.device("cpu"), Ranks()):
            counts += inputs.targets.counts
            passed += step.num_tokens
    assert sample.predicted == pytest.approx(counts.sum() / passed)
    columns = [TINY.text + 2, TINY.image + 2, TINY.audio + 2]
    assert sample.columns == pytest.approx((counts * columns).sum() / counts.sum())


SETTINGS: list[dict[str, Any]] = [
    {"p_one_sided": 0.6},
    {"p_prompt_masked": 0.7},
    {"p_one_sided": 0.3, "p_prompt_masked": 0.5, "p_text_end": 0.5, "time_mode": "per_modality"},
    {"schedule": Polynomial(3.0), "text_schedule": Cosine()},
    {"schedule": Cosine(), "smallest_mask_rate": 0.3},
    {"text_schedule": Polynomial(0.5), "p_prompt_masked": 0.5},
]


@pytest.mark.parametrize("complementary_masks", [False, True])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_expected_share_matches_masking(world: Path, settings: dict[str, Any], complementary_masks: bool) -> None:
    corrupt = CorruptConfig(**settings)
    config = tiny_run(world, layout=Padded(), complementary_masks=complementary_masks, corrupt=corrupt)
    loader = replace(config.loader, open_ends=OpenEnds(probability=0.5, text=8, audio=9), mask_text_eos="all")
    config = replace(config, loader=replace(loader, global_batch=3000))
    measured, expected = np.zeros(3), np.zeros(3)
    for step in Loader(config.data, config.loader, num_steps=2):
        for inputs in micro_inputs(step, config, TINY, torch.device("cpu"), Ranks()):
            measured += inputs.targets.counts
        (batch,) = step.micro_batches
        for task in Task:
            is_task = np.isin(batch.segment_ids - 1, np.flatnonzero(batch.tasks == task)) & batch.maskable
            maskable = np.bincount(batch.modality_ids[is_task], minlength=3)
            expected += config.num_views * predicted_tokens(config, task, maskable)
    assert measured == pytest.approx(expected, rel=0.05)


def test_without_data_every_setting_counts(world: Path) -> None:
    """A row of each task: 18 of 20 text tokens are maskable, or 7.5 of text and 7.5 of the other modality."""
    nowhere = replace(tiny_run(world), data=("nowhere",))
    for settings, complementary, (alone, text, media) in [
        ({"p_one_sided": 0.4, "p_prompt_masked": 0.2}, False, (0.5, 0.5 * 0.6, 0.5 * 0.8)),
        ({"p_one_sided": 0.4, "p_prompt_masked": 0.2}, True, (0.5, 0.5 * 0.6, 0.5 * 0.8)),
        ({"text_schedule": Polynomial(2.0)}, False, (1 / 3, 1 / 3, 1 / 2)),
    ]:
        corrupt = CorruptConfig(smallest_mask_rate=1e-6, **settings)
        config = replace(nowhere, corrupt=corrupt, complementary_masks=complementary)
        expected = (18 * alone + 2 * 7.5 * (text + media)) / 60
        assert sample_batches(config, TINY).predicted == pytest.approx(expected, rel=1e-3)


def test_data_of_other_tokenizers_is_refused(world: Path, capsys: pytest.CaptureFixture) -> None:
    folders = ",".join(tiny_run(world).data)
    words = ["plan", "nano", f"data={folders}", "--gpus", "1"]
    assert main(words) == 2
    assert "was made with other tokenizers than 'scenes', so its ids differ." in capsys.readouterr().err


def test_without_data_sequences_have_full_length(world: Path) -> None:
    config = replace(tiny_run(world), data=("nowhere",))
    sample = sample_batches(config, TINY)
    assert sample.origin == "unknown"
    (lengths,) = sample.lengths
    assert lengths.tolist() == [20] * 9
    assert sample.predicted == pytest.approx(0.5 * (18 + 2 * 7.5 * (0.85 + 0.75)) / 60, abs=1e-3)
    step = lay_out_step(sample, Padded(), 20, 3)
    assert (step.tokens, step.positions, step.context, step.has_mask, step.max_fill) == (180, 180, 20, False, 1)


def test_paper_batches_have_the_papers_mean_length() -> None:
    sample = sample_batches(recipe("paper_3b"), paper_vocabulary())
    assert sample.origin == "paper"
    assert np.mean([lengths.mean() for lengths in sample.lengths]) == pytest.approx(6.4e12 / 3.072e9, rel=0.01)
    no_pairs = ["loader.task_weights.image-text=0", "loader.task_weights.audio-text=0"]
    only_text = sample_batches(override(recipe("paper_3b"), no_pairs), paper_vocabulary())
    assert all((lengths == 3256).all() for lengths in only_text.lengths)
    by_modality = sample_batches(override(recipe("paper_3b"), ["model.softmax_scope=modality"]), paper_vocabulary())
    assert by_modality.columns is not None
    assert 16_386 < by_modality.columns < 100_279
