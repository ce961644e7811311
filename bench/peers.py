"""How others train and sample, on the backbone that is measured: our words for their methods, and their own code.

What each does is stated here from its description, so that the comparison runs anywhere. Given a checkout
(`--peer llada=PATH`, `dllm=PATH`, `mmada=PATH`), the functions themselves are taken out of their files and called
with the same model: not a line of theirs is kept here, nor is anything else of them imported.

    LLaDA     generate: logits of every position and every id, Gumbel noise in float64 on all of them, a softmax of all;
              the surest (or random) masked positions of a block are kept
    dllm      MDLMSampler: the same, with numbers of tokens a step from a schedule
    MMaDA     t2i_generate: logits of every position and every id, of which the picture's are kept; MaskGIT's rule
"""

import argparse
import ast
import math
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.model.transformer import Transformer
from triptych.vocab import Modality

NAMES = ("llada", "dllm", "mmada")


class FullLogits:
    """A model as others call it: tokens [B, T] to logits [B, T, V] of every id.

    `only` hides other ids than these, which costs a pass: to compare results, not times.
    """

    device = torch.device("cpu")

    def __init__(self, model: Transformer, only: range | None = None):
        self.model = model
        self.table = torch.cat(model.unembed.blocks).detach()  # once, to their advantage
        self.hidden_ids = None
        if only is not None:
            self.hidden_ids = torch.ones(len(self.table), dtype=torch.bool)
            self.hidden_ids[only] = False

    def __call__(self, tokens: Tensor, attention_mask: Tensor | None = None, **_: Any) -> SimpleNamespace:
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        logits = F.linear(self.model(tokens, positions), self.table)
        if self.hidden_ids is not None:
            logits[..., self.hidden_ids] = -1e9  # finite: guidance subtracts
        return SimpleNamespace(logits=logits)


# -- sampling, in our words -------------------------------------------------------------------------------------------


@torch.no_grad()
def full_generate(
    model: FullLogits,
    prompt: Tensor,
    *,
    length: int,
    steps: int,
    mask_id: int,
    temperature: float,
    guidance_scale: float = 1.0,
    remasking: str = "low_confidence",
) -> Tensor:
    """LLaDA's and dllm's way, in one block behind the prompt."""
    tokens = torch.cat([prompt, torch.full((len(prompt), length), mask_id)], dim=1)
    is_given = tokens != mask_id
    for step in range(steps):
        is_masked = tokens == mask_id
        count = length // steps + (step < length % steps)
        if guidance_scale == 1:
            logits = model(tokens).logits
        else:
            blind = tokens.masked_fill(is_given, mask_id)
            cond, uncond = model(torch.cat([tokens, blind])).logits.chunk(2)
            logits = uncond + guidance_scale * (cond - uncond)
        noisy = logits
        if temperature > 0:
            doubled = logits.double()
            noisy = doubled.exp() / (-torch.rand_like(doubled).log()) ** temperature
        drawn = noisy.argmax(-1)
        if remasking == "low_confidence":
            confidence = logits.softmax(-1).gather(-1, drawn[..., None])[..., 0]
        else:
            confidence = torch.rand(tokens.shape)
        kept = confidence.masked_fill(~is_masked, -torch.inf).topk(count, dim=1).indices
        chosen = torch.zeros_like(is_masked).scatter_(1, kept, True)
        tokens = torch.where(chosen, drawn, tokens)
    return tokens


@torch.no_grad()
def full_maskgit(
    model: FullLogits,
    tokens: Tensor,
    *,
    start: int,
    length: int,
    steps: int,
    mask_id: int,
    ids: range,
    hidden: Tensor,
    text_mask_id: int,
    guidance_scale: float,
    temperature: float = 1.0,
) -> Tensor:
    """MMaDA's way with a picture of `length` codes at `start`: logits of all, of which those of the codes are used."""
    tokens, here = tokens.clone(), slice(start, start + length)
    for step in range(steps):
        if guidance_scale == 1:
            logits = model(tokens).logits
        else:
            cond, uncond = model(torch.cat([tokens, tokens.masked_fill(hidden, text_mask_id)])).logits.chunk(2)
            logits = guidance_scale * cond - (guidance_scale - 1) * uncond
        dist = logits[:, here, ids.start : ids.stop].softmax(-1)
        drawn = torch.multinomial(dist.reshape(-1, len(ids)), 1).view(len(tokens), length)
        is_open = tokens[:, here] == mask_id
        drawn = torch.where(is_open, drawn, tokens[:, here] - ids.start)
        ratio = (step + 1) / steps
        left = (torch.tensor(length * math.cos(math.pi / 2 * ratio)).floor().long()).clamp(min=1)
        left = torch.minimum(left, is_open.sum(1, keepdim=True) - 1).clamp(min=1)
        confidence = dist.gather(-1, drawn[..., None].clamp(0, len(ids) - 1))[..., 0].clamp(min=1e-20).log()
        gumbel = -(-torch.rand(confidence.shape).clamp(min=1e-20).log()).clamp(min=1e-20).log()
        confidence = (confidence + temperature * (1 - ratio) * gumbel).masked_fill(~is_open, torch.inf)
        again = confidence < confidence.sort(dim=1).values.gather(1, left)
        tokens[:, here] = torch.where(again & torch.tensor(ratio < 1), mask_id, drawn + ids.start)
    return tokens


# -- training, in our words -------------------------------------------------------------------------------------------


def every_logit(model: Transformer, seen: Tensor) -> Tensor:
    """[B, T, V], differentiable: the usual head."""
    positions = torch.arange(seen.shape[1]).expand_as(seen)
    return F.linear(model(seen, positions), torch.cat(model.unembed.blocks))


