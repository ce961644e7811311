"""The share of the blocks in all parameters, by the size of the model and the vocabulary.

Models have the paper's aspect ratio, width 128 x layers. The vocabulary of all modalities is the paper's; that of text
alone has no image and audio codes. Counts are exact: each is compared with a model built without memory for its
weights. Nothing is trained.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych.cli.args import positive_ints
from triptych.model.flops import count_parameters
from triptych.model.transformer import ModelConfig, Transformer
from triptych.recipes.paper import fixed_aspect
from triptych.studies.base import Claim, Study, StudyRecords, grid_study
from triptych.studies.verdict import verdict
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.utils.plotting import pyplot, save
from triptych.utils.trials import Trial
from triptych.utils.units import human_number
from triptych.vocab import Vocabulary, paper_vocabulary

_LAYERS = [1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48]
_SMALL, _LARGE = 1.5e8, 2e9  # parameters without embeddings: the paper's 80M base model is small, its 3B model large
ALL, TEXT = "all modalities", "text alone"


def vocabularies() -> dict[str, Vocabulary]:
    """By name. That of text alone keeps one code per medium, which the type requires."""
    full = paper_vocabulary()
    return {
        ALL: full,
        TEXT: replace(full, image=1, audio=1),
        "text alone, a smaller tokenizer": Vocabulary(text=32_000, image=1, audio=1),
    }


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--layers", type=positive_ints, default=_LAYERS, metavar="N,N", help="depths of the models (default: 1 to 48)"
    )


def trials(args: argparse.Namespace, run: RunConfig) -> list[Trial]:
    return [
        Trial(f"{layers} layers, {name}", {"layers": layers, "vocabulary": name})
        for layers in args.layers
        for name in vocabularies()
    ]


def run_trial(trial: Trial, run: RunConfig, bundle: TokenizerBundle) -> dict[str, Any]:
    return counts(fixed_aspect(trial.settings["layers"]).model, vocabularies()[trial.settings["vocabulary"]])


def counts(model: ModelConfig, vocabulary: Vocabulary) -> dict[str, int]:
    """Parameters by part, equal to those of the model itself."""
    count = count_parameters(model, vocabulary)
    with torch.device("meta"):
        built = sum(weight.numel() for weight in Transformer(model, vocabulary).parameters())
    assert built == count.total, f"the formula gives {count.total:,} parameters, the model has {built:,}"
    return {
        "width": model.width,
        "ids": vocabulary.size,
        "blocks": count.blocks,
        "embedding": count.embedding,
        "unembedding": count.unembedding,
        "total": built,
    }


def _missing_runs(args: argparse.Namespace, config: RunConfig, bundle: TokenizerBundle) -> list[RunConfig]:
    return []


def _share(record: dict[str, Any]) -> float:
    return float(record["blocks"] / record["total"])


def _of(records: StudyRecords, name: str) -> list[dict[str, Any]]:
    return sorted((record for record in records if record["vocabulary"] == name), key=lambda record: record["layers"])


def half(records: StudyRecords, name: str) -> float:
    """Blocks' parameters at which they are half of all, interpolated between the models on a log scale; NaN if none."""
    mine = _of(records, name)
    shares = [_share(record) for record in mine]
    if len(mine) < 2 or not shares[0] < 0.5 < shares[-1]:
        return float("nan")
    return float(np.exp(np.interp(0.5, shares, np.log([record["blocks"] for record in mine]))))


def _findings(records: StudyRecords) -> list[str]:
    lines = []
    for name in dict.fromkeys(record["vocabulary"] for record in records):
        mine = _of(records, name)
        shares = ", ".join(
            f"{record['layers']} x {record['width']}: {_share(record):.1%} of {human_number(record['total'])}"
            for record in mine
        )
        crossing = half(records, name)
        crossed = "" if np.isnan(crossing) else f"; half at {human_number(crossing)} parameters of the blocks"
        lines.append(f"{name}, {mine[0]['ids']:,} ids: share of the blocks by layers x width: {shares}{crossed}")
    return lines


def _claims(records: StudyRecords) -> list[Claim]:
    """Counts have no error, so the intervals are points."""
    full, text = _of(records, ALL), _of(records, TEXT)
    small = [record for record in full if record["blocks"] < _SMALL]
    made = []
    if small:
        largest = max(small, key=_share)
        made.append(
            Claim(
                "Figure 12",
                "With the vocabulary of three modalities, the blocks are less than half of a small model.",
                f"at most {_share(largest):.1%} below {human_number(_SMALL)} parameters of the blocks "
                f"({largest['layers']} x {largest['width']})",
                verdict((_share(largest), _share(largest)), high=0.5),
            )
        )
    common = {record["layers"]: record for record in text}
    pairs = [(_share(record), _share(common[record["layers"]])) for record in full if record["layers"] in common]
    if pairs:
        ratios = [one / other for one, other in pairs]
        made.append(
            Claim(
                "Figure 12",
                "Three modalities need a larger vocabulary than text alone, which lowers the share of the blocks.",
                f"{min(ratios):.3f} to {max(ratios):.3f} times the share with the vocabulary of text alone",
                verdict((min(ratios), max(ratios)), high=1.0),
            )
        )
    return made


def _draw(records: StudyRecords, path: Path) -> None:
    figure, panel = pyplot().subplots(figsize=(5.8, 3.9))
    for name in dict.fromkeys(record["vocabulary"] for record in records):
        mine = _of(records, name)
        label = f"{name} ({mine[0]['ids']:,} ids)"
        panel.plot(
            [record["blocks"] for record in mine], [100 * _share(record) for record in mine], "o-", ms=3.5, label=label
        )
    panel.axhline(50, color="0.5", lw=0.8, ls=":")
    panel.set(xscale="log", ylim=(0, 100), xlabel="parameters of the blocks", ylabel="share of all parameters, %")
    panel.legend(fontsize=8)
    save(figure, path)


STUDY = Study(
    _add_arguments, grid_study(trials, run_trial), _missing_runs, _findings, _draw, claims=_claims, needs_data=False
)
