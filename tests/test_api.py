"""The public names: lazy, typed, and where a reader expects them."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import triptych
from triptych.hub.pipeline import Pipeline

PUBLIC = {
    "Audio", "Pipeline", "RunConfig", "SamplingConfig", "Vocabulary", "evaluate", "fit_tokenizers", "tokenize", "train",
}  # fmt: skip


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
        "import triptych.training.loop, triptych.data.tokenize.run, triptych.eval.image.inception, types, sys;"
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


USER = """\
from pathlib import Path

from PIL import Image

from triptych import Audio, Pipeline

pipe = Pipeline.from_pretrained("scenes")
images = pipe.text_to_image(["a cat", "a dog"])
texts: list[str] = pipe.caption(images)
one: str = pipe.caption(images[0])
also: list[str] = pipe.caption(["a.png", "b.png"])
answers: list[str] = pipe.answer(images, "what is it?")
many: list[str] = pipe.answer(images[0], ["a?", "b?"])
spoken: list[Audio] = pipe.text_to_speech(["a", "b"])
heard: list[str] = pipe.transcribe(spoken)
single: str = pipe.transcribe(Path("a.wav"))
picture: Image.Image = pipe.text_to_image("a cat")
"""


def test_types_of_a_natural_program(tmp_path: Path) -> None:
    """Results of one method are arguments of the next, alone and in lists."""
    (tmp_path / "program.py").write_text(USER)
    command = [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--cache-dir", str(tmp_path), "program.py"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stdout
