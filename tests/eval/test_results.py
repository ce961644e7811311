"""Results in a folder: what is written is read, what is damaged is counted, models do not mix."""

import json
import math
import threading

import pytest

from triptych.errors import CheckpointError, DataError, UserError
from triptych.eval.metrics import Judge, Metric, Missing, Result
from triptych.eval.results import Entry, MissingEntry, ModelInfo, ResultFolder, find_results, folder_for, model_name
from triptych.eval.scores import Score

ONE = ModelInfo("runs/one", "1" * 64, {"text": "t"}, 12)
OTHER = ModelInfo("runs/one", "2" * 64)
WER = Metric("wer", "WER", "audio", False, (0.0, 1.0), headline=False)
FID = Metric("fid", "FID", "image", False)


def entry(
    metric=WER, value=0.25, model=ONE, settings=None, samples=None, judge=None, seed=0, date="2026-11-18T00:00:00Z"
):
    score = Score(value, value - 0.05, value + 0.05, 10)
    result = Result(metric, score, settings or {"data": "clips"}, judge, samples, "wer.npy")
    return Entry("audio", result, model, seed, {"torch": "2"}, date)


def test_what_is_written_is_read(tmp_path):
    written = entry(
        samples=[(1.0, 4.0), (0.5, 3.0)], judge=Judge("Whisper", "ab"), settings={"data": "x", "list": [1, 2]}
    )
    missing = MissingEntry("image", Missing(FID, "needs images"), ONE, "2026-11-19T00:00:00Z")
    folder = ResultFolder(tmp_path / "new" / "folder")
    folder.add(written, missing)
    stored = folder.read()
    assert stored.entries == [written]
    assert stored.missing == [missing]
    assert (stored.notes, stored.model, stored.date) == ([], ONE, "2026-11-19T00:00:00Z")


def test_lines_are_strict_json_whatever_libraries_return(tmp_path):
    import numpy as np

    folder = ResultFolder(tmp_path)
    settings = {"data": tmp_path, "n": np.int64(3), "x": float("nan"), "parts": (1, {"b", "a"})}
    made = entry(settings=settings)
    folder.add(Entry(made.suite, Result(WER, Score(0.5, math.nan, math.nan, 3), settings), ONE))
    (line,) = (tmp_path / "results.jsonl").read_text().splitlines()
    content = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert content["settings"] == {"data": str(tmp_path), "n": 3, "x": None, "parts": [1, ["a", "b"]]}
    assert (content["value"], content["low"]) == (0.5, None)
    assert math.isnan(folder.read().entries[0].score.low)


def test_equal_settings_replace_and_others_are_added(tmp_path):
    folder = ResultFolder(tmp_path)
    folder.add(entry(value=0.1))
    folder.add(entry(value=0.2))
    assert [each.score.value for each in folder.read().entries] == [0.2]
    folder.add(entry(value=0.3, settings={"data": "others"}))
    folder.add(entry(value=0.4, seed=1))
    folder.add(entry(value=0.5, judge=Judge("Whisper", "ab")))
    assert [each.score.value for each in folder.read().entries] == [0.2, 0.3, 0.4, 0.5]


def test_a_metric_that_is_measured_is_not_missing_any_more(tmp_path):
    folder = ResultFolder(tmp_path)
    folder.add(*(MissingEntry("audio", Missing(metric, "no Whisper"), ONE) for metric in (WER, FID)))
    folder.add(MissingEntry("audio", Missing(WER, "still no Whisper"), ONE))
    assert {each.metric.name: each.missing.reason for each in folder.read().missing} == {
        "wer": "still no Whisper",
        "fid": "no Whisper",
    }
    folder.add(entry())
    assert [each.metric.name for each in folder.read().missing] == ["fid"]


@pytest.mark.parametrize("damage", ['{"kind": "result"', "[]", '{"kind": "result", "suite": "x"}', "null", "\x00\xff"])
def test_damaged_lines_are_counted_and_kept(tmp_path, damage):
    folder = ResultFolder(tmp_path)
    folder.add(entry())
    with open(folder.file, "a") as file:
        file.write(damage + "\n")
    stored = folder.read()
    assert len(stored.entries) == 1
    (note,) = stored.notes
    assert "1 damaged line is ignored (line 2)" in note
    folder.add(entry(settings={"data": "others"}))
    stored = folder.read()
    assert len(stored.entries) == 2
    assert "1 damaged line" in stored.notes[0]


def test_a_line_that_a_killed_process_cut_off_costs_only_itself(tmp_path):
    folder = ResultFolder(tmp_path)
    folder.add(entry(), entry(settings={"data": "others"}))
    folder.file.write_bytes(folder.file.read_bytes()[:-40])
    folder.add(entry(settings={"data": "third"}))
    assert [each.result.settings["data"] for each in folder.read().entries] == ["clips", "third"]


def test_several_writers_lose_nothing(tmp_path):
    def write(number):
        for part in range(5):
            ResultFolder(tmp_path).add(entry(settings={"data": f"{number}-{part}"}))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({each.result.settings["data"] for each in ResultFolder(tmp_path).read().entries}) == 20


# -- which folder -----------------------------------------------------------------------------------------------------


