"""`triptych info` and `triptych models`: what a model is, and which models there are."""

import argparse
from pathlib import Path
from typing import Any

from triptych.cli.command import USE, Command, add_json, write_json
from triptych.errors import UserError
from triptych.hub.directions import DIRECTIONS
from triptych.utils.terminal import say


def _describe_info(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Describe a model: size, directions, limits, prompts, licence.

examples:
  triptych info                                          the demo model
  triptych info runs/mine
  triptych info scenes --list-words                      every word it knows
  triptych info hf://OWNER/NAME --json"""
    parser.add_argument(
        "model",
        nargs="?",
        default="scenes",
        metavar="MODEL",
        help="built-in name, folder of a saved model or of a run, or hf://OWNER/NAME (default: scenes)",
    )
    parser.add_argument(
        "--list-words",
        "--words",
        dest="list_words",
        action="store_true",
        help="list the words it knows, if it has a word list",
    )
    parser.add_argument("--list-voices", action="store_true", help="list the voices it has, if it has any by name")
    add_json(parser)


def _run_info(args: argparse.Namespace) -> None:
    pipe = _load(args.model)
    if args.json is not None:
        write_json(_facts(args.model, pipe), args.json)
    elif args.list_words:
        _print_words(pipe)
    elif args.list_voices:
        _print_voices(pipe)
    else:
        _print(_facts(args.model, pipe))


def _load(model: str) -> Any:
    from triptych.hub.source import check_source

    check_source(model)
    from triptych.hub.pipeline import Pipeline

    return Pipeline.from_pretrained(model, device="cpu")


def list_words(model: str) -> None:
    """What `--list-words` does."""
    _print_words(_load(model))


def list_voices(model: str) -> None:
    """What `--list-voices` does."""
    _print_voices(_load(model))


def _print_words(pipe: Any) -> None:
    for word in pipe.words or ["any text: this model has no word list"]:
        say(word)


def _print_voices(pipe: Any) -> None:
    for voice in pipe.voices or ["no choice: this model has no voices by name"]:
        say(voice)


def _facts(name: str, pipe: Any) -> dict[str, Any]:
    from triptych.vocab import Modality

    shape, limits, vocabulary, bundle = pipe.model.config, pipe.limits, pipe.vocabulary, pipe.bundle
    total = sum(parameter.numel() for parameter in pipe.model.parameters())
    blocks = sum(parameter.numel() for parameter in pipe.model.blocks.parameters())
    kinds = {kind for kind, modality in zip(("text", "image", "audio"), Modality) if modality in bundle}
    usable = [
        each.name
        for each in DIRECTIONS.values()
        if {kind for given in each.inputs if given.required for kind in given.kinds} | set(each.outputs) <= kinds
    ]
    return {
        "model": name,
        "parameters": total,
        "non_embedding_parameters": blocks,
        "layers": shape.num_layers,
        "width": shape.width,
        "heads": shape.num_heads,
        "vocabulary": {"total": vocabulary.size, **{m.name.lower(): vocabulary.data_size(m) for m in Modality}},
        "directions": usable,
        "max_text_tokens": limits.longest(limits.text_slot),
        "chooses_text_length": limits.text_slot is not None,
        "image_size": bundle.image.resolution if Modality.IMAGE in bundle else None,
        "image_tokens": bundle.image.tokens_per_image if Modality.IMAGE in bundle else None,
        "max_audio_seconds": _audio_seconds(pipe) if Modality.AUDIO in bundle else None,
        "chooses_audio_length": limits.audio_slot is not None,
        "words": list(pipe.words),
        "voices": list(pipe.voices),
        "examples": list(limits.examples),
        "input_checks": _checks(pipe.input_checks),
        "sampling_preset": pipe.preset,
        "sampling_changes": pipe.sampling,
        "license": pipe.license,
    }


def _checks(checks: Any) -> dict[str, Any] | None:
    if checks is None:
        return None
    counts = {kind: distribution.n for kind, distribution in checks.distributions.items()}
    return {"false_alarm_rate": checks.false_alarm_rate, "validation_inputs": counts}


def _audio_seconds(pipe: Any) -> float:
    tokenizer, limits = pipe.bundle.audio, pipe.limits
    return limits.longest(limits.audio_slot) / (tokenizer.num_codebooks * tokenizer.frame_rate)


def _print(facts: dict[str, Any]) -> None:
    def row(name: str, text: str) -> None:
        say(f"  {name:14} {text}")

    sizes = facts["vocabulary"]
    chosen = {True: "the model chooses the length", False: "you choose the length"}
    say(f"{facts['model']}: one masked-diffusion model for text, images and audio")
    row(
        "parameters",
        f"{facts['parameters'] / 1e6:,.1f}M, {facts['non_embedding_parameters'] / 1e6:,.1f}M without embeddings; "
        f"{facts['layers']} layers of width {facts['width']}, {facts['heads']} heads",
    )
    row(
        "vocabulary",
        f"{sizes['total']:,} ids: {sizes['text']:,} text, {sizes['image']:,} image, {sizes['audio']:,} audio",
    )
    row("text", f"up to {facts['max_text_tokens']} tokens; {chosen[facts['chooses_text_length']]} (--num-tokens)")
    if facts["image_size"] is not None:
        row("images", f"{facts['image_size']} x {facts['image_size']} pixels as {facts['image_tokens']} tokens")
    if facts["max_audio_seconds"] is not None:
        row("audio", f"up to {facts['max_audio_seconds']:.1f} s; {chosen[facts['chooses_audio_length']]} (--seconds)")
    row("words", f"{len(facts['words'])}, listed by --list-words" if facts["words"] else "any text")
    if facts["voices"]:
        row("voices", f"{', '.join(facts['voices'])} (--voice)")
    if facts["examples"]:
        row("try", "; ".join(repr(example) for example in facts["examples"]))
    checks = facts["input_checks"]
    row(
        "input checks",
        f"{', '.join(checks['validation_inputs'])}; {checks['false_alarm_rate']:.1%} false alarms"
        if checks
        else "none: unusual inputs get no warning (`triptych calibrate`)",
    )
    row("directions", ", ".join(facts["directions"]))
    row("preset", facts["sampling_preset"])
    row("licence", facts["license"] or "not stated")


def _describe_models(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
List the built-in models, and those in the folders runs/ and models/.

example:
  triptych models"""
    parser.add_argument("folders", nargs="*", metavar="FOLDER", type=Path, help="others to look in")
    add_json(parser)


def _run_models(args: argparse.Namespace) -> None:
    from triptych.hub.source import BUILTIN_MODELS, CONFIG, is_run

    rows = [{"model": name, "kind": "built-in"} for name in BUILTIN_MODELS]
    for missing in (folder for folder in args.folders if not folder.is_dir()):
        raise UserError(f"no such folder: {missing}")
    for parent in (Path("models"), Path("runs"), *args.folders):
        for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
            if is_run(folder) and any((folder / "checkpoints").glob("step-*")):
                rows.append({"model": str(folder), "kind": "training run"})
            elif (folder / CONFIG).is_file():
                rows.append({"model": str(folder), "kind": "saved model"})
    if args.json is not None:
        write_json(rows, args.json)
        return
    width = max(len(row["model"]) for row in rows) + 2
    for row in rows:
        say(f"{row['model']:{width}}{row['kind']}")


COMMANDS = {
    "info": Command("what a model is: size, directions, words, licence", _describe_info, _run_info, USE),
    "models": Command("list the models there are", _describe_models, _run_models, USE),
}
