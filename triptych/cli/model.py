"""Verbs on models: train, generate, export."""

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from triptych.cli.command import Command, device_named, one_of, open_model
from triptych.errors import UserError, did_you_mean

# -- train ------------------------------------------------------------------------------------------------------------


def _describe_train(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Train a model by a recipe, or go on with a run that was stopped.

examples:
  triptych train nano                                   a minute on a laptop, to see the loss fall
  triptych train scenes --out runs/scenes               the shipped model, some hours on two cores
  triptych train scenes optimizer.lr=2e-3 num_steps=5000 model.width=256
  triptych train scenes norm=sequence corrupt.schedule=cosine loader.task_weights.text=0.3

recipes: scenes, nano (the embedded world, for a CPU); paper_base, paper_3b, aspect_N (N layers of width 128 N).
The recipes of the embedded world read data/scenes, made by `triptych scenes make data/scenes`.

Several processes, one model divided among them (docs/distributed.md):
  triptych train scenes --nproc 2
  triptych train paper_3b --nproc 8 --nnodes 32 --meet node0:29500 --device cuda data=...       (on every node)

The run folder keeps records.jsonl, config.json and checkpoints/. Ctrl-C saves; the same command goes on.
exit codes: 0 done, 1 diverged or crashed, 2 configuration, 3 data, 4 checkpoint, 75 stopped by SIGTERM, SIGUSR1 or
SIGHUP: run me again, 130 by Ctrl-C."""
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("changes", metavar="KEY=VALUE", nargs="*", help="fields of the recipe that are to differ")
    parser.add_argument("--out", metavar="RUN", type=Path, help="folder of the run (default: runs/RECIPE)")
    parser.add_argument("--stop-after", metavar="STEP", type=int, help="save and stop at this step")
    parser.add_argument("--show", action="store_true", help="print the whole configuration and stop")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--nproc", metavar="N", type=int, help="train in N processes on this machine")
    parser.add_argument("--nnodes", metavar="N", type=int, default=1, help="with --nproc: machines (default: 1)")
    parser.add_argument("--meet", metavar="HOST:PORT", help="with --nnodes: where they meet, the same on all of them")
    parser.add_argument(
        "--max-restarts", metavar="N", type=int, default=3, help="with --nproc: begin again after a crash (default: 3)"
    )
    parser.add_argument("--force", action="store_true", help="go on although the configuration or the data changed")


def _run_train(args: argparse.Namespace) -> None:
    import json

    import torch

    from triptych.recipes import recipe
    from triptych.training.config import override, to_json
    from triptych.training.launch import launch
    from triptych.training.ranks import RankLost, device_name, is_of_another_rank, join, leave
    from triptych.training.setup import need_data

    if args.stop_after is not None and args.stop_after < 1:
        raise UserError(f"--stop-after must be at least 1, got {args.stop_after}.")
    config = override(recipe(args.recipe), args.changes)
    if args.show:
        print(json.dumps(to_json(config), indent=2))
        return
    need_data(config)  # before the tokenizers, which may be missing too
    if args.nproc is not None:
        code = launch(_without_nproc(args), args.nproc, args.max_restarts, args.nnodes, args.meet)
        if code:
            raise SystemExit(code)
        return
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = device_named(device_name(args.device))
    ranks = join(config.parallel.timeout, device)
    try:
        folder = args.out or Path("runs") / config.recipe
        _train(config, folder, args.stop_after, device, ranks, force=args.force)
    except RuntimeError as error:
        if ranks.size == 1 or not is_of_another_rank(error):
            raise
        reason = str(error).splitlines()[0]
        raise RankLost(f"rank {ranks.rank} ends, for another one is gone or silent ({reason}).") from error
    leave()  # not after an error: a save that is under way still talks to the other ranks


def _without_nproc(args: argparse.Namespace) -> list[str]:
    """The same command for one rank."""
    words = ["train", args.recipe, *args.changes, "--device", args.device]
    for option, value in (("--out", args.out), ("--stop-after", args.stop_after)):
        words += [option, str(value)] if value is not None else []
    return words + (["--force"] if args.force else [])


def _train(config: Any, folder: Path, stop_after: int | None, device: Any, ranks: Any, *, force: bool = False) -> None:
    from triptych.tokenizers.bundle import TokenizerBundle
    from triptych.training.guard import StoppedAtOnce
    from triptych.training.logging import Console, Listener
    from triptych.training.loop import Stopped, train
    from triptych.training.peak import matmul_peak
    from triptych.training.setup import start

    def say(text: str) -> None:
        if ranks.is_rank0:
            print(text, file=sys.stderr)

    bundle = TokenizerBundle.load(config.tokenizers)
    run = start(config, folder, bundle, device, ranks, force=force)
    if run.step >= config.num_steps:
        say(f"{folder} has had its {config.num_steps} steps")
        return
    if stop_after is not None and run.step >= stop_after:
        say(f"{folder} has had {run.step} of its {config.num_steps} steps; {_WITHOUT_STOP}")
        return
    if run.step:
        say(f"going on after step {run.step} of {config.num_steps}")
    listeners: list[Listener] = [Console()]
    on_validation = None
    if config.tensorboard and ranks.is_rank0:
        from triptych.training.tensorboard import Board

        board = Board(folder, bundle)
        listeners.append(board)
        on_validation = board.show_samples
    try:
        train(
            run,
            listeners,
            bundle,
            peak_flops=matmul_peak(device) * ranks.size,
            on_validation=on_validation,
            stop_after=stop_after,
        )
    except Stopped as stop:
        say(f"saved step {stop.step}; run the same command to go on")
        raise _exit_after(stop.number) from None
    except StoppedAtOnce as stop:
        say(_what_is_lost(run.step, folder))
        raise _exit_after(stop.number) from None
    if run.step < config.num_steps:
        say(f"stopped after {run.step} of {config.num_steps} steps; {_WITHOUT_STOP}")
    elif ranks.is_rank0:
        print(f"try it: triptych generate image 'two cats' --model {folder}")


_WITHOUT_STOP = "run the same command without --stop-after to go on"


def _exit_after(number: int) -> BaseException:
    """What ends the process as the signal asks for."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(75)


def _what_is_lost(step: int, folder: Path) -> str:
    """What to say where a run was left at a step, without saving."""
    from triptych.training.checkpoint import list_checkpoints

    checkpoints = list_checkpoints(folder / "checkpoints")
    saved = int(checkpoints[-1].name.removeprefix("step-")) if checkpoints else 0
    then = f"go on after step {saved}" if saved else "begin anew"
    return f"stopped at once: {step - saved} of {step} steps are lost; run the same command to {then}"


# -- generate ---------------------------------------------------------------------------------------------------------

_DIRECTIONS = {
    "image": "TEXT -> picture",
    "caption": "PICTURE [BEGINNING] -> text",
    "answer": "PICTURE QUESTION -> text",
    "speech": "TEXT -> sound",
    "transcribe": "SOUND -> text",
    "text": "TEXT -> the text, completed",
    "fill-image": "PICTURE [TEXT] with --box -> picture",
    "fill-text": "TEXT with ___ [PICTURE or SOUND] -> text",
    "fill-speech": "SOUND [TEXT] with --interval -> sound",
    "speech-to-image": "SOUND -> text, picture",
    "image-to-speech": "PICTURE -> text, sound",
}


def _describe_generate(parser: argparse.ArgumentParser) -> None:
    rows = "\n".join(f"  {name:16} {what}" for name, what in _DIRECTIONS.items())
    parser.description = f"""\
Generate in any direction with one model.

{rows}

examples:
  triptych generate image "two cats left of a red heart" --out cats.png
  triptych generate caption cats.png "there are"
  triptych generate answer cats.png "how many cats are there?"
  triptych generate speech "a picture of three foxes" --out foxes.wav
  triptych generate transcribe foxes.wav
  triptych generate fill-image cats.png "two cats and a star" --box 0,0,32,64 --out other.png
  triptych generate fill-text "a picture of ___ red ___" cats.png"""
    parser.usage = "triptych generate DIRECTION INPUT [INPUT] [options]"
    parser.add_argument("direction", **one_of(list(_DIRECTIONS)))
    parser.add_argument("inputs", metavar="INPUT", nargs="+")
    parser.add_argument(
        "--model", default="scenes", help="embedded name, saved model, run or hub name (default: scenes)"
    )
    parser.add_argument("--out", type=Path, help="file for a picture (.png) or sound (.wav); is numbered with --count")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="how many, with seeds SEED, SEED + 1, ...")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--box", metavar="L,T,R,B", help="rectangle in pixels, for fill-image")
    parser.add_argument("--interval", metavar="FROM,TO", help="in seconds, for fill-speech")
    parser.add_argument("--seconds", type=float, help="how long speech is to be (default: the model chooses)")
    parser.add_argument("--device", default="cpu")
    group = parser.add_argument_group("sampling (default: the model's preset for what is generated)")
    group.add_argument("--preset", help="of all of these: scenes, fast (fewer looks) or paper")
    group.add_argument("--sampler", help="ancestral, first_hitting, random_order, low_confidence, maskgit, ...")
    group.add_argument("--steps", dest="num_steps", type=int, help="looks of the model")
    group.add_argument("--temperature", type=float)
    group.add_argument("--top-p", type=float)
    group.add_argument("--guidance-scale", type=float, help="1 is none")
    group.add_argument("--best-of", type=int, metavar="N", help="make N, keep the one the model itself finds best")


