"""How fast texts, pictures and speech are sampled, against how others do it, with the paper's vocabulary of 117,698.

    python bench/sample.py [--short] [--json FILE] [--peer llada=PATH] [--peer dllm=PATH] [--peer mmada=PATH]

The same backbone with the same weights (4 layers of width 512), the same number of looks, batch 1 and 8, and with
guidance in batches of 1. First it is checked that both sides do the same: at temperature 0 the tokens are equal one
by one; at temperature 1 the laws are compared on a model whose law can be counted (chi-square, `law` below).

Ratios are tokens a second over those of the others' way, in turns in one process.
"""

import argparse
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measure import arguments, begin, in_turns, progress, save, table
from peers import FullLogits, Peers, add_peers, full_generate, full_maskgit, peers_of, text_ids
from scipy.stats import chi2
from torch import Tensor

from triptych.model.transformer import ModelConfig, Transformer, initialise
from triptych.sample.canvas import Canvas, CanvasTokens, known, lay_out, masked
from triptych.sample.generate import SamplingConfig, _group, _Proposer, generate
from triptych.sample.samplers import SAMPLERS
from triptych.vocab import Modality, Vocabulary, paper_vocabulary

SHAPE = ModelConfig(num_layers=4, width=512, num_heads=4, d_ff=1408)
RATE = 100  # tokens of a second of speech: 25 frames of 4 codebooks


def build(vocabulary: Vocabulary, shape: ModelConfig = SHAPE, std: float = 0.05) -> Transformer:
    model = Transformer(shape, vocabulary)
    initialise(model, 0, lambda weight: std if weight.is_matrix else 1.0)
    return model.eval().requires_grad_(False)


# -- texts ------------------------------------------------------------------------------------------------------------

RULES = {
    "greedy": {"temperature": 0.0, "remasking": "low_confidence"},
    "drawn, surest first": {"temperature": 1.0, "remasking": "low_confidence"},
    "drawn, random order": {"temperature": 1.0, "remasking": "random"},
}


def prompts(vocabulary: Vocabulary, batch: int, length: int) -> Tensor:
    """TASK, BOS and words."""
    ids = np.random.default_rng(0).integers(vocabulary.text, size=(batch, length - 2))
    canvases = [lay_out(Canvas(known(Modality.TEXT, row)), vocabulary).tokens[:-1] for row in ids]
    return torch.from_numpy(np.stack(canvases))


def our_text(
    model: Transformer,
    prompt: Tensor,
    *,
    length: int,
    steps: int,
    temperature: float,
    remasking: str,
    guidance_scale: float,
    seed: int = 0,
) -> Tensor:
    """The same with our sampler: the canvas ends behind what is generated, as theirs does."""
    mask = model.vocabulary.mask(Modality.TEXT)
    rows = torch.cat([prompt, torch.full((len(prompt), length), mask)], dim=1).numpy()
    layouts = [
        CanvasTokens(
            tokens=row,
            masked=row == mask,
            modality=np.zeros(len(row), np.uint8),
            may_end=np.zeros(len(row), bool),
            hidden=row != mask,
            starts=(2,),
        )
        for row in rows
    ]
    settings = SamplingConfig(
        sampler="low_confidence" if remasking == "low_confidence" else "random_order",
        temperature=temperature,
        guidance_scale=guidance_scale,
    )
    with torch.inference_mode():
        group = _group(layouts, range(seed, seed + len(rows)), model.vocabulary, "cpu")
        propose = _Proposer(model, layouts, group, settings)
        return SAMPLERS[settings.sampler](propose, group, steps)


def text_samplers(
    model: Transformer,
    full: FullLogits,
    peers: Peers,
    prompt: Tensor,
    length: int,
    steps: int,
    rule: str,
    guidance_scale: float,
) -> dict[str, Callable[[], Tensor]]:
    mask, how = model.vocabulary.mask(Modality.TEXT), RULES[rule]
    shared = {"length": length, "steps": steps, "guidance": guidance_scale, **how}
    found: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: our_text(model, prompt, **shared),
        "LLaDA's way": lambda: full_generate(full, prompt, mask_id=mask, **shared),
    }
    # With guidance LLaDA's own code asks for an attention mask, and crashes without.
    seen = None if guidance_scale == 1 else torch.ones_like(prompt)
    if (llada := peers.llada()) is not None:
        found["LLaDA's code"] = lambda: llada(
            full,
            prompt,
            seen,
            steps=steps,
            gen_length=length,
            block_length=length,
            mask_id=mask,
            cfg_scale=guidance_scale - 1,
            **how,
        )
    if (dllm := peers.dllm()) is not None:
        found["dllm's code"] = lambda: dllm(
            full,
            prompt,
            mask,
            steps=steps,
            max_new_tokens=length,
            block_size=length,
            cfg_scale=guidance_scale - 1,
            **how,
        )
    return found


