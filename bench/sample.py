"""Sampling speed for text, images and speech against other implementations, with the paper's 117,698 ids.

    python bench/sample.py [--short] [--json FILE] [--peer llada=PATH] [--peer dllm=PATH] [--peer mmada=PATH]
    python bench/sample.py --busy [--rounds N] [--docs PAGE] ...

All sides run the same backbone with the same weights (4 layers of width 512) for the same number of steps, in batches
of 1 and 8, and with guidance in batches of 1. First their results are compared: at temperature 0 all tokens must be
equal; at temperature 1 a chi-square test compares the distributions on a model small enough to count outcomes
(`compare_distributions`).

Speedups are ratios of tokens per second. All sides are timed in turns in one process.

`--busy` measures only texts in batches of 8, with one thread and with two, alone and beside another process that
computes; `--threads` measures one number of threads, `--rule` one rule, and the other rows in the file of `--json` are
kept. `--docs` writes its table into a page of the documentation.
"""

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import busy
import numpy as np
import torch
from measure import base_parser, print_table, progress, save_results, start_benchmark, time_interleaved
from peers import FullLogits, Peers, add_peers, full_generate, full_maskgit, peers_of, text_ids
from scipy.stats import chi2
from torch import Tensor

from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.sample.batch import RequestBatch
from triptych.sample.canvas import Canvas, CanvasTokens, known, lay_out, masked
from triptych.sample.config import SamplingConfig
from triptych.sample.generate import generate
from triptych.sample.predictor import ModelPredictor
from triptych.sample.samplers import make_sampler
from triptych.vocab import Modality, Vocabulary, paper_vocabulary

SHAPE = ModelConfig(num_layers=4, width=512, num_heads=4, d_ff=1408)
RATE = 100  # tokens per second of speech: 25 frames of 4 codebooks


def build(vocabulary: Vocabulary, shape: ModelConfig = SHAPE, std: float = 0.05) -> Transformer:
    model = Transformer(shape, vocabulary)
    initialise(model, 0, lambda weight: std if weight.is_matrix else 1.0)
    return model.eval().requires_grad_(False)


# -- text -------------------------------------------------------------------------------------------------------------

RULES = {
    "greedy": {"temperature": 0.0, "remasking": "low_confidence"},
    "sampled, most confident first": {"temperature": 1.0, "remasking": "low_confidence"},
    "sampled, random order": {"temperature": 1.0, "remasking": "random"},
}


def prompts(vocabulary: Vocabulary, batch: int, length: int) -> Tensor:
    """[batch, length] TASK, BOS and random text ids."""
    ids = np.random.default_rng(0).integers(vocabulary.text, size=(batch, length - 2))
    canvases = [lay_out(Canvas(known(Modality.TEXT, row)), vocabulary).tokens[:-1] for row in ids]
    return torch.from_numpy(np.stack(canvases))


def our_text(
    model: Transformer,
    prompt: Tensor,
    *,
    length: int,
    num_steps: int,
    temperature: float,
    remasking: str,
    guidance_scale: float,
    seed: int = 0,
) -> Tensor:
    """A text with our sampler. As in the other implementations, the sequence ends after the generated tokens."""
    mask = model.vocabulary.mask(Modality.TEXT)
    rows = torch.cat([prompt, torch.full((len(prompt), length), mask)], dim=1).numpy()
    layouts = [
        CanvasTokens(
            tokens=row,
            masked=row == mask,
            modality=np.zeros(len(row), np.uint8),
            allow_eos=np.zeros(len(row), bool),
            hidden=row != mask,
            starts=(2,),
        )
        for row in rows
    ]
    sampler = make_sampler("low_confidence" if remasking == "low_confidence" else "random_order")
    with torch.inference_mode():
        batch = RequestBatch.from_layouts(layouts, range(seed, seed + len(rows)), model.vocabulary)
        predictor = ModelPredictor(model, layouts, batch, guidance_scale=guidance_scale, temperature=temperature)
        return sampler.run(predictor, batch, num_steps)


