"""`/v1/images`, called by OpenAI's client: the same images as offline, and every field honoured or refused."""

import base64
import io

import numpy as np
import openai
import pytest
from PIL import Image

from triptych.serve.media import encode_image

PROMPT = "two dogs left of a red heart"


def image_of(data: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(data)))


def file_of(image: Image.Image) -> tuple[str, bytes]:
    return "image.png", encode_image(image)


def with_hole(image: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
    """The image with a transparent rectangle."""
    holed = image.convert("RGBA")
    holed.paste((0, 0, 0, 0), box)
    return holed


@pytest.fixture(scope="module")
def cat(pipe):
    return pipe.text_to_image("a cat", seed=1)


def test_the_same_seeds_give_the_same_bytes_as_offline(client, pipe):
    made = client.images.generate(model="scenes", prompt=PROMPT, n=2, extra_body={"seed": 5})
    assert [base64.b64decode(each.b64_json) for each in made.data] == [
        encode_image(pipe.text_to_image(PROMPT, seed=seed)) for seed in (5, 6)
    ]
    assert made.size == "64x64"
    assert made.triptych == {"seeds": [5, 6], "warnings": []}
    num_text, num_image = len(pipe.bundle.text.encode([PROMPT])[0]), 2 * 16
    assert made.usage.input_tokens == 2 * num_text
    assert made.usage.output_tokens == num_image


def test_fields_of_sampling_are_honoured(client, pipe):
    sampling = {
        "seed": 7,
        "num_steps": 5,
        "sampler": "random_order",
        "temperature": 0.5,
        "guidance_scale": 1.5,
        "top_p": 0.9,
        "best_of": 2,
    }
    made = client.images.generate(model="scenes", prompt=PROMPT, extra_body=sampling)
    assert base64.b64decode(made.data[0].b64_json) == encode_image(pipe.text_to_image(PROMPT, **sampling))


@pytest.mark.parametrize(("output_format", "name"), [("jpeg", "JPEG"), ("webp", "WEBP"), ("png", "PNG")])
def test_output_formats(client, output_format, name):
    made = client.images.generate(model="scenes", prompt="a cat", output_format=output_format, output_compression=50)
    assert image_of(made.data[0].b64_json).format == name
    assert made.output_format == output_format


def test_a_stream_has_partial_images_and_then_the_same_image(client, pipe):
    sampling = {"sampler": "random_order", "num_steps": 5, "seed": 3, "temperature": 1.0}
    stream = client.images.generate(
        model="scenes", prompt=PROMPT, stream=True, partial_images=4, size="64x64", extra_body=sampling
    )
    *partial, last = list(stream)
    assert [each.type for each in partial] == ["image_generation.partial_image"] * 4
    assert [each.partial_image_index for each in partial] == [0, 1, 2, 3]
    assert [each.triptych["step"] for each in partial] == [0, 1, 2, 3]
    assert last.type == "image_generation.completed"
    final = pipe.text_to_image(PROMPT, **sampling)
    assert base64.b64decode(last.b64_json) == encode_image(final)
    # Images on the way come closer to the last one.
    pixels = np.asarray(final, float)
    distances = [np.abs(np.asarray(image_of(each.b64_json), float) - pixels).mean() for each in partial]
    assert distances[0] > distances[-1]


def test_a_stream_of_several_images_names_each(client, pipe):
    events = list(client.images.generate(model="scenes", prompt="a cat", n=2, stream=True))
    assert sorted(each.triptych["index"] for each in events) == [0, 1]
    made = {each.triptych["index"]: base64.b64decode(each.b64_json) for each in events}
    assert made == {i: encode_image(pipe.text_to_image("a cat", seed=i)) for i in (0, 1)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": "url"}, "keeps no files to link to: use b64_json"),
        ({"size": "1024x1024"}, "size must be 64x64 or auto"),
        ({"size": "abc"}, "size must be 64x64 or auto"),
        ({"background": "transparent"}, "no transparent parts"),
        ({"n": 10**9}, "n must be at most 16, got 1000000000"),
        ({"n": 0}, "n: Input should be greater than or equal to 1"),
        ({"extra_body": {"n": 4, "best_of": 8}}, "n times best_of must be at most 16, got 32"),
        ({"extra_body": {"num_steps": 10**9}}, "num_steps must be at most"),
        ({"extra_body": {"sampler": "nucleus"}}, "sampler"),
        ({"extra_body": {"steps": 5}}, "steps: Extra inputs are not permitted"),
        ({"prompt": "a submarine"}, "unknown word 'submarine'"),
        ({"prompt": ""}, "expected a text, got an empty one"),
        ({"prompt": "a" * 100_001}, "a text has at most 100000 characters"),
    ],
)
def test_what_cannot_be_done_is_refused_clearly(client, fields, message):
    with pytest.raises(openai.BadRequestError, match=message) as error:
        client.images.generate(**{"model": "scenes", "prompt": "a cat", **fields})
    assert set(error.value.body) == {"message", "type", "param", "code"}