def texts(peers: Peers, short: bool) -> list[dict[str, Any]]:
    model = build(paper_vocabulary())
    full = FullLogits(model)
    length, steps = (64, 4) if short else (64, 8)
    rows = []
    cases = [(8, 1.0)] if short else [(8, 1.0), (1, 1.0), (1, 3.0)]
    for (batch, guidance_scale), rule in itertools.product(cases, RULES):
        prompt = prompts(model.vocabulary, batch, 32)
        progress(f"texts: {rule}, batch {batch}, guidance {guidance_scale:g}")
        if rule == "greedy":
            check_equal(model, peers, prompt, length, steps, guidance_scale)
        samplers = text_samplers(model, full, peers, prompt, length, steps, rule, guidance_scale)
        seconds = in_turns(samplers, rounds=1, warm=0)
        row = {
            "what": rule,
            "batch": batch,
            "guidance": guidance_scale,
            "ours, tokens/s": batch * length / seconds["ours"],
        }
        rows.append(row | {f"over {name}": seconds[name] / seconds["ours"] for name in seconds if name != "ours"})
        progress(f"{rows[-1]}")
    return rows


def check_equal(
    model: Transformer, peers: Peers, prompt: Tensor, length: int, steps: int, guidance_scale: float
) -> None:
    """At temperature 0, token by token; where the constraint to texts is ours alone, others get it for this."""
    full = FullLogits(model, only=text_ids(model))
    found = {
        name: call()
        for name, call in text_samplers(model, full, peers, prompt, length, steps, "greedy", guidance_scale).items()
    }
    for name, tokens in found.items():
        same = (tokens == found["ours"]).double().mean()
        assert same == 1, f"{name} gives other tokens: {same:.3f} equal"


# -- the law ----------------------------------------------------------------------------------------------------------


def dist(peers: Peers, count: int) -> list[dict[str, Any]]:
    """Two samples of triples of tokens at temperature 1, one of each side: are they of one law?

    The statistic is the sum of (a - b)^2 / (a + b) over the triples; `p` is the chance of one as large if they are.
    """
    vocabulary = Vocabulary(text=4, image=1, audio=1)
    model = build(vocabulary, ModelConfig(num_layers=2, width=32, num_heads=2, d_ff=64), std=0.3)
    full = FullLogits(model, only=text_ids(model))
    prompt = prompts(vocabulary, 1, 4).expand(count, -1).contiguous()
    rows = []
    torch.manual_seed(0)
    for rule, guidance_scale, steps in itertools.product(list(RULES)[1:], (1.0, 2.0), (1, 3)):
        drawn = {
            name: Counter(map(tuple, call()[:, -3:].tolist()))
            for name, call in text_samplers(model, full, peers, prompt, 3, steps, rule, guidance_scale).items()
        }
        ours = drawn.pop("ours")
        for name, theirs in drawn.items():
            keys = [key for key in ours | theirs if ours[key] + theirs[key] >= 10]
            statistic = sum((ours[key] - theirs[key]) ** 2 / (ours[key] + theirs[key]) for key in keys)
            chance = float(chi2.sf(statistic, len(keys) - 1))
            rows.append(
                {
                    "what": rule,
                    "guidance": guidance_scale,
                    "looks": steps,
                    "against": name,
                    "triples": len(keys),
                    "p": chance,
                }
            )
    return rows


# -- pictures and speech ----------------------------------------------------------------------------------------------


