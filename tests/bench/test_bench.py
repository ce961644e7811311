"""Benchmarks compare equal things: our implementations of other methods give the results of our samplers and losses.

(Given checkouts, the benchmarks make the same checks with the original code.)
"""

import json
import os
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import busy
import fewer_steps
import measure
import peers
import pytest
import sample
import torch
import train
from torch.utils.flop_counter import FlopCounterMode

from triptych.model.transformer import ModelConfig
from triptych.sample.config import SAMPLING_PRESETS, SamplingConfig
from triptych.vocab import Modality, Vocabulary

RESULTS = Path(__file__).parents[2] / "bench" / "results"
DOCS = Path(__file__).parents[2] / "docs"
NO_PEERS = peers.Peers({})
TINY = ModelConfig(num_layers=2, width=32, num_heads=2, d_ff=64)


@pytest.fixture(scope="module")
def model():
    return sample.build(Vocabulary(text=300, image=20, audio=10), TINY, std=0.4)


@pytest.mark.parametrize("guidance_scale", [1.0, 2.5])
@pytest.mark.parametrize(("batch", "length", "num_steps"), [(1, 12, 12), (3, 12, 5)])
def test_greedy_texts_have_equal_tokens(model, guidance_scale, batch, length, num_steps):
    prompt = sample.prompts(model.vocabulary, batch, 6)
    sample.check_equal(model, NO_PEERS, prompt, length, num_steps, guidance_scale)
    tokens = sample.our_text(
        model,
        prompt,
        length=length,
        num_steps=num_steps,
        temperature=0.0,
        remasking="low_confidence",
        guidance_scale=guidance_scale,
    )
    assert len(set(tokens[:, 6:].flatten().tolist())) > 3  # the comparison is not trivial


def test_sampled_texts_have_one_distribution():
    rows = sample.compare_distributions(NO_PEERS, 4000)
    assert len(rows) == 8
    assert all(row["triples"] > 3 and row["p"] > 1e-3 for row in rows), rows


def test_a_different_distribution_is_detected(monkeypatch):
    original = sample.our_text
    monkeypatch.setattr(sample, "our_text", lambda *args, **options: original(*args, **{**options, "temperature": 1.1}))
    assert min(row["p"] for row in sample.compare_distributions(NO_PEERS, 4000)) < 1e-3


@pytest.mark.parametrize("guidance_scale", [1.0, 2.0])
def test_mmadas_method_fills_exactly_the_masked_positions(model, guidance_scale):
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
        num_steps=4,
        mask_id=mask,
        ids=ids,
        hidden=hidden,
        text_mask_id=vocabulary.mask(Modality.TEXT),
        guidance_scale=guidance_scale,
    )
    assert all(token in ids for token in drawn[:, 3:12].flatten().tolist())
    assert not drawn[:, :3].any()
    assert not drawn[:, 12:].any()


def test_losses_and_gradients_are_equal():
    """Of the usual head and of LLaDA's guideline."""
    vocabulary = Vocabulary(text=40, image=20, audio=10)
    generator = torch.Generator().manual_seed(0)
    true = torch.randint(40, (3, 8), generator=generator)
    is_masked = torch.rand(3, 8, generator=generator) < 0.5
    seen = torch.where(is_masked, vocabulary.mask(Modality.TEXT), true)
    weight = torch.rand(3, 8, generator=generator)
    results = []
    for loss in (peers.usual_loss, peers.guideline_loss):
        model = sample.build(vocabulary, TINY).requires_grad_()
        value = loss(model, seen, true, is_masked, weight)
        value.backward()
        results.append((value, model.blocks[0].mlp.gate.grad, model.unembed.text.grad))
    for one, other in zip(*results):
        torch.testing.assert_close(one, other)


def test_flops_of_computed_positions():
    """Against torch's count of a forward pass in which only some positions are queried."""
    rows, length, query_idx = 3, 40, torch.arange(7, 60)
    tokens = torch.zeros(rows, length, dtype=torch.int64)
    segments = train.whole_rows(rows, length, train.CPU)
    model = sample.build(Vocabulary(text=40, image=20, audio=10), TINY)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.hidden_states(tokens, torch.arange(length).expand(rows, -1), segments, query_idx=query_idx)
    expected = train.executed_flops(TINY, segments, len(query_idx), columns=0) / 3
    assert counter.get_total_flops() == pytest.approx(expected, rel=1e-9)


