import math
from dataclasses import fields
from typing import get_args

import numpy as np
import pytest
from sample_fakes import IMAGE, TEXT, Fake, arbitrary

from triptych.errors import UserError
from triptych.sample.canvas import Canvas, known, masked
from triptych.sample.config import SAMPLING_PRESETS, SamplingConfig, Use
from triptych.sample.generate import generate
from triptych.sample.names import PRESET_NAMES, SAMPLER_NAMES
from triptych.sample.samplers import SAMPLERS
from triptych.vocab import Modality

BAD_COUNTS = (0, -3, 2.0, "4", True, math.nan)
BAD_NUMBERS = ("1", True, math.nan, math.inf, -0.5, None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sampler": "random_ordr"}, "unknown sampler 'random_ordr'. Did you mean 'random_order'?"),
        ({"sampler": 3}, "unknown sampler 3."),
        *(
            ({name: value}, f"{name} must be a whole number of at least 1, got {value!r}.")
            for name in ("num_steps", "best_of", "num_score_passes")
            for value in BAD_COUNTS
        ),
        *(
            ({name: value}, f"{name} must be a number {expected}, got {value!r}.")
            for name, expected in {
                "temperature": "of at least 0",
                "top_p": "above 0 and at most 1",
                "guidance_scale": "of at least 0 (1 is off)",
            }.items()
            for value in BAD_NUMBERS
        ),
        ({"top_p": 0.0}, "top_p must be a number above 0 and at most 1, got 0.0."),
        ({"top_p": 1.5}, "top_p must be a number above 0 and at most 1, got 1.5."),
        ({"best_of": None}, "best_of must be a whole number of at least 1, got None."),
        ({"length": "longest"}, "length must be draw, median or mode, got 'longest'"),
        ({"single_pass": 1}, "single_pass must be True or False, got 1."),
        (
            {"single_pass": True, "guidance_scale": 2.0},
            "single_pass works without guidance: use guidance_scale=1, got 2.0.",
        ),
        ({"options": [1]}, "options must map names of sampler options to values, got [1]."),
        ({"options": {"eta": 1}}, "the sampler 'random_order' has no option 'eta'"),
        ({"sampler": "remdm", "options": {"etta": 1}}, "no option 'etta'. Did you mean 'eta'?"),
        ({"sampler": "remdm", "options": {"eta": 2}}, "eta must be a number between 0 and 1, got 2."),
        ({"sampler": "blocks", "options": {"inner": "remdm", "gamma": 1}}, "'blocks' has no option 'gamma'"),
        ({"sampler": "blocks", "options": {"inner": "remdn"}}, "unknown sampler inside blocks 'remdn'. Did you mean"),
        ({"options": {"block_length": 0}}, "block_length must be a whole number of at least 1, got 0."),
    ],
)
def test_wrong_values_are_refused_in_one_line_that_names_the_field(values, message):
    with pytest.raises(UserError) as error:
        SamplingConfig(**values)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_every_field_is_checked():
    """No field accepts an arbitrary object."""
    for field in fields(SamplingConfig):
        with pytest.raises(UserError):
            SamplingConfig(**{field.name: object()})


def test_numbers_of_numpy_are_numbers():
    assert SamplingConfig(num_steps=np.int64(4), temperature=np.float32(0.5), best_of=np.int32(2)).num_steps == 4


def test_options_reach_the_sampler():
    network = Fake(arbitrary)
    options = {"inner": "threshold", "threshold": 1e-9, "block_length": 2}
    canvas = Canvas(known(TEXT, [7, 8, 9]), masked(IMAGE, 8))
    generate(network, [canvas], SamplingConfig(sampler="blocks", options=options), [0])
    assert network.num_passes == 4  # one for each block


def test_presets_cover_every_modality():
    assert {"scenes", "paper"} <= set(SAMPLING_PRESETS)
    for preset in SAMPLING_PRESETS.values():
        assert set(Modality) <= set(preset) <= {*Modality, *get_args(Use)}
        assert preset[TEXT].guidance_scale == 1  # no text can be hidden where text is generated


def test_light_names_are_those_of_the_tables():
    assert set(SAMPLER_NAMES) == set(SAMPLERS)
    assert set(PRESET_NAMES) == set(SAMPLING_PRESETS)
