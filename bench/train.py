"""Speed of training steps, compared with this machine's fastest matrix product and with other implementations.

    python bench/train.py [--short] [--json FILE] [--peer dllm=PATH] [--compile]

1. MFU: FLOPs of a step, divided by those of the machine's fastest float32 matrix product in the same time. "backbone"
   is the forward and backward pass of the blocks on whole rows. "step" is everything: loader, masks, head, clipping,
   AdamW, EMA. Only FLOPs that are executed count, not those that the last block skips for unpredicted positions.
2. Time of the parts of a step, each measured alone on the shapes of the step.
3. One step with 117,698 ids, compared with the usual head (logits of all positions), with LLaDA's guideline and, given
   a checkout, with dllm's trainer, on the same backbone with the same optimizer; and the memory of the head.
"""

import copy
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import (
    base_parser,
    peak_bytes,
    print_table,
    product,
    progress,
    random_data,
    save_results,
    start_benchmark,
    time_interleaved,
)
from peers import add_peers, every_logit, guideline_loss, peers_of, usual_loss
from torch import Tensor

from triptych.data.loader import Loader
from triptych.model.flops import flops
from triptych.model.layers import rotary_angles
from triptych.model.segments import Segments, whole_rows
from triptych.model.transformer import ModelConfig, Targets, Transformer, initialise
from triptych.recipes import recipe
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import RunConfig
from triptych.training.distributed import clip_gradients
from triptych.training.ranks import Ranks
from triptych.training.step import (
    ModelInput,
    build_model,
    build_optimizer,
    micro_inputs,
    train_step,
    update_ema,
)
from triptych.vocab import Modality, Vocabulary, paper_vocabulary

WIDE = ModelConfig(num_layers=4, width=512, num_heads=4, d_ff=1408)
CPU = torch.device("cpu")


# -- share of the peak ------------------------------------------------------------------------------------------------


def backbone(shape: ModelConfig, rows: int, length: int, compiled: bool = False) -> Callable[[], object]:
    """A call that does one forward and backward pass of the blocks."""
    model = Transformer(shape, Vocabulary(text=8, image=8, audio=8))
    initialise(model, 0)
    for block in model.blocks if compiled else ():
        block.compile()
    x = torch.randn(rows * length, shape.width, requires_grad=True)
    upstream = torch.randn(rows * length, shape.width)
    positions = torch.arange(length).repeat(rows)
    angles, segments = rotary_angles(positions, shape.head_width, shape.rope_base), whole_rows(rows, length, CPU)

    def call() -> None:
        model.zero_grad()
        x.grad, hidden = None, x
        for block in model.blocks:
            hidden = block(hidden, *angles, segments)
        hidden.backward(upstream)

    return call


def executed_flops(shape: ModelConfig, segments: Segments, num_queries: int, columns: float) -> float:
    """FLOPs of a forward and backward pass over these sequences, with `num_queries` predicted positions."""
    tokens = sum(segments.lengths)
    context = sum(length**2 for length in segments.lengths) / tokens
    per_token = flops(shape, paper_vocabulary(), context, predicted=num_queries / tokens, columns=columns)
    return per_token.training * tokens


def columns_of(shape: ModelConfig, vocabulary: Vocabulary, counts: tuple[int, ...]) -> float:
    """Mean number of logits per predicted position."""
    sizes = [vocabulary.num_logits(modality) for modality in Modality]
    return float(sum(sizes)) if shape.softmax_scope == "full" else float(np.average(sizes, weights=counts))


