"""Counts of parameters, against models without weights in memory."""

import argparse
from pathlib import Path

import pytest
import torch
from PIL import Image

from triptych.cli.main import main
from triptych.model.transformer import Transformer
from triptych.recipes.paper import fixed_aspect
from triptych.recipes.proxy import proxy
from triptych.studies import parameters
from triptych.vocab import paper_vocabulary


def records(layers: str = "2,8,16,24") -> list[dict]:
    parser = argparse.ArgumentParser()
    parameters.STUDY.add_arguments(parser)
    trials = parameters.trials(parser.parse_args(["--layers", layers]), proxy())
    return [{"key": each.key, **each.settings, **parameters.run_trial(each, proxy(), None)} for each in trials]


def test_counts_are_those_of_the_model() -> None:
    shape, vocabulary = fixed_aspect(8).model, paper_vocabulary()
    with torch.device("meta"):
        model = Transformer(shape, vocabulary)
    made = parameters.counts(shape, vocabulary)
    assert made["total"] == sum(weight.numel() for weight in model.parameters())
    blocks = sum(weight.numel() for block in model.blocks for weight in block.parameters())
    assert made["blocks"] == blocks + shape.width  # and the last norm
    assert made["embedding"] == made["unembedding"] == 117_698 * 1024


def test_shares_grow_with_the_model_and_shrink_with_the_vocabulary(tmp_path: Path) -> None:
    made = records()
    share = {(record["vocabulary"], record["layers"]): record["blocks"] / record["total"] for record in made}
    for name in parameters.vocabularies():
        shares = [share[name, layers] for layers in (2, 8, 16, 24)]
        assert shares == sorted(shares)
    assert share[parameters.ALL, 8] == pytest.approx(81e6 / 322e6, rel=0.01)
    assert share[parameters.TEXT, 8] > share[parameters.ALL, 8]
    verdicts = [claim.verdict for claim in parameters.STUDY.claims(made)]
    assert verdicts == ["agrees", "agrees"]
    at_half = parameters.half(made, parameters.ALL)
    assert share[parameters.ALL, 8] < 0.5 < share[parameters.ALL, 16]
    blocks = {record["layers"]: record["blocks"] for record in made if record["vocabulary"] == parameters.ALL}
    assert blocks[8] < at_half < blocks[16]
    parameters.STUDY.draw(made, tmp_path / "figure.png")
    assert min(Image.open(tmp_path / "figure.png").size) > 300


def test_the_study_needs_no_data_and_resumes(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["study", "parameters", "--out", "out", "--layers", "1,2"]
    assert main(words) == 0
    assert "6 records in out" in capsys.readouterr().out
    before = (tmp_path / "out" / "records.jsonl").read_text()
    kept = before.splitlines(keepends=True)
    (tmp_path / "out" / "records.jsonl").write_text("".join(kept[:3]) + kept[3][:20])  # stopped while it wrote
    assert main(words) == 0
    assert len((tmp_path / "out" / "records.jsonl").read_text().splitlines()) == 6
