"""The ten text tasks of the paper: offline from local rows, resumable, with clear errors."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from triptych.errors import CheckpointError, DataError, UserError
from triptych.eval.metrics import Missing, Result
from triptych.eval.records import RecordStore, run_part
from triptych.eval.suite import Evaluation, ModelSource
from triptych.eval.text import __main__ as command
from triptych.eval.text import suite as suite_module
from triptych.eval.text import tasks as tasks_module
from triptych.eval.text.likelihood import LikelihoodEstimator, MaskedLosses
from triptych.eval.text.masks import all_masks
from triptych.eval.text.suite import TextSettings, text_metrics, text_suite, truthful_mass
from triptych.eval.text.tasks import GROUP, TASK_FOLDER, TASKS, chosen_tasks, find_rows, read_rows
from triptych.hub.pipeline import Pipeline

ROWS = Path(__file__).parents[2] / "examples" / "text_questions"
CHEAP = {"mc_num": 4, "block_length": 8, "tokens_per_step": 8}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Nothing here may reach for the hub."""
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def pipe():
    return Pipeline.from_pretrained("scenes", device="cpu", check_inputs=False)


def run(model, tmp_path, *, records=None, lines=None, nproc=1, seed=0, **settings):
    evaluation = Evaluation(
        model,
        tmp_path,
        records or RecordStore(),
        (lines if lines is not None else []).append,
        seed=seed,
        nproc=nproc,
    )
    return list(text_suite(evaluation, TextSettings(**{**CHEAP, **settings})))


def count(name):
    return sum(1 for line in open(ROWS / f"{name}.jsonl", encoding="utf-8") if line.strip())


# -- all ten ----------------------------------------------------------------------------------------------------------


def test_all_ten_run_offline_on_local_rows(pipe, tmp_path, capsys):
    lines = []
    results = run(pipe, tmp_path, data=ROWS, lines=lines)
    assert all(isinstance(each, Result) for each in results)
    assert [each.metric.name for each in results] == list(text_metrics())
    assert len({each.metric.name.partition("/")[0] for each in results}) == 10
    for each in results:
        task = each.metric.name.partition("/")[0]
        assert each.score.n == len(each.samples) == count(task)
        assert all(hits >= 0 and of == 1 for hits, of in each.samples)
        assert each.score.value == pytest.approx(np.mean([hits for hits, _ in each.samples]))
        assert each.settings["data"]["file"] == f"{task}.jsonl"
        assert each.settings["lm_eval"]
        assert each.settings["seed"] == 0
        json.dumps(dict(each.settings))
    by_name = {each.metric.name: each for each in results}
    assert by_name["arc_easy/acc"].settings["mc_num"] == 4
    assert by_name["bbh/exact_match"].settings["tokens_per_step"] == 8
    assert by_name["mmlu/acc"].settings["parts"] == 2
    # The prompts of BBH have three worked examples, more than this model's 144 tokens hold.
    assert by_name["bbh/exact_match"].settings["truncated_prompts"] == 2
    assert by_name["piqa/acc"].settings["truncated_prompts"] == 0
    assert any(line.strip() == "loglikelihood arc_easy: 3 of 3" for line in lines)
    assert capsys.readouterr().err == ""  # lm-eval's own progress is silent


def test_the_answers_with_the_highest_likelihood_are_chosen(pipe, tmp_path, monkeypatch):
    """With known log-likelihoods the accuracies are those counted by hand."""
    answers = {" hen": -1.0, " cow": -2.0, " dog": -3.0, " stone": -1.0, " ice": -2.0, " iron": -3.0}
    answers |= {" a stone": -9.0, " a pig": -3.0, " a gull": -4.0}

    def losses(self, requests):
        texts = pipe.bundle.text.decode([request.answer for request in requests])
        return [MaskedLosses(all_masks(1), np.array([[-answers[text]]]), False) for text in texts]

    monkeypatch.setattr(LikelihoodEstimator, "losses", losses)
    acc, norm = run(pipe, tmp_path, tasks=("arc_easy",), data=ROWS)
    assert [hit for hit, _ in acc.samples] == [1.0, 0.0, 0.0]
    # By the letters of the choice: -1/3, -2/3, -1; -1/5, -2/3, -3/4; -9/7, -3/5, -4/6.
    assert [hit for hit, _ in norm.samples] == [1.0, 0.0, 0.0]
    assert acc.metric.title == "ARC-Easy"
    assert norm.metric.title == "ARC-Easy (norm)"


