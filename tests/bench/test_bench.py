"""What the benchmarks compare is the same thing: others' methods in our words give what our samplers and losses give.

(The benchmarks make the same checks with the others' own code, where there is a checkout.)
"""

import json
from pathlib import Path

import fewer_steps
import measure
import peers
import pytest
import sample
import torch
import train
from torch.utils.flop_counter import FlopCounterMode

from triptych.model.transformer import ModelConfig
from triptych.sample.generate import SamplingConfig
from triptych.sample.presets import SAMPLING_PRESETS
from triptych.vocab import Modality, Vocabulary

RESULTS = Path(__file__).parents[2] / "bench" / "results"
NOBODY = peers.Peers({})
TINY = ModelConfig(num_layers=2, width=32, num_heads=2, d_ff=64)


@pytest.fixture(scope="module")
def model():
    return sample.build(Vocabulary(text=300, image=20, audio=10), TINY, std=0.4)


@pytest.mark.parametrize("guidance_scale", [1.0, 2.5])
@pytest.mark.parametrize(("batch", "length", "steps"), [(1, 12, 12), (3, 12, 5)])
def test_greedy_texts_are_the_same_token_by_token(model, guidance_scale, batch, length, steps):
    prompt = sample.prompts(model.vocabulary, batch, 6)
    sample.check_equal(model, NOBODY, prompt, length, steps, guidance_scale)
    tokens = sample.our_text(
        model,
        prompt,
        length=length,
        steps=steps,
        temperature=0.0,
        remasking="low_confidence",
        guidance_scale=guidance_scale,
    )
    assert len(set(tokens[:, 6:].flatten().tolist())) > 3  # not a comparison of nothing with nothing


def test_drawn_texts_are_of_one_law():
    rows = sample.law(NOBODY, 4000)
    assert len(rows) == 8
    assert all(row["triples"] > 3 and row["p"] > 1e-3 for row in rows), rows


def test_a_law_that_differs_would_be_seen(monkeypatch):
    true = sample.our_text
    monkeypatch.setattr(sample, "our_text", lambda *args, **how: true(*args, **{**how, "temperature": 1.1}))
    assert min(row["p"] for row in sample.law(NOBODY, 4000)) < 1e-3


@pytest.mark.parametrize("guidance_scale", [1.0, 2.0])
def test_pictures_in_the_way_of_others_fill_what_is_masked(model, guidance_scale):
    vocabulary = model.vocabulary
    ids, mask = vocabulary.data_ids(Modality.IMAGE), vocabulary.mask(Modality.IMAGE)
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    tokens[:, 3:12] = mask
    hidden = torch.zeros(2, 16, dtype=torch.bool)
    hidden[:, 13:] = True
    drawn = peers.full_maskgit(
        peers.FullLogits(model),
        tokens,
        start=3,
        length=9,
        steps=4,
        mask_id=mask,
        ids=ids,
        hidden=hidden,
        text_mask_id=vocabulary.mask(Modality.TEXT),
        guidance_scale=guidance_scale,
    )
    assert all(token in ids for token in drawn[:, 3:12].flatten().tolist())
    assert not drawn[:, :3].any()
    assert not drawn[:, 12:].any()


def test_losses_are_the_same():
    """Gradients, too: of the usual head, the guideline's and ours."""
    vocabulary = Vocabulary(text=40, image=20, audio=10)
    generator = torch.Generator().manual_seed(0)
    true = torch.randint(40, (3, 8), generator=generator)
    is_masked = torch.rand(3, 8, generator=generator) < 0.5
    seen = torch.where(is_masked, vocabulary.mask(Modality.TEXT), true)
    weight = torch.rand(3, 8, generator=generator)
    found = []
    for loss in (peers.usual_loss, peers.guideline_loss):
        model = sample.build(vocabulary, TINY).requires_grad_()
        value = loss(model, seen, true, is_masked, weight)
        value.backward()
        found.append((value, model.blocks[0].mlp.gate.grad, model.unembed.text.grad))
    for one, other in zip(*found):
        torch.testing.assert_close(one, other)


