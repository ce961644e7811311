"""The state of a run: what training changes, and what a checkpoint holds of it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from triptych.data.loader import Loader
from triptych.errors import CheckpointError
from triptych.model.transformer import Transformer
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training import checkpoint as ckpt
from triptych.training.config import RunConfig, weight_differences
from triptych.training.guard import GuardState
from triptych.training.ranks import Ranks
from triptych.utils.config import differences, fill_in, to_json


@dataclass
class TrainState:
    """Everything that training changes."""

    model: Transformer
    optimizer: torch.optim.Optimizer
    ema: Transformer | None
    """Exponential moving average of the weights, if the run keeps one."""
    guard: GuardState
    step: int = 0
    """Finished steps."""
    loader: dict[str, Any] | None = None
    """Saved state of the data loader; None in a new run."""

    @property
    def eval_model(self) -> Transformer:
        """The model to validate, sample from and export."""
        return self.ema if self.ema is not None else self.model

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors of a checkpoint, by parameter name rather than by index in a group. Not copies."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        if self.ema is not None:
            tensors |= {f"ema/{name}": value for name, value in self.ema.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            tensors |= {f"optimizer/{name}/{key}": value for key, value in self.optimizer.state[parameter].items()}
        return tensors


@dataclass
class Run:
    """A run in its folder, made by `setup.open_run`."""

    config: RunConfig
    folder: Path
    bundle: TokenizerBundle
    device: torch.device
    ranks: Ranks
    state: TrainState
    force: bool = False
    """Whether to resume although the configuration or the data have changed."""
    messages: list[str] = field(default_factory=list)
    """Messages from the start of the run, for its records."""

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def open_loader(self, num_steps: int) -> Loader:
        """The training data from the current step to step `num_steps`."""
        state, ranks = self.state, self.ranks
        loader = Loader(
            list(self.config.data),
            self.config.loader,
            ranks.rank,
            ranks.size,
            start_step=state.step,
            num_steps=num_steps,
        )
        if state.loader is not None:
            loader.restore({**state.loader, "step": state.step}, force=self.force)
        return loader

    def checkpoint_state(self, loader: Loader, *, is_regular: bool) -> dict[str, Any]:
        """What a checkpoint holds besides the tensors and the step. `is_regular`: saved on schedule, not by a stop."""
        is_rollback_target = is_regular and self.config.guard.spike_sigmas is not None
        return {
            "loader": loader.state(),
            "config": to_json(self.config),
            "shape": to_json(self.state.model.config),
            **self._fingerprints,
            "guard": {**self.state.guard.as_json, "is_anchor": is_rollback_target},
        }

    def restore(self, path: Path) -> None:
        """Resume from a checkpoint, which must be of this configuration, vocabulary and tokenizers unless forced."""
        saved, state = self.ranks.run_on_rank0(lambda: ckpt.read_state(path)), self.state
        fingerprints = self._fingerprints
        try:
            changed = weight_differences(fill_in(saved["config"], self.config), to_json(self.config))
            contents = differences({key: saved[key] for key in fingerprints}, fingerprints)
            changed += [f"content of {each}" for each in contents]
            state.loader = saved["loader"]
        except (KeyError, AttributeError, TypeError) as error:
            raise CheckpointError(f"{path} does not hold the state of a run ({error!r}).") from error
        if changed and not self.force:
            raise CheckpointError(
                f"{path} is of another run: {'; '.join(changed)}. Go back to those values, choose another folder, or "
                "resume with the new values by --force."
            )
        if changed:
            self.messages.append(f"forced to resume after step {saved['step']}, although {'; '.join(changed)}")
        ckpt.load_into(path, state.tensors, self.ranks)
        state.step, state.guard = saved["step"], GuardState.from_json(self.config.guard, saved.get("guard", {}))

    @property
    def _fingerprints(self) -> dict[str, Any]:
        return {"vocabulary": self.bundle.vocabulary.fingerprint, "tokenizers": self.bundle.fingerprints}