def test_limit_fewshot_and_settings(pipe, tmp_path):
    rows = tmp_path / "rows"
    shutil.copytree(ROWS, rows)
    (rows / "arc_easy.fewshot.jsonl").write_text((ROWS / "arc_challenge.jsonl").read_text())
    acc, _ = run(pipe, tmp_path, tasks=("arc_easy",), data=rows, limit=2, num_fewshot=1, seed=3, guidance_scale=1.5)
    assert acc.score.n == 2
    assert acc.settings["num_fewshot"] == 1
    assert (acc.settings["limit"], acc.settings["seed"], acc.settings["guidance_scale"]) == (2, 3, 1.5)
    plain, _ = run(pipe, tmp_path, tasks=("arc_easy",), data=rows, num_fewshot=0)
    assert plain.settings["num_fewshot"] == 0


def test_truthful_mass_is_lm_evals_formula_and_survives_tiny_probabilities():
    from lm_eval.tasks.truthfulqa.utils import process_results_mc2

    doc = {"mc2_targets": {"labels": [1, 0, 1]}}
    results = [(-3.0, False), (-2.0, False), (-4.0, False)]
    assert truthful_mass(doc, results)["acc"] == pytest.approx(process_results_mc2(doc, results)["acc"])
    low = [(nats - 2000, greedy) for nats, greedy in results]
    with np.errstate(invalid="ignore"):
        assert math.isnan(process_results_mc2(doc, low)["acc"])
    assert truthful_mass(doc, low)["acc"] == pytest.approx(truthful_mass(doc, results)["acc"])


# -- restart and processes --------------------------------------------------------------------------------------------


def test_a_stopped_suite_resumes_without_computing_again(pipe, tmp_path, monkeypatch):
    whole = run(pipe, tmp_path, tasks=("arc_easy", "piqa"), data=ROWS)
    calls = []
    original = LikelihoodEstimator.losses

    def stopping(self, requests):
        calls.append(len(requests))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, requests)

    monkeypatch.setattr(LikelihoodEstimator, "losses", stopping)
    store = RecordStore(tmp_path / "records", {"a": 1})
    with pytest.raises(KeyboardInterrupt):
        run(pipe, tmp_path, tasks=("arc_easy", "piqa"), data=ROWS, records=store)
    store.close()
    store, lines = RecordStore(tmp_path / "records", {"a": 1}), []
    resumed = run(pipe, tmp_path, tasks=("arc_easy", "piqa"), data=ROWS, records=store, lines=lines)
    store.close()
    assert len(calls) == 3  # arc_easy, stopped in piqa, piqa again
    assert any("3 of 3 kept from an earlier run" in line for line in lines)
    assert [each.samples for each in resumed] == [each.samples for each in whole]


def test_records_of_other_questions_are_not_taken(pipe, tmp_path):
    rows = tmp_path / "rows"
    shutil.copytree(ROWS, rows)
    store = RecordStore()
    first, _ = run(pipe, tmp_path, tasks=("arc_easy",), data=rows, records=store)
    (rows / "arc_easy.jsonl").write_text((ROWS / "arc_challenge.jsonl").read_text())
    second, _ = run(pipe, tmp_path, tasks=("arc_easy",), data=rows, records=store)
    assert (first.score.n, second.score.n) == (3, 1)
    assert first.settings["data"]["sha256"] != second.settings["data"]["sha256"]
    assert len(store.parts) == 2