def text_samplers(
    model: Transformer,
    full: FullLogits,
    peers: Peers,
    prompt: Tensor,
    length: int,
    num_steps: int,
    rule: str,
    guidance_scale: float,
) -> dict[str, Callable[[], Tensor]]:
    mask, options = model.vocabulary.mask(Modality.TEXT), RULES[rule]
    shared = {"length": length, "num_steps": num_steps, "guidance_scale": guidance_scale, **options}
    calls: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: our_text(model, prompt, **shared),
        "LLaDA's method": lambda: full_generate(full, prompt, mask_id=mask, **shared),
    }
    # With guidance LLaDA's code needs an attention mask, and crashes without one.
    attention_mask = None if guidance_scale == 1 else torch.ones_like(prompt)
    if (llada := peers.llada()) is not None:
        calls["LLaDA's code"] = lambda: llada(
            full,
            prompt,
            attention_mask,
            steps=num_steps,
            gen_length=length,
            block_length=length,
            mask_id=mask,
            cfg_scale=guidance_scale - 1,
            **options,
        )
    if (dllm := peers.dllm()) is not None:
        calls["dllm's code"] = lambda: dllm(
            full,
            prompt,
            mask,
            steps=num_steps,
            max_new_tokens=length,
            block_size=length,
            cfg_scale=guidance_scale - 1,
            **options,
        )
    return calls


def texts(peers: Peers, short: bool) -> list[dict[str, Any]]:
    model = build(paper_vocabulary())
    full = FullLogits(model)
    length, num_steps = (64, 4) if short else (64, 8)
    rows = []
    cases = [(8, 1.0)] if short else [(8, 1.0), (1, 1.0), (1, 3.0)]
    for (batch, guidance_scale), rule in itertools.product(cases, RULES):
        prompt = prompts(model.vocabulary, batch, 32)
        progress(f"text: {rule}, batch {batch}, guidance_scale {guidance_scale:g}")
        if rule == "greedy":
            check_equal(model, peers, prompt, length, num_steps, guidance_scale)
        samplers = text_samplers(model, full, peers, prompt, length, num_steps, rule, guidance_scale)
        seconds = time_interleaved(samplers, rounds=1, warm=0)
        row = {
            "what": rule,
            "batch": batch,
            "guidance_scale": guidance_scale,
            "ours, tokens/s": batch * length / seconds["ours"],
        }
        rows.append(row | _speedups(seconds))
        progress(f"{rows[-1]}")
    return rows


def busy_texts(
    peers: Peers,
    short: bool,
    rounds: int,
    numbers_of_threads: Sequence[int] = busy.THREADS,
    rules: Sequence[str] = tuple(RULES),
) -> list[dict[str, Any]]:
    """The rules in batches of 8, on a quiet and on a busy machine."""
    model = build(paper_vocabulary())
    full, prompt, length, num_steps = FullLogits(model), prompts(model.vocabulary, 8, 32), 64, 4 if short else 8
    check_equal(model, peers, prompt, length, num_steps, 1.0)
    cases = {}
    for rule in rules:
        samplers = text_samplers(model, full, peers, prompt, length, num_steps, rule, 1.0)
        if len(samplers) > 2:  # their own code is here, so our version of it is not needed
            del samplers["LLaDA's method"]
        cases[rule] = samplers
    return busy.measure(cases, prompt.shape[0] * length, rounds, numbers_of_threads)


def _speedups(seconds: dict[str, float]) -> dict[str, float]:
    return {f"speedup over {name}": seconds[name] / seconds["ours"] for name in seconds if name != "ours"}


def check_equal(
    model: Transformer, peers: Peers, prompt: Tensor, length: int, num_steps: int, guidance_scale: float
) -> None:
    """At temperature 0 all tokens must be equal. Our sampler draws only text ids, so the others are limited to them."""
    full = FullLogits(model, only=text_ids(model))
    calls = text_samplers(model, full, peers, prompt, length, num_steps, "greedy", guidance_scale)
    results = {name: call() for name, call in calls.items()}
    for name, tokens in results.items():
        same = (tokens == results["ours"]).double().mean()
        assert same == 1, f"{name} gives different tokens: {same:.3f} are equal"


