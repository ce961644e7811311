"""log p(answer | prompt) of a text model, as a lower bound that is estimated with the answer partly masked.

    canvas      [TASK BOS prompt answer]      the prompt is never masked
    estimate    minus the weighted sum of the masked tokens' negative log-likelihoods, over the masks of `masks`

The estimate is a pure function of the seed and the request. On a CPU it is the same bit for bit in any batch and any
order (docs/decisions/0009): canvases share a forward pass only if they are equally long. Canvases that are equal are
computed once, which makes four answers of one letter as cheap as one.
"""

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from triptych.errors import CheckpointError, UserError, did_you_mean
from triptych.eval.text.masks import Masks, all_masks, drawn_masks, longest_enumerable
from triptych.model.transformer import Transformer
from triptych.sample.checks import check_count, check_number
from triptych.sample.forward import MAX_TOKENS_PER_PASS, LogitsReader, hidden_states
from triptych.sample.logits import Categorical, apply_cfg
from triptych.utils.rng import random_bits
from triptych.vocab import Modality, Task

# M masks of one answer, L its tokens, T positions of a canvas, B canvases, n masked positions of all canvases

MaskSharing = Literal["common", "independent"]
End = Literal["none", "given", "scored"]
MOST_ENUMERATED = 16  # tokens: 65,535 masks


def check_seed(seed: object) -> None:
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise UserError(f"seed must be a whole number, got {seed!r}.")


@dataclass(frozen=True, kw_only=True)
class LikelihoodConfig:
    """How log-likelihoods are estimated."""

    mc_num: int = 128
    """Masks drawn for each answer."""
    batch_size: int | None = None
    """Masked canvases in a forward pass; None for as many as have 16,384 tokens. It does not change results."""
    masks: MaskSharing = "common"
    """Whether the choices of a question are masked alike: "common" removes most of the noise from their differences."""
    exact_up_to: int | None = None
    """Answers of up to this many tokens are computed exactly, with all their masks. None for as long as there are no
    more than `mc_num` masks: 7 tokens with 128. 0 draws masks for all."""
    controlled: bool = True
    """Whether the estimate takes out the noise of some tokens being masked more often than others; see `masks`. False
    is the estimator of LLaDA's code. Both have the same expectation."""
    guidance_scale: float = 1.0
    """Classifier-free guidance: logits are uncond + guidance_scale * (cond - uncond), where the unconditional branch
    has a masked prompt. 1 is off; other values double the cost. The scale of LLaDA's code is this minus 1."""
    end: End = "none"
    """What follows the answer: "none" for nothing, as in a text that is cut there; "given" for an EOS that the model
    sees, so that it knows the length; "scored" for an EOS that is predicted as a part of the answer."""
    seed: int = 0
    """Of the masks."""

    def __post_init__(self) -> None:
        check_count("mc_num", self.mc_num)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        if self.exact_up_to is not None and (
            isinstance(self.exact_up_to, bool)
            or not isinstance(self.exact_up_to, int)
            or not 0 <= self.exact_up_to <= MOST_ENUMERATED
        ):
            raise UserError(
                f"exact_up_to must be a whole number of tokens between 0 and {MOST_ENUMERATED}, "
                f"which have {2**MOST_ENUMERATED - 1:,} masks; got {self.exact_up_to!r}."
            )
        for name, kind in (("masks", MaskSharing), ("end", End)):
            value = getattr(self, name)
            if value not in get_args(kind):
                raise UserError(f"unknown {name} {value!r}.{did_you_mean(str(value), list(get_args(kind)))}")
        if not isinstance(self.controlled, bool):
            raise UserError(f"controlled must be True or False, got {self.controlled!r}.")
        check_seed(self.seed)
        check_number("guidance_scale", self.guidance_scale, "of at least 0 (1 is off)", lambda x: 0 <= x < math.inf)

    @property
    def longest_exact(self) -> int:
        """Tokens of the longest answer whose masks are enumerated."""
        return longest_enumerable(self.mc_num) if self.exact_up_to is None else self.exact_up_to

    @property
    def num_specials(self) -> int:
        """Positions of a canvas besides prompt and answer."""
        return 2 if self.end == "none" else 3


@dataclass(frozen=True, eq=False)
class TextRequest:
    """One answer after one prompt, as ids of the text tokenizer."""

    prompt: np.ndarray
    answer: np.ndarray
    question: int = 0
    """A number of 64 bits. Answers with equal numbers share their masks, if masks are common."""
    choice: int = 0
    """Number of the answer among those of the question; it tells independent masks apart."""
    is_last: bool = True
    """Whether the text ends with the answer. Only then an EOS may follow it."""


@dataclass(frozen=True)
class Likelihood:
    """A log-likelihood."""

    nats: float
    """Estimate of a lower bound on log p(answer | prompt). An estimate may be above 0."""
    is_greedy: bool
    """Whether the answer is one token, and the most probable one. Longer answers have no greedy order here: False."""


