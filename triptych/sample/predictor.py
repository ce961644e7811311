"""The model as a sampler calls it: a forward pass, guidance, allowed tokens, and a draw for each requested position."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from triptych.sample.batch import Need, Proposals, RequestBatch
from triptych.sample.canvas import CanvasTokens
from triptych.sample.forward import LogitsReader, Network, hidden_states
from triptych.sample.logits import Categorical, apply_cfg, mask_specials
from triptych.utils.rng import SampleStream
from triptych.vocab import Modality

# B requests, T positions, n requested positions, D hidden dimensions


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
    ):
        self.network, self.batch = network, batch
        self.guidance_scale, self.temperature, self.top_p = guidance_scale, temperature, top_p
        device = batch.tokens.device
        self._modality_BT = torch.from_numpy(np.stack([layout.modality for layout in layouts])).to(device)
        self._allow_eos_BT = torch.from_numpy(np.stack([layout.allow_eos for layout in layouts])).to(device)
        self._hidden_BT = torch.from_numpy(np.stack([layout.hidden for layout in layouts])).to(device)
        self._reader = LogitsReader(network)

    def __call__(self, tokens: Tensor, where: Tensor, step: int, need: Need = "ids") -> Proposals:
        states = self.hidden_states(tokens, where)
        ids = tokens.clone()
        log_prob, entropy = torch.zeros(2, *tokens.shape, dtype=torch.float64, device=tokens.device)
        uniform = self.batch.uniform(step, SampleStream.TOKEN)
        for modality in Modality:
            for at, dist in self.distributions(states, where, modality):
                drawn = dist.draw(uniform[at], self.temperature, self.top_p)
                ids[at] = drawn + self.network.vocabulary.ids(modality).start
                if need == "confidence":
                    log_prob[at] = dist.log_prob(drawn)
                elif need == "entropy":
                    entropy[at] = dist.entropy
        return Proposals(ids, log_prob, entropy)

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

    def distributions(
        self, states: tuple[Tensor, ...], where: Tensor, modality: Modality
    ) -> Iterator[tuple[tuple[Tensor, ...], Categorical]]:
        """Yield (index, distribution) for the positions `where` of a modality, a few at a time.

        The index selects the positions in a [B, T] tensor; a distribution has one row for each.
        """
        positions = (where & (self._modality_BT == modality)).nonzero()
        if not len(positions):
            return
        own = (self._modality_BT[where] == modality).nonzero()[:, 0]
        for rows, logits in self._reader.pieces(modality, *(state[own] for state in states)):
            at = tuple(positions[rows].T)
            guided = logits[0] if len(logits) == 1 else apply_cfg(logits[0], logits[1], self.guidance_scale)
            yield at, Categorical(mask_specials(guided, self._allow_eos_BT[at]))