def test_an_unknown_model_is_not_there(client):
    with pytest.raises(openai.NotFoundError, match=r"there is no model 'scene'\. Did you mean 'scenes'") as error:
        client.images.generate(model="scene", prompt="a cat")
    assert error.value.code == "model_not_found"


# -- edits ------------------------------------------------------------------------------------------------------------


def test_a_mask_of_a_rectangle_is_the_pipelines_box(client, pipe, cat):
    box = (5, 0, 30, 40)
    made = client.images.edit(
        model="scenes",
        image=file_of(cat),
        mask=file_of(with_hole(cat, box)),
        prompt="a dog left of a cat",
        extra_body={"seed": 4, "num_steps": 6, "sampler": "random_order"},
    )
    offline = pipe.infill_image(cat, box, "a dog left of a cat", seed=4, num_steps=6, sampler="random_order")
    assert base64.b64decode(made.data[0].b64_json) == encode_image(offline)


def test_pixels_outside_of_the_masked_codes_stay(client, cat):
    mask = Image.new("RGBA", cat.size, (0, 0, 0, 255))
    mask.putpixel((20, 40), (0, 0, 0, 0))
    made = client.images.edit(
        model="scenes",
        image=file_of(cat),
        mask=file_of(mask),
        prompt="two red hearts",
        extra_body={"temperature": 20, "sampler": "random_order"},
    )
    changed = (np.asarray(image_of(made.data[0].b64_json)) != np.asarray(cat)).any(-1)
    rows, columns = np.nonzero(changed)
    assert len(rows)
    assert (rows >= 32).all()  # the code of 16 x 16 pixels that the pixel lies in
    assert (rows < 48).all()
    assert (columns >= 16).all()
    assert (columns < 32).all()


def test_without_a_mask_the_transparent_part_of_the_image_is_repainted(client, cat):
    holed, fields = with_hole(cat, (0, 0, 32, 64)), {"model": "scenes", "prompt": "a dog"}
    by_image = client.images.edit(image=file_of(holed), **fields)
    by_mask = client.images.edit(image=file_of(holed), mask=file_of(holed), **fields)
    assert by_image.data[0].b64_json == by_mask.data[0].b64_json


def test_without_transparent_parts_all_is_repainted(client, pipe, cat):
    made = client.images.edit(model="scenes", image=[file_of(cat)], prompt="a dog", extra_body={"seed": 2})
    assert base64.b64decode(made.data[0].b64_json) == encode_image(pipe.text_to_image("a dog", seed=2))


def test_a_stream_of_an_edit(client, cat):
    fields = {"model": "scenes", "prompt": "a dog", "image": file_of(with_hole(cat, (0, 0, 32, 64)))}
    sampling = {"num_steps": 4, "sampler": "random_order", "options": {"block_length": 16}}
    *partial, last = client.images.edit(stream=True, partial_images=1, extra_body=sampling, **fields)
    assert [each.type for each in partial] == ["image_edit.partial_image"]
    assert last.type == "image_edit.completed"
    assert last.b64_json == client.images.edit(extra_body=sampling, **fields).data[0].b64_json
    right = (slice(None), slice(32, None))
    assert (np.asarray(image_of(partial[0].b64_json))[right] == np.asarray(cat)[right]).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask": file_of(Image.new("RGBA", (32, 32)))}, "size of the image, 64 x 64 pixels, got 32 x 32"),
        ({"mask": file_of(Image.new("RGB", (64, 64)))}, "the mask marks no pixel"),
        ({"mask": ("mask.png", b"")}, "expected a mask, got an empty file"),
        ({"image": ("image.png", b"GIF89a")}, "image"),
        ({"image": file_of(Image.new("1", (1, 100_000)))}, "at most 4000 pixels on a side, got 100000"),
        ({"image": [file_of(Image.new("RGB", (64, 64)))] * 2}, "one image is edited at a time"),
        ({"n": "abc"}, "n: Input should be a valid integer"),
        ({"extra_body": {"num_steps": "many"}}, "num_steps: Input should be a valid integer"),
        ({"extra_body": {"options": {"gamma": [1, 2]}}}, "options"),
    ],
)
def test_edits_that_cannot_be_done_are_refused_clearly(client, cat, fields, message):
    with pytest.raises(openai.BadRequestError, match=message):
        client.images.edit(**{"model": "scenes", "prompt": "a dog", "image": file_of(cat), **fields})
