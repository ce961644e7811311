"""The negative ELBO on validation data: exact where it is known, the same at every call."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from train_fakes import CPU, TINY, tiny_run, with_loader, write_set

from triptych.data.pack import Grouped, Packed, Padded
from triptych.data.shards import TokenDataset
from triptych.data.steps import LoaderConfig
from triptych.errors import UserError
from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.training.validate import NelboEstimate, Stratum, Validator, mixture_loss
from triptych.vocab import Modality, Task

TERMS = [
    "all",
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
    """Exactly, whatever the masks, also in each part of a complete pair."""
    estimates = validator(world, draws=draws).estimate(model_of(scope, zero=True), CPU)
    sizes = {m.name.lower(): TINY.data_size(m) + 2 for m in Modality}  # and BOS and EOS
    total = sum(sizes.values())
    for name in TERMS if scope == "full" else TERMS[1:]:
        columns = total if scope == "full" else sizes[name.partition("|")[0].partition(" ")[0]]
        assert estimates[name].nats_per_token == pytest.approx(math.log(columns), rel=1e-6)
        assert estimates[name].margin == pytest.approx(0, abs=1e-6)


WEIGHTS = [
    {"text": 1.0, "image-text": 1.0, "audio-text": 1.0},
    {"text": 1.0, "image-text": 0.0, "audio-text": 0.0},
    {"text": 0.1, "image-text": 0.7, "audio-text": 0.2},
    {"text": 0.0, "image-text": 1.0, "audio-text": 9.0},
]


@pytest.mark.parametrize("task_weights", WEIGHTS, ids=str)
def test_the_loss_follows_the_mixture(task_weights: dict[str, float], world: Path) -> None:
    """Of a uniform model over each modality's own vocabulary: known from the lengths of all sequences."""
    estimates = validator(world, sequences=30, task_weights=task_weights).estimate(model_of("modality", zero=True), CPU)
    sizes = {m: TINY.data_size(m) + 2 for m in Modality}
    nats, tokens = 0.0, 0.0
    for task, folder in zip(Task, tiny_run(world).validation_data):
        dataset = TokenDataset(folder)
        samples = [dataset.shard(0)[i] for i in range(30)]
        text = sum(len(sample.text) + (task == Task.TEXT) for sample in samples)  # with the end of a text alone
        media = sum(len(sample.media) for sample in samples)
        share = task_weights[task.label]
        nats += share * (text * math.log(sizes[Modality.TEXT]) + media * math.log(sizes[task.partner or Modality.TEXT]))
        tokens += share * (text + media)
    assert estimates["all"].nats_per_token == pytest.approx(nats / tokens, rel=1e-6)
    assert mixture_loss(estimates) == estimates["all"].nats_per_token
    assert list(estimates) == TERMS  # tasks without a weight have values of their own


def test_datasets_of_a_task_count_by_their_weights(tmp_path: Path) -> None:
    write_set(tmp_path / "long", Task.TEXT, [([], [1, 2, 3, 4, 5, 6])] * 20)
    write_set(tmp_path / "short", Task.TEXT, [([], [7, 8])] * 60)
    model, folders = model_of("modality"), [tmp_path / "long", tmp_path / "short"]
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(20) if p.ndim == 2 else None  # so that the datasets have different losses
    loader = LoaderConfig(seq_len=12, global_batch=1, document_attention=True, mask_text_eos="none")
    alone = [Validator([folder], loader, 20, 2).estimate(model, CPU)["text"].nats_per_token for folder in folders]
    assert abs(alone[0] - alone[1]) > 0.1
    for weights, (long, short) in (({}, (1, 3)), ({"long": 5.0, "short": 1.0}, (5, 1)), ({"long": 5.0}, (1, 3))):
        config = replace(loader, dataset_weights=weights)
        estimates = Validator(folders, config, 20, 2).estimate(model, CPU)
        expected = (6 * long * alone[0] + 2 * short * alone[1]) / (6 * long + 2 * short)
        assert estimates["text"].nats_per_token == pytest.approx(expected, rel=1e-6)
        assert estimates["all"] == estimates["text"]


def test_without_a_task_of_the_mixture_there_is_no_loss(world: Path) -> None:
    config, only_text = tiny_run(world), {"text": 1.0, "image-text": 0.0, "audio-text": 0.0}
    loader = replace(config.loader, task_weights=only_text)
    estimates = Validator(config.validation_data[1:], loader, 4, 1).estimate(model_of("modality"), CPU)
    assert "image" in estimates
    assert "all" not in estimates
    with pytest.raises(UserError, match="no task of the validation data has a weight"):
        mixture_loss(estimates)


