"""The model card, in the hub's form, from what a run recorded of itself."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from triptych.errors import UserError
from triptych.hub.format import Limits
from triptych.model.transformer import Transformer
from triptych.recipes import recipe
from triptych.training.config import weight_differences
from triptych.training.logging import read_records
from triptych.utils.config import fill_in, to_json

_TAGS = "[masked-diffusion, text-to-image, image-to-text, text-to-speech, automatic-speech-recognition]"


def write_card(folder: Path, step: int, model: Transformer, limits: Limits, license: str | None = None) -> str:
    """The card of the model at a step of the run in `folder`. Without a licence, the card names none."""
    records = read_records(folder / "records.jsonl")
    starts = [event for event in records if event["kind"] == "run" and event["step"] <= step]
    start = starts[-1] if starts else {}
    losses = [event for event in records if event["kind"] == "validation" and event["step"] <= step]
    tokens = sum(event["tokens"] for event in records if event["kind"] == "step" and event["step"] <= step)
    return "\n".join(
        [
            "---",
            "library_name: triptych",
            *([f"license: {license}"] if license else []),
            "pipeline_tag: any-to-any",
            f"tags: {_TAGS}",
            "---",
            f"# {start.get('recipe', folder.name)}",
            "",
            "One masked-diffusion model for text, images and audio, trained with Triptych.",
            "",
            *_facts(start, step, tokens, model),
            *(_validation(losses[-1]) if losses else []),
            *_use(limits),
            *_origin(start, starts),
        ]
    )


def _facts(start: dict[str, Any], step: int, tokens: int, model: Transformer) -> list[str]:
    shape, environment = model.config, start.get("environment", {})
    sizes = ", ".join(f"{f.name} {getattr(model.vocabulary, f.name):,}" for f in dataclasses.fields(model.vocabulary))
    name = start.get("config", {}).get("init_from") or start.get("config", {}).get("begin_with")
    origin = f", starting from the weights of {Path(name).name}" if name else ""
    commit, torch = environment.get("commit"), environment.get("torch")
    return [
        "| | |",
        "|---|---|",
        f"| parameters | {start.get('parameters', 0):,} ({start.get('non_embedding', 0):,} without embeddings) |",
        f"| shape | {shape.num_layers} layers, width {shape.width}, {shape.num_heads} heads, d_ff {shape.d_ff} |",
        f"| vocabulary | {model.vocabulary.size:,} ids: {sizes} |",
        f"| training | {step:,} steps, {tokens:,} tokens{origin} |",
        f"| software | triptych {environment.get('triptych')} at {commit}, torch {torch} |",
        f"| machine | {environment.get('machine')} |",
        "",
    ]


def _validation(event: dict[str, Any]) -> list[str]:
    lines = [
        f"Negative ELBO on validation data after step {event['step']:,}, in nats per token (k-uniform estimate, 95 % "
        "margin over sequences; `all` is the training mixture):",
        "",
        "| term | nats per token | tokens |",
        "|---|---|---|",
    ]
    for name, value in event["nelbo"].items():
        loss, margin = (math.nan if value[key] is None else value[key] for key in ("nats_per_token", "margin"))
        lines.append(f"| {name.replace('|', ' given ')} | {loss:.3f} ± {margin:.3f} | {value['tokens']:,} |")
    return [*lines, ""]


def _use(limits: Limits) -> list[str]:
    prompt = limits.examples[0] if limits.examples else "TEXT"
    lines = [
        "## Use",
        "",
        "```python",
        "from triptych import Pipeline",
        "",
        'pipe = Pipeline.from_pretrained("FOLDER_OR_NAME")',
        f'pipe.text_to_image("{prompt}").save("image.png")',
        "```",
        "",
    ]
    if limits.words:
        listed = "`triptych info FOLDER_OR_NAME --list-words` lists them."
        lines += [f"The model knows {len(limits.words)} words; {listed}", ""]
    if limits.voices:
        lines += [f"It speaks in {len(limits.voices)} voices: {', '.join(limits.voices)}.", ""]
    return lines


def _origin(start: dict[str, Any], starts: list[dict[str, Any]]) -> list[str]:
    changes = ", ".join(map(str, _stages(starts)[1:]))
    return [
        f"Trained with `triptych train {start.get('recipe', 'RECIPE')}`{_departures(start)}"
        + (f"; its configuration changed at steps {changes}." if changes else "."),
        "",
    ]


def _departures(start: dict[str, Any]) -> str:
    """What decides the weights and differs from the recipe of that name."""
    try:
        planned = recipe(start["recipe"])
    except (KeyError, UserError):
        return ""
    reported = to_json(planned)["init_from"]  # `_facts` has said it
    changed = weight_differences(to_json(planned), {**fill_in(start["config"], planned), "init_from": reported})
    return f" with changes to the recipe ({'; '.join(changed)})" if changed else ""


def _stages(starts: list[dict[str, Any]]) -> list[int]:
    """The steps at which the configuration changed."""
    changed = [i for i, event in enumerate(starts) if not i or event["config"] != starts[i - 1]["config"]]
    return [starts[i]["step"] for i in changed]
