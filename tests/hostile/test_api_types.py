"""Wrong types for every argument of the public API: a UserError of one line, or a result, and nothing else."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import triptych
from triptych.data.shards import TokenDataset
from triptych.errors import UserError
from triptych.hub.calibrate import calibrate
from triptych.recipes import recipe
from triptych.sample.canvas import Canvas, known, masked
from triptych.utils.arguments import check_values, checked, shown
from triptych.vocab import Modality

# "\0" and a lone surrogate are texts, but no paths.
WRONG: list[Any] = [None, -1, 2.5, float("nan"), 10**30, True, "x", b"x", [], [None], {"x": 1}, object(), (1, 2)]
WRONG += [Path("x"), "\0", "a\udcff", "", np.zeros(3), 10**5000]

IMAGE = Image.new("RGB", (64, 64), "white")
AUDIO = triptych.Audio(np.zeros(16000, np.float32), 16000)
_READING = {"format": None, "task": None, "text_key": None, "prompt_key": None, "media_key": None, "per_line": False}
_TRANSFORM = {"image_transform": "pad", "views": 1, "max_seconds": 30.0, "too_long": "cut", "samples_per_shard": 10}
_FIT = {"vocab_size": None, "resolution": None, "factor": None, "image_kind": None, "image_codes": None}
_FIT |= {"image_steps": 10, "codebooks": 2, "audio_codes": None, "audio_steps": 10, "seed": 0, "text_key": None}
_EXAM = {"directions": [], "num_images": 1, "num_speech": 1, "split": "test", "seed": 0, "preset": None}
_EXAM |= {"sampling": None, "voices": None, "json": None, "out": None, "work": None, "progress": None}
_PARTS = ("model", "loader", "optimizer", "corrupt", "transfer", "validation", "parallel", "guard", "prompts")

FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "Audio": (triptych.Audio, {"samples": np.zeros(5, np.float32), "sample_rate": 8000}),
    "Audio.load": (triptych.Audio.load, {"source": "nothing.wav", "max_seconds": 3.0}),
    "Audio.save": (AUDIO.save, {"path": "a.wav"}),
    "Vocabulary": (triptych.Vocabulary, {"text": 300, "image": 10, "audio": 10}),
    "SamplingConfig": (triptych.SamplingConfig, vars(triptych.SamplingConfig())),
    "RunConfig": (triptych.RunConfig, vars(recipe("nano"))),
    **{
        f"RunConfig.{name}": (type(getattr(recipe("nano"), name)), vars(getattr(recipe("nano"), name)))
        for name in (
            "model",
            "loader",
            "optimizer",
            "corrupt",
            "transfer",
            "validation",
            "parallel",
            "guard",
            "prompts",
        )
    },
    "tokenize": (
        triptych.tokenize,
        {"inputs": "none.txt", "out": "o", "tokenizers": "scenes", "workers": 0, "max_bad": 0.01, "overwrite": False}
        | {"progress": False, "seed": 0, **_READING, **_TRANSFORM},
    ),
    "fit_tokenizers": (
        triptych.fit_tokenizers,
        {"inputs": "none.txt", "out": "o", "overwrite": False, "report": lambda line: None, **_FIT},
    ),
    "train": (
        triptych.train,
        {"recipe": "nano", "overrides": ["data=none"], "out": "o", "device": "cpu", "stop_after": 1}
        | {"force": False, "quiet": True},
    ),
    "evaluate": (triptych.evaluate, {"model": "nothing", "suite": "scenes", "device": "cpu", **_EXAM}),
    "evaluate text": (
        triptych.evaluate,
        {"model": "nothing", "suite": "text", "data": "none", "seed": 0, "nproc": 1, "device": "cpu", "out": None},
    ),
    "TokenDataset": (TokenDataset, {"folder": "none"}),
    "known": (known, {"modality": Modality.TEXT, "ids": np.array([1, 2])}),
    "masked": (masked, {"modality": Modality.TEXT, "length": 3}),
    "from_pretrained": (
        triptych.Pipeline.from_pretrained,
        {"source": "nothing", "device": "cpu", "dtype": "float32", "check_inputs": True, "revision": None},
    ),
}


def faults_of(function: Callable[..., Any], good: dict[str, Any]) -> Iterator[str]:
    """A line for each call with one wrong argument that ends with anything but a result or a UserError of one line."""
    for name in good:
        for wrong in WRONG:
            try:
                function(**{**good, name: wrong})
            except UserError as error:
                if "\n" in str(error) or len(str(error)) > 2000:
                    yield f"{name}={shown(wrong)}: a long error: {str(error)[:100]!r}"
            except OSError:  # of the file system, which the command line prints in one line too
                continue
            except Exception as error:
                yield f"{name}={shown(wrong)}: {type(error).__name__}: {error}"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("triptych.hub.base.upload", lambda *_, **__: "")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_classes_refuse_wrong_types(name: str) -> None:
    function, good = FUNCTIONS[name]
    with contextlib.suppress(UserError):  # there is no file "none.txt", no model "nothing"
        function(**good)
    assert list(faults_of(function, good)) == []


@pytest.fixture(scope="module")
def pipe() -> triptych.Pipeline:
    return triptych.Pipeline.from_pretrained("scenes", device="cpu", check_inputs=False)


def methods(pipe: triptych.Pipeline) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    canvas = Canvas(known(Modality.TEXT, np.array([1, 2, 3])), masked(Modality.IMAGE, 4))
    config, fast = triptych.SamplingConfig(num_steps=1), {"num_steps": 1, "best_of": 1}
    sampling = {"seed": 0, "callback": None, "preset": None, "guidance_scale": 1.0, "temperature": 1.0, "options": {}}
    return {
        "to": (pipe.to, {"device": "cpu"}),
        "text_to_image": (pipe.text_to_image, {"text": "two cats", **sampling, **fast}),
        "caption": (pipe.caption, {"image": IMAGE, "prompt": None, "num_tokens": 3, **fast}),
        "answer": (pipe.answer, {"image": IMAGE, "question": "how many cats?", "num_tokens": 3, **fast}),
        "text_to_speech": (pipe.text_to_speech, {"text": "two cats", "seconds": 0.5, "voice": None, **fast}),
        "transcribe": (pipe.transcribe, {"audio": AUDIO, "num_tokens": 3, **fast}),
        "complete": (pipe.complete, {"text": "two", "num_tokens": 3, **fast}),
        "infill_image": (
            pipe.infill_image,
            {"image": IMAGE, "box": (0, 0, 32, 32), "text": "two cats", "repaint": "codes", **fast},
        ),
        "infill_text": (pipe.infill_text, {"text": "two ___", "image": None, "audio": None, **fast}),
        "infill_audio": (pipe.infill_audio, {"audio": AUDIO, "interval": (0.1, 0.2), "text": "two cats", **fast}),
        "speech_to_image": (pipe.speech_to_image, {"audio": AUDIO, "num_tokens": 3, **fast}),
        "image_to_speech": (pipe.image_to_speech, {"image": IMAGE, "seconds": 0.5, "voice": None, **fast}),
        "repainted_box": (pipe.repainted_box, {"size": (64, 64), "box": (0, 0, 32, 32)}),
        "call": (pipe.__call__, {"output": "image", "text": "two cats", "image": None, "audio": None, **fast}),
        "check_text": (pipe.check_text, {"text": "two cats", "beside": "image"}),
        "check_image": (pipe.check_image, {"image": IMAGE}),
        "check_audio": (pipe.check_audio, {"audio": AUDIO}),
        "fill": (pipe.fill, {"canvases": [canvas], "config": config, "seed": 0, "callback": None}),
        "decode": (pipe.decode, {"span": masked(Modality.IMAGE, 4)}),
        "sampling_config": (pipe.sampling_config, {"target": Modality.TEXT, "use": None, "preset": None}),
        "calibrate": (
            calibrate,
            {"pipe": pipe, "inputs": ["none"], "num_samples": 3, "false_alarm_rate": 0.01, "options": None}
            | {"report": lambda line: None},
        ),
        "push_to_hub": (pipe.push_to_hub, {"name": "me/mine", "dtype": "float32", "private": False, "token": None}),
        "save_pretrained": (pipe.save_pretrained, {"folder": "saved", "dtype": "float32"}),
    }


# Only the names; the methods need the model.
METHODS = ("to", "text_to_image", "caption", "answer", "text_to_speech", "transcribe", "complete", "infill_image")
METHODS += ("infill_text", "infill_audio", "speech_to_image", "image_to_speech", "repainted_box", "call", "check_text")
METHODS += (
    "check_image",
    "check_audio",
    "fill",
    "decode",
    "sampling_config",
    "calibrate",
    "push_to_hub",
    "save_pretrained",
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", METHODS)
def test_methods_of_a_pipeline_refuse_wrong_types(name: str, pipe: triptych.Pipeline) -> None:
    function, good = methods(pipe)[name]
    assert list(faults_of(function, good)) == []


def test_every_public_method_is_in_the_table() -> None:
    public = {name for name in dir(triptych.Pipeline) if not name.startswith("_")}
    public = {name for name in public if callable(getattr(triptych.Pipeline, name))} - {"from_pretrained"}
    assert public - set(METHODS) == set()


# -- the checker ------------------------------------------------------------------------------------------------------


def test_a_wrong_argument_is_named_with_what_is_expected() -> None:
    @checked
    def make(path: str | Path, count: int = 1, *, share: float = 0.5, names: list[str] | None = None) -> int:
        return count

    assert make("a", 2, share=1, names=["b"]) == 2
    assert make(Path("a"), np.int64(3), share=np.float32(1)) == 3  # type: ignore[arg-type]
    for wrong, message in (
        ({"path": 1}, "path must be a text or a path, got 1."),
        ({"path": "a", "count": 1.5}, "count must be a whole number, got 1.5."),
        ({"path": "a", "count": True}, "count must be a whole number, got True."),
        ({"path": "a", "share": "x"}, "share must be a number, got 'x'."),
        ({"path": "a", "names": ["x", 1]}, "names must be a list of texts or None, got ['x', 1]."),
    ):
        with pytest.raises(UserError) as error:
            make(**wrong)
        assert str(error.value) == message
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        make()  # type: ignore[call-arg]


def test_what_cannot_be_checked_fits() -> None:
    check_values({"a": object(), "b": lambda: 0}, {"a": Any, "b": Callable[[], int], "c": os.PathLike})
    with pytest.raises(UserError, match="b must be a function, got 1"):
        check_values({"b": 1}, {"b": Callable[[], int]})
    assert shown("x" * 200).endswith("x...")
    assert shown(10**5000) == "a number of more digits than fit here"
