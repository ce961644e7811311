"""How hyperparameters follow the batch size and the number of tokens.

AdamW with noisy gradients follows a stochastic differential equation. Steps of another size follow the same one if

    lr -> lr sqrt(kappa)    beta -> beta^kappa    eps -> eps / sqrt(kappa)    decay -> decay sqrt(kappa)

with kappa = (base tokens / tokens)^gamma (batch / base batch). gamma = 0 keeps the ratio of signal to noise when a run
becomes longer, gamma = 1 the time on the equation's clock; the paper found 0.44 between them.

The paper leaves weight decay out; without it, where a run ends depends on the batch size (tests/transfer/test_sde.py).
"""

from dataclasses import dataclass

from triptych.errors import UserError


@dataclass(frozen=True)
class Sde:
    """A run as seen from its base: batches in sequences of the base's length, or in tokens; only ratios matter."""

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
        """m_D."""
        return self.batch * self.steps / (self.base_batch * self.base_steps)

    @property
    def kappa(self) -> float:
        return self.batch / self.base_batch * self.tokens_ratio**-self.gamma

    @property
    def virtual_batch(self) -> float:
        """The batch whose run at the base's own hyperparameters follows the same equation."""
        return self.batch / self.kappa

    @property
    def virtual_steps(self) -> float:
        return self.steps * self.kappa