def test_interleaved_timing_takes_the_median_without_the_warm_up(monkeypatch):
    clock, order = [0.0], []
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def call_that_takes(name, *seconds):
        remaining = iter(seconds)

        def call():
            order.append(name)
            clock[0] += next(remaining)

        return call

    calls = {"a": call_that_takes("a", 9, 1, 3, 2), "b": call_that_takes("b", 9, 10, 30, 20)}
    assert measure.time_interleaved(calls, rounds=3) == {"a": 2, "b": 20}
    assert order == ["a", "b"] * 4


def test_memory_tables_and_files(tmp_path, capsys):
    assert measure.peak_bytes(lambda: torch.zeros(1000) + 1) >= 4000
    args = measure.base_parser("doc").parse_args(["--json", str(tmp_path / "sub" / "results.json")])
    measure.print_table("Title", [{"a": 1, "b": 0.1234}, {"a": 12345, "c": "x"}])
    assert "| a | b | c |\n|---|---|---|\n| 1 | 0.123 |  |\n| 12,345 |  | x |" in capsys.readouterr().out
    measure.save_results(args, rows=[1])
    assert json.loads((tmp_path / "sub" / "results.json").read_text())["rows"] == [1]


def test_a_wrong_peer_is_named(tmp_path):
    parser = measure.base_parser("doc")
    peers.add_peers(parser)
    with pytest.raises(SystemExit, match="expected --peer NAME=PATH"):
        peers.peers_of(parser.parse_args(["--peer", "lada=/nowhere"]))
    (tmp_path / "generate.py").write_text("def other(): ...\n")
    with pytest.raises(SystemExit, match="has no function 'add_gumbel_noise'"):
        peers.Peers({"llada": tmp_path}).llada()


def test_the_fast_preset_has_the_lowest_nfe_within_a_point():
    def record(value, nfe):
        return {"value": value, "nfe": nfe, "settings": {"sampler": "maskgit"}}

    accuracy = fewer_steps.DIRECTIONS["text-to-image"]
    records = [record(0.90, 32.0), record(0.895, 9.0), record(0.889, 5.0), record(0.91, 64.0)]
    assert fewer_steps.fast(accuracy, records)["nfe"] == 32.0
    assert fewer_steps.fast(accuracy, records[:3])["nfe"] == 9.0
    error_rate = fewer_steps.DIRECTIONS["transcribe"]
    assert fewer_steps.fast(error_rate, [record(0.05, 10.0), record(0.059, 2.0), record(0.07, 1.0)])["nfe"] == 2.0


@pytest.mark.parametrize(
    ("name", "preset", "nfe_ratio"),
    [
        ("text-to-image", Modality.IMAGE, 2.5),
        ("caption", "caption", 1.3),
        ("answer", Modality.TEXT, 1.0),
        ("transcribe", Modality.TEXT, 2.0),
        ("text-to-speech", Modality.AUDIO, 10.0),
    ],
)
def test_fast_presets_are_within_a_point_of_the_best_measurement(name, preset, nfe_ratio):
    """And their NFE is lower than with one token per step by at least this factor."""
    direction = fewer_steps.DIRECTIONS[name]
    records = [r for r in fewer_steps.read(RESULTS / "fewer_steps.jsonl") if r["direction"] == name]
    measured, planned = [r["settings"] for r in records], fewer_steps.settings_of(direction)
    assert sorted(map(json.dumps, measured)) == sorted(map(json.dumps, planned))
    chosen = SAMPLING_PRESETS["fast"][preset]
    (own,) = [r for r in records if SamplingConfig(**r["settings"]) == chosen]
    best = max(direction.sign * r["value"] for r in records)
    assert direction.sign * own["value"] >= best - fewer_steps.POINT
    assert fewer_steps.reference(direction, records)["nfe"] / own["nfe"] >= nfe_ratio


# -- quiet and busy ---------------------------------------------------------------------------------------------------


def busy_rows(quiet, busy_seconds):
    """Measurements of one rule with one thread, from the seconds of each sampler."""
    conditions = zip(busy.CONDITIONS, (quiet, busy_seconds))
    return [
        {"what": "greedy", "threads": 1, "condition": name, "tokens": 100, "seconds": dict(zip("ab", seconds))}
        for name, seconds in conditions
    ]


