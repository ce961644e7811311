"""The background colour of an image, and patches without it."""

import torch

from triptych.tokenizers.backdrop import background, combine, separate

RED, BLUE, GREEN = torch.tensor([1.0, -1, -1]), torch.tensor([-1.0, -1, 1]), torch.tensor([-1.0, 1, -1])


def _image(behind: torch.Tensor) -> torch.Tensor:
    """[1, N, 3 P]: 4 x 4 flat patches of four pixels each, and an object in one of them."""
    image = behind.repeat_interleave(4).repeat(1, 16, 1)
    image[0, 5] = torch.stack([behind, GREEN, GREEN, behind], 1).flatten()
    return image


def test_the_most_frequent_flat_colour_is_the_background() -> None:
    colours = torch.stack([BLUE] * 7 + [RED] * 10 + [GREEN])
    flat = torch.ones(18, dtype=torch.bool)
    assert torch.equal(background(colours, flat), RED)
    assert torch.equal(background(colours, flat & (colours != RED).any(1)), BLUE)
    assert background(colours, (colours == GREEN).all(1)) is None  # one patch of eighteen is an object
    assert background(colours, torch.zeros(18, dtype=torch.bool)) is None


def test_colours_that_differ_by_noise_are_one_background() -> None:
    generator = torch.Generator().manual_seed(0)
    colours = BLUE * (1 - 0.02 * torch.rand(20, 3, generator=generator))
    only = background(colours, torch.ones(20, dtype=torch.bool))
    torch.testing.assert_close(only, BLUE, atol=0.03, rtol=0)


def test_objects_lose_their_background_and_flat_patches_keep_their_colour() -> None:
    on_red, on_blue = separate(_image(RED)), separate(_image(BLUE))
    assert torch.equal(on_red[0, 5], on_blue[0, 5])
    assert on_red[0, 5].view(4, 4)[3].tolist() == [0, 1, 1, 0]
    assert torch.equal(on_red[0, 0].view(4, 4)[:3, 0], RED)
    assert (on_red[0, 0].view(4, 4)[3] == 1).all()


def test_flat_parts_of_an_object_are_opaque() -> None:
    image = _image(BLUE)
    image[0, 9:12] = RED.repeat_interleave(4)
    image[0, 8] = torch.stack([RED, RED, BLUE, BLUE], 1).flatten()
    assert separate(image)[0, 8].view(4, 4)[3].tolist() == [1, 1, 0, 0]


def test_combining_restores_the_image() -> None:
    images = torch.cat([_image(RED), _image(BLUE)])
    assert torch.equal(combine(separate(images)), images)


def test_an_image_without_flat_patches_is_opaque() -> None:
    noise = torch.rand(1, 16, 12, generator=torch.Generator().manual_seed(0))
    layers = separate(noise)
    assert torch.equal(layers[..., :12], noise)
    assert (layers[..., 12:] == 1).all()
    assert torch.equal(combine(layers), noise)