# -- distributions ----------------------------------------------------------------------------------------------------


def compare_distributions(peers: Peers, count: int) -> list[dict[str, Any]]:
    """A two-sample chi-square test on triples of tokens at temperature 1, ours against each other implementation.

    The statistic is the sum of (a - b)^2 / (a + b) over the triples; `p` is its p-value.
    """
    vocabulary = Vocabulary(text=4, image=1, audio=1)
    model = build(vocabulary, ModelConfig(num_layers=2, width=32, num_heads=2, d_ff=64), std=0.3)
    full = FullLogits(model, only=text_ids(model))
    prompt = prompts(vocabulary, 1, 4).expand(count, -1).contiguous()
    rows = []
    torch.manual_seed(0)
    for rule, guidance_scale, num_steps in itertools.product(list(RULES)[1:], (1.0, 2.0), (1, 3)):
        calls = text_samplers(model, full, peers, prompt, 3, num_steps, rule, guidance_scale)
        counts = {name: Counter(map(tuple, call()[:, -3:].tolist())) for name, call in calls.items()}
        ours = counts.pop("ours")
        for name, theirs in counts.items():
            keys = [key for key in ours | theirs if ours[key] + theirs[key] >= 10]
            statistic = sum((ours[key] - theirs[key]) ** 2 / (ours[key] + theirs[key]) for key in keys)
            rows.append(
                {
                    "what": rule,
                    "guidance_scale": guidance_scale,
                    "num_steps": num_steps,
                    "against": name,
                    "triples": len(keys),
                    "p": float(chi2.sf(statistic, len(keys) - 1)),
                }
            )
    return rows


# -- images and speech ------------------------------------------------------------------------------------------------


def media(peers: Peers, short: bool) -> list[dict[str, Any]]:
    model = build(paper_vocabulary())
    full = FullLogits(model)
    cases = [(Modality.IMAGE, 256, 8, 8, 1.0), (Modality.AUDIO, 2 * RATE, 10, 8, 1.0)]
    if not short:
        cases += [(Modality.IMAGE, 1024, 8, 1, g) for g in (1.0, 3.0)]
        cases += [(Modality.AUDIO, 2 * RATE, 10, 1, g) for g in (1.0, 3.0)]
    rows = []
    for modality, length, num_steps, batch, guidance_scale in cases:
        is_image = modality == Modality.IMAGE
        name = f"image, {length:,} tokens" if is_image else f"speech, {length / RATE:g} s"
        progress(f"{name}, batch {batch}, guidance_scale {guidance_scale:g}")
        calls = media_samplers(model, full, peers, modality, length, num_steps, batch, guidance_scale)
        seconds = time_interleaved(calls, rounds=1, warm=0)
        per_item = seconds["ours"] / batch / (1 if is_image else length / RATE)
        unit = "s per image" if is_image else "s per second of speech"
        row = {
            "what": name,
            "num_steps": num_steps,
            "batch": batch,
            "guidance_scale": guidance_scale,
            "ours": f"{per_item:.2f} {unit}",
        }
        rows.append(row | _speedups(seconds))
        progress(f"{rows[-1]}")
    return rows