def test_the_sequences_are_a_random_sample_of_the_dataset(tmp_path: Path) -> None:
    """Half of it is short and half is long, one after the other: the first rows would be short."""
    texts = [([], [1, 2])] * 500 + [([], [3, 4, 5, 6, 7, 8])] * 500
    write_set(tmp_path / "sorted", Task.TEXT, texts)
    loader = LoaderConfig(seq_len=12, global_batch=1, document_attention=True, mask_text_eos="none")
    model = model_of("modality", zero=True)

    def tokens(sequences: int, **options: int) -> int:
        return Validator([tmp_path / "sorted"], loader, sequences, 1, **options).estimate(model, CPU)["text"].tokens

    assert tokens(200) == pytest.approx(200 * 4, abs=4 * 2 * 200**0.5)
    assert tokens(200) == tokens(200, seed=0)
    assert tokens(10_000) == 500 * 2 + 500 * 6  # all of it, once
    assert len({tokens(200, seed=seed) for seed in range(5)}) > 1


def test_only_maskable_tokens_count(world: Path) -> None:
    estimates = validator(world, sequences=30).estimate(model_of("modality"), CPU)
    config = tiny_run(world)
    for task, folder in zip(Task, config.validation_data):
        dataset = TokenDataset(folder)
        samples = [dataset.shard(0)[i] for i in range(30)]
        text, media = (sum(len(getattr(sample, side)) for sample in samples) for side in ("text", "media"))
        if task == Task.TEXT:
            assert estimates["text"].tokens == text + 30  # with the end of each
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


@torch.no_grad()
def slow_elbo(model: Transformer, tokens: list[int], open_places: list[int]) -> np.ndarray:
    """By modality, over every mask: each size k equally likely, and each set of that size."""
    total, modalities = np.zeros(len(Modality)), TINY.modality_of(np.array(tokens))
    for k in range(1, len(open_places) + 1):
        sets = list(itertools.combinations(open_places, k))
        for chosen in sets:
            seen = torch.tensor([tokens])
            for place in chosen:
                seen[0, place] = TINY.mask(Modality(int(modalities[place])))
            hidden = model(seen, torch.arange(len(tokens))[None])[0]
            for place in chosen:
                modality = Modality(int(modalities[place]))
                logits = model.logits(hidden[place : place + 1], modality)[0]
                nll = torch.logsumexp(logits, -1) - logits[tokens[place] - TINY.data_ids(modality).start]
                total[modality] += float(nll) / k / len(sets)
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
    exact = slow_elbo(model, sequence, [2, 3, 4])[Modality.TEXT] / 3
    assert estimate.nats_per_token == pytest.approx(exact, rel=0.05)


def test_many_draws_of_a_pair_converge_to_the_elbo_of_each_modality(tmp_path: Path) -> None:
    image, text = [2, 9], [3, 17, 5]
    write_set(tmp_path / "one", Task.IMAGE_TEXT, [(image, text)])
    loader = LoaderConfig(seq_len=12, global_batch=1)
    model = model_of("modality")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(20) if p.ndim == 2 else None  # so that masks make a difference
    estimates = Validator([tmp_path / "one"], loader, sequences=1, draws=800).estimate(model, CPU)
    first = TINY.data_ids(Modality.IMAGE).start
    sequence = [TINY.task(Task.IMAGE_TEXT), TINY.bos(Modality.IMAGE), *(first + code for code in image)]
    sequence += [TINY.eos(Modality.IMAGE), TINY.bos(Modality.TEXT), *text, TINY.eos(Modality.TEXT)]
    exact = slow_elbo(model, sequence, [2, 3, 6, 7, 8])
    assert estimates["image"].nats_per_token == pytest.approx(exact[Modality.IMAGE] / 2, rel=0.05)
    assert estimates["text of image"].nats_per_token == pytest.approx(exact[Modality.TEXT] / 3, rel=0.05)
    assert estimates["all"].nats_per_token == pytest.approx(exact.sum() / 5, rel=0.05)


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
    assert NelboEstimate.of_strata([Stratum(1.0, nats, np.full(500, 10.0))]) == NelboEstimate(
        pytest.approx(nats.mean() / 10), pytest.approx(1.96 * nats.std() / 10 / 500**0.5), 5000
    )


def test_the_margin_of_a_mixture_covers_the_error() -> None:
    """Over repeated samples of three datasets, 95 % of the intervals hold the true value."""
    rng, hits = np.random.default_rng(0), 0
    shares, means, lengths = (0.1, 0.7, 0.2), (30.0, 90.0, 200.0), (10, 40, 50)
    truth = sum(s * m for s, m in zip(shares, means)) / sum(s * n for s, n in zip(shares, lengths))
    for _ in range(2000):
        strata = [
            Stratum(share, rng.normal(mean, mean / 3, 60), np.full(60, length))
            for share, mean, length in zip(shares, means, lengths)
        ]
        estimate = NelboEstimate.of_strata(strata)
        hits += abs(estimate.nats_per_token - truth) < estimate.margin
    assert 0.93 < hits / 2000 < 0.97
