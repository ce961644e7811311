"""The model as a sampler calls it: a forward pass, guidance, allowed tokens, and a draw for each requested position."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.sample.batch import Need, Proposals, RequestBatch
from triptych.sample.canvas import CanvasTokens
from triptych.sample.forward import LogitsReader, Network, hidden_states
from triptych.sample.logits import Categorical, apply_cfg, mask_specials
from triptych.utils.rng import SampleStream
from triptych.vocab import Modality

# B requests, T positions, n requested positions, D hidden dimensions

Index = tuple[Tensor, ...]
"""Rows and columns of positions in a [B, T] tensor."""


@dataclass(frozen=True)
class Forecast:
    """What the model expects at all masked positions before a step: after guidance, before temperature and top-p."""

    where: Tensor
    """[B, T] bool, the n masked positions."""
    ids: Tensor
    """[n, k] int64, the k most probable ids of every position, best first; 0 where a modality has fewer."""
    prob: Tensor
    """[n, k] float64, their probabilities."""
    entropy: Tensor
    """[n] float64, in nats."""
    confidence: Tensor
    """[B, T] float64, the probability of the id that is drawn at a position; 0 where none is."""


class Observer(Protocol):
    """Gets a forecast before every step. Observing changes no result; it costs logits of all masked positions."""

    top_k: int

    def __call__(self, step: int, forecast: Forecast) -> None: ...


class ModelPredictor:
    """A `Predictor` that draws from a network. With `guidance_scale` 1 the unconditional branch is not computed."""

    def __init__(
        self,
        network: Network,
        layouts: Sequence[CanvasTokens],
        batch: RequestBatch,
        *,
        guidance_scale: float = 1.0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        observer: Observer | None = None,
    ):
        self.network, self.batch, self.observer = network, batch, observer
        self.guidance_scale, self.temperature, self.top_p = guidance_scale, temperature, top_p
        device = batch.tokens.device
        self._modality_BT = torch.from_numpy(np.stack([layout.modality for layout in layouts])).to(device)
        self._allow_eos_BT = torch.from_numpy(np.stack([layout.allow_eos for layout in layouts])).to(device)
        self._hidden_BT = torch.from_numpy(np.stack([layout.hidden for layout in layouts])).to(device)
        self._reader = LogitsReader(network)

    def __call__(self, tokens: Tensor, where: Tensor, step: int, need: Need = "ids") -> Proposals:
        observer = self.observer
        if observer is None:
            states = self.hidden_states(tokens, where)
        else:
            masked = self.batch.masked & (tokens == self.batch.mask_ids)
            all_states = self.hidden_states(tokens, masked)
            states = tuple(state[where[masked]] for state in all_states)
        ids = tokens.clone()
        log_prob, entropy = torch.zeros(2, *tokens.shape, dtype=torch.float64, device=tokens.device)
        uniform = self.batch.uniform(step, SampleStream.TOKEN)
        for modality in Modality:
            first = self.network.vocabulary.ids(modality).start

            def use(at: Index, dist: Categorical, first: int = first) -> None:
                drawn = dist.draw(uniform[at], self.temperature, self.top_p)
                ids[at] = drawn + first
                if need == "confidence" or observer is not None:
                    log_prob[at] = dist.log_prob(drawn)
                if need == "entropy":
                    entropy[at] = dist.entropy

            self.for_each_distribution(use, states, where, modality)
        if observer is not None:
            confidence = log_prob.exp().masked_fill(~where, 0.0)
            observer(step, self._forecast(all_states, masked, observer.top_k, confidence))
        return Proposals(ids, log_prob, entropy)

    def _forecast(self, states: tuple[Tensor, ...], masked: Tensor, top_k: int, confidence: Tensor) -> Forecast:
        shape, device = (*masked.shape, top_k), masked.device
        ids, prob = (torch.zeros(shape, dtype=dtype, device=device) for dtype in (torch.int64, torch.float64))
        entropy = torch.zeros(masked.shape, dtype=torch.float64, device=device)
        for modality in Modality:
            first, count = self.network.vocabulary.ids(modality).start, self.network.vocabulary.num_logits(modality)

            def use(at: Index, dist: Categorical, first: int = first, count: int = min(top_k, count)) -> None:
                local, likely = dist.most_probable(count)
                ids[at] = F.pad(local + first, (0, top_k - count))
                prob[at] = F.pad(likely, (0, top_k - count))
                entropy[at] = dist.entropy

            self.for_each_distribution(use, states, masked, modality)
        return Forecast(masked, ids[masked], prob[masked], entropy[masked], confidence)

    def hidden_states(self, tokens: Tensor, where: Tensor) -> tuple[Tensor, ...]:
        """Hidden states [n, D] of the positions `where`: one tensor with the text, and with guidance one without.

        Requests without a position in `where` are left out of the forward pass.
        """
        is_needed = where.any(1)
        branches = [tokens[is_needed]]
        if self.guidance_scale != 1:
            branches.append(torch.where(self._hidden_BT, self.batch.mask_ids, tokens)[is_needed])
        states = hidden_states(self.network, torch.cat(branches), torch.cat([where[is_needed]] * len(branches)))
        return tuple(states.chunk(len(branches)))

    def for_each_distribution(
        self, use: Callable[[Index, Categorical], None], states: tuple[Tensor, ...], where: Tensor, modality: Modality
    ) -> None:
        """Call use(index, distribution) for the positions `where` of a modality, a few at a time.

        The index selects the positions in a [B, T] tensor; a distribution has one row for each. Several threads make
        these calls, so one may write only to its own positions.
        """
        positions = (where & (self._modality_BT == modality)).nonzero()
        if not len(positions):
            return
        own = (self._modality_BT[where] == modality).nonzero()[:, 0]

        def use_piece(rows: slice, logits: list[Tensor]) -> None:
            at = tuple(positions[rows].T)
            guided = logits[0] if len(logits) == 1 else apply_cfg(logits[0], logits[1], self.guidance_scale)
            use(at, Categorical(mask_specials(guided, self._allow_eos_BT[at])))

        self._reader.for_each_piece(use_piece, modality, *(state[own] for state in states))