def _run_generate(args: argparse.Namespace) -> None:

    _read_inputs(args)
    settings: dict[str, Any] = {
        name: getattr(args, name)
        for name in ("preset", "sampler", "num_steps", "temperature", "top_p", "guidance_scale", "best_of")
        if getattr(args, name) is not None
    }
    made = _DIRECTION_RUNS[args.direction](open_model(args.model, device_named(args.device)), args, settings)
    for number, result in enumerate(made):
        for part in result if isinstance(result, tuple) else (result,):
            _deliver(part, args, number)


_NUM_INPUTS = {"caption": (1, 2), "answer": (2, 2), "fill-image": (1, 2), "fill-text": (1, 2), "fill-speech": (1, 2)}
_FIRST_IS_PICTURE = ("caption", "answer", "fill-image", "image-to-speech")
_FIRST_IS_SOUND = ("transcribe", "fill-speech", "speech-to-image")
_MAKES = {
    "image": ".png",
    "speech": ".wav",
    "fill-image": ".png",
    "fill-speech": ".wav",
    "speech-to-image": ".png",
    "image-to-speech": ".wav",
}
_SOUNDS = (".wav", ".flac", ".ogg", ".mp3")


def _read_inputs(args: argparse.Namespace) -> None:
    """Everything that can be wrong without a model is found here, before one is loaded; files become media."""
    from triptych.utils.media import load_audio, load_image, with_ending

    least, most = _NUM_INPUTS.get(args.direction, (1, 1))
    if not least <= len(args.inputs) <= most:
        raise UserError(
            f"`generate {args.direction}` takes {_DIRECTIONS[args.direction].partition(' ->')[0]}, "
            f"got {len(args.inputs)} inputs. Put texts in quotes."
        )
    if args.count < 1:
        raise UserError(f"--count must be at least 1, got {args.count}.")
    if args.out is not None:
        if args.direction not in _MAKES:
            raise UserError(f"`generate {args.direction}` prints a text; --out is for pictures and sounds.")
        args.out = with_ending(args.out, _MAKES[args.direction])
    if args.direction == "fill-image":
        args.box = _numbers(args.box, 4, "--box", "LEFT,TOP,RIGHT,BOTTOM in pixels", int)
    if args.direction == "fill-speech":
        args.interval = _numbers(args.interval, 2, "--interval", "FROM,TO in seconds", float)
    if args.direction in _FIRST_IS_PICTURE:
        args.inputs[0] = load_image(args.inputs[0])
    elif args.direction in _FIRST_IS_SOUND:
        args.inputs[0] = load_audio(args.inputs[0])
    elif args.direction == "fill-text" and len(args.inputs) > 1:
        is_sound = Path(args.inputs[1]).suffix.lower() in _SOUNDS
        args.inputs[1] = load_audio(args.inputs[1]) if is_sound else load_image(args.inputs[1])