def media_samplers(
    model: Transformer,
    full: FullLogits,
    peers: Peers,
    modality: Modality,
    length: int,
    num_steps: int,
    batch: int,
    guidance_scale: float,
) -> dict[str, Callable[[], object]]:
    vocabulary = model.vocabulary
    text = known(Modality.TEXT, np.random.default_rng(1).integers(vocabulary.text, size=24))
    canvas = Canvas(text, masked(modality, length), hide_text=True)
    layout = lay_out(canvas, vocabulary)
    tokens = torch.from_numpy(layout.tokens).expand(batch, -1).contiguous()
    shared = {
        "start": layout.starts[0],
        "length": length,
        "num_steps": num_steps,
        "mask_id": vocabulary.mask(modality),
        "ids": vocabulary.data_ids(modality),
        "hidden": torch.from_numpy(layout.hidden).expand(batch, -1),
        "text_mask_id": vocabulary.mask(Modality.TEXT),
        "guidance_scale": guidance_scale,
    }
    config = SamplingConfig(
        sampler="maskgit", num_steps=num_steps, guidance_scale=guidance_scale, options={"choice_temperature": 1.0}
    )
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: generate(model, [canvas] * batch, config, range(batch)),
        "MMaDA's method": lambda: full_maskgit(full, tokens, **shared),
    }
    if modality == Modality.IMAGE and (mmada := peers.mmada()) is not None:
        calls["MMaDA's code"] = lambda: _mmada(mmada, full, tokens, shared)
    return calls


def _mmada(their: Callable[..., Tensor], full: FullLogits, tokens: Tensor, shared: dict[str, Any]) -> Tensor:
    """Their order is the text, then the image and one token; their image codes follow the text ids."""
    start, length, ids = shared["start"], shared["length"], shared["ids"]
    image, text = tokens[:, start : start + length], tokens[:, start + length + 1 :]
    first, last = tokens[:, :start], tokens[:, start + length : start + length + 1]
    inputs = torch.cat([first, text, image, last], dim=1)
    prefix = first.shape[1] + text.shape[1]
    without_text = inputs.clone()
    without_text[:, first.shape[1] : prefix] = shared["text_mask_id"]
    attention_mask = torch.ones_like(inputs)
    is_guided = shared["guidance_scale"] != 1
    return their(
        _WithAttentionBias(full),
        input_ids=inputs.clone(),
        uncond_input_ids=without_text if is_guided else None,
        attention_mask=attention_mask,
        uncond_attention_mask=attention_mask if is_guided else None,
        timesteps=shared["num_steps"],
        guidance_scale=shared["guidance_scale"] - 1,
        seq_len=length,
        mask_token_id=shared["mask_id"],
        resolution=prefix - 1,
        codebook_size=len(ids),
        uni_prompting=argparse.Namespace(text_tokenizer=range(ids.start)),
    )


class _WithAttentionBias:
    """A model with their argument for an attention bias, which it ignores: attention is full."""

    def __init__(self, full: FullLogits):
        self.full = full

    def __call__(self, tokens: Tensor, attention_bias: Tensor) -> Any:
        return self.full(tokens)


def main() -> None:
    parser = base_parser(__doc__)
    add_peers(parser)
    parser.add_argument("--busy", action="store_true", help="only texts, alone and beside another process")
    parser.add_argument("--rounds", type=int, default=3, help="of --busy (default: 3)")
    parser.add_argument("--rule", action="append", choices=list(RULES), help="with --busy, one of the rules")
    parser.add_argument("--docs", type=Path, help="with --busy, the page to write the table to")
    args = parser.parse_args()
    start_benchmark(args)
    peers = peers_of(args)
    if args.busy:
        numbers_of_threads = [args.threads] if args.threads else busy.THREADS
        measured = busy_texts(peers, args.short, args.rounds, numbers_of_threads, args.rule or tuple(RULES))
        if args.json and args.json.exists():
            measured = busy.merged(json.loads(args.json.read_text())["texts"], measured)
        print_table("Text on a quiet and on a busy machine, batch 8", busy.summary(measured))
        save_results(args, texts=measured)
        if args.docs:
            busy.write_section(args.docs, measured)
        return
    distributions = compare_distributions(peers, 1000 if args.short else 20_000)
    print_table("Do both sides have the same distribution? (p-values)", distributions)
    text_rows = texts(peers, args.short)
    print_table("Text: tokens per second", text_rows)
    media_rows = media(peers, args.short)
    print_table("Images and speech: seconds", media_rows)
    save_results(args, distribution=distributions, texts=text_rows, media=media_rows)


if __name__ == "__main__":
    main()