def mfu(short: bool, compiled: bool) -> list[dict[str, Any]]:
    scenes = recipe("scenes").model
    cases = {
        "scenes, 12 x 144": (scenes, 12, 144),
        "4 x 512, 8 x 256": (WIDE, 8, 256),
        "4 x 512, 4 x 1,024": (WIDE, 4, 1024),
        "4 x 512, 1 x 3,256": (WIDE, 1, 3256),
    }
    rows, rounds = [], 3 if short else 9
    for name, (shape, count, length) in list(cases.items())[: 2 if short else None]:
        progress(f"backbone: {name}")
        best, best_work = product()
        calls = {"backbone": backbone(shape, count, length), "product": best}
        if compiled:
            calls["backbone, compiled"] = backbone(shape, count, length, compiled=True)
        times = time_interleaved(calls, rounds)
        peak = best_work / times.pop("product")
        work = executed_flops(shape, whole_rows(count, length, CPU), count * length, columns=0)
        for what, seconds in times.items():
            rows.append(
                {"model": name, "what": what, "MFU": work / seconds / peak, "tokens/s": count * length / seconds}
            )
    rows.append(scenes_step(rounds))
    return rows


def scenes_step(rounds: int) -> dict[str, Any]:
    """`train_step`, the loader and the EMA update, on real batches."""
    progress("full steps of scenes")
    with tempfile.TemporaryDirectory() as folder:
        bundle = TokenizerBundle.load("scenes")
        config = replace(recipe("scenes"), data=random_data(Path(folder), bundle), validation_data=())
        model, ranks = build_model(config, bundle.vocabulary), Ranks()
        optimizer, ema = build_optimizer(model, config.resolved), copy.deepcopy(model)
        best, best_work = product()
        work, tokens, count, times = 0.0, 0, 6 * rounds, [0.0, 0.0]
        with Loader(list(config.data), config.loader, num_steps=count + 2) as loader:
            for number in range(count + 2):
                began = time.perf_counter()
                step = next(loader)
                train_step(model, optimizer, step, config, bundle.vocabulary, CPU, ranks)
                update_ema(ema, model, 0.999)
                ended = time.perf_counter()
                if number < 2:
                    continue
                best()
                times[0] += ended - began
                times[1] += time.perf_counter() - ended
                tokens += step.num_tokens
                work += sum(_work(config, inputs, bundle.vocabulary) for inputs in _inputs(config, step, bundle))
        seconds, peak = times[0], count * best_work / times[1]
    return {"model": "scenes, 48 sequences", "what": "step", "MFU": work / seconds / peak, "tokens/s": tokens / seconds}


def _inputs(config: RunConfig, step: Any, bundle: TokenizerBundle) -> list[ModelInput]:
    return list(micro_inputs(step, config, bundle.vocabulary, CPU, Ranks()))


def _work(config: RunConfig, inputs: ModelInput, vocabulary: Vocabulary) -> float:
    counts = inputs.targets.counts
    return executed_flops(config.model, inputs.segments, sum(counts), columns_of(config.model, vocabulary, counts))


# -- where the time goes ----------------------------------------------------------------------------------------------


def parts_of_scenes(rounds: int) -> list[dict[str, Any]]:
    progress("parts of a step of scenes")
    with tempfile.TemporaryDirectory() as folder:
        bundle = TokenizerBundle.load("scenes")
        config = replace(recipe("scenes"), data=random_data(Path(folder), bundle), validation_data=())
        model = build_model(config, bundle.vocabulary)
        optimizer, ema = build_optimizer(model, config.resolved), copy.deepcopy(model)
        with Loader(list(config.data), replace(config.loader, prefetch=0), num_steps=10**6) as loader:
            step = next(loader)
            (inputs,) = _inputs(config, step, bundle)
            calls = _parts(model, inputs)
            calls["masks and tensors"] = lambda: _inputs(config, step, bundle)
            calls["loader (beside the training)"] = lambda: next(loader)
            calls["clipping"] = lambda: clip_gradients(model.parameters(), 1e9)
            calls["AdamW"] = optimizer.step
            calls["EMA"] = lambda: update_ema(ema, model, 0.999)

            def full_step() -> None:
                train_step(model, optimizer, step, config, bundle.vocabulary, CPU)
                # train_step frees the gradients; the parts above need them.
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
                update_ema(ema, model, 0.999)

            calls["full step"] = full_step
            full_step()
            return _shares(time_interleaved(calls, rounds), config.model.num_layers)


