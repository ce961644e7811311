"""Scaling rule for batch size and number of tokens.

AdamW with noisy gradients approximates a stochastic differential equation (SDE). Runs with different batch sizes and
lengths approximate the same SDE if

    lr -> lr sqrt(kappa)    beta -> beta^kappa    eps -> eps / sqrt(kappa)    decay -> decay sqrt(kappa)

kappa = (base tokens / tokens)^gamma (batch / base batch) is the length of a step in SDE time, relative to the base
run. gamma decides how a longer run uses its tokens: with gamma = 0 the noise stays the same and SDE time grows, with
gamma = 1 SDE time stays the same and the noise falls. The paper found 0.44.

The paper does not scale weight decay. Without that, the result of a run depends on the batch size
(tests/transfer/test_sde.py).
"""

from dataclasses import dataclass

from triptych.errors import UserError


@dataclass(frozen=True)
class Sde:
    """A run relative to the base run. Batches are in sequences of the base's length, or in tokens: ratios matter.

    With complementary masks both masked copies of a sequence count: half as many sequences, each seen twice, are the
    same batch.
    """

    batch: float
    steps: float
    base_batch: float
    base_steps: float
    gamma: float = 0.44

    def __post_init__(self) -> None:
        for name in ("batch", "steps", "base_batch", "base_steps"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UserError(f"{name} must be positive, got {getattr(self, name)!r}.")
        if not 0 <= self.gamma <= 1:
            raise UserError(f"gamma must lie between 0 (same noise) and 1 (same horizon), got {self.gamma!r}.")

    @property
    def tokens_ratio(self) -> float:
        """m_D: tokens of the run over tokens of the base run."""
        return self.batch * self.steps / (self.base_batch * self.base_steps)

    @property
    def kappa(self) -> float:
        """SDE time of a step, relative to a step of the base run."""
        return self.batch / self.base_batch * self.tokens_ratio**-self.gamma

    @property
    def virtual_batch(self) -> float:
        """Batch size with which the base hyperparameters approximate the same SDE."""
        return self.batch / self.kappa

    @property
    def virtual_steps(self) -> float:
        """Number of steps of that run."""
        return self.steps * self.kappa