def test_the_competing_process_takes_time_and_ends():
    with busy.competitor("quiet") as nothing:
        assert nothing is None
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if not children.exists():
        pytest.skip("needs /proc")
    before = set(children.read_text().split())
    with busy.competitor("busy"):
        (started,) = set(children.read_text().split()) - before
        status = Path(f"/proc/{started}/stat")
        first = sum(map(int, status.read_text().rsplit(")")[1].split()[11:13]))
        deadline = time.monotonic() + 60
        while sum(map(int, status.read_text().rsplit(")")[1].split()[11:13])) < first + 5:
            assert time.monotonic() < deadline, "it does not compute"
            time.sleep(0.05)
    assert started not in children.read_text().split()


def test_both_conditions_are_measured_with_every_number_of_threads(monkeypatch):
    @contextmanager
    def pretend(condition):
        state.append(condition)
        yield
        state.pop()

    state, seen = [], []
    monkeypatch.setattr(busy, "competitor", pretend)
    monkeypatch.setattr(busy, "time_interleaved", lambda calls, **_: {name: call() for name, call in calls.items()})

    def call():
        seen.append((torch.get_num_threads(), state[-1]))
        return float(len(seen))

    before = torch.get_num_threads()
    rows = busy.measure({"greedy": {"ours": call, "theirs": call}}, tokens=100, rounds=3)
    assert torch.get_num_threads() == before
    assert seen == [(n, condition) for n in (1, 2) for _ in range(3) for condition in busy.CONDITIONS for _ in "ab"]
    # The calls of a round take 1 and 2 s when quiet, 3 and 4 s when busy, and 4 s more in each round: medians.
    assert [row["seconds"] for row in rows[:2]] == [{"ours": 5, "theirs": 6}, {"ours": 7, "theirs": 8}]


def test_the_table_of_the_busy_machine():
    (row,) = busy.summary(busy_rows((2.0, 8.0), (5.0, 15.0)))
    assert row == {
        "what": "greedy",
        "threads": 1,
        "tokens/s, quiet": 50,
        "tokens/s, busy": 20,
        "over b, quiet": 4,
        "over b, busy": 3,
        "over b, busy / quiet": 0.75,
    }


def test_the_page_has_the_stored_measurements(tmp_path):
    stored = RESULTS / "sample_busy.json"
    measured = json.loads(stored.read_text())["texts"] if stored.exists() else []
    original = DOCS / "performance.md"
    page = tmp_path / "page.md"
    page.write_text(original.read_text())
    busy.write_section(page, measured)
    assert page.read_text() == original.read_text(), "run bench/sample.py --busy with --json and --docs"
    busy.write_section(page, busy_rows((2.0, 8.0), (5.0, 15.0)))
    assert "| greedy | 1 | 50 | 20 | 4 | 3 | 0.75 |" in page.read_text()
    assert measure.read_around(page, "busy") == measure.read_around(original, "busy")


def test_a_page_without_the_section_is_not_overwritten(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Other\n")
    with pytest.raises(AssertionError, match="has no section"):
        busy.write_section(page, [])
    assert page.read_text() == "# Other\n"


def test_the_busy_benchmark_end_to_end(model, monkeypatch, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text((DOCS / "performance.md").read_text())
    monkeypatch.setattr(sample, "build", lambda _: model)
    monkeypatch.setattr(busy, "competitor", lambda _: nullcontext())
    monkeypatch.setattr(busy, "THREADS", (1,))
    arguments = ["sample.py", "--busy", "--short", "--rounds", "1", "--json", str(tmp_path / "busy.json")]
    monkeypatch.setattr("sys.argv", [*arguments, "--docs", str(page), "--threads", str(torch.get_num_threads())])
    sample.main()
    measured = json.loads((tmp_path / "busy.json").read_text())["texts"]
    assert [(row["what"], row["threads"], row["condition"]) for row in measured] == [
        (rule, 1, condition) for rule in sample.RULES for condition in busy.CONDITIONS
    ]
    assert all(set(row["seconds"]) == {"ours", "LLaDA's method"} for row in measured)
    assert measure.markdown_table(busy.summary(measured)) in page.read_text()
    assert "| greedy | 1 |" in capsys.readouterr().out


def test_rules_and_numbers_of_threads_may_be_measured_one_by_one() -> None:
    one, two, again, other = (
        {"what": rule, "threads": n, "seconds": {"ours": s}}
        for rule, n, s in (("greedy", 1, 1.0), ("greedy", 2, 2.0), ("greedy", 2, 3.0), ("random", 1, 4.0))
    )
    assert busy.merged([one, two], [again]) == [one, again]
    assert busy.merged([one, two], [other]) == [one, other, two]
