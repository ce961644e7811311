"""`triptych eval` as a user meets it: suites that lack something, that are stopped, and what is made of results."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import triptych
from triptych.cli.main import COMMANDS, main
from triptych.errors import UserError
from triptych.eval import suites
from triptych.eval.codecs.run import guess_modality
from triptych.eval.metrics import Metric, Missing, Result
from triptych.eval.paper_suite import FOLDERS, paper_jobs
from triptych.eval.records import run_part
from triptych.eval.results import ResultFolder
from triptych.eval.scores import Score, ratio_score

RIGHT = Metric("fake/right", "share right", "text", True, (0.0, 1.0))
LOST = Metric("fake/lost", "needs a judge", "text", True, (0.0, 1.0))
BROKEN = Metric("fake/broken", "broken", "text", True)


@dataclass(frozen=True, kw_only=True)
class FakeSettings:
    data: str | None = None
    limit: int = 20
    stop_at: int | None = None
    has_results: bool = True
    shift: float = 0.0


def fake_suite(evaluation, settings):
    """Answers that a model gets right by chance; it stops once, as by Ctrl-C, at sample `stop_at`."""

    def compute(batch):
        if settings.stop_at in batch and not (evaluation.out / "stopped").exists():
            evaluation.out.mkdir(parents=True, exist_ok=True)
            (evaluation.out / "stopped").write_text("")
            raise KeyboardInterrupt
        return [{"right": (i * 7919) % 10 < 6 + settings.shift} for i in batch]

    yield Missing(LOST, "give its weights: --judge FOLDER")
    if settings.has_results:
        yield Result(BROKEN, Score(float("nan"), 0, 0, 3))
        records = run_part(evaluation.records, "fake", settings.limit, compute, evaluation.progress)
        right = [float(record["right"]) for record in records]
        samples = [(each, 1.0) for each in right]
        yield Result(RIGHT, ratio_score(right), {"data": settings.data, "limit": settings.limit}, None, samples)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """All suites are the fake one; files go to a folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(suites, "SUITES", dict.fromkeys(suites.SUITES, lambda: (fake_suite, FakeSettings)))
    return tmp_path


def run(*words, code=0):
    assert main([str(word) for word in words]) == code


# -- suites -----------------------------------------------------------------------------------------------------------


def test_a_suite_prints_its_table_and_what_is_missing_and_keeps_both(fake, small_model, capsys):
    run("eval", "text", small_model, "--limit", 20, "--data", "d/x")
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert lines[2].startswith("| share right, x ↑ | 0.600 | ")
    assert lines[3:] == [
        "not measured: needs a judge: give its weights: --judge FOLDER",
        "not measured: broken: its value is nan: the model's outputs break it",
    ]
    assert "results: out/eval/small; `triptych eval report out/eval/small`" in output.err
    stored = ResultFolder("out/eval/small").read()
    assert [each.metric.name for each in stored.entries] == ["fake/right"]
    assert {each.metric.name for each in stored.missing} == {"fake/lost", "fake/broken"}
    (entry,) = stored.entries
    assert (entry.suite, entry.model.source, entry.seed) == ("text", str(small_model), 0)
    assert entry.model.num_parameters > 0
    assert set(entry.model.tokenizers) == {"text", "image", "audio"}
    assert entry.environment["triptych"] == triptych.__version__
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", entry.date)


def test_json_goes_to_standard_output_or_a_file(fake, small_model, capsys):
    run("eval", "text", small_model, "--json")
    content = json.loads(capsys.readouterr().out)
    assert content["results"][0]["value"] == 0.6
    assert content["missing"][0] == {"metric": "fake/lost", "reason": "give its weights: --judge FOLDER"}
    run("eval", "text", small_model, "--json", "deep/r.json", "--out", "here")
    assert json.loads(Path("deep/r.json").read_text())["out"] == "here"


def test_without_any_metric_the_exit_code_says_so(fake, small_model, monkeypatch, capsys):
    settings = lambda **options: FakeSettings(**options, has_results=False)  # noqa: E731
    monkeypatch.setattr(suites, "settings_of", lambda name, values: settings(**values))
    run("eval", "text", small_model, code=2)
    output = capsys.readouterr()
    assert output.out == ""
    last = output.err.splitlines()[-1]
    assert last == "triptych: error: no metric was computed. needs a judge: give its weights: --judge FOLDER"