def test_flops_of_what_is_done():
    """Against torch's own count of the forward pass, some of the positions asked for."""
    rows, length, asked = 3, 40, torch.arange(7, 60)
    tokens = torch.zeros(rows, length, dtype=torch.int64)
    segments = train.whole_rows(rows, length, train.CPU)
    model = sample.build(Vocabulary(text=40, image=20, audio=10), TINY)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(tokens, torch.arange(length).expand(rows, -1), segments, query_idx=asked)
    expected = train.flops_done(TINY, segments, len(asked), columns=0) / 3
    assert counter.get_total_flops() == pytest.approx(expected, rel=1e-9)


def test_turns_tables_and_files(tmp_path, capsys):
    seconds = measure.in_turns({"a": lambda: None, "b": lambda: sum(range(20_000))}, rounds=3)
    assert 0 <= seconds["a"] < seconds["b"]
    assert measure.peak_bytes(lambda: torch.zeros(1000) + 1) >= 4000
    args = measure.arguments("doc").parse_args(["--json", str(tmp_path / "sub" / "found.json")])
    measure.table("Title", [{"a": 1, "b": 0.1234}, {"a": 12345, "c": "x"}])
    assert "| a | b | c |\n|---|---|---|\n| 1 | 0.123 |  |\n| 12,345 |  | x |" in capsys.readouterr().out
    measure.save(args, rows=[1])
    assert json.loads((tmp_path / "sub" / "found.json").read_text())["rows"] == [1]


def test_a_wrong_peer_is_named(tmp_path):
    parser = measure.arguments("doc")
    peers.add_peers(parser)
    with pytest.raises(SystemExit, match="expected --peer NAME=PATH"):
        peers.peers_of(parser.parse_args(["--peer", "lada=/nowhere"]))
    (tmp_path / "generate.py").write_text("def other(): ...\n")
    with pytest.raises(SystemExit, match="has no function 'add_gumbel_noise'"):
        peers.Peers({"llada": tmp_path}).llada()


def test_the_fast_preset_is_the_fewest_looks_within_a_point():
    def record(value, looks):
        return {"value": value, "looks": looks, "settings": {"sampler": "maskgit"}}

    right = fewer_steps.DIRECTIONS["text-to-image"]
    records = [record(0.90, 32.0), record(0.895, 9.0), record(0.889, 5.0), record(0.91, 64.0)]
    assert fewer_steps.fast(right, records)["looks"] == 32.0
    assert fewer_steps.fast(right, records[:3])["looks"] == 9.0
    errors = fewer_steps.DIRECTIONS["speech-to-text"]
    assert fewer_steps.fast(errors, [record(0.05, 10.0), record(0.059, 2.0), record(0.07, 1.0)])["looks"] == 2.0


@pytest.mark.parametrize(
    ("name", "preset", "fewer"),
    [
        ("text-to-image", Modality.IMAGE, 2.5),
        ("image-to-text", "caption", 1.3),
        ("questions", Modality.TEXT, 1.0),
        ("speech-to-text", Modality.TEXT, 2.0),
        ("text-to-speech", Modality.AUDIO, 10.0),
    ],
)
def test_fast_presets_are_within_a_point_of_the_best_that_was_measured(name, preset, fewer):
    """And take so many times fewer looks than one token a look."""
    direction = fewer_steps.DIRECTIONS[name]
    records = [r for r in fewer_steps.read(RESULTS / "fewer_steps.jsonl") if r["direction"] == name]
    assert len(records) == len(list(fewer_steps.settings_of(direction)))
    chosen = SAMPLING_PRESETS["fast"][preset]
    (own,) = [r for r in records if SamplingConfig(**r["settings"]) == chosen]
    best = max(direction.sign * r["value"] for r in records)
    assert direction.sign * own["value"] >= best - fewer_steps.POINT
    assert fewer_steps.reference(direction, records)["looks"] / own["looks"] >= fewer
