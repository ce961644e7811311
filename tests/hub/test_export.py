"""From a run to a model anyone can load, with a card that says what it is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from train_fakes import events, run_it, tiny_run

from triptych.cli.main import main
from triptych.data.sequences import OpenEnds
from triptych.errors import CheckpointError, UserError
from triptych.hub.card import write_card
from triptych.hub.export import model_of_run
from triptych.hub.pipeline import Pipeline
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.setup import Run
from triptych.vocab import Modality, Vocabulary


@pytest.fixture(scope="module")
def trained(world: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    folder = tmp_path_factory.mktemp("run")
    return folder, run_it(tiny_run(world), folder)


def logits(model: torch.nn.Module) -> torch.Tensor:
    tokens = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        hidden = model(tokens, torch.arange(20).expand(2, 20))
        return torch.cat([model.logits(hidden.flatten(0, 1), modality) for modality in Modality], dim=-1)  # type: ignore[operator]


def test_what_is_exported_is_what_was_trained(trained: tuple[Path, Run], tmp_path: Path) -> None:
    folder, run = trained
    pipe = Pipeline.from_pretrained(folder)
    assert run.state.ema is not None
    assert torch.equal(logits(pipe.model), logits(run.state.ema))  # the moving average, not the last weights
    assert not torch.equal(logits(pipe.model), logits(run.state.model))
    pipe.save_pretrained(tmp_path / "model")
    again = Pipeline.from_pretrained(tmp_path / "model")
    assert torch.equal(logits(again.model), logits(run.state.ema))
    assert again.limits == pipe.limits
    assert again.vocabulary == run.state.model.vocabulary
    assert torch.equal(logits(Pipeline.from_pretrained(str(folder)).model), logits(run.state.ema))
    assert torch.equal(logits(Pipeline.from_pretrained(str(tmp_path / "model")).model), logits(run.state.ema))


def test_without_a_running_mean_the_weights_are_exported(world: Path, tmp_path: Path) -> None:
    run = run_it(tiny_run(world, ema_decay=None, validation_data=()), tmp_path, stop_after=1)
    assert torch.equal(logits(model_of_run(tmp_path).model), logits(run.state.model))


def test_limits_are_those_of_the_training(world: Path, trained: tuple[Path, Run], tmp_path: Path) -> None:
    limits = model_of_run(trained[0]).limits
    assert (limits.seq_len, limits.text_slot, limits.audio_slot) == (20, None, None)
    config = tiny_run(world, validation_data=())
    ends = OpenEnds(probability=0.5, text=8, audio=9)
    run_it(replace(config, loader=replace(config.loader, open_ends=ends)), tmp_path, stop_after=1)
    limits = model_of_run(tmp_path).limits
    assert (limits.text_slot, limits.audio_slot) == (8, 9)


@pytest.mark.parametrize("half", [False, True])
def test_the_command_writes_a_model(
    half: bool, trained: tuple[Path, Run], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder, run = trained
    out = tmp_path / "model"
    assert main(["export", str(folder), "--out", str(out), *(["--dtype", "float16"] if half else [])]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    names = sorted(path.name for path in out.iterdir())
    assert names == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizers",
    ]
    found = Pipeline.from_pretrained(out).model
    assert {p.dtype for p in found.parameters()} == {torch.float32}
    assert run.state.ema is not None
    if half:
        torch.testing.assert_close(logits(found), logits(run.state.ema), atol=5e-3, rtol=5e-3)
        assert not torch.equal(logits(found), logits(run.state.ema))
        for name, value in found.state_dict().items():
            assert torch.equal(value, run.state.ema.state_dict()[name].half().float()), name
    else:
        assert torch.equal(logits(found), logits(run.state.ema))


def test_the_card_says_what_the_model_is(trained: tuple[Path, Run]) -> None:
    folder, run = trained
    card = model_of_run(folder).card
    assert card is not None
    tokens = sum(event["tokens"] for event in events(folder, "step"))
    assert f"| training | 6 steps, {tokens:,} tokens |" in card
    assert f"| parameters | {sum(p.numel() for p in run.state.model.parameters()):,} (" in card
    assert "| shape | 1 layers, width 16, 2 heads, d_ff 24 |" in card
    assert "ids: text 23, image 11, audio 7 |" in card
    assert f"torch {torch.__version__}" in card
    last = events(folder, "validation")[-1]["nelbo"]
    assert "after step 6, in nats per token" in card
    assert len(last) == 10
    for name, value in last.items():
        shown = name.replace("|", " given ")
        assert f"| {shown} | {value['nats_per_token']:.3f} ± {value['margin']:.3f} | {value['tokens']:,} |" in card
    assert card.startswith("---\nlibrary_name: triptych\n")
    assert "`triptych train nano`" in card


def test_the_card_is_of_the_step_that_is_exported(trained: tuple[Path, Run]) -> None:
    folder, run = trained
    limits = model_of_run(folder).limits
    card = write_card(folder, 4, run.state.model, limits)
    tokens = sum(event["tokens"] for event in events(folder, "step") if event["step"] <= 4)
    assert f"| training | 4 steps, {tokens:,} tokens |" in card
    assert "after step 4, in nats" in card
    assert "validation data" not in write_card(folder, 3, run.state.model, limits)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for call in (lambda: model_of_run(tmp_path / "run"), lambda: Pipeline.from_pretrained(str(tmp_path / "run"))):
        with pytest.raises(CheckpointError, match="holds no checkpoint yet"):
            call()
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model")]) == 4
    assert main(["export", str(tmp_path / "nowhere"), "--out", str(tmp_path / "model")]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_a_run_whose_tokenizers_were_replaced_is_refused(world: Path, tmp_path: Path) -> None:
    TokenizerBundle.load(world / "tokenizers").save(tmp_path / "tokenizers")
    config = tiny_run(world, tokenizers=str(tmp_path / "tokenizers"), validation_data=())
    run_it(config, tmp_path / "run", stop_after=1)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["tokenizers"] == config.tokenizers
    TokenizerBundle(Vocabulary(text=24, image=11, audio=7)).save(tmp_path / "tokenizers")
    with pytest.raises(CheckpointError, match="another vocabulary or other tokenizers"):
        model_of_run(tmp_path / "run")


def test_the_card_names_the_licence_that_was_chosen_and_no_other(
    trained: tuple[Path, Run], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder, _ = trained
    assert main(["export", str(folder), "--out", str(tmp_path / "none")]) == 0
    assert "license" not in (tmp_path / "none" / "README.md").read_text()
    assert main(["export", str(folder), "--out", str(tmp_path / "mit"), "--license", "mit"]) == 0
    assert "\nlicense: mit\n" in (tmp_path / "mit" / "README.md").read_text()
    assert Pipeline.from_pretrained(tmp_path / "mit").license == "mit"
    capsys.readouterr()
    assert main(["export", str(folder), "--out", str(tmp_path / "mit")]) == 2
    assert "holds a model; use --force to replace it" in capsys.readouterr().err
    assert main(["export", str(folder), "--out", str(tmp_path / "mit"), "--force"]) == 0
    assert "cat" not in (tmp_path / "mit" / "README.md").read_text()


def test_saving_over_another_model_leaves_nothing_of_it(trained: tuple[Path, Run], tmp_path: Path) -> None:
    demo = Pipeline.from_pretrained("scenes")
    demo.save_pretrained(tmp_path / "model")
    Pipeline.from_pretrained(trained[0]).save_pretrained(tmp_path / "model")
    assert Pipeline.from_pretrained(tmp_path / "model").vocabulary != demo.vocabulary
    demo.save_pretrained(tmp_path / "model", builtin_tokenizers="scenes")
    assert not (tmp_path / "model" / "tokenizers").exists()
    Pipeline.from_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match="is the folder of a run"):
        demo.save_pretrained(trained[0])
    with pytest.raises(UserError, match="was not trained with built-in tokenizers of the name 'nosuch'"):
        demo.save_pretrained(tmp_path / "other", builtin_tokenizers="nosuch")


@pytest.mark.parametrize(("world_name", "has_words"), [("scenes", True), (None, False)])
def test_prompts_of_runs_of_earlier_versions(world_name: str | None, has_words: bool) -> None:
    """They named the toy dataset by the key `world`; its prompts were not in the configuration."""
    from triptych.hub.export import _current_config
    from triptych.recipes import recipe
    from triptych.utils.config import to_json

    config = to_json(recipe("scenes"))
    del config["prompts"], config["sampling_preset"]
    current = _current_config({**config, "world": world_name})
    assert bool(current["prompts"]["words"]) == has_words
    assert current["sampling_preset"] == ("scenes" if has_words else "paper")
