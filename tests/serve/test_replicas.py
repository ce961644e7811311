"""Replicas: engines in processes of their own give the same results, and survive the death of one."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client.exposition import generate_latest

from triptych import Pipeline
from triptych.errors import UserError
from triptych.sample.canvas import Canvas
from triptych.sample.config import SamplingConfig
from triptych.sample.generate import generate
from triptych.serve import replicas as replicas_module
from triptych.serve.job import (
    CancelledError,
    DeadlineError,
    Done,
    EngineStoppedError,
    Failed,
    Job,
    QueueFullError,
    Step,
)
from triptych.serve.messages import portable
from triptych.serve.metrics import Metrics
from triptych.serve.replicas import Replicas, expected_work


class Listener:
    """Collects the events of a job."""

    def __init__(self):
        self.events, self.is_done = [], threading.Event()

    def __call__(self, event):
        self.events.append(event)
        if not isinstance(event, Step):
            self.is_done.set()

    def end(self):
        assert self.is_done.wait(120), "the job did not end"
        return self.events[-1]


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    return Pipeline.from_pretrained("scenes", check_inputs=False)


@pytest.fixture(scope="module")
def rounds() -> list[tuple[int, int, float]]:
    return []


@pytest.fixture(scope="module")
def replicas(pipe, rounds):
    started = Replicas(pipe.model, count=2, on_round=lambda *numbers: rounds.append(numbers))
    started.start()
    yield started
    started.close()


@pytest.fixture(scope="module")
def jobs(pipe) -> list[Job]:
    image, audio = pipe.text_to_image("a cat", seed=3), pipe.text_to_speech("a cat", seed=3)
    requests = pipe._requests
    made = [
        (requests.text_to_image("two dogs left of a red heart"), {}),
        (requests.text_to_image("a cat"), {"guidance_scale": 2.0, "num_steps": 5}),
        (requests.text_to_speech("a hat", None, 0.8), {"temperature": 0.5}),
        (requests.caption(image, None, None), {"best_of": 2}),
        (requests.transcribe(audio, None), {}),
        (requests.complete("there are two", 4), {"temperature": 1.0}),
    ]
    return [
        Job(f"job-{i}", request.canvas, pipe.sampling_config(request.target, request.use, **changes), seed=i)
        for i, (request, changes) in enumerate(made)
    ]


def submit(engine, job: Job) -> Listener:
    listener = Listener()
    engine.submit([(job, listener)])
    return listener


def long_job(jobs, name: str, num_steps: int = 16) -> Job:
    return Job(name, jobs[1].canvas, SamplingConfig(num_steps=num_steps), 0, wants_steps=True)


def same(a: Canvas, b: Canvas) -> bool:
    return all(np.array_equal(x.ids, y.ids) for x, y in zip(a.spans, b.spans))


def wait_for(condition) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def test_results_equal_those_offline(pipe, replicas, jobs, rounds):
    listeners = [submit(replicas, job) for job in jobs]
    for job, listener in zip(jobs, listeners):
        end = listener.end()
        assert isinstance(end, Done), end
        assert same(end.canvas, generate(pipe.model, [job.canvas], job.config, [job.seed])[0])
    assert replicas.num_running == replicas.num_queued == 0
    assert sum(count for count, _, _ in rounds) >= len(jobs)


def test_the_memory_of_replicas_is_measured(replicas):
    metrics = Metrics()
    metrics.watch(SimpleNamespace(models={"scenes": SimpleNamespace(engine=replicas, errors={})}))
    text = generate_latest(metrics._registry).decode()
    found = re.findall(r'triptych_replica_memory_bytes\{model="scenes",replica="(\d)"\} (\S+)', text)
    assert [number for number, _ in found] == ["0", "1"]
    assert all(float(num_bytes) > 50e6 for _, num_bytes in found)


def test_steps_come_with_their_forecasts(replicas, jobs):
    listener = submit(replicas, replace(jobs[0], wants_steps=True, top_k=5))
    assert isinstance(listener.end(), Done)
    steps = listener.events[:-1]
    assert [each.step for each in steps] == list(range(len(steps)))
    assert all(each.outlook.ids.shape[1] == 5 for each in steps)


def test_jobs_are_divided_by_the_work_they_make(replicas, jobs):
    """Beside a long job, one replica gets it alone."""
    heavy = submit(replicas, Job("heavy", jobs[1].canvas, SamplingConfig(num_steps=16, best_of=8), 0))
    light = [submit(replicas, Job(f"light-{i}", jobs[1].canvas, SamplingConfig(num_steps=1), i)) for i in range(5)]
    assert [set(worker.jobs) for worker in replicas._ready if "heavy" in worker.jobs] == [{"heavy"}]
    for each in (heavy, *light):
        assert isinstance(each.end(), Done)


def test_expected_work_grows_with_what_a_job_asks_for(jobs):
    job = long_job(jobs, "a")
    work = expected_work(job)
    assert expected_work(replace(job, config=replace(job.config, best_of=3))) == 3 * work
    assert expected_work(replace(job, config=replace(job.config, guidance_scale=2.0))) == 2 * work
    assert expected_work(replace(job, config=replace(job.config, num_steps=8))) == work / 2


def test_cancelling_and_deadlines_reach_a_replica(replicas, jobs):
    slow = [submit(replicas, long_job(jobs, f"slow-{i}")) for i in range(20)]
    for i in range(20):
        replicas.cancel(f"slow-{i}")
    assert any(isinstance(each.end().error, CancelledError) for each in slow if isinstance(each.end(), Failed))
    late = submit(replicas, replace(long_job(jobs, "late"), deadline=time.monotonic() - 1))
    assert isinstance(late.end().error, DeadlineError)
    replicas.cancel("nobody")


def test_a_wrong_job_is_its_own_error(replicas, jobs):
    wrong = Job("wrong", replace(jobs[1].canvas, hide_text=False), SamplingConfig(guidance_scale=3.0), 0)
    error = submit(replicas, wrong).end().error
    assert isinstance(error, UserError)
    assert "guidance needs a known text" in str(error)


def test_a_replica_that_dies_is_started_again_and_the_other_goes_on(pipe, replicas, jobs):
    before = replicas.pids
    running = [
        submit(replicas, Job(f"doomed-{i}", jobs[1].canvas, SamplingConfig(num_steps=16, best_of=8), i))
        for i in range(4)
    ]
    os.kill(before[0], signal.SIGKILL)
    ends = [each.end() for each in running]
    lost = [end for end in ends if isinstance(end, Failed)]
    assert 1 <= len(lost) < len(ends)
    assert all(isinstance(end.error, EngineStoppedError) for end in lost)
    assert replicas.is_alive
    assert isinstance(submit(replicas, jobs[0]).end(), Done)  # with the other one
    wait_for(lambda: len(replicas.pids) == 2)
    assert before[1] in replicas.pids.values()
    assert before[0] not in replicas.pids.values()
    listeners = [submit(replicas, replace(jobs[0], name=f"again-{i}")) for i in range(4)]
    expected = generate(pipe.model, [jobs[0].canvas], jobs[0].config, [jobs[0].seed])[0]
    assert all(same(listener.end().canvas, expected) for listener in listeners)


def test_weights_are_shared(pipe, replicas):
    assert all(parameter.is_shared() for parameter in pipe.model.parameters())
    segments = {line.split()[-1] for line in _maps(os.getpid()) if "/torch_" in line}
    assert segments
    for pid in replicas.pids.values():
        assert segments & {line.split()[-1] for line in _maps(pid) if "/torch_" in line}


def _maps(pid: int) -> list[str]:
    """Mappings without the word that says their file has been removed."""
    with open(f"/proc/{pid}/maps") as file:
        return [line.replace(" (deleted)", "").strip() for line in file]


def test_a_listener_that_raises_ends_its_own_job_only(replicas, jobs):
    def gone(event):
        raise RuntimeError("the event loop is closed")

    replicas.submit([(long_job(jobs, "gone"), gone)])
    assert isinstance(submit(replicas, jobs[0]).end(), Done)
    wait_for(lambda: replicas.num_running == 0)


def test_closing_lets_jobs_finish_then_ends_the_others_and_a_full_queue_refuses(pipe, jobs):
    one = Replicas(pipe.model, count=1, max_running=1, max_queue=2)
    with pytest.raises(EngineStoppedError):
        submit(one, jobs[0])
    one.start()
    (pid,) = one.pids.values()
    os.kill(pid, signal.SIGTERM)  # as a service manager does to the whole group; the server decides when it ends
    os.kill(pid, signal.SIGSTOP)
    running, waiting = submit(one, jobs[0]), submit(one, long_job(jobs, "waiting"))
    with pytest.raises(QueueFullError):  # all or none
        one.submit([(long_job(jobs, f"both-{i}"), Listener()) for i in range(2)])
    assert (one.num_running, one.num_queued) == (1, 1)
    also = submit(one, replace(jobs[0], name="also"))
    with pytest.raises(QueueFullError):
        submit(one, long_job(jobs, "refused"))
    os.kill(pid, signal.SIGCONT)
    assert isinstance(running.end(), Done)
    one.close(seconds=60)
    assert isinstance(waiting.end(), Done)
    assert isinstance(also.end(), Done)
    assert not one.is_alive
    with pytest.raises(EngineStoppedError):
        submit(one, jobs[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_closing_ends_a_replica_that_hangs(pipe, jobs):
    one = Replicas(pipe.model, count=1)
    one.start()
    os.kill(one.pids[0], signal.SIGSTOP)
    stuck = submit(one, jobs[0])
    one.close(seconds=0.1)
    assert isinstance(stuck.end().error, EngineStoppedError)


def test_a_short_job_does_not_wait_for_a_place_among_long_ones(pipe, jobs):
    rounds = []
    one = Replicas(pipe.model, count=1, max_running=4, max_queue=100, on_round=lambda count, *_: rounds.append(count))
    one.start()
    one.submit([(replace(long_job(jobs, f"long-{i}"), wants_steps=False), Listener()) for i in range(40)])
    wait_for(lambda: len(rounds) >= 3)
    before = len(rounds)
    assert isinstance(submit(one, Job("short", jobs[1].canvas, SamplingConfig(num_steps=2), 0)).end(), Done)
    assert len(rounds) - before < 40
    one.close()


def test_a_replica_that_hangs_is_killed_and_another_takes_its_place(pipe, jobs, monkeypatch, caplog):
    monkeypatch.setattr(replicas_module, "_MOST_SILENT", 4)
    one = Replicas(pipe.model, count=1)
    one.start()
    (pid,) = one.pids.values()
    os.kill(pid, signal.SIGSTOP)
    assert isinstance(submit(one, jobs[0]).end().error, EngineStoppedError)
    wait_for(lambda: one.is_alive)
    assert pid not in one.pids.values()
    assert isinstance(submit(one, jobs[0]).end(), Done)
    assert "has said nothing" in caplog.text
    one.close()


def test_an_error_while_a_replica_is_listened_to_is_logged_and_survived(pipe, jobs, caplog):
    is_broken = True

    def observe(*numbers):
        if is_broken:
            raise ZeroDivisionError

    one = Replicas(pipe.model, count=1, on_round=observe)
    one.start()
    assert isinstance(submit(one, jobs[0]).end().error, EngineStoppedError)
    is_broken = False
    wait_for(lambda: one.is_alive)
    assert isinstance(submit(one, jobs[0]).end(), Done)
    assert "ZeroDivisionError" in caplog.text
    one.close()


def test_a_replica_that_cannot_be_started_is_tried_again(pipe, jobs, monkeypatch, caplog):
    real, failures = replicas_module._Worker, [OSError("no more processes"), RuntimeError("can't start new thread")]

    def worker(*arguments):
        if one._has_started and failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(replicas_module, "_Worker", worker)
    one = Replicas(pipe.model, count=1)
    one.start()
    os.kill(one.pids[0], signal.SIGKILL)
    wait_for(lambda: not failures and one.is_alive)
    assert isinstance(submit(one, jobs[0]).end(), Done)
    assert caplog.text.count("cannot be started") == 2
    one.close()


def test_the_death_of_the_server_ends_its_replicas():
    code = """if __name__ == "__main__":
        import os, signal
        from triptych import Pipeline
        from triptych.serve.replicas import Replicas
        replicas = Replicas(Pipeline.from_pretrained("scenes").model, count=1)
        replicas.start()
        print(*replicas.pids.values(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    pid = int(ran.stdout)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}") or _state(pid) == "Z")


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "Z"


def test_an_error_that_cannot_be_pickled_still_tells_what_happened():
    class Local(Exception):
        pass

    told = portable(Failed(Local("oops")))
    assert isinstance(told.error, RuntimeError)
    assert "oops" in str(told.error)
    known = portable(Failed(UserError("wrong")))
    assert known.error.args == ("wrong",)


def test_too_little_shared_memory_is_refused_before_anything_starts(monkeypatch):
    fresh = Pipeline.from_pretrained("scenes", check_inputs=False).model
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(replicas_module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="--shm-size"):
        Replicas(fresh, count=2)