def media(peers: Peers, short: bool) -> list[dict[str, Any]]:
    model = build(paper_vocabulary())
    full = FullLogits(model)
    cases = [(Modality.IMAGE, 256, 8, 8, 1.0), (Modality.AUDIO, 2 * RATE, 10, 8, 1.0)]
    if not short:
        cases += [(Modality.IMAGE, 1024, 8, 1, g) for g in (1.0, 3.0)]
        cases += [(Modality.AUDIO, 2 * RATE, 10, 1, g) for g in (1.0, 3.0)]
    rows = []
    for modality, length, steps, batch, guidance_scale in cases:
        is_picture = modality == Modality.IMAGE
        name = f"picture, {length:,} tokens" if is_picture else f"speech, {length / RATE:g} s"
        progress(f"{name}, batch {batch}, guidance {guidance_scale:g}")
        calls = media_samplers(model, full, peers, modality, length, steps, batch, guidance_scale)
        seconds = in_turns(calls, rounds=1, warm=0)
        each = seconds["ours"] / batch / (1 if is_picture else length / RATE)
        unit = "s a picture" if is_picture else "s a second of speech"
        row = {"what": name, "looks": steps, "batch": batch, "guidance": guidance_scale, "ours": f"{each:.2f} {unit}"}
        rows.append(row | {f"over {key}": seconds[key] / seconds["ours"] for key in seconds if key != "ours"})
        progress(f"{rows[-1]}")
    return rows


def media_samplers(
    model: Transformer,
    full: FullLogits,
    peers: Peers,
    modality: Modality,
    length: int,
    steps: int,
    batch: int,
    guidance_scale: float,
) -> dict[str, Callable[[], object]]:
    vocabulary = model.vocabulary
    text = known(Modality.TEXT, np.random.default_rng(1).integers(vocabulary.text, size=24))
    canvas = Canvas(text, masked(modality, length), hide=True)
    layout = lay_out(canvas, vocabulary)
    tokens = torch.from_numpy(layout.tokens).expand(batch, -1).contiguous()
    shared = {
        "start": layout.starts[0],
        "length": length,
        "steps": steps,
        "mask_id": vocabulary.mask(modality),
        "ids": vocabulary.data_ids(modality),
        "hidden": torch.from_numpy(layout.hidden).expand(batch, -1),
        "text_mask_id": vocabulary.mask(Modality.TEXT),
        "guidance": guidance_scale,
    }
    settings = SamplingConfig(
        sampler="maskgit", num_steps=steps, guidance_scale=guidance_scale, options={"choice_temperature": 1.0}
    )
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: generate(model, [canvas] * batch, settings, range(batch)),
        "MMaDA's way": lambda: full_maskgit(full, tokens, **shared),
    }
    if modality == Modality.IMAGE and (mmada := peers.mmada()) is not None:
        calls["MMaDA's code"] = lambda: _mmada(mmada, full, tokens, shared)
    return calls


def _mmada(their: Callable[..., Tensor], full: FullLogits, tokens: Tensor, shared: dict[str, Any]) -> Tensor:
    """Their order is the text, then the picture and one token; their codes follow the text's ids."""
    start, length, ids = shared["start"], shared["length"], shared["ids"]
    picture, words = tokens[:, start : start + length], tokens[:, start + length + 1 :]
    begin_, end = tokens[:, :start], tokens[:, start + length : start + length + 1]
    asked = torch.cat([begin_, words, picture, end], dim=1)
    prefix = begin_.shape[1] + words.shape[1]
    blind = asked.clone()
    blind[:, begin_.shape[1] : prefix] = shared["text_mask_id"]
    seen = torch.ones_like(asked)
    is_guided = shared["guidance"] != 1
    return their(
        _Called(full),
        input_ids=asked.clone(),
        uncond_input_ids=blind if is_guided else None,
        attention_mask=seen,
        uncond_attention_mask=seen if is_guided else None,
        timesteps=shared["steps"],
        guidance_scale=shared["guidance"] - 1,
        seq_len=length,
        mask_token_id=shared["mask_id"],
        resolution=prefix - 1,
        codebook_size=len(ids),
        uni_prompting=argparse.Namespace(text_tokenizer=range(ids.start)),
    )


class _Called:
    """A model that takes the bias of their attention, and needs none: everything sees everything."""

    def __init__(self, full: FullLogits):
        self.full = full

    def __call__(self, tokens: Tensor, attention_bias: Tensor) -> Any:
        return self.full(tokens)


def main() -> None:
    parser = arguments(__doc__)
    add_peers(parser)
    args = parser.parse_args()
    begin(args)
    peers = peers_of(args)
    distributions = dist(peers, 1000 if args.short else 20_000)
    table("Are both of one law? (p: chance of a difference as large if they are)", distributions)
    found = texts(peers, args.short)
    table("Texts: tokens a second", found)
    pictures = media(peers, args.short)
    table("Pictures and speech: seconds", pictures)
    save(args, dist=distributions, texts=found, media=pictures)


if __name__ == "__main__":
    main()