def test_several_processes_give_the_same_results(pipe, tmp_path):
    rows = tmp_path / "rows"
    rows.mkdir()
    lines = (ROWS / "arc_easy.jsonl").read_text().splitlines()
    (rows / "arc_easy.jsonl").write_text("\n".join(lines * 5) + "\n")  # 15 rows, two batches of records
    one = RecordStore()
    alone = run(pipe, tmp_path, tasks=("arc_easy",), data=rows, records=one)
    two = RecordStore()
    both = run(ModelSource("scenes", "cpu"), tmp_path, tasks=("arc_easy",), data=rows, records=two, nproc=2)
    assert [each.samples for each in both] == [each.samples for each in alone]
    assert [len(records) for records in one.parts.values()] == [15]
    values = [[record["nats"] for records in store.parts.values() for record in records] for store in (one, two)]
    np.testing.assert_allclose(np.concatenate(values[0]), np.concatenate(values[1]), atol=1e-4)


def test_a_damaged_record_is_computed_again_and_those_after_it(tmp_path):
    def compute(numbers):
        return [{"value": number} for number in numbers]

    store = RecordStore(tmp_path, {})
    run_part(store, "part", 5, compute, lambda line: None)
    store.close()
    path = store.folder / "part.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged in (b'{"val\x00\n', b"7\n", b'{"value": 2}\n'):
        path.write_bytes(b"".join([*lines[:2], damaged, *lines[3:]]))
        store, report = RecordStore(tmp_path, {}), []
        records = run_part(store, "part", 5, compute, report.append)
        store.close()
        assert [record["value"] for record in records] == list(range(5))
        assert "part: 2 of 5 kept" in report[0]
        assert "part: record 3 on disk is damaged; computed again from there" in report[1]
        assert len(path.read_bytes().splitlines()) == 5


# -- what is not there ------------------------------------------------------------------------------------------------


def test_tasks_without_a_file_are_missing_and_the_others_go_on(pipe, tmp_path):
    rows = tmp_path / "rows"
    rows.mkdir()
    shutil.copy(ROWS / "piqa.jsonl", rows)
    found = run(pipe, tmp_path, tasks=("arc_easy", "mmlu", "piqa"), data=rows)
    missing = [each for each in found if isinstance(each, Missing)]
    assert [each.metric.name for each in missing] == ["arc_easy/acc", "arc_easy/acc_norm", "mmlu/acc"]
    assert missing[0].reason == (
        f"no data: write {rows / 'arc_easy.jsonl'}, one JSON object per line with question, choices, answerKey."
    )
    assert missing[2].reason.endswith("with question, choices, answer, subject.")
    assert [each.metric.name for each in found[3:]] == ["piqa/acc", "piqa/acc_norm"]


def test_data_sets_that_cannot_be_loaded_are_missing(pipe, tmp_path):
    found = run(pipe, tmp_path, tasks=("piqa",))
    assert [type(each) for each in found] == [Missing, Missing]
    assert "baber/piqa cannot be loaded" in found[0].reason
    assert "--data FOLDER with piqa.jsonl" in found[0].reason
    assert "\n" not in found[0].reason


def test_without_lm_eval_all_is_missing(pipe, tmp_path, monkeypatch):
    def absent(module, extra, purpose):
        raise UserError(f"{purpose} needs the package {module!r} ({extra})")

    monkeypatch.setattr(suite_module, "require", absent)
    found = run(pipe, tmp_path)
    assert [each.metric for each in found] == list(text_metrics().values())
    assert all("needs the package 'lm_eval' (lm-eval)" in each.reason for each in found)


# -- bad rows and settings --------------------------------------------------------------------------------------------


def mmlu(**changed):
    row = {"subject": "anatomy", "question": "q", "choices": ["a", "b", "c", "d"], "answer": 0}
    return json.dumps(row | changed)


