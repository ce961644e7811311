"""TensorBoard as a reader of the run's events, with pictures and speech of the model as it is."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from triptych.errors import require
from triptych.hub.export import limits_of
from triptych.hub.pipeline import Pipeline
from triptych.model.transformer import Transformer
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training.config import to_json
from triptych.training.setup import Run

_SECONDS = 2.0  # of speech, where the model has not learned to choose


class Board:
    """Hears events and writes RUN/tensorboard."""

    def __init__(self, folder: Path, bundle: TokenizerBundle):
        require("tensorboard", "train", "writing for TensorBoard")
        from torch.utils.tensorboard import SummaryWriter

        self.bundle = bundle
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def __call__(self, event: dict[str, Any]) -> None:
        step = event.get("step", 0)
        if event["kind"] == "step":
            for name in ("loss", "lr", "grad_norm", "tokens_per_second", "mfu"):
                if event.get(name) is not None:
                    self._writer.add_scalar(f"train/{name}", event[name], step)
            for name, value in event["nll"].items():
                if value is not None:
                    self._writer.add_scalar(f"train/nll {name}", value, step)
        elif event["kind"] == "validation":
            for name, value in event["nelbo"].items():
                if value["nats_per_token"] is not None:
                    self._writer.add_scalar(f"held out/{name.replace('|', ' given ')}", value["nats_per_token"], step)
        elif event["kind"] in ("saved", "end"):
            self._writer.flush()

    @torch.no_grad()
    def show_samples(self, run: Run, model: Transformer) -> None:
        """Draw and speak a few prompts. Only a model of the embedded world has such prompts."""
        prompts = run.config.prompts.examples
        if not prompts:
            return
        pipe = Pipeline(model, self.bundle, limits_of(to_json(run.config)))
        for prompt, picture in zip(prompts, pipe.text_to_image(list(prompts), num_steps=16)):
            self._writer.add_image(prompt, np.asarray(picture), run.step, dataformats="HWC")
        sound = pipe.speak(prompts[-1], None if pipe.limits.audio_slot else _SECONDS)
        self._writer.add_audio(prompts[-1], torch.from_numpy(sound.samples)[None], run.step, sound.rate)
        model.train()
        self._writer.flush()
