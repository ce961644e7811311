"""Where a model comes from: a built-in name, a folder, a run, or the Hugging Face Hub."""

import re
from pathlib import Path

from triptych.errors import CheckpointError, UserError, did_you_mean

BUILTIN_MODELS = {"scenes": Path(__file__).parent.parent / "assets" / "models" / "scenes"}
"""Models that come with the package, by name."""

CONFIG = "config.json"
"""The file that makes a folder a saved model."""

HUB_PREFIX = "hf://"
_LOCAL = ("runs", "models", "data", "out")
_TIMEOUT = 10.0  # seconds for the hub's first answer


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a training run."""
    return (folder / "checkpoints").is_dir()


def hub_name(source: str) -> str | None:
    """OWNER/NAME if `source` means a model on the hub, otherwise None.

    "hf://OWNER/NAME" always does; "OWNER/NAME" only if it cannot be a path here: there is no folder OWNER, and it is
    not one of the folders that this package writes to.
    """
    is_explicit = source.startswith(HUB_PREFIX)
    name = source.removeprefix(HUB_PREFIX)
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name):
        if is_explicit:
            raise UserError(f"expected {HUB_PREFIX}OWNER/NAME, got {source!r}.")
        return None
    owner = name.partition("/")[0]
    is_local = Path(source).exists() or Path(owner).exists() or owner in _LOCAL
    return name if is_explicit or not is_local else None


def check_source(source: str | Path) -> None:
    """Refuse a name that cannot be a model, without importing torch or asking the network."""
    text = str(source)
    if text in BUILTIN_MODELS or (not isinstance(source, Path) and hub_name(text) is not None):
        return
    folder = Path(text)
    if folder.is_dir() and (is_run(folder) or (folder / CONFIG).is_file()):
        return
    if folder.is_dir():
        raise CheckpointError(f"the folder {text} holds neither a saved model ({CONFIG}) nor a run (checkpoints/).")
    raise UserError(_nothing_there(text))


def _nothing_there(text: str) -> str:
    siblings = []
    parent = Path(text).parent
    if parent.is_dir():
        siblings = [
            str(each) for each in parent.iterdir() if each.is_dir() and (is_run(each) or (each / CONFIG).is_file())
        ]
    names = [*BUILTIN_MODELS, *siblings]
    return (
        f"there is no model {text!r}: it is no built-in name and no folder.{did_you_mean(text, names)} "
        f"A model on the hub is written {HUB_PREFIX}OWNER/NAME."
    )


def download(name: str, *, revision: str | None, cache_dir: str | Path | None, token: str | bool | None) -> Path:
    """The local folder of a model on the hub; asks the network once before it downloads."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    options = {"revision": revision, "cache_dir": cache_dir, "token": token}
    try:
        try:
            HfApi().model_info(name, revision=revision, token=token, timeout=_TIMEOUT)
            return Path(snapshot_download(name, **options))  # type: ignore[arg-type]
        except HfHubHTTPError as error:
            if getattr(error.response, "status_code", None) in (401, 403, 404):
                raise
            return Path(snapshot_download(name, local_files_only=True, **options))  # type: ignore[arg-type]
        except Exception:  # offline: what was downloaded before may do
            return Path(snapshot_download(name, local_files_only=True, **options))  # type: ignore[arg-type]
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{HUB_PREFIX}{name} is not in the local cache, and the hub cannot be reached or fails."
            f"{'' if '/' not in name else f' If you meant a folder: {name!r} does not exist here.'}"
        ) from error
    except Exception as error:  # no such model, no access, a broken connection
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"the hub has no model {name!r} for you ({type(error).__name__}: {reason}).") from error


def upload(folder: Path, name: str, *, private: bool, token: str | bool | None) -> str:
    """Put the files of a folder on the hub as OWNER/NAME; returns the address."""
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    api.create_repo(name, private=private, exist_ok=True)
    return str(api.upload_folder(repo_id=name, folder_path=folder))
