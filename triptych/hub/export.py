"""From a training run to a model anyone can load: the newest checkpoint, with a card written from the run's records."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from triptych.errors import CheckpointError, UserError
from triptych.hub.format import Limits
from triptych.hub.pipeline import Pipeline
from triptych.model.transformer import ModelConfig, Transformer
from triptych.recipes import recipe
from triptych.tokenizers.bundle import TokenizerBundle
from triptych.training import checkpoint as ckpt
from triptych.training.config import PromptConfig, differences, fill_in, to_json
from triptych.training.logging import read_records
from triptych.utils.legacy import with_current_keys


def pipeline_of_run(folder: Path) -> Pipeline:
    """The newest checkpoint of a run: the running mean of its weights, if it kept one."""
    saved = ckpt.list_checkpoints(folder / "checkpoints")
    if not saved:
        raise CheckpointError(f"{folder} holds no checkpoint yet; train it first, or name a saved model.")
    found = ckpt.load(saved[-1], "model", "ema")
    config = _saved_config(found.state["config"])
    bundle = TokenizerBundle.load(config["tokenizers"])
    if found.state["vocabulary"] != bundle.vocabulary.fingerprint or found.state["tokenizers"] != bundle.fingerprints:
        raise CheckpointError(
            f"{saved[-1]} was trained with another vocabulary or other tokenizers than {config['tokenizers']!r}."
        )
    model = Transformer(ModelConfig(**found.state.get("shape", config["model"])), bundle.vocabulary)
    model.load_state_dict(found.part("ema") or found.part("model"))
    presets = config["sampling_preset"]
    return Pipeline(model, bundle, limits_of(config), presets=presets, card=write_card(folder, found.step, model))


def _saved_config(saved: dict[str, Any]) -> dict[str, Any]:
    """The configuration in a checkpoint, with current keys and everything the recipe of its name would add today."""
    config = with_current_keys(saved)
    if "prompts" not in config:
        try:
            planned = to_json(recipe(config["recipe"]))
        except (KeyError, UserError):
            planned = {"prompts": to_json(PromptConfig()), "sampling_preset": "paper"}
        config |= {key: planned[key] for key in ("prompts", "sampling_preset")}
    return config


def limits_of(config: dict[str, Any]) -> Limits:
    """What a run of this configuration (as JSON) learns to handle."""
    seq_len, ends = config["loader"]["seq_len"], config["loader"]["open_ends"]
    return Limits(
        seq_len=seq_len,
        text_slot=ends["text"] if ends["probability"] and ends["text"] else None,
        audio_slot=ends["audio"] if ends["probability"] * ends["audio_share"] and ends["audio"] else None,
        words=tuple(config["prompts"]["words"]),
        caption_prompt=config["prompts"]["caption_prompt"],
    )


def write_card(folder: Path, step: int, model: Transformer) -> str:
    """The model card, in the hub's form, from what the run recorded of itself."""
    records = read_records(folder / "records.jsonl")
    starts = [event for event in records if event["kind"] == "run" and event["step"] <= step]
    start = starts[-1] if starts else {}
    changes = ", ".join(map(str, _stages(starts)[1:]))
    losses = [event for event in records if event["kind"] == "validation" and event["step"] <= step]
    tokens = sum(event["tokens"] for event in records if event["kind"] == "step" and event["step"] <= step)
    environment: dict[str, Any] = start.get("environment", {})
    shape = model.config
    lines = [
        "---",
        "library_name: triptych",
        "license: apache-2.0",
        "pipeline_tag: any-to-any",
        "tags: [masked-diffusion, text-to-image, image-to-text, text-to-speech, automatic-speech-recognition]",
        "---",
        f"# {start.get('recipe', folder.name)}",
        "",
        "One masked-diffusion model for text, pictures and sound, trained with Triptych.",
        "",
        "| | |",
        "|---|---|",
        f"| parameters | {start.get('parameters', 0):,} ({start.get('non_embedding', 0):,} without embeddings) |",
        f"| shape | {shape.num_layers} layers, width {shape.width}, {shape.num_heads} heads, d_ff {shape.d_ff} |",
        f"| vocabulary | {model.vocabulary.size:,} ids: {_fields(model.vocabulary)} |",
        f"| trained | {step:,} steps, {tokens:,} tokens{_beginning(start)} |",
        f"| with | {_versions(environment)} |",
        f"| on | {environment.get('machine')} |",
        "",
    ]
    if losses:
        lines += [
            f"Negative ELBO on held-out data after step {losses[-1]['step']:,}, in nats per token (k-uniform estimate, "
            "95 % margin over sequences):",
            "",
            "| term | nats per token | tokens |",
            "|---|---|---|",
        ]
        for name, value in losses[-1]["nelbo"].items():
            shown = name.replace("|", " given ")
            loss, margin = (math.nan if value[key] is None else value[key] for key in ("nats_per_token", "margin"))
            lines.append(f"| {shown} | {loss:.3f} ± {margin:.3f} | {value['tokens']:,} |")
        lines.append("")
    lines += [
        "## Use",
        "",
        "```python",
        "from triptych.hub.pipeline import Pipeline",
        "",
        'pipe = Pipeline.from_pretrained("FOLDER_OR_NAME")',
        'pipe.text_to_image("two cats left of a red heart").save("cats.png")',
        "```",
        "",
        f"Trained with `triptych train {start.get('recipe', 'RECIPE')}`{_departures(start)}"
        + (f", its configuration changed on the way, at steps {changes}." if changes else "."),
        "",
    ]
    return "\n".join(lines)


def _beginning(start: dict[str, Any]) -> str:
    name = start.get("config", {}).get("init_from")
    return f", beginning with the weights of {Path(name).name}" if name else ""


def _departures(start: dict[str, Any]) -> str:
    """What decides the weights and is not as in the recipe of that name, as it is today."""
    try:
        planned = to_json(recipe(start["recipe"]))
    except (KeyError, UserError):
        return ""
    done = {**fill_in(start["config"], recipe(start["recipe"])), "init_from": planned["init_from"]}  # said already
    found = differences(planned, done)
    return f" with changes to the recipe ({'; '.join(found)})" if found else ""


def _stages(starts: list[dict[str, Any]]) -> list[int]:
    """The steps at which a configuration began that was not the one before."""
    changed = [i for i, event in enumerate(starts) if not i or event["config"] != starts[i - 1]["config"]]
    return [starts[i]["step"] for i in changed]


def _versions(environment: dict[str, Any]) -> str:
    commit, torch = environment.get("commit"), environment.get("torch")
    return f"triptych {environment.get('triptych')} at {commit}, torch {torch}"


def _fields(value: Any) -> str:
    return ", ".join(f"{f.name} {getattr(value, f.name):,}" for f in dataclasses.fields(value))
