"""The public names: lazy, typed, and where a reader expects them."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import triptych
from triptych.hub.pipeline import Pipeline

PUBLIC = {"Audio", "Pipeline", "RunConfig", "SamplingConfig", "Vocabulary", "evaluate", "tokenize", "train"}


def test_public_names() -> None:
    assert {*triptych.__all__} == PUBLIC | {"__version__"}
    assert set(dir(triptych)) >= PUBLIC
    for name in PUBLIC:
        value = getattr(triptych, name)
        assert inspect.isfunction(value) or inspect.isclass(value), f"{name} is hidden by a module of its name"
        assert value.__doc__
    with pytest.raises(AttributeError, match="no attribute 'Pipelin'"):
        _ = triptych.Pipelin


@pytest.mark.parametrize(
    "statement", ["import triptych", "from triptych import Vocabulary", "import triptych; dir(triptych)"]
)
def test_importing_the_package_does_not_load_torch(statement: str) -> None:
    code = f"import sys; exec({statement!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["train", "tokenize", "evaluate"])
def test_functions_stay_functions_after_their_packages_are_imported(name: str) -> None:
    code = (
        "import triptych.training.loop, triptych.data.tokenize.run, triptych.eval.image, types, sys;"
        f"from triptych import {name}; sys.exit(not isinstance({name}, types.FunctionType))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_method_is_typed_and_documented() -> None:
    for name, method in inspect.getmembers(Pipeline, inspect.isfunction):
        if not name.startswith("_"):
            assert method.__doc__, name
            assert all(
                parameter.annotation is not inspect.Parameter.empty
                for parameter in list(inspect.signature(method).parameters.values())[1:]
            ), name


def test_the_package_is_marked_as_typed() -> None:
    assert (Path(triptych.__file__).parent / "py.typed").exists()
