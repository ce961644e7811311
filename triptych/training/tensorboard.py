"""TensorBoard: curves of the run's events, and samples of the current model."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych.errors import require
from triptych.hub.format import Limits
from triptych.hub.pipeline import Pipeline
from triptych.model.transformer import Transformer
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.state import Run
from triptych.utils.config import to_json
from triptych.vocab import Modality

_SECONDS = 2.0  # duration of speech, if the model has not learned to choose it
_SCALARS = ("loss", "lr", "grad_norm", "tokens_per_second", "mfu")


class TensorBoardLogger:
    """Writes events to RUN/tensorboard."""

    def __init__(self, folder: Path, bundle: TokenizerBundle):
        require("tensorboard", "train", "writing for TensorBoard")
        from torch.utils.tensorboard import SummaryWriter

        self.bundle = bundle
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def __call__(self, event: dict[str, Any]) -> None:
        if event["kind"] == "step":
            values = {name: event.get(name) for name in _SCALARS}
            values |= {f"nll {name}": value for name, value in event["nll"].items()}
            self._add_scalars("train", values, event["step"])
        elif event["kind"] == "validation":
            values = {
                name.replace("|", " given "): estimate["nats_per_token"] for name, estimate in event["nelbo"].items()
            }
            self._add_scalars("val", values, event["step"])
        elif event["kind"] in ("saved", "end"):
            self._writer.flush()

    def _add_scalars(self, group: str, values: dict[str, float | None], step: int) -> None:
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(f"{group}/{name}", value, step)

    @torch.no_grad()
    def show_samples(self, run: Run, model: Transformer) -> None:
        """Show an image of each example prompt of the run, and speech of the last one."""
        prompts, step = list(run.config.prompts.examples), run.state.step
        if not prompts:
            return
        limits = Limits.of_run(to_json(run.config))
        pipe = Pipeline(model, self.bundle, limits, preset=run.config.sampling_preset)
        if Modality.IMAGE in self.bundle:
            for prompt, image in zip(prompts, pipe.text_to_image(prompts, num_steps=16)):
                self._writer.add_image(prompt, np.asarray(image), step, dataformats="HWC")
        if Modality.AUDIO in self.bundle:
            speech = pipe.text_to_speech(prompts[-1], None if limits.audio_slot else _SECONDS)
            self._writer.add_audio(prompts[-1], torch.from_numpy(speech.samples)[None], step, speech.sample_rate)
        model.train()
        self._writer.flush()