def test_results_of_another_model_are_refused_or_kept_apart(tmp_path):
    folder = ResultFolder(tmp_path / "one")
    folder.add(entry())
    folder.check_model(ONE)
    with pytest.raises(CheckpointError, match=r"holds results of another model: runs/one \(11111111\).*another --out"):
        folder.check_model(OTHER)
    assert folder_for(ONE, tmp_path) == tmp_path / "one"
    assert folder_for(OTHER, tmp_path) == tmp_path / "one-22222222"


def test_a_folder_with_results_of_two_models_is_refused(tmp_path):
    ResultFolder(tmp_path).add(entry(), entry(model=OTHER))
    with pytest.raises(DataError, match=r"several models.*11111111.*22222222.*one folder for each"):
        ResultFolder(tmp_path).read()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("scenes", "scenes"),
        ("runs/mine", "mine"),
        ("runs/mine/", "mine"),
        ("hf://me/my-model", "me--my-model"),
        ("runs/a b&c", "a-b-c"),
    ],
)
def test_names_of_models(source, name):
    assert model_name(source) == name


def test_results_are_found_by_folder_and_by_model(tmp_path):
    root = tmp_path / "out"
    ResultFolder(root / "one").add(entry(date="2026-01-01T00:00:00Z"))
    assert find_results(root / "one", root).folder == root / "one"
    assert find_results("runs/one", root).folder == root / "one"
    ResultFolder(root / "one-22222222").add(entry(model=OTHER, date="2026-02-01T00:00:00Z"))
    assert find_results("one-22222222", root).folder == root / "one-22222222"
    for text in ("one", "runs/one"):
        with pytest.raises(UserError, match=r"may mean the results in any of .*/one, .*/one-22222222: give one"):
            find_results(text, root)


def test_results_of_another_model_of_that_folder_name_are_not_taken(tmp_path):
    root = tmp_path / "out"
    ResultFolder(root / "one").add(entry())
    (tmp_path / "elsewhere" / "one").mkdir(parents=True)
    with pytest.raises(DataError, match=r"no results of the model .*elsewhere/one: .*/out/one is of runs/one\."):
        find_results(tmp_path / "elsewhere" / "one", root)
    mine = ModelInfo(str(tmp_path / "elsewhere" / "one"), "3" * 64)
    ResultFolder(root / "one-33333333").add(entry(model=mine))
    assert find_results(tmp_path / "elsewhere" / "one", root).folder == root / "one-33333333"


@pytest.mark.parametrize(
    ("old", "new"),
    [('"n": 10', '"n": Infinity'), ('"n": 10', '"n": 1e999'), ('"value": 0.25', '"value": NaN'),
     ('"value": 0.25', '"value": 1e999'), ('"data": "clips"', '"data": ' + "[" * 100_000)],
)  # fmt: skip
def test_lines_with_numbers_that_are_none_are_damaged(tmp_path, old, new):
    folder = ResultFolder(tmp_path)
    folder.add(entry(), entry(FID))
    first, second = folder.file.read_text().splitlines()
    assert old in first
    folder.file.write_text(f"{first.replace(old, new)}\n{second}\n")
    stored = folder.read()
    assert [each.metric.name for each in stored.entries] == ["fid"]
    assert "1 damaged line is ignored (line 1)" in stored.notes[0]


def test_what_was_measured_besides_makes_no_second_result(tmp_path):
    folder = ResultFolder(tmp_path)
    folder.add(entry(settings={"data": "x", "refused": 1, "by_codebook": [0.5, 0.25]}))
    folder.add(entry(settings={"data": "x", "refused": 0, "by_codebook": [0.5, 0.75]}))
    assert len(folder.read().entries) == 1


def test_a_row_of_the_paper_is_not_missing_once_its_data_are_measured(tmp_path):
    folder = ResultFolder(tmp_path)
    rows = ("wer/librispeech-pc", "wer/train")
    metrics = [Metric(name, "WER", "audio", False, (0.0, 1.0)) for name in rows]
    folder.add(*(MissingEntry("audio", Missing(metric, "no data"), ONE) for metric in metrics))
    folder.add(entry(settings={"data": "librispeech-pc"}))
    assert [each.metric.name for each in folder.read().missing] == ["wer/train"]


def test_bad_folders_are_one_clear_line(tmp_path):
    root = tmp_path / "out"
    ResultFolder(root / "good").add(entry())
    empty, other, blank = tmp_path / "empty", tmp_path / "other", tmp_path / "blank"
    for folder in (empty, other, blank):
        folder.mkdir()
    (other / "notes.txt").write_text("x")
    (blank / "results.jsonl").write_text("")
    cases = {
        empty: (DataError, "is empty: expected a folder with results.jsonl"),
        other: (DataError, "has no results.jsonl.*There are results of good"),
        blank: (DataError, "holds no results: it is empty"),
        tmp_path / "nothing": (UserError, "no results of.*Known: good"),
    }
    for folder, (kind, message) in cases.items():
        with pytest.raises(kind, match=message) as caught:
            find_results(folder, root)
        assert "\n" not in str(caught.value)
    (blank / "results.jsonl").write_text("{\n{\n")
    with pytest.raises(DataError, match="its 2 lines are damaged"):
        find_results(blank, root)