def truthful(choices, labels):
    return json.dumps({"question": "q", "mc2_targets": {"choices": choices, "labels": labels}})


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("arc_easy", "{broken", "line 2 of .*arc_easy.jsonl is not JSON"),
        ("arc_easy", "[1]", "line 2 of .* lacks question, choices, answerKey: ARC-Easy needs a JSON object"),
        ("piqa", '{"goal": "a", "sol1": "b", "label": 0}', "lacks sol2: PIQA needs"),
        (
            "mmlu",
            '{"subject": "astronmy", "question": "q", "choices": [], "answer": 0}',
            "line 2 of .*: unknown subject 'astronmy'. Did you mean 'astronomy'",
        ),
        (
            "arc_easy",
            '{"question": "q", "choices": "text", "answerKey": "A"}',
            "line 2 of .*arc_easy.jsonl, field choices: ARC-Easy needs an object with lists",
        ),
        (
            "piqa",
            '{"goal": "a", "sol1": "b", "sol2": "c", "label": 2}',
            "line 2 of .*piqa.jsonl, field label: .*the answer among its 2 choices.*, got 2",
        ),
        ("piqa", '{"goal": "a", "sol1": "b", "sol2": "c", "label": 1.0}', r"field label: .*, got 1\.0"),
        ("piqa", b'{"goal": "\xe4", "sol1": "b", "sol2": "c", "label": 1}', "line 2 of .*piqa.jsonl is not UTF-8"),
        ("mmlu", mmlu(answer="E"), 'field answer: MMLU needs a number from 0 to 3 .*, got "E"'),
        ("mmlu", mmlu(choices=["a", "b", "c"]), "field choices: MMLU needs a list of 4 texts"),
        ("mmlu", mmlu(choices=["a", "b", "c", "d", "e"]), "field choices: MMLU needs a list of 4 texts"),
        ("mmlu", mmlu(question=None), "field question: MMLU needs a text that is not empty, got null"),
        (
            "logiqa2",
            '{"text": "t", "question": "q", "options": ["a", "b"], "answer": "x"}',
            "field answer: LogiQA2 needs a number from 0 to 1",
        ),
        (
            "arc_easy",
            '{"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "Z"}',
            'field answerKey: ARC-Easy needs one of the labels A, B, got "Z"',
        ),
        ("truthfulqa_mc2", truthful(["a", "b"], [1]), "field mc2_targets: .*lists choices and labels of equal length"),
        ("truthfulqa_mc2", truthful(["a", "b"], [0, 0]), "field mc2_targets: .*at least one of each"),
        ("winogrande", '{"sentence": "a _", "option1": "b", "option2": "c", "answer": 1}', "field answer: .*, got 1"),
        (
            "hellaswag",
            '{"activity_label": "a", "ctx_a": "b", "ctx_b": "", "endings": ["c", "d"], "label": ""}',
            "field label: HellaSwag needs a number from 0 to 1",
        ),
        ("bbh", '{"task": "word_sorting", "input": "a", "target": null}', "field target: .*, got null"),
    ],
)
def test_bad_rows_are_refused_in_one_line(pipe, tmp_path, name, line, message):
    first = (ROWS / f"{name}.jsonl").read_text().splitlines()[0]
    line = line if isinstance(line, bytes) else line.encode()
    (tmp_path / f"{name}.jsonl").write_bytes(first.encode() + b"\n" + line + b"\n")
    with pytest.raises(DataError, match=message) as caught:
        run(pipe, tmp_path, tasks=(name,), data=tmp_path)
    assert "\n" not in str(caught.value)


