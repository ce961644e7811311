"""`triptych serve`: models over HTTP, with OpenAI's routes, our own canvas, and a playground."""

import argparse
import os
import re
from pathlib import Path

from triptych.cli.args import positive_float, positive_int, processes
from triptych.cli.command import USE, Command, add_device
from triptych.errors import UserError, require


def _describe(parser: argparse.ArgumentParser) -> None:
    from triptych.serve.limits import numbers

    parser.description = """\
Serve models over HTTP: the routes of OpenAI's API, /v1/canvas for any mask of any modality, and a playground at /.

Only this machine can connect by default. With --host 0.0.0.0 anyone who reaches the machine can: use --api-key then,
and a proxy with TLS in front (docs/serving.md).

examples:
  triptych serve                                            the demo model on http://127.0.0.1:8000
  triptych serve --model runs/mine --model scenes           two models, by the names "mine" and "scenes"
  triptych serve --host 0.0.0.0 --api-key-file keys.txt     for other machines
  curl http://127.0.0.1:8000/v1/images/generations -H 'Content-Type: application/json' -d '{"prompt": "two cats"}'"""
    parser.add_argument(
        "--model",
        action="append",
        metavar="[NAME=]MODEL",
        help="built-in name, folder of a saved model or of a run, or hf://OWNER/NAME; may be given several times "
        "(default: scenes)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, default=8000, help="port (default: 8000; 0 for any free one)")
    add_device(parser)
    parser.add_argument(
        "--replicas",
        type=processes,
        default=1,
        metavar="N",
        help="processes that compute, each with a core or GPU of its own (default: 1, within the server's)",
    )
    parser.add_argument(
        "--ray",
        action="store_true",
        help="serve on the Ray cluster that this machine belongs to, with --replicas servers on its nodes",
    )
    _add_access(parser.add_argument_group("access"))
    limits = parser.add_argument_group("limits")
    for field in numbers():
        limits.add_argument(
            f"--max-{field.name.replace('_', '-')}",
            dest=f"limit_{field.name}",
            type=positive_float if isinstance(field.default, float) else positive_int,
            default=field.default,
            metavar="N",
            help=f"default: {field.default:,}",
        )


def _add_access(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="key that clients must send; may be given several times. Others on this machine can see it: better use "
        "--api-key-file or the variable TRIPTYCH_API_KEY",
    )
    group.add_argument("--api-key-file", metavar="FILE", help="file with one key on each line")
    group.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        type=_host,
        metavar="HOST",
        help="name by which clients reach this server, besides localhost and --host; * is any",
    )
    group.add_argument(
        "--allowed-origin",
        action="append",
        default=[],
        type=_origin,
        metavar="ORIGIN",
        help="other web page that may use this server, such as https://example.org",
    )
    group.add_argument(
        "--allow-media-host",
        action="append",
        default=[],
        type=_media_host,
        metavar="HOST[:PORT]",
        help="host from which images and audio may be fetched (default: none)",
    )


def _host(text: str) -> str:
    if text != "*" and not re.fullmatch(r"[A-Za-z0-9.:_-]+", text):
        raise argparse.ArgumentTypeError(f"expected the name or address of a host, got {text!r}")
    return text


def _origin(text: str) -> str:
    if not re.fullmatch(r"https?://[A-Za-z0-9.\[\]:_-]+", text):
        raise argparse.ArgumentTypeError(f"expected an origin such as https://example.org, got {text!r}")
    return text


def _media_host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?", text):
        raise argparse.ArgumentTypeError(f"expected a host such as images.example.org, got {text!r}")
    return text.lower()


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) < 65536:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


def named_models(sources: list[str]) -> dict[str, str]:
    """Sources by the name that clients use: what comes before "=", or the last part of the source."""
    models: dict[str, str] = {}
    for each in sources:
        name, separator, source = each.partition("=")
        if not separator:
            name, source = Path(each.rstrip("/")).name, each
        if not name or not source:
            raise UserError(f"--model takes MODEL or NAME=MODEL, got {each!r}.")
        if name in models:
            raise UserError(f"two models have the name {name!r}: give one another name with --model NAME={source}.")
        models[name] = source
    return models


def _run(args: argparse.Namespace) -> None:
    for module in ("fastapi", "uvicorn", "greenlet", "python_multipart", "prometheus_client"):
        require(module, "serve", "the server")
    if args.ray:
        require("ray.serve", "serve-ray", "--ray")
    models = named_models(args.model or ["scenes"])
    from triptych.serve.auth import read_keys

    keys = read_keys(args.api_key, args.api_key_file, os.environ)  # a mistake here must not wait for a model
    from triptych.hub.pipeline import Pipeline
    from triptych.serve.app import Access
    from triptych.serve.limits import ServeLimits, numbers
    from triptych.serve.run import listen, serve, warn_if_open

    given = {field.name: getattr(args, f"limit_{field.name}") for field in numbers()}
    limits = ServeLimits(**given, media_hosts=tuple(args.allow_media_host))
    access = Access(keys, tuple(args.allowed_host), tuple(args.allowed_origin))
    listener = listen(args.host, args.port)  # nor a port that is taken
    warn_if_open(listener, access)
    pipes = {name: Pipeline.from_pretrained(source, device=args.device) for name, source in models.items()}
    if not args.ray:
        serve(pipes, limits, access, listener, host=args.host, replicas=args.replicas)
        return
    from triptych.serve.ray_app import serve_on_ray

    listener.close()  # Ray opens its own
    del pipes  # they were loaded to see that they can be
    serve_on_ray(models, limits, access, host=args.host, port=args.port, device=args.device, replicas=args.replicas)


COMMANDS = {"serve": Command("serve models over HTTP, with a playground", _describe, _run, USE, "stopped.")}