def test_a_stopped_suite_shows_its_results_and_the_same_command_resumes(fake, small_model, monkeypatch, capsys):
    real = suites.settings_of
    monkeypatch.setattr(suites, "settings_of", lambda name, values: real(name, {**values, "stop_at": 15}))
    run("eval", "text", small_model, code=130)
    stopped = capsys.readouterr()
    assert "stopped; the results so far:" in stopped.err
    assert stopped.err.splitlines()[-1] == "triptych: stopped; the same command resumes."
    run("eval", "text", small_model)
    assert "fake: 10 of 20 kept from an earlier run" in capsys.readouterr().err


def test_results_of_other_weights_are_kept_apart_or_refused(fake, small_model, capsys):
    from triptych.hub.pipeline import Pipeline

    run("eval", "text", small_model)
    pipe = Pipeline.from_pretrained(small_model)
    next(pipe.model.parameters()).data.add_(0.1)
    pipe.save_pretrained("models/small", builtin_tokenizers="scenes")
    capsys.readouterr()
    run("eval", "text", "models/small")
    assert re.search(r"results: out/eval/small-[0-9a-f]{8};", capsys.readouterr().err)
    run("eval", "text", "models/small", "--out", "out/eval/small", code=4)
    error = capsys.readouterr().err.splitlines()[-1]
    assert "out/eval/small holds results of another model" in error
    assert "Choose another --out" in error


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["eval"], 2, "needs a second word: eval scenes or eval text or"),
        (["eval", "imag", "x"], 2, "unknown command 'eval imag'. Did you mean 'eval image'?"),
        (["eval", "text"], 2, "the following arguments are required: MODEL"),
        (["eval", "text", "scene"], 2, "there is no model 'scene'"),
        (["eval", "text", "scenes", "--seed", "-1"], 2, "--seed must not be negative, got -1."),
        (["eval", "text", "scenes", "--masks", "comon"], 2, "unknown name 'comon'. Did you mean 'common'?"),
        (["eval", "image", "scenes", "--preset", "fsat"], 2, "unknown preset 'fsat'. Did you mean 'fast'?"),
        (["eval", "audio", "scenes"], 2, "the following arguments are required: --data"),
        (["eval", "paper", "scenes", "--data", "nowhere"], 3, "there is no folder nowhere: expected one with text,"),
        (["eval", "scenes", "scenes", "--model", "other"], 2, "name one model: MODEL is 'scenes', --model is 'other'."),
        (["eval", "report", "nothing"], 2, "there are no results of 'nothing'"),
        (["eval", "report", "x", "--html", "x.pdf"], 2, "--html must be a .html file, got 'x.pdf'."),
        (["eval", "compare", "a", "b"], 2, "there are no results of 'a'"),
        (["eval", "tokenizers", "--codebooks", "2"], 2, "--codebooks is for data of yours: add --data."),
        (["eval", "tokenizers", "--no-dnsmos"], 2, "--no-dnsmos is for data of yours: add --data."),
        (["eval", "tokenizers", "--data", "x", "--sheet", "x.png"], 2, "--sheet is for the toy dataset."),
    ],
)
def test_mistakes_are_one_clear_line(words, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == code
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""


def test_every_suite_has_the_same_options():
    from triptych.cli.main import parser_of

    for name in ("text", "image", "audio", "paper"):
        known = {option for action in parser_of(f"eval {name}")._actions for option in action.option_strings}
        assert {"--data", "--out", "--nproc", "--seed", "--device", "--json", "--quiet"} <= known
    assert all(COMMANDS[name].when_stopped for name in COMMANDS if name.startswith("eval "))


def test_every_setting_of_a_suite_has_an_option():
    """What the settings can say, the command line can say."""
    from triptych.cli.main import parser_of

    other = {"guidance_scale": "text_guidance", "directions": "only", "sampling": "preset"}
    other |= {"speech_sampling": "preset", "text_sampling": ""}
    for name in ("text", "image", "audio"):
        known = {action.dest for action in parser_of(f"eval {name}")._actions}
        _, kind = suites.SUITES[name]()
        lacking = [field for field in kind.__dataclass_fields__ if other.get(field, field) not in {*known, ""}]
        assert lacking == [], name


# -- the paper --------------------------------------------------------------------------------------------------------


def test_the_paper_runs_what_there_is_and_names_what_is_not(fake, small_model, capsys):
    for name in ("text", "cc12m"):
        (fake / "data" / name).mkdir(parents=True)
        (fake / "data" / name / "file").write_text("x")
    (fake / "data" / "train-images").mkdir()  # empty
    with pytest.raises(UserError, match=r"the suite 'image' has no setting 'geneva'\. Did you mean 'geneval'"):
        real_paper_settings("data", {"image": {"geneva": None}})
    jobs, missing = paper_jobs("data")
    assert [(job.suite, str(job.settings.data)) for job in jobs] == [("text", "data/text"), ("image", "data/cc12m")]
    reasons = {one.metric.name: one.reason for _, one in missing}
    assert reasons["fid-inception/train"] == "no data in data/train-images"
    assert reasons["wer/librispeech-pc"] == "no data in data/librispeech-pc"
    assert "lm/mmlu" not in reasons
    with pytest.raises(UserError, match="no setting 'speech'"):
        paper_jobs("data", {"speech": {}})
    (fake / "other").mkdir()
    with pytest.raises(UserError, match=f"has none of the folders {', '.join(FOLDERS)}"):
        paper_jobs("other")


def real_paper_settings(data, options):
    """`paper_jobs` with the real settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suites, "SUITES", {"text": suites._text, "image": suites._image, "audio": suites._audio})
        return paper_jobs(data, options)


def test_one_suite_that_fails_does_not_stop_the_others(fake, small_model, monkeypatch, capsys):
    def broken(evaluation, settings):
        raise UserError("this model has no images.")
        yield

    monkeypatch.setitem(suites.SUITES, "image", lambda: (broken, FakeSettings))
    for name in ("text", "cc12m"):
        (fake / "data" / name).mkdir(parents=True)
        (fake / "data" / name / "file").write_text("x")
    result = triptych.evaluate(str(small_model), "paper", data="data", image={"limit": 3}, out="out/paper")
    assert result.failures == ["image: this model has no images."]
    assert result.scores["fake/right"].value == 0.6
    assert "failed: image: this model has no images." in str(result)


# -- Python -----------------------------------------------------------------------------------------------------------


def test_evaluate_in_python(fake, small_model):
    result = triptych.evaluate(str(small_model), "text", limit=10, shift=2.0)
    assert result.scores["fake/right"].value == 0.8
    assert not Path("out").exists()  # nothing is kept unless asked for
    kept = triptych.evaluate(small_model, "text", out="auto")
    assert kept.folder == Path("out/eval/small")
    lines = []
    triptych.evaluate(small_model, "text", out="auto", progress=lines.append)
    assert "  fake: 20 of 20 kept from an earlier run" in lines


@pytest.mark.parametrize(
    ("suite", "options", "message"),
    [
        ("imgae", {}, "unknown suite 'imgae'. Did you mean 'image'?"),
        ("text", {"limits": 3}, "the suite 'text' has no setting 'limits'. Did you mean 'limit'?"),
        ("paper", {}, "the suite 'paper' needs data: a folder with text, cc12m"),
        ("text", {"nproc": 0}, "nproc from 1 to 1024, got 0 and 0"),
    ],
)
def test_wrong_arguments_of_evaluate(fake, suite, options, message):
    with pytest.raises(UserError, match=re.escape(message).replace("0\\ and\\ 0", "0 and 0")):
        triptych.evaluate("no-such-model", suite, **options)


def test_several_processes_need_a_name(fake, small_model):
    from triptych.hub.pipeline import Pipeline

    with pytest.raises(UserError, match="give its name or folder instead of a Pipeline"):
        triptych.evaluate(Pipeline.from_pretrained(small_model), "text", nproc=2)


# -- report and compare -----------------------------------------------------------------------------------------------


@pytest.fixture
def two_models(fake, small_model):
    triptych.evaluate(small_model, "text", out="out/eval/a", limit=200, data="x")
    from triptych.hub.pipeline import Pipeline

    pipe = Pipeline.from_pretrained(small_model)
    next(pipe.model.parameters()).data.add_(0.1)
    pipe.save_pretrained("models/b", builtin_tokenizers="scenes")
    triptych.evaluate("models/b", "text", out="out/eval/b", limit=200, data="x", shift=2.0)
    return fake


def test_compare_names_the_better_model(two_models, capsys):
    run("eval", "compare", "out/eval/a", "b")
    output = capsys.readouterr().out
    assert re.search(r"\| share right ↑ \| 0\.600 \| 0\.800 \| -0\.2 \| .* \| < 0\.001 \| b better \|", output)
    run("eval", "compare", "out/eval/a", "out/eval/b", "--json")
    content = json.loads(capsys.readouterr().out)
    assert content["comparisons"][0]["method"] == "paired"
    assert content["comparisons"][0]["high"] < 0


def test_compare_refuses_other_settings_unless_allowed(two_models, capsys):
    triptych.evaluate("models/b", "text", out="out/eval/c", limit=100, data="x")
    run("eval", "compare", "out/eval/a", "out/eval/c", code=2)
    error = capsys.readouterr().err
    assert "no metric can be compared. share right: measured under different conditions: limit is 200 and 100" in error
    assert error.count("\n") == 1
    run("eval", "compare", "out/eval/a", "out/eval/c", "--allow", "limit")
    assert "unpaired; different limit" in capsys.readouterr().out
    run("eval", "compare", "out/eval/a", "out/eval/a", code=2)
    assert "both are the folder" in capsys.readouterr().err


def test_report_writes_a_page_and_json_for_each_model(two_models, capsys):
    run("eval", "report", "out/eval/a", "out/eval/b", "--no-samples", "--title", "A & B")
    html, *others = map(Path, capsys.readouterr().out.splitlines())
    assert html == Path("out/report/small-and-b.html")
    assert [json.loads(path.read_text())["model"]["name"] for path in others] == ["small", "b"]
    page = html.read_text()
    assert "<h1>A &amp; B</h1>" in page
    assert "b better" in page
    run("eval", "report", "b", "--html", "deep/page.html", "--no-samples", "-q")
    assert Path("deep/page.json").exists()


def test_report_makes_samples_once_and_says_when_it_cannot(two_models, capsys):
    run("eval", "report", "b", "--prompt", "a cat", "--html", "page.html")
    assert "samples: text-to-image" in capsys.readouterr().err
    assert "drawn for: a cat" in Path("page.html").read_text()
    Path("models/b").rename("models/moved")
    run("eval", "report", "b", "--html", "page.html")
    page = Path("page.html").read_text()
    assert "drawn for: a cat" in page  # those that are kept
    assert "no new samples: the model &#x27;models/b&#x27; cannot be loaded from here" in page


def test_report_shows_the_curve_of_a_run(two_models, capsys):
    run_folder = Path("runs/b")
    run_folder.mkdir(parents=True)
    steps = [{"kind": "step", "step": i, "loss": 5 - i / 500, "nll": {"text": 4.0, "image": None}} for i in range(900)]
    steps.insert(3, {"kind": "step", "step": 3, "loss": None, "skipped": True, "nll": {}})
    (run_folder / "records.jsonl").write_text("".join(json.dumps(each) + "\n" for each in steps) + "{broken")
    run("eval", "report", "b", "--run", run_folder, "--no-samples", "--html", "page.html")
    page = Path("page.html").read_text()
    lines = re.findall("<polyline points='(.*?)'", page)
    assert len(lines) == 2  # all tokens, and text
    assert 250 < len(lines[0].split()) <= 400
    run("eval", "report", "b", "--run", "nowhere", code=2)
    assert "--run must be the folder of a training run" in capsys.readouterr().err


def test_report_of_damaged_results_says_so(two_models, capsys):
    with open("out/eval/b/results.jsonl", "a") as file:
        file.write("{half a li")
    run("eval", "report", "b", "--no-samples", "--html", "page.html")
    assert "1 damaged line is ignored" in capsys.readouterr().err
    assert "1 damaged line is ignored" in Path("page.html").read_text()


# -- the toy dataset, likelihood, tokenizers --------------------------------------------------------------------------


def test_eval_scenes_keeps_results_with_pairs(small_model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for model in ([small_model], ["--model", small_model]):
        run("eval", "scenes", *model, "--only", "caption", "--only", "answer", "--images", 6, "--preset", "fast", "-q")
    stored = ResultFolder("out/eval/small").read()
    found = {each.metric.name: each for each in stored.entries}
    assert {"scenes/caption", "scenes/answer"} <= set(found)
    caption = found["scenes/caption"]
    assert len(caption.result.samples) == caption.score.n == 6
    assert sum(top for top, _ in caption.result.samples) / 6 == caption.score.value
    assert caption.result.settings == {
        "world": "small", "split": "test", "num_images": 6, "sampling": {"preset": "fast"},
    }  # fmt: skip
    assert not any(each.metric.headline for name, each in found.items() if name.startswith("scenes/answer, "))


def test_tokenizers_of_any_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(3):
        coarse = Image.fromarray(rng.integers(0, 255, (4, 4, 3), dtype=np.uint8))
        coarse.resize((80, 64)).save(f"photos/{i}.png")
    words = ["--tokenizers", "scenes", "nothing-here/at-all"]
    run("eval", "tokenizers", "--data", "photos", *words)
    output = capsys.readouterr()
    assert re.search(r"\| scenes \| VQ \| .* \| 512 \| 16 \| .*\d+\.\d+ \|", output.out)
    assert "failed: nothing-here/at-all: " in output.out
    stored = ResultFolder("out/eval/tokenizers-scenes").read()
    assert {each.suite for each in stored.entries} == {"tokenizers"}
    assert {"codec_rfid", "codec_psnr"} <= {each.metric.name for each in stored.entries}
    run("eval", "tokenizers", "--data", "photos", "--tokenizers", "nothing-here/at-all", code=4)
    assert capsys.readouterr().err.count("triptych: error") == 1


def test_the_modality_is_that_of_the_files(tmp_path):
    (tmp_path / "a.png").write_text("")
    assert guess_modality([str(tmp_path)]) == "image"
    (tmp_path / "b.wav").write_text("")
    with pytest.raises(UserError, match="has images and recordings: say which"):
        guess_modality([str(tmp_path)])
    assert guess_modality([str(tmp_path / "b.wav")]) == "audio"
    with pytest.raises(UserError, match="neither images nor recordings"):
        guess_modality([str(tmp_path / "c.parquet")])


# -- in its own process -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_in_a_real_suite_and_resume_with_two_processes(small_model, tmp_path):
    """The text suite on invented questions; two processes; the result is that of an undisturbed run."""
    pytest.importorskip("lm_eval", reason="the extra for language tasks is not installed")
    (tmp_path / "tasks").mkdir()
    rows = [
        {"goal": f"a cat and {i} dogs", "sol1": "a red heart", "sol2": "two cats", "label": i % 2} for i in range(40)
    ]
    (tmp_path / "tasks" / "piqa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "triptych", "eval", "text", str(small_model), "--data", "tasks", "--tasks", "piqa"]
    command += ["--mc-num", "256", "--exact-up-to", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [*command, "--out", "stopped"],
        cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while not list((tmp_path / "stopped").glob("records/*/*.jsonl")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    if process.returncode != 0:  # it may have been done by then
        assert process.returncode == 130
        assert "stopped; the same command resumes" in errors
    done = []
    for out, more in (("stopped", ["--nproc", "2"]), ("whole", [])):
        finished = subprocess.run(
            [*command, "--out", out, *more], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert finished.returncode == 0, finished.stderr
        done.append([each.score for each in ResultFolder(tmp_path / out).read().entries])
    assert done[0] == done[1]
    assert len(done[0]) == 2