def test_parts_are_listed_once_and_rows_read_once_for_all_parts(tmp_path, monkeypatch):
    rows = [json.loads(mmlu(subject=part)) for part in TASKS["mmlu"].parts()]
    (tmp_path / "mmlu.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    local = find_rows(TASKS["mmlu"], tmp_path)
    reads = []
    monkeypatch.setattr(tasks_module, "read_rows", lambda *a: reads.append(a) or read_rows(*a))
    monkeypatch.setattr(Path, "glob", lambda *a: pytest.fail("the folder was listed again"))
    assert len(tasks_module.write_yaml(TASKS["mmlu"], tmp_path / "out", local)) == len(rows) == 57
    assert len(reads) == 1
    written = (tmp_path / "out" / "rows" / "mmlu_anatomy.mmlu.jsonl").read_text().splitlines()
    assert [json.loads(line)["choices"] for line in written] == [["a", "b", "c", "d"]]


def test_settings_tell_examples_apart(pipe, tmp_path):
    (tmp_path / "arc_easy.jsonl").write_text((ROWS / "arc_easy.jsonl").read_text())
    identities = []
    for number in range(2):
        row = json.loads((ROWS / "arc_easy.jsonl").read_text().splitlines()[number])
        (tmp_path / "arc_easy.fewshot.jsonl").write_text(json.dumps(row) + "\n")
        acc, _ = run(pipe, tmp_path, tasks=("arc_easy",), data=tmp_path, num_fewshot=1, limit=1, mc_num=1)
        identities.append(acc.settings["data"])
    assert identities[0]["sha256"] == identities[1]["sha256"]
    assert identities[0]["examples_sha256"] != identities[1]["examples_sha256"]


def test_a_model_with_nan_weights_has_no_results(tmp_path):
    broken = Pipeline.from_pretrained("scenes", device="cpu", check_inputs=False)
    with torch.no_grad():
        next(broken.model.parameters()).fill_(math.nan)
    for task, words in (("arc_easy", "log-likelihood of nan"), ("bbh", "logits that are not finite")):
        with pytest.raises(CheckpointError, match=words):
            run(broken, tmp_path, tasks=(task,), data=ROWS)


def test_seeds_are_whole_numbers(pipe, tmp_path):
    with pytest.raises(UserError, match="seed must be a whole number, got 'x'"):
        run(pipe, tmp_path, tasks=("piqa",), data=ROWS, seed="x")


def test_empty_files_and_absent_examples_are_refused(tmp_path):
    (tmp_path / "piqa.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"piqa.jsonl has no rows"):
        find_rows(TASKS["piqa"], tmp_path)
    shutil.copy(ROWS / "mmlu.jsonl", tmp_path)
    with pytest.raises(DataError, match=r"num_fewshot=2 needs examples.*mmlu.fewshot.jsonl"):
        find_rows(TASKS["mmlu"], tmp_path, 2)
    (tmp_path / "mmlu.fewshot.jsonl").write_text((ROWS / "mmlu.jsonl").read_text().splitlines()[0] + "\n")
    with pytest.raises(DataError, match="has no examples for anatomy: add some for every subject"):
        find_rows(TASKS["mmlu"], tmp_path, 2)
    assert find_rows(TASKS["mmlu"], tmp_path).parts == ("anatomy", "astronomy")
    assert find_rows(TASKS["arc_easy"], tmp_path) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ("arc_esy",)}, "unknown text task 'arc_esy'. Did you mean 'arc_easy'"),
        ({"tasks": ()}, "name at least one text task"),
        ({"tasks": "piqa"}, "must be a list"),
        ({"tasks": 5}, "tasks must be a list of names, got 5"),
        ({"data": 5}, "data must be a folder, got 5"),
        ({"data": "nowhere"}, "the data nowhere are not a folder"),
        ({"limit": 0}, "limit must be"),
        ({"num_fewshot": -1}, "num_fewshot must be a whole number of at least 0"),
        ({"mc_num": 0}, "mc_num must be"),
        ({"block_length": 0}, "block_length must be"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        TextSettings(**settings)


# -- lm-eval's tasks --------------------------------------------------------------------------------------------------


def test_the_tasks_are_those_of_lm_eval():
    import yaml

    assert [task.name for task in chosen_tasks([GROUP, "piqa"])] == list(TASKS)
    group = yaml.safe_load((TASK_FOLDER / f"{GROUP}.yaml").read_text())
    assert group["task"] == list(TASKS)
    assert len(TASKS["mmlu"].parts()) == 57
    assert len(TASKS["bbh"].parts()) == 27
    for task in TASKS.values():
        rows = list(read_rows(task, ROWS / f"{task.name}.jsonl"))
        assert rows


def test_local_tasks_have_lm_evals_prompts(tmp_path):
    from lm_eval.tasks import TaskManager

    names = command.write_tasks(tmp_path, ROWS)
    manager = TaskManager(include_path=str(names), include_defaults=False)
    tasks = manager.load([GROUP])["tasks"]
    assert len(tasks) == 8 + 2 + 2
    arc = tasks["arc_easy"]
    doc = arc.test_docs()[0]
    assert arc.doc_to_text(doc) == "Question: Which animal lays eggs?\nAnswer:"
    assert arc.doc_to_choice(doc) == ["hen", "cow", "dog"]
    assert arc.doc_to_target(doc) == 0
    winogrande = tasks["winogrande"]
    doc = winogrande.test_docs()[0]
    assert winogrande.doc_to_choice(doc) == ["The cup did not fit as the cup", "The cup did not fit as the box"]
    hellaswag = tasks["hellaswag"].test_docs()[0]
    assert hellaswag["query"] == "Baking: A man puts dough into an oven. He"
    assert hellaswag["choices"][3] == "sings to the. moon."
    assert "is about astronomy" not in tasks["mmlu_anatomy"].config.description
    assert tasks["bbh_cot_fewshot_word_sorting"].config.num_fewshot == 3
    assert manager.load(["mmlu"])["group_map"]["mmlu"] == ["mmlu_anatomy", "mmlu_astronomy"]


@pytest.mark.slow
def test_lm_evals_own_command_runs_the_model(tmp_path):
    command.write_tasks(tmp_path / "tasks", ROWS)
    arguments = [
        "--include_path", tmp_path / "tasks", "--model", "triptych", "--batch_size", "auto",
        "--model_args", "pretrained=scenes,mc_num=2", "--tasks", f"arc_easy,{tmp_path}/tasks/triptych_model.yaml",
        "--output_path", tmp_path / "out.json", "--log_samples",
    ]  # fmt: skip
    done = subprocess.run(
        [Path(sys.executable).parent / "lm_eval", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "|arc_easy|" in done.stdout
    results = json.loads(next(tmp_path.glob("out*.json")).read_text())
    assert results["config"]["likelihood"]["mc_num"] == 2
    assert results["config"]["truncated"]["arc_easy"]["requests"] == 9


def test_our_command_adds_model_and_tasks(tmp_path, monkeypatch, capsys):
    import lm_eval.__main__

    seen = []

    def cli_evaluate():
        folder = Path(sys.argv[sys.argv.index("--include_path") + 1])
        seen.append((list(sys.argv), sorted(path.name for path in folder.glob("*.yaml"))))

    monkeypatch.setattr(lm_eval.__main__, "cli_evaluate", cli_evaluate)
    command.main(["--model_args", "pretrained=scenes", "--tasks", "piqa", "--data", str(ROWS)])
    command.main(["run", "--model_args", "pretrained=scenes", "--tasks", GROUP, "-b", "4"])
    (first, names), (second, plain) = seen
    assert first[1:7] == ["--model_args", "pretrained=scenes", "--tasks", "piqa", "--model", "triptych"]
    assert first[7:9] == ["--batch_size", "auto"]
    assert {"piqa.yaml", "triptych_paper.yaml", "triptych_model.yaml"} <= set(names)
    assert second[-4:-2] == ["--model", "triptych"]
    assert "--batch_size" not in second
    assert plain == ["triptych_model.yaml", "triptych_paper.yaml"]
    command.main(["--write-tasks", str(tmp_path / "kept"), "--data", str(ROWS)])
    assert capsys.readouterr().out.startswith(f"lm_eval --include_path {tmp_path / 'kept'} --model triptych")
    with pytest.raises(DataError, match="has no rows for any task"):
        command.write_tasks(tmp_path / "more", tmp_path)
    with pytest.raises(DataError, match="are not a folder"):
        command.write_tasks(tmp_path / "more", tmp_path / "nowhere")