def parts_of_wide(rounds: int) -> list[dict[str, Any]]:
    progress("parts of a step of 4 x 512 with 117,698 ids")
    model, inputs = wide_model("modality"), wide_inputs()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    calls = _parts(model, inputs)
    calls["clipping"] = lambda: clip_gradients(model.parameters(), 1e9)
    calls["AdamW"] = optimizer.step

    def full_step() -> None:
        model.loss(inputs.tokens, inputs.positions, inputs.segments, inputs.targets).total.backward()
        clip_gradients(model.parameters(), 1e9)
        optimizer.step()

    calls["full step"] = full_step
    full_step()
    return _shares(time_interleaved(calls, rounds), WIDE.num_layers)


def _parts(model: Transformer, inputs: ModelInput) -> dict[str, Callable[[], object]]:
    """Calls that do one forward and backward pass of each part, on the shapes of the step."""
    segments, block = inputs.segments, model.blocks[0]
    tokens = segments.gather(inputs.tokens)
    cos, sin = rotary_angles(segments.gather(inputs.positions), model.config.head_width, model.config.rope_base)
    x = torch.randn(len(tokens), model.config.width, requires_grad=True)
    up = torch.randn_like(x)
    hidden = torch.randn(len(inputs.targets.query_idx), model.config.width, requires_grad=True)
    return {
        "embedding": lambda: model.embed(tokens).backward(up),
        "attention": lambda: block.attention(block.norm1(x), cos, sin, segments).backward(up),  # type: ignore[operator,union-attr]
        "MLP": lambda: block.mlp(block.norm2(x)).backward(up),  # type: ignore[operator,union-attr]
        "head": lambda: model.loss_from_hidden(hidden, inputs.targets).total.backward(),
    }


def _shares(seconds: dict[str, float], layers: int) -> list[dict[str, Any]]:
    full_step = seconds.pop("full step")
    rows = []
    for name, part in seconds.items():
        times = layers if name in ("attention", "MLP") else 1
        rows.append(
            {"part": f"{name}, {layers} times" if times > 1 else name, "share of a step": times * part / full_step}
        )
    counted = sum(row["share of a step"] for row in rows if "beside" not in row["part"])
    return [*rows, {"part": "sum, without what is beside it", "share of a step": counted}]


# -- against others ---------------------------------------------------------------------------------------------------

ROWS, LENGTH = 6, 256


def wide_model(scope: str) -> Transformer:
    model = Transformer(replace(WIDE, softmax_scope=scope), paper_vocabulary())  # type: ignore[arg-type]
    initialise(model, 0)
    return model


def wide_tokens() -> tuple[Tensor, Tensor, Tensor]:
    """True ids, masked ids and modalities of two rows each of text, images and speech, half of the positions masked."""
    vocabulary, rng = paper_vocabulary(), np.random.default_rng(0)
    modality = np.repeat(np.arange(ROWS) % 3, LENGTH).reshape(ROWS, LENGTH)
    true = np.zeros((ROWS, LENGTH), np.int64)
    for kind in Modality:
        ids = vocabulary.data_ids(kind)
        true[modality == kind] = rng.integers(ids.start, ids.stop, size=int((modality == kind).sum()))
    masks = vocabulary.mask_ids[modality]
    is_masked = rng.random((ROWS, LENGTH)) < 0.5
    return torch.from_numpy(true), torch.from_numpy(np.where(is_masked, masks, true)), torch.from_numpy(modality)


def wide_inputs() -> ModelInput:
    true, seen, modality = wide_tokens()
    rows = (seen != true).flatten().nonzero()[:, 0]
    rows = rows[modality.flatten()[rows].argsort(stable=True)]
    counts = modality.flatten()[rows].bincount(minlength=3).tolist()
    weight = torch.full((len(rows),), 1 / len(rows))
    targets = Targets(rows, true.flatten()[rows], weight, torch.full((len(rows),), 1e-5 / len(rows)), tuple(counts))
    return ModelInput(seen, torch.arange(LENGTH).expand(ROWS, LENGTH), whole_rows(ROWS, LENGTH, CPU), targets)


