"""Log-mel spectrograms against an outside implementation, and their inversion."""

import numpy as np
import pytest
import torch

from triptych.tokenizers.mel import MelConfig, griffin_lim

CONFIG = MelConfig()


def tone(*frequencies, seconds=1.0):
    time = torch.arange(int(seconds * CONFIG.rate)) / CONFIG.rate
    return 0.3 * sum(torch.sin(2 * torch.pi * f * time) for f in frequencies) / len(frequencies)


def test_filters_equal_those_of_transformers():
    from transformers.audio_utils import mel_filter_bank

    expected = mel_filter_bank(
        CONFIG.fft // 2 + 1, CONFIG.bands, 0.0, CONFIG.top_hz, CONFIG.rate, norm=None, mel_scale="htk"
    ).T
    expected = expected / np.maximum(expected.sum(1, keepdims=True), 1e-9)
    np.testing.assert_allclose(CONFIG.filters.numpy(), expected, atol=1e-5)


def test_one_frame_every_ten_milliseconds():
    assert CONFIG.log_mel(tone(440)).shape == (100, 80)
    assert CONFIG.log_mel(tone(440, seconds=0.48)).shape == (48, 80)


@pytest.mark.parametrize("frequency", [200, 1000, 3000, 6000])
def test_a_tone_is_loudest_in_its_own_band(frequency):
    bands = CONFIG.log_mel(tone(frequency))[20:80].mean(0)
    centre = (CONFIG.filters * torch.linspace(0, CONFIG.rate / 2, CONFIG.fft // 2 + 1)).sum(1)[bands.argmax()]
    assert float(centre) == pytest.approx(frequency, rel=0.06)


def test_silence_is_the_floor():
    silent = CONFIG.log_mel(torch.zeros(1600))
    assert torch.allclose(silent, torch.full_like(silent, float(np.log(CONFIG.floor))))


def test_griffin_lim_rebuilds_the_magnitudes():
    wave = tone(220, 440, 660, 1500)
    magnitude = CONFIG.magnitude(wave)
    rebuilt = griffin_lim(magnitude, CONFIG, iterations=60)
    assert len(rebuilt) == len(wave)
    error = (CONFIG.magnitude(rebuilt) - magnitude).norm() / magnitude.norm()
    assert float(error) < 0.1
    assert float(error) < 0.5 * float(
        (CONFIG.magnitude(griffin_lim(magnitude, CONFIG, iterations=1)) - magnitude).norm() / magnitude.norm()
    )


def test_griffin_lim_is_deterministic():
    magnitude = CONFIG.magnitude(tone(300, 900, seconds=0.4))
    assert torch.equal(griffin_lim(magnitude, CONFIG), griffin_lim(magnitude, CONFIG))


def test_mels_survive_direct_inversion():
    log_mel = CONFIG.log_mel(tone(250, 800, 2500))
    back = (CONFIG.magnitude_from_log_mel(log_mel) @ CONFIG.filters.T).clamp(min=CONFIG.floor).log()
    loud = log_mel > log_mel.max() - 3
    assert float((back - log_mel)[loud].abs().mean()) < 0.7
