"""Models that have only some of text, images and audio are served, too: they do what they can, and say what not."""

from collections.abc import Iterator

import pytest
from partial_models import IMAGE, partial_models
from server_process import ServerProcess

from triptych.serve.media import data_uri, encode_image

SPEECH = {"input": "a cat"}
DRAWING = {"prompt": "a cat"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with partial_models(tmp_path_factory.mktemp("models")) as process:
        yield process


def test_models_list_what_they_can_do(server: ServerProcess) -> None:
    text, pair, image = (each["triptych"] for each in server.client.get("/v1/models").json()["data"])
    assert (text["modalities"], pair["modalities"], image["modalities"]) == (["text"], ["text", "image"], ["image"])
    assert text["directions"] == ["complete", "infill-text"]
    assert pair["directions"] == ["text-to-image", "caption", "answer", "complete", "infill-image", "infill-text"]
    assert image["directions"] == ["infill-image"]
    assert text["image"] is text["audio"] is pair["audio"] is None
    assert pair["image"] == {"rows": 2, "columns": 2, "codebooks": 1}


def test_they_do_it(server: ServerProcess) -> None:
    def post(path: str, model: str, body: dict) -> dict:
        answer = server.client.post(path, json={**body, "model": model, "num_steps": 2})
        assert answer.status_code == 200, answer.text
        return answer.json()

    for model in ("text", "pair"):
        assert post("/v1/completions", model, {"prompt": "a", "num_tokens": 4})["choices"][0]["text"] is not None
        chat = {"messages": [{"role": "user", "content": "a"}], "num_tokens": 4}
        assert post("/v1/chat/completions", model, chat)["choices"][0]["message"]["content"] is not None
        post("/v1/canvas", model, {"segments": [{"modality": "text", "length": 4}]})
    post("/v1/images/generations", "pair", DRAWING)
    for model in ("pair", "image"):
        post("/v1/canvas", model, {"segments": [{"modality": "image"}]})


@pytest.mark.parametrize(
    ("path", "model", "body", "lacks"),
    [
        ("/v1/images/generations", "text", DRAWING, "image"),
        ("/v1/images/generations", "image", DRAWING, "text"),
        ("/v1/audio/speech", "text", SPEECH, "audio"),
        ("/v1/audio/speech", "pair", SPEECH, "audio"),
        ("/v1/completions", "image", {"prompt": "a"}, "text"),
        ("/v1/canvas", "text", {"segments": [{"modality": "image"}]}, "image"),
        ("/v1/canvas", "pair", {"segments": [{"modality": "audio", "length": 4}], "stream": True}, "audio"),
        ("/v1/encode", "image", {"modality": "text", "content": "a"}, "text"),
        ("/v1/decode", "text", {"modality": "audio", "tokens": [1]}, "audio"),
        (
            "/v1/chat/completions",
            "text",
            {"messages": [{"role": "user", "content": "a"}], "modalities": ["text", "audio"]},
            "audio",
        ),
        (
            "/v1/chat/completions",
            "text",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "a ___"},
                            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                        ],
                    }
                ]
            },
            "image",
        ),
    ],
)
def test_what_a_model_does_not_have_is_said_in_one_line(
    server: ServerProcess, path: str, model: str, body: dict, lacks: str
) -> None:
    answer = server.client.post(path, json={**body, "model": model})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"the model {model!r} has no {lacks}, only ")


def test_files_of_a_kind_that_a_model_does_not_have(server: ServerProcess) -> None:
    image = encode_image(IMAGE.decode([[0, 1, 2, 3]])[0])
    edit = server.client.post("/v1/images/edits", files={"image": image}, data={**DRAWING, "model": "text"})
    heard = server.client.post("/v1/audio/transcriptions", files={"file": b"RIFF"}, data={"model": "pair"})
    assert (edit.status_code, heard.status_code) == (400, 400)
    assert "has no image" in edit.json()["error"]["message"]
    assert "has no audio" in heard.json()["error"]["message"]
    content = {"modality": "image", "content": data_uri(image, "image/png"), "model": "pair"}
    assert server.client.post("/v1/encode", json=content).status_code == 200