def against(args: Any, rounds: int) -> list[dict[str, Any]]:
    progress("one step with 117,698 ids")
    true, seen, _ = wide_tokens()
    inputs, is_masked = wide_inputs(), seen != true
    weight = torch.full(true.shape, 1 / int(is_masked.sum()))
    dllm, mask = peers_of(args).dllm_loss(), paper_vocabulary().mask(Modality.TEXT)

    def ours(model: Transformer) -> Tensor:
        return model.loss(inputs.tokens, inputs.positions, inputs.segments, inputs.targets).total

    losses: dict[str, Callable[[Transformer], Tensor]] = {
        "ours, softmax over all ids": ours,
        "ours, softmax over a modality": ours,
        "usual head (logits of all positions)": lambda model: usual_loss(model, seen, true, is_masked, weight),
        "LLaDA's guideline": lambda model: guideline_loss(model, seen, true, is_masked, weight),
    }
    if dllm is not None:
        losses["dllm's trainer"] = lambda model: dllm(lambda t: every_logit(model, t), true, mask)
    model = wide_model("full")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(name: str) -> Callable[[], None]:
        def call() -> None:
            model.config = replace(model.config, softmax_scope="modality" if "modality" in name else "full")
            losses[name](model).backward()
            optimizer.step()
            optimizer.zero_grad()

        return call

    # All of these compute the same loss.
    values = {
        name: float(loss(model).detach())
        for name, loss in losses.items()
        if "modality" not in name and "dllm" not in name
    }
    assert max(values.values()) - min(values.values()) < 1e-2, values
    seconds = time_interleaved({name: step(name) for name in losses}, rounds)

    def backbone_alone() -> None:
        hidden = model(seen, inputs.positions)
        hidden.backward(torch.ones_like(hidden))
        optimizer.zero_grad()

    # The head's memory is what exceeds a pass without a head and the gradient of the unembedding, which all need.
    base = peak_bytes(backbone_alone) + 4 * sum(p.numel() for p in model.unembed.parameters())
    rows, usual = [], "usual head (logits of all positions)"
    for name in losses:
        optimizer.zero_grad()
        model.config = replace(model.config, softmax_scope="modality" if "modality" in name else "full")
        extra = max(0, peak_bytes(lambda name=name: losses[name](model).backward()) - base)
        rows.append(
            {"loss": name, "speed over the usual": seconds[usual] / seconds[name], "MB of the head": extra / 1e6}
        )
    usual_mb = next(row["MB of the head"] for row in rows if row["loss"] == usual)
    return [row | {"of the usual": row["MB of the head"] / usual_mb} for row in rows]


def main() -> None:
    parser = base_parser(__doc__)
    add_peers(parser)
    parser.add_argument("--only-mfu", action="store_true", help="only the first table")
    parser.add_argument("--compile", action="store_true", help="also with blocks compiled by torch.compile")
    args = parser.parse_args()
    start_benchmark(args)
    rounds = 2 if args.short else 7
    shares = mfu(args.short, args.compile)
    print_table("Share of the best float32 matrix product (MFU)", shares)
    if args.only_mfu:
        save_results(args, mfu=shares)
        return
    heads = against(args, 1 if args.short else 3)
    print_table("One step of 4 x 512 with 117,698 ids, 6 rows of 256, half of the positions masked", heads)
    scenes, wide = parts_of_scenes(rounds), parts_of_wide(1 if args.short else 3)
    print_table("Where the time of a step of scenes goes", scenes)
    print_table("Where the time of a step of 4 x 512 with 117,698 ids goes (softmax over a modality)", wide)
    save_results(args, mfu=shares, heads=heads, parts_of_scenes=scenes, parts_of_wide=wide)


if __name__ == "__main__":
    main()
