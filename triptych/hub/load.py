"""From the name of a model to the model: whatever its source is, it becomes a `SavedModel`."""

from pathlib import Path

from triptych.hub.format import SavedModel, read_model
from triptych.hub.source import BUILTIN_MODELS, check_source, download, hub_name, is_run


def load_model(
    source: str | Path, *, revision: str | None, cache_dir: str | Path | None, token: str | bool | None
) -> SavedModel:
    """Read a built-in model, a folder or a run; a model on the hub is downloaded first."""
    check_source(source)
    name = None if isinstance(source, Path) else hub_name(source)
    if name is not None:
        folder = download(name, revision=revision, cache_dir=cache_dir, token=token)
    else:
        folder = BUILTIN_MODELS.get(str(source), Path(source))
    if is_run(folder):
        from triptych.hub.export import model_of_run  # reads checkpoints; imported for runs only, it takes long

        return model_of_run(folder)
    return read_model(folder)
