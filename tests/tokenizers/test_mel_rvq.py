"""MelRVQ: frames, residual quantisation, decoding, saving, errors."""

import json

import numpy as np
import pytest
import torch

from triptych.errors import CheckpointError, DataError, UserError
from triptych.tokenizers.audio import load_audio_tokenizer
from triptych.tokenizers.fit_mel_rvq import fit_mel_rvq
from triptych.tokenizers.kmeans import kmeans
from triptych.tokenizers.mel_rvq import MelRVQ
from triptych.utils.media import Audio


def chirps(count, seed=0, rate=16_000):
    """Varied clips: gliding harmonic tones."""
    rng = np.random.default_rng(seed)
    clips = []
    for _ in range(count):
        seconds = rng.uniform(1.0, 2.0)
        time = np.arange(int(seconds * rate)) / rate
        pitch = rng.uniform(100, 300) * (1 + 0.3 * np.sin(2 * np.pi * rng.uniform(0.5, 2) * time))
        phase = 2 * np.pi * np.cumsum(pitch) / rate
        wave = sum(np.sin(k * phase) / k for k in range(1, 6)) * np.abs(np.sin(2 * np.pi * rng.uniform(1, 3) * time))
        clips.append(Audio((0.2 * wave).astype(np.float32), rate))
    return clips


@pytest.fixture(scope="module")
def fitted():
    return fit_mel_rvq(chirps(40), num_codebooks=3, codes=64, components=24, decoder_steps=30, report=lambda _: None)


def test_ids_are_frame_major_at_25_frames_per_second(fitted):
    for seconds, frames in ((1.0, 25), (1.01, 26), (0.04, 2), (30.0, 750)):
        silence = Audio(np.zeros(round(seconds * 16_000), np.float32), 16_000)
        (ids,) = fitted.encode([silence])
        assert ids.dtype == np.int32
        assert len(ids) == max(2, frames) * 3
    (ids,) = fitted.encode(chirps(1, seed=5))
    expected = fitted.quantize(fitted.components(chirps(1, seed=5)[0]))
    assert (ids.reshape(-1, 3) == expected.numpy()).all()


def test_each_codebook_takes_the_code_nearest_to_the_residual(fitted):
    components = fitted.components(chirps(1, seed=9)[0])
    chosen = fitted.quantize(components)
    residual = components.clone()
    for number in range(3):
        for frame in range(len(residual)):
            distances = [(residual[frame] - code).square().sum() for code in fitted.codebooks[number]]
            best = min(distances)
            assert distances[chosen[frame, number]] <= best + 1e-4
        residual = residual - fitted.codebooks[number][chosen[:, number]]
    assert torch.allclose(fitted.dequantize(chosen), components - residual, atol=1e-4)


def test_more_codebooks_leave_a_smaller_error(fitted):
    components = torch.cat([fitted.components(clip) for clip in chirps(10, seed=3)])
    errors = []
    for books in (1, 2, 3):
        part = MelRVQ(fitted.mean, fitted.basis, fitted.codebooks[:books], None)
        errors.append(float((part.dequantize(part.quantize(components)) - components).square().mean()))
    assert errors[0] > errors[1] > errors[2]


def test_items_do_not_depend_on_their_batch(fitted):
    clips = chirps(4, seed=7)
    together = fitted.encode(clips)
    for clip, ids in zip(clips, together):
        assert (fitted.encode([clip])[0] == ids).all()
    back = fitted.decode(together)
    assert (fitted.decode(together[2:3])[0].samples == back[2].samples).all()


def test_decoded_audio_has_the_right_length_and_range(fitted):
    clip = chirps(1, seed=11)[0]
    (ids,) = fitted.encode([clip])
    for tokenizer in (fitted, fitted.without_decoder()):
        (back,) = tokenizer.decode([ids])
        assert back.sample_rate == 16_000
        assert back.seconds == pytest.approx(np.ceil(clip.seconds * 25) / 25)
        assert np.isfinite(back.samples).all()
        assert np.abs(back.samples).max() <= 1


def test_other_sample_rates_are_resampled(fitted):
    wave = chirps(1, seed=13, rate=48_000)[0]
    (ids,) = fitted.encode([wave])
    assert len(ids) == int(np.ceil(wave.seconds * 25)) * 3


def test_codebook_offsets_give_each_codebook_its_own_ids(fitted):
    offset = MelRVQ(fitted.mean, fitted.basis, fitted.codebooks, fitted.decoder, codebook_offsets=True)
    assert (fitted.vocab_size, offset.vocab_size) == (64, 192)
    clips = chirps(1, seed=15)
    plain, shifted = fitted.encode(clips)[0], offset.encode(clips)[0]
    assert (shifted - plain == np.tile([0, 64, 128], len(plain) // 3)).all()
    assert (offset.decode([shifted])[0].samples == fitted.decode([plain])[0].samples).all()
    # As with the codecs, an id of the wrong codebook is read modulo the codebook size.
    assert (offset.decode([plain])[0].samples == fitted.decode([plain])[0].samples).all()


@pytest.mark.parametrize("half", [False, True])
def test_saved_and_loaded(fitted, tmp_path, half):
    fitted.save(tmp_path, half=half)
    loaded = load_audio_tokenizer(tmp_path)
    assert loaded.fingerprint == MelRVQ.load(tmp_path).fingerprint
    assert (loaded.fingerprint == fitted.fingerprint) == (not half)
    if not half:
        (ids,), (again,) = fitted.encode(chirps(1, seed=17)), loaded.encode(chirps(1, seed=17))
        assert (ids == again).all()
        assert (fitted.decode([ids])[0].samples == loaded.decode([ids])[0].samples).all()


def test_bad_input_is_one_clear_line(fitted, tmp_path):
    with pytest.raises(DataError, match="the limit is 30 s"):
        fitted.encode([Audio(np.zeros(31 * 16_000, np.float32), 16_000)])
    for samples in (np.zeros(0, np.float32), np.array([0.1, np.nan], np.float32)):
        with pytest.raises(DataError, match="at least one sample, all finite"):
            fitted.encode([Audio(samples, 16_000)])
    with pytest.raises(UserError, match=r"must be in \[0, 64\)"):
        fitted.decode([np.array([1, 2, 64])])
    with pytest.raises(UserError, match="expected a multiple of 3 audio ids"):
        fitted.decode([np.array([1, 2, 3, 4])])
    assert len(fitted.decode([np.array([], dtype=np.int32)])[0].samples) == 0
    fitted.save(tmp_path)
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec | {"log_base": 10}))
    with pytest.raises(CheckpointError, match="unknown settings log_base"):
        MelRVQ.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    weights = tmp_path / "mel_rvq.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="is not a usable mel-rvq tokenizer"):
        MelRVQ.load(tmp_path)


def test_equal_seeds_give_equal_tokenizers():
    fits = [fit_mel_rvq(chirps(6), 1, codes=8, components=4, decoder_steps=2, seed=s, report=len) for s in (0, 0, 1)]
    assert fits[0].fingerprint == fits[1].fingerprint != fits[2].fingerprint


def test_kmeans_finds_well_separated_clusters():
    generator = torch.Generator().manual_seed(0)
    true = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    points = (true[:, None] + 0.1 * torch.randn(4, 100, 2, generator=generator)).reshape(-1, 2)
    best = min(
        (kmeans(points, 4, torch.Generator().manual_seed(seed)) for seed in range(8)),
        key=lambda result: float((points - result[0][result[1]]).square().sum()),
    )[0]
    assert float(torch.cdist(true, best).min(1).values.max()) < 0.1
