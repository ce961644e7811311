"""Completions of a prompt, block by block from left to right, until a stop string, an EOS or the maximum length.

    canvas      [TASK BOS prompt, earlier blocks, masked block]

Within a block the most confident tokens are filled first (`low_confidence`, as LLaDA does). Blocks that come later are
not in the canvas, so a completion costs what it is long, not what it might be long.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from triptych.errors import CheckpointError
from triptych.eval.text.likelihood import check_seed
from triptych.model.transformer import Transformer
from triptych.sample.batch import RequestBatch
from triptych.sample.canvas import CanvasTokens
from triptych.sample.checks import check_count
from triptych.sample.forward import MAX_TOKENS_PER_PASS
from triptych.sample.logits import Categorical
from triptych.sample.predictor import Index, ModelPredictor
from triptych.sample.samplers import make_sampler
from triptych.tokenizers.base import Tokenizer
from triptych.utils.rng import random_bits
from triptych.vocab import Modality, Task

_HEAD = 2  # TASK and BOS


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How prompts are completed."""

    block_length: int = 32
    """Tokens that are masked at a time."""
    tokens_per_step: int = 1
    """Tokens that are filled in a forward pass."""
    guidance_scale: float = 1.0
    """Classifier-free guidance, as for likelihoods."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("block_length", self.block_length)
        check_count("tokens_per_step", self.tokens_per_step)
        check_seed(self.seed)


@dataclass(frozen=True, eq=False)
class GenerationRequest:
    """One prompt, as ids of the text tokenizer, that fits the model together with its completion."""

    prompt: np.ndarray
    max_tokens: int
    until: tuple[str, ...] = ()
    """The completion ends before the first of these strings."""
    temperature: float = 0.0
    number: int = 0
    """Of 64 bits, for random draws."""


@dataclass(frozen=True)
class _State:
    request: GenerationRequest
    written: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    text: str = ""
    is_done: bool = False


def fit_prompt(prompt: np.ndarray, max_tokens: int, seq_len: int) -> tuple[np.ndarray, int]:
    """The end of a prompt and a number of new tokens that fit a sequence together.

    A prompt that is too long is cut on the left, but new tokens never take more than half of the sequence from it.
    """
    room = seq_len - _HEAD
    new = min(max_tokens, max(room - len(prompt), room // 2))
    return prompt[max(0, len(prompt) - (room - new)) :], new


@torch.inference_mode()
def complete(
    model: Transformer,
    tokenizer: Tokenizer[str],
    requests: Sequence[GenerationRequest],
    config: GenerationConfig = GenerationConfig(),  # noqa: B008 (frozen)
) -> list[str]:
    """The completion of every prompt. A result does not depend on the other requests."""
    states = [_State(request, is_done=request.max_tokens < 1) for request in requests]
    round_ = 0
    while pending := [i for i, state in enumerate(states) if not state.is_done]:
        groups: dict[tuple[int, int, float], list[int]] = {}
        for i in pending:
            request, done = states[i].request, len(states[i].written)
            size = min(config.block_length, request.max_tokens - done)
            groups.setdefault((len(request.prompt) + done, size, request.temperature), []).append(i)
        for (given, size, temperature), members in groups.items():
            copies = 1 if config.guidance_scale == 1 else 2
            most = max(1, MAX_TOKENS_PER_PASS // (copies * (_HEAD + given + size)))
            for first in range(0, len(members), most):
                part = members[first : first + most]
                blocks = _fill_block(model, [states[i] for i in part], size, temperature, round_, config)
                for i, ids in zip(part, blocks):
                    states[i] = _extended(states[i], ids, model, tokenizer)
        round_ += 1
    return [state.text for state in states]


def _fill_block(
    model: Transformer, states: Sequence[_State], size: int, temperature: float, round_: int, config: GenerationConfig
) -> np.ndarray:
    """[B, size] unified ids of the next block of prompts of equal length."""
    vocabulary, device = model.vocabulary, next(model.parameters()).device
    head, mask = [vocabulary.task(Task.TEXT), vocabulary.bos(Modality.TEXT)], vocabulary.mask(Modality.TEXT)
    layouts = []
    for state in states:
        given = vocabulary.to_global(Modality.TEXT, np.concatenate([state.request.prompt, state.written]))
        tokens = np.concatenate([head, given, np.full(size, mask)]).astype(np.int64)
        masked = np.arange(len(tokens)) >= len(tokens) - size
        is_prompt = (np.arange(len(tokens)) >= _HEAD) & (np.arange(len(tokens)) < _HEAD + len(state.request.prompt))
        layouts.append(
            CanvasTokens(tokens, masked, np.zeros(len(tokens), np.uint8), masked.copy(), is_prompt, (len(tokens),))
        )
    seeds = [int(random_bits(config.seed, state.request.number, round_)[0]) for state in states]
    batch = RequestBatch.from_layouts(layouts, seeds, vocabulary, device)
    predictor = _CheckedPredictor(model, layouts, batch, guidance_scale=config.guidance_scale, temperature=temperature)
    num_steps = -(-size // config.tokens_per_step)
    return make_sampler("low_confidence", {}).run(predictor, batch, num_steps).cpu().numpy()[:, -size:]


class _CheckedPredictor(ModelPredictor):
    """Refuses logits that are not finite: draws from them would be some token, and an answer like any other."""

    def for_each_distribution(
        self, use: Callable[[Index, Categorical], None], states: tuple[Tensor, ...], where: Tensor, modality: Modality
    ) -> None:
        def check(at: Index, distribution: Categorical) -> None:
            # One bad logit spoils the logarithm of the sum, and so the probability of every token.
            first = torch.zeros(len(at[0]), dtype=torch.int64, device=where.device)
            if not torch.isfinite(distribution.log_prob(first)).all():
                raise CheckpointError(
                    "the model gives logits that are not finite for a completion: its weights are damaged or it "
                    "overflows; evaluate another checkpoint."
                )
            use(at, distribution)

        super().for_each_distribution(check, states, where, modality)


def _extended(state: _State, block: np.ndarray, model: Transformer, tokenizer: Tokenizer[str]) -> _State:
    """The state after a block, up to its EOS or a stop string."""
    ends = np.flatnonzero(block == model.vocabulary.eos(Modality.TEXT))
    new = model.vocabulary.to_local(Modality.TEXT, block[: ends[0]] if len(ends) else block)
    written = np.concatenate([state.written, new])
    text = tokenizer.decode([written])[0]
    stops = [at for at in (text.find(stop) for stop in state.request.until if stop) if at >= 0]
    is_done = bool(len(ends) or stops or len(written) >= state.request.max_tokens)
    return replace(state, written=written, text=text[: min(stops)] if stops else text, is_done=is_done)