@dataclass(frozen=True, eq=False)
class MaskedLosses:
    """The losses of an answer under each of its masks."""

    masks: Masks
    losses: np.ndarray
    """[M, L] negative log-likelihoods; 0 for visible tokens."""
    is_greedy: bool
    """As in `Likelihood`."""


class LikelihoodEstimator:
    """Estimates log-likelihoods with one model."""

    def __init__(self, model: Transformer, config: LikelihoodConfig = LikelihoodConfig()):  # noqa: B008 (frozen)
        self.model, self.config = model, config
        self.device = next(model.parameters()).device
        self._reader = LogitsReader(model)
        self.num_passes = 0
        """Canvases computed so far, without duplicates; two per canvas with guidance."""

    def __call__(self, requests: Sequence[TextRequest]) -> list[Likelihood]:
        """The log-likelihood of every request."""
        results = []
        for masked in self.losses(requests):
            nats = -masked.masks.estimate(masked.losses, controlled=self.config.controlled)
            if not math.isfinite(nats):
                raise CheckpointError(
                    f"the model gives an answer a log-likelihood of {nats}, expected a finite number: its weights are "
                    "damaged or it overflows; evaluate another checkpoint."
                )
            results.append(Likelihood(nats, masked.is_greedy))
        return results

    @torch.inference_mode()
    def losses(self, requests: Sequence[TextRequest]) -> list["MaskedLosses"]:
        """What the estimates are made of."""
        works = [_Work(self._canvas(request), self._masks(request)) for request in requests]
        by_length: dict[int, list[_Work]] = {}
        for work in works:
            by_length.setdefault(len(work.canvas.tokens), []).append(work)
        for length, members in by_length.items():
            self._compute(members, self._batch_size(length))
        return [MaskedLosses(work.masks, work.losses, work.is_token and work.is_best) for work in works]

    # -- one request --------------------------------------------------------------------------------------------------

    def _canvas(self, request: TextRequest) -> "_Canvas":
        vocabulary, end = self.model.vocabulary, self._end_of(request)
        head = [vocabulary.task(Task.TEXT), vocabulary.bos(Modality.TEXT)]
        prompt, answer = (vocabulary.to_global(Modality.TEXT, ids) for ids in (request.prompt, request.answer))
        tail = [] if end == "none" else [vocabulary.eos(Modality.TEXT)]
        start = len(head) + len(prompt)
        scored = len(answer) + (end == "scored")
        tokens = np.concatenate([head, prompt, answer, tail]).astype(np.int64)
        return _Canvas(tokens, slice(len(head), start), slice(start, start + scored))

    def _end_of(self, request: TextRequest) -> End:
        return self.config.end if request.is_last else "none"

    def _masks(self, request: TextRequest) -> Masks:
        config, length = self.config, len(request.answer) + (self._end_of(request) == "scored")
        if length <= config.longest_exact:
            return all_masks(length)
        key = request.question
        if config.masks == "independent":
            key = int(random_bits(key, request.choice)[0])
        return drawn_masks(length, config.mc_num, config.seed, key)

    # -- canvases of equal length -------------------------------------------------------------------------------------

    def _batch_size(self, length: int) -> int:
        """Different canvases in a forward pass."""
        branches = 1 if self.config.guidance_scale == 1 else 2
        most = self.config.batch_size or MAX_TOKENS_PER_PASS // length
        return max(1, most // branches)

    def _compute(self, works: Sequence["_Work"], batch_size: int) -> None:
        """Fill in the log-probabilities of works with equally long canvases, in batches of different canvases."""
        mask = self.model.vocabulary.mask(Modality.TEXT)
        batch: dict[tuple[bytes, int], _Row] = {}
        for work in works:
            for number in range(len(work.masks.weights)):
                row = work.masked_row(number, mask)
                # With guidance the same canvas has another unconditional branch if its prompt ends elsewhere.
                key = row.tobytes(), work.canvas.scored.start
                if key not in batch and len(batch) == batch_size:
                    self._run(list(batch.values()))
                    batch = {}
                batch.setdefault(key, _Row(row, work.canvas.prompt, [])).wanted.append((work, number))
        if batch:
            self._run(list(batch.values()))

    def _run(self, rows: Sequence["_Row"]) -> None:
        """One forward pass. Writes the log-probability of every target of every row."""
        mask = self.model.vocabulary.mask(Modality.TEXT)
        cond_BT = np.stack([row.tokens for row in rows])
        branches = [cond_BT]
        if self.config.guidance_scale != 1:
            uncond_BT = cond_BT.copy()
            for tokens, row in zip(uncond_BT, rows):
                tokens[row.prompt] = mask
            branches.append(uncond_BT)
        where_BT = cond_BT == mask
        self.num_passes += len(branches) * len(rows)
        tokens = torch.from_numpy(np.concatenate(branches)).to(self.device)
        where = torch.from_numpy(np.concatenate([where_BT] * len(branches))).to(self.device)
        states = tuple(hidden_states(self.model, tokens, where).chunk(len(branches)))

        # A masked position may have several targets: one for each request that shares the canvas.
        places, targets = [], []
        counts = where_BT.sum(1)
        for row, first in zip(rows, np.cumsum(counts) - counts):
            columns = np.flatnonzero(row.tokens == mask)
            for work, _ in row.wanted:
                places.append(first + np.arange(len(columns)))
                targets.append(work.canvas.tokens[columns])
        place_n, target_n = np.concatenate(places), np.concatenate(targets)
        needs_best = any(work.is_token for row in rows for work, _ in row.wanted)
        log_prob_n, is_best_n = self._log_probs(states, place_n, target_n, needs_best)
        at = 0
        for row in rows:
            for work, number in row.wanted:
                stop = at + int(work.masks.is_masked[number].sum())
                work.take(number, log_prob_n[at:stop], is_best_n[at:stop])
                at = stop

    def _log_probs(
        self, states: tuple[Tensor, ...], place_n: np.ndarray, target_n: np.ndarray, needs_best: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """For each pair of a hidden state and a target: log p(target), and whether no token is more probable."""
        order = np.argsort(place_n, kind="stable")
        place_n = place_n[order]
        columns_n = target_n[order] - self.model.vocabulary.ids(Modality.TEXT).start
        target = torch.from_numpy(columns_n).to(self.device)
        at_target, in_text = torch.zeros(2, len(order), dtype=torch.float64, device=self.device)
        is_best = torch.zeros(len(order), dtype=torch.bool, device=self.device)

        def use(part: slice, logits: Tensor) -> None:
            at_target[part] = logits.gather(1, target[part, None])[:, 0].double()
            if needs_best:
                is_best[part] = logits.argmax(1) == target[part]
            in_text[part] = Categorical(logits).log_prob(target[part])

        self._for_each_piece(use, states, place_n, Modality.TEXT)
        log_prob = in_text.cpu().numpy()
        if self.model.config.softmax_scope == "full":
            # The softmax of training covers the ids of all modalities. numpy, because the last bit of torch's logaddexp
            # depends on the length of a tensor.
            log_total = (at_target - in_text).cpu().numpy()
            for modality in (Modality.IMAGE, Modality.AUDIO):
                log_total = np.logaddexp(log_total, self._log_totals(states, place_n, modality))
            log_prob = at_target.cpu().numpy() - log_total
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return log_prob[back], is_best.cpu().numpy()[back]

    def _log_totals(self, states: tuple[Tensor, ...], place_n: np.ndarray, modality: Modality) -> np.ndarray:
        """Log-sum-exp of the logits of a modality, for each of the hidden states `place_n`."""
        log_total = torch.zeros(len(place_n), dtype=torch.float64, device=self.device)

        def use(part: slice, logits: Tensor) -> None:
            first = logits[:, 0].double()
            ids = torch.zeros(len(logits), dtype=torch.int64, device=self.device)
            log_total[part] = first - Categorical(logits).log_prob(ids)

        self._for_each_piece(use, states, place_n, modality)
        return log_total.cpu().numpy()

    def _for_each_piece(
        self,
        use: Callable[[slice, Tensor], None],
        states: tuple[Tensor, ...],
        place_n: np.ndarray,
        modality: Modality,
    ) -> None:
        """Call use(slice of the pairs, their logits), a few at a time and in threads; `place_n` is ascending."""

        def use_piece(rows: slice, logits: list[Tensor]) -> None:
            first, last = np.searchsorted(place_n, (rows.start, rows.stop))
            if first == last:
                return
            own = torch.from_numpy(place_n[first:last] - rows.start).to(self.device)
            branches = [part.index_select(0, own) for part in logits]
            guided = (
                branches[0] if len(branches) == 1 else apply_cfg(branches[0], branches[1], self.config.guidance_scale)
            )
            use(slice(int(first), int(last)), guided)

        self._reader.for_each_piece(use_piece, modality, *states)


@dataclass(frozen=True, eq=False)
class _Canvas:
    tokens: np.ndarray
    """[T] ids of the unified vocabulary."""
    prompt: slice
    scored: slice
    """The answer, with the EOS if it is scored."""


class _Work:
    """A request with the losses that were computed so far."""

    def __init__(self, canvas: _Canvas, masks: Masks):
        self.canvas, self.masks = canvas, masks
        self.losses = np.zeros(masks.is_masked.shape)
        self.is_token = masks.is_masked.shape == (1, 1)
        self.is_best = False

    def masked_row(self, number: int, mask: int) -> np.ndarray:
        row = self.canvas.tokens.copy()
        row[self.canvas.scored][self.masks.is_masked[number]] = mask
        return row

    def take(self, number: int, log_probs: np.ndarray, is_best: np.ndarray) -> None:
        self.losses[number, self.masks.is_masked[number]] = -log_probs
        self.is_best = bool(is_best.all())


@dataclass(frozen=True, eq=False)
class _Row:
    """A masked canvas, and the masks of requests that it serves."""

    tokens: np.ndarray
    prompt: slice
    wanted: list[tuple[_Work, int]]