def _numbers(text: str | None, count: int, option: str, form: str, kind: type) -> tuple[Any, ...]:
    if text is None:
        raise UserError(f"this needs {option}: {form}.")
    try:
        numbers = tuple(kind(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != count:
        raise UserError(f"{option} must be {form}, got {text!r}.")
    return numbers


def _repeat(make: Any, args: argparse.Namespace) -> list[Any]:
    return [make(args.seed + i) for i in range(args.count)]


def _generate_image(pipe: Any, args: Any, settings: Any) -> list[Any]:
    return pipe.text_to_image([args.inputs[0]] * args.count, seed=args.seed, **settings)


def _generate_speech(pipe: Any, args: Any, settings: Any) -> list[Any]:
    return pipe.speak([args.inputs[0]] * args.count, seconds=args.seconds, seed=args.seed, **settings)


def _generate_caption(pipe: Any, args: Any, settings: Any) -> list[Any]:
    return _repeat(lambda seed: pipe.caption(*args.inputs, seed=seed, **settings), args)


def _generate_answer(pipe: Any, args: Any, settings: Any) -> list[Any]:
    return _repeat(lambda seed: pipe.answer(*args.inputs, seed=seed, **settings), args)


def _generate_transcript(pipe: Any, args: Any, settings: Any) -> list[Any]:
    return _repeat(lambda seed: pipe.transcribe(args.inputs[0], seed=seed, **settings), args)


def _generate_text(pipe: Any, args: Any, settings: Any) -> list[Any]:
    return _repeat(lambda seed: pipe.complete(args.inputs[0], seed=seed, **settings), args)


def _fill_image(pipe: Any, args: Any, settings: Any) -> list[Any]:
    picture, *text = args.inputs
    return _repeat(lambda seed: pipe.infill_image(picture, args.box, *text, seed=seed, **settings), args)


def _fill_text(pipe: Any, args: Any, settings: Any) -> list[Any]:
    from triptych.utils.media import Audio

    text, *media = args.inputs
    beside = {"sound" if isinstance(each, Audio) else "image": each for each in media}
    return _repeat(lambda seed: pipe.infill_text(text, seed=seed, **beside, **settings), args)


def _fill_speech(pipe: Any, args: Any, settings: Any) -> list[Any]:
    sound, *text = args.inputs
    return _repeat(lambda seed: pipe.infill_sound(sound, args.interval, *text, seed=seed, **settings), args)


def _speech_to_image(pipe: Any, args: Any, settings: Any) -> list[Any]:
    return _repeat(lambda seed: pipe.speech_to_image(args.inputs[0], seed=seed, **settings), args)


def _image_to_speech(pipe: Any, args: Any, settings: Any) -> list[Any]:
    return _repeat(lambda seed: pipe.image_to_speech(args.inputs[0], seconds=args.seconds, seed=seed, **settings), args)


_DIRECTION_RUNS = {
    "image": _generate_image,
    "caption": _generate_caption,
    "answer": _generate_answer,
    "speech": _generate_speech,
    "transcribe": _generate_transcript,
    "text": _generate_text,
    "fill-image": _fill_image,
    "fill-text": _fill_text,
    "fill-speech": _fill_speech,
    "speech-to-image": _speech_to_image,
    "image-to-speech": _image_to_speech,
}


def _deliver(part: Any, args: argparse.Namespace, number: int) -> None:
    """Print a text; write a picture or a sound, and print where."""
    from triptych.utils.media import write_media

    if isinstance(part, str):
        print(part)
        return
    print(write_media(part, args.out, args.direction, number if args.count > 1 else None))


# -- export -----------------------------------------------------------------------------------------------------------


def _describe_export(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Write the newest checkpoint of a run as a model that `Pipeline.from_pretrained` loads: weights, tokenizers, card.

examples:
  triptych export runs/scenes --out models/scenes
  triptych export runs/scenes --out models/scenes --half"""
    parser.add_argument("run", metavar="RUN", type=Path)
    parser.add_argument("--out", required=True, type=Path, help="folder of the model")
    parser.add_argument("--half", action="store_true", help="weights in float16: half the size")
    parser.add_argument("--embed", action="store_true", help="name the embedded tokenizers instead of copying them")


def _run_export(args: argparse.Namespace) -> None:
    from triptych.hub.export import pipeline_of_run
    from triptych.tokenizers.bundle import BUILTIN_TOKENIZERS

    if not args.run.is_dir():
        known = did_you_mean(args.run.name, _runs()) if _runs() else " `triptych train RECIPE --out RUN` makes one."
        raise UserError(f"{args.run} is no folder of a run.{known}")
    pipe = pipeline_of_run(args.run)
    pipe.half = args.half
    if args.embed:
        if pipe.bundle.folder != BUILTIN_TOKENIZERS["scenes"]:
            raise UserError("--embed is for models of the embedded tokenizers; this run has others.")
        pipe.embedded_tokenizers = "scenes"
    pipe.save_pretrained(args.out)
    print(args.out)


def _runs() -> list[str]:
    return [path.parent.name for path in Path("runs").glob("*/checkpoints")]


COMMANDS = {
    "train": Command("train a model by a recipe", _describe_train, _run_train),
    "generate": Command(
        "text, pictures and speech from one model, in any direction", _describe_generate, _run_generate
    ),
    "export": Command("write a run's newest weights as a model to load", _describe_export, _run_export),
}
