"""The negative ELBO on validation data: exact where it is known, the same at every call."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from train_fakes import CPU, TINY, tiny_run, with_loader, write_set

from triptych.data.pack import Grouped, Packed, Padded
from triptych.data.steps import LoaderConfig
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.training.validate import NelboEstimate, Validator
from triptych.vocab import Modality, Task

TERMS = [
    "audio",
    "audio|text",
    "image",
    "image|text",
    "text",
    "text of audio",
    "text of image",
    "text|audio",
    "text|image",
]


def model_of(scope: str, zero: bool = False) -> Transformer:
    model = Transformer(ModelConfig(num_layers=1, width=16, num_heads=2, d_ff=24, softmax_scope=scope), TINY)  # type: ignore[arg-type]
    initialise(model, 0)
    if zero:
        with torch.no_grad():
            for block in model.unembed.blocks:
                block.zero_()
    return model


def validator(world: Path, sequences: int = 12, draws: int = 2, **loader: object) -> Validator:
    config = tiny_run(world)
    return Validator(config.validation_data, with_loader(config, **loader).loader, sequences, draws)


def test_the_names_of_the_terms(world: Path) -> None:
    assert list(validator(world).estimate(model_of("modality"), CPU)) == TERMS


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("scope", ["full", "modality"])
def test_a_uniform_model_has_the_log_of_its_vocabulary(scope: str, draws: int, world: Path) -> None:
    """Exactly, whatever the masks: the weights L / k over k masked tokens sum to L."""
    estimates = validator(world, draws=draws).estimate(model_of(scope, zero=True), CPU)
    sizes = {m.name.lower(): TINY.data_size(m) + 2 for m in Modality}  # and BOS and EOS
    total = sum(sizes.values())
    for name in ("text", "image|text", "audio|text", "text|image", "text|audio"):
        columns = total if scope == "full" else sizes[name.partition("|")[0]]
        assert estimates[name].nats_per_token == pytest.approx(math.log(columns), rel=1e-6)
        assert estimates[name].margin == pytest.approx(0, abs=1e-6)
    if scope == "full":  # in a complete pair, only the sum over both sides is exact
        for media in ("image", "audio"):
            sides = [estimates[media], estimates[f"text of {media}"]]
            nats = sum(side.nats_per_token * side.tokens for side in sides)
            assert nats == pytest.approx(math.log(total) * sum(side.tokens for side in sides), rel=1e-6)


def test_only_maskable_tokens_count(world: Path) -> None:
    from triptych.data.shards import TokenDataset

    estimates = validator(world, sequences=12).estimate(model_of("modality"), CPU)
    config = tiny_run(world)
    for task, folder in zip(Task, config.validation_data):
        dataset = TokenDataset(folder)
        samples = [dataset.shard(0)[i] for i in range(12)]
        text, media = (sum(len(getattr(sample, side)) for sample in samples) for side in ("text", "media"))
        if task == Task.TEXT:
            assert estimates["text"].tokens == text + 12  # with the end of each
        else:
            assert task.partner is not None
            name = task.partner.name.lower()
            assert estimates[f"text|{name}"].tokens == estimates[f"text of {name}"].tokens == text
            assert estimates[f"{name}|text"].tokens == estimates[name].tokens == media


def test_masks_are_fixed(world: Path) -> None:
    model = model_of("modality")
    one = validator(world)
    first = one.estimate(model, CPU)
    assert first == one.estimate(model, CPU) == validator(world).estimate(model, CPU)
    assert model.training
    model.eval()
    one.estimate(model, CPU)
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    other = Validator(tiny_run(world).validation_data, tiny_run(world).loader, 12, 2, seed=1).estimate(model, CPU)
    assert other != first


def test_the_layout_does_not_change_the_estimate(world: Path) -> None:
    model = model_of("modality")
    layouts = [Grouped(max_tokens=40, overhead=0), Packed(row_length=45), Padded(micro_batch_rows=5)]
    estimates = [validator(world, layout=layout).estimate(model, CPU) for layout in layouts]
    for other in estimates[1:]:
        for name in TERMS:
            assert other[name].nats_per_token == pytest.approx(estimates[0][name].nats_per_token, rel=1e-5)
            assert other[name].margin == pytest.approx(estimates[0][name].margin, rel=1e-4)
            assert other[name].tokens == estimates[0][name].tokens


def slow_elbo(model: Transformer, tokens: list[int], open_places: list[int]) -> float:
    """Over every mask: each size k equally likely, and each set of that size."""
    import itertools

    total = 0.0
    for k in range(1, len(open_places) + 1):
        sets = list(itertools.combinations(open_places, k))
        for chosen in sets:
            seen = torch.tensor([tokens])
            seen[0, list(chosen)] = TINY.mask(Modality.TEXT)
            with torch.no_grad():
                logits = model.logits(model(seen, torch.arange(len(tokens))[None])[0], Modality.TEXT)
            nll = torch.logsumexp(logits, -1) - logits[torch.arange(len(tokens)), torch.tensor(tokens).clamp(max=24)]
            total += float(nll[list(chosen)].sum()) / k / len(sets)
    return total


def test_many_draws_converge_to_the_elbo(tmp_path: Path) -> None:
    text = [3, 17, 5]
    write_set(tmp_path / "one", Task.TEXT, [([], text)])
    loader = LoaderConfig(seq_len=12, global_batch=1, document_attention=True, mask_text_eos="none")
    model = model_of("modality")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(20) if p.ndim == 2 else None  # so that masks make a difference
    estimate = Validator([tmp_path / "one"], loader, sequences=1, draws=400).estimate(model, CPU)["text"]
    sequence = [TINY.task(Task.TEXT), TINY.bos(Modality.TEXT), *text, TINY.eos(Modality.TEXT)]
    exact = slow_elbo(model, sequence, [2, 3, 4]) / 3
    assert estimate.nats_per_token == pytest.approx(exact, rel=0.05)


def test_margins_shrink_with_more_sequences(world: Path) -> None:
    model = model_of("modality")
    with torch.no_grad():
        model.unembed.text.mul_(30)
    few, many = (validator(world, sequences=n).estimate(model, CPU)["text|image"] for n in (6, 30))
    assert 0 < many.margin < few.margin
    assert abs(many.nats_per_token - few.nats_per_token) < 2 * few.margin
    assert many.as_json == {"nats_per_token": many.nats_per_token, "margin": many.margin, "tokens": many.tokens}


def test_the_margin_is_that_of_a_mean_for_sequences_of_equal_length() -> None:
    rng = np.random.default_rng(0)
    nats = rng.normal(20, 3, size=500)
    assert NelboEstimate.of_sequences(nats, np.full(500, 10.0)) == NelboEstimate(
        pytest.approx(nats.mean() / 10), pytest.approx(1.96 * nats.std() / 10 / 500**0.5), 5000
    )
