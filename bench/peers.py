"""How other projects train and sample, on the backbone that is benchmarked: our implementations of their methods, and
their own code.

The methods are implemented here from their descriptions, so that the comparison runs anywhere. Given a checkout
(`--peer llada=PATH`, `dllm=PATH`, `mmada=PATH`), single functions are loaded from its files and called with the same
model. No code of theirs is copied here, and nothing else of theirs is imported.

    LLaDA     generate: logits of all positions and ids, float64 Gumbel noise and a softmax over all of them; keeps the
              most confident (or random) masked positions of a block
    dllm      MDLMSampler: the same, with the number of tokens per step from a schedule
    MMaDA     t2i_generate: logits of all positions and ids, of which those of the image are used; MaskGIT's rule
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
    """A model with the usual interface: tokens [B, T] to logits [B, T, V] over all ids.

    `only` excludes all other ids. It costs a pass over the logits, so it is for comparing results, not times.
    """

    device = torch.device("cpu")

    def __init__(self, model: Transformer, only: range | None = None):
        self.model = model
        self.table = torch.cat(model.unembed.blocks).detach()  # concatenated once, in their favour
        self.excluded = None
        if only is not None:
            self.excluded = torch.ones(len(self.table), dtype=torch.bool)
            self.excluded[only] = False

    def __call__(self, tokens: Tensor, attention_mask: Tensor | None = None, **_: Any) -> SimpleNamespace:
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        logits = F.linear(self.model(tokens, positions), self.table)
        if self.excluded is not None:
            logits[..., self.excluded] = -1e9  # finite, because guidance subtracts
        return SimpleNamespace(logits=logits)


# -- sampling methods -------------------------------------------------------------------------------------------------


@torch.no_grad()
def full_generate(
    model: FullLogits,
    prompt: Tensor,
    *,
    length: int,
    num_steps: int,
    mask_id: int,
    temperature: float,
    guidance_scale: float = 1.0,
    remasking: str = "low_confidence",
) -> Tensor:
    """LLaDA's and dllm's method, in one block after the prompt."""
    tokens = torch.cat([prompt, torch.full((len(prompt), length), mask_id)], dim=1)
    is_given = tokens != mask_id
    for step in range(num_steps):
        is_masked = tokens == mask_id
        count = length // num_steps + (step < length % num_steps)
        if guidance_scale == 1:
            logits = model(tokens).logits
        else:
            without_prompt = tokens.masked_fill(is_given, mask_id)
            cond, uncond = model(torch.cat([tokens, without_prompt])).logits.chunk(2)
            logits = uncond + guidance_scale * (cond - uncond)
        noisy = logits
        if temperature > 0:
            float64 = logits.double()
            noisy = float64.exp() / (-torch.rand_like(float64).log()) ** temperature
        drawn = noisy.argmax(-1)
        if remasking == "low_confidence":
            confidence = logits.softmax(-1).gather(-1, drawn[..., None])[..., 0]
        else:
            confidence = torch.rand(tokens.shape)
        top = confidence.masked_fill(~is_masked, -torch.inf).topk(count, dim=1).indices
        chosen = torch.zeros_like(is_masked).scatter_(1, top, True)
        tokens = torch.where(chosen, drawn, tokens)
    return tokens


@torch.no_grad()
def full_maskgit(
    model: FullLogits,
    tokens: Tensor,
    *,
    start: int,
    length: int,
    num_steps: int,
    mask_id: int,
    ids: range,
    hidden: Tensor,
    text_mask_id: int,
    guidance_scale: float,
    temperature: float = 1.0,
) -> Tensor:
    """MMaDA's method for an image of `length` codes at `start`: logits of all ids, of which the codes' are used."""
    tokens, image = tokens.clone(), slice(start, start + length)
    for step in range(num_steps):
        if guidance_scale == 1:
            logits = model(tokens).logits
        else:
            cond, uncond = model(torch.cat([tokens, tokens.masked_fill(hidden, text_mask_id)])).logits.chunk(2)
            logits = guidance_scale * cond - (guidance_scale - 1) * uncond
        probs = logits[:, image, ids.start : ids.stop].softmax(-1)
        drawn = torch.multinomial(probs.reshape(-1, len(ids)), 1).view(len(tokens), length)
        is_masked = tokens[:, image] == mask_id
        drawn = torch.where(is_masked, drawn, tokens[:, image] - ids.start)
        ratio = (step + 1) / num_steps
        left = (torch.tensor(length * math.cos(math.pi / 2 * ratio)).floor().long()).clamp(min=1)
        left = torch.minimum(left, is_masked.sum(1, keepdim=True) - 1).clamp(min=1)
        confidence = probs.gather(-1, drawn[..., None].clamp(0, len(ids) - 1))[..., 0].clamp(min=1e-20).log()
        gumbel = -(-torch.rand(confidence.shape).clamp(min=1e-20).log()).clamp(min=1e-20).log()
        confidence = (confidence + temperature * (1 - ratio) * gumbel).masked_fill(~is_masked, torch.inf)
        remask = confidence < confidence.sort(dim=1).values.gather(1, left)
        tokens[:, image] = torch.where(remask & torch.tensor(ratio < 1), mask_id, drawn + ids.start)
    return tokens


# -- training losses --------------------------------------------------------------------------------------------------


def every_logit(model: Transformer, seen: Tensor) -> Tensor:
    """Logits [B, T, V] with gradients: the usual head."""
    positions = torch.arange(seen.shape[1]).expand_as(seen)
    return F.linear(model(seen, positions), torch.cat(model.unembed.blocks))


def usual_loss(model: Transformer, seen: Tensor, true: Tensor, is_masked: Tensor, weight: Tensor) -> Tensor:
    """Weighted cross-entropy from logits of all positions, as in dllm's trainer and most others."""
    nll = F.cross_entropy(every_logit(model, seen).transpose(1, 2), true, reduction="none")
    return (nll * weight * is_masked).sum()


def guideline_loss(model: Transformer, seen: Tensor, true: Tensor, is_masked: Tensor, weight: Tensor) -> Tensor:
    """LLaDA's guideline: logits of all positions, cross-entropy of the masked ones."""
    nll = F.cross_entropy(every_logit(model, seen)[is_masked], true[is_masked], reduction="none")
    return (nll * weight[is_masked]).sum()


# -- original code ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peers:
    """Paths of checkouts of other projects, by name."""

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
        """`loss(model, tokens, mask_id)`: the loss of their trainer, which draws the masks itself."""
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
    """A model with the interface that their trainer expects."""

    training = True

    def __init__(self, logits: Callable[[Tensor], Tensor]):
        self.logits = logits

    def __call__(self, input_ids: Tensor, attention_mask: Tensor | None) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits(input_ids))


def _packages(path: Path, *names: str) -> None:
    """Register packages without running their `__init__`, which would import unrelated dependencies."""
    for name in names:
        package = types.ModuleType(name)
        package.__path__ = [str(path.joinpath(*name.split(".")))]
        sys.modules[name] = package


def _functions(path: Path, names: Sequence[str], namespace: dict[str, Any]) -> dict[str, Any]:
    """Load functions and methods of a file by name, without running the rest of the file."""
    tree = ast.parse(path.read_text())
    nodes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names}
    missing = [name for name in names if name not in nodes]
    if missing:
        raise SystemExit(f"{path} has no function {missing[0]!r}: is this the right checkout?")
    space = dict(namespace)
    for name in names:
        module = ast.Module([nodes[name]], type_ignores=[])
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