def usual_loss(model: Transformer, seen: Tensor, true: Tensor, is_masked: Tensor, weight: Tensor) -> Tensor:
    """Logits and cross-entropy of every position, weighed: what dllm's trainer and most others do."""
    nll = F.cross_entropy(every_logit(model, seen).transpose(1, 2), true, reduction="none")
    return (nll * weight * is_masked).sum()


def guideline_loss(model: Transformer, seen: Tensor, true: Tensor, is_masked: Tensor, weight: Tensor) -> Tensor:
    """LLaDA's guideline: logits of every position, cross-entropy of the masked ones."""
    nll = F.cross_entropy(every_logit(model, seen)[is_masked], true[is_masked], reduction="none")
    return (nll * weight[is_masked]).sum()


# -- their own code ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peers:
    """Checkouts of others, by name."""

    paths: dict[str, Path]

    def llada(self) -> Callable[..., Tensor] | None:
        path = self.paths.get("llada")
        if path is None:
            return None
        names = ("add_gumbel_noise", "get_num_transfer_tokens", "generate")
        return _functions(path / "generate.py", names, {"torch": torch, "np": np, "F": F})["generate"]

    def dllm(self) -> Callable[..., Tensor] | None:
        """`sample(model, prompts, mask_id, **config)`."""
        path = self.paths.get("dllm")
        if path is None:
            return None
        _packages(path, "dllm", "dllm.core", "dllm.core.samplers")
        from dllm.core.samplers.mdlm import MDLMSampler, MDLMSamplerConfig  # type: ignore[import-not-found]

        def sample(model: FullLogits, prompts: Sequence[Tensor], mask_id: int, **config: Any) -> Tensor:
            tokenizer = SimpleNamespace(mask_token_id=mask_id, bos_token_id=0, eos_token_id=0)
            sampler = MDLMSampler(model=model, tokenizer=tokenizer)
            return sampler.sample(list(prompts), MDLMSamplerConfig(**config))

        return sample

    def dllm_loss(self) -> Callable[..., Tensor] | None:
        """`loss(model, tokens, mask_id)`: their trainer's, with masks that it draws itself."""
        path = self.paths.get("dllm")
        if path is None:
            return None
        _packages(path, "dllm", "dllm.core")
        from dllm.core.schedulers import LinearAlphaScheduler  # type: ignore[import-not-found]

        names = ("_preprocess_inputs", "_postprocess_outputs", "_compute_loss_weights", "compute_loss")
        space = {
            "torch": torch,
            "nn": torch.nn,
            "F": F,
            "Any": Any,
            "transformers": SimpleNamespace(PreTrainedModel=object),
        }
        methods = _functions(path / "dllm" / "core" / "trainers" / "mdlm.py", names, space)

        def loss(model: Callable[..., Any], tokens: Tensor, mask_id: int) -> Tensor:
            trainer = SimpleNamespace(
                processing_class=SimpleNamespace(padding_side="right", mask_token_id=mask_id),
                right_shift_logits=False,
                time_epsilon=1e-3,
                scheduler=LinearAlphaScheduler(),
                loss_weight_type="scheduler",
                loss_norm_type="token",
                meter=SimpleNamespace(update=lambda **_: None),
            )
            for name in names:
                setattr(trainer, name, types.MethodType(methods[name], trainer))
            return trainer.compute_loss(_Trained(model), {"input_ids": tokens, "labels": tokens})

        return loss

    def mmada(self) -> Callable[..., Tensor] | None:
        """`t2i_generate(model, ...)`."""
        path = self.paths.get("mmada")
        if path is None:
            return None
        rules = _functions(
            path / "models" / "sampling.py",
            ("log", "gumbel_noise", "mask_by_random_topk", "cosine_schedule"),
            {"torch": torch, "math": math},
        )
        file = path / "models" / "modeling_mmada.py"
        return _functions(file, ("t2i_generate",), {"torch": torch, **rules})["t2i_generate"]


class _Trained:
    """What their trainer takes for a model."""

    training = True

    def __init__(self, logits: Callable[[Tensor], Tensor]):
        self.logits = logits

    def __call__(self, input_ids: Tensor, attention_mask: Tensor | None) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits(input_ids))


def _packages(path: Path, *names: str) -> None:
    """Packages without their own beginnings, which import what is not needed here."""
    for name in names:
        package = types.ModuleType(name)
        package.__path__ = [str(path.joinpath(*name.split(".")))]
        sys.modules[name] = package


def _functions(path: Path, names: Sequence[str], namespace: dict[str, Any]) -> dict[str, Any]:
    """Functions and methods of a file by name, without running the rest of it."""
    tree = ast.parse(path.read_text())
    found = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names}
    missing = [name for name in names if name not in found]
    if missing:
        raise SystemExit(f"{path} has no function {missing[0]!r}: is this the right checkout?")
    space = dict(namespace)
    for name in names:
        module = ast.Module([found[name]], type_ignores=[])
        exec(compile(module, str(path), "exec"), space)
    return {name: space[name] for name in names}


def add_peers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=PATH", help=f"a checkout of one of {', '.join(NAMES)}"
    )


def peers_of(args: argparse.Namespace) -> Peers:
    paths = {}
    for text in args.peer:
        name, _, path = text.partition("=")
        if name not in NAMES or not Path(path).is_dir():
            raise SystemExit(f"expected --peer NAME=PATH with a name of {', '.join(NAMES)} and a folder, got {text!r}.")
        paths[name] = Path(path)
    return Peers(paths)


def text_ids(model: Transformer) -> range:
    return model.vocabulary.data_ids(Modality.TEXT)
