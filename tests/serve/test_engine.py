"""The engine: results equal to offline ones in any company, and one job's trouble is its own."""

import itertools
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from triptych import Pipeline
from triptych.sample.canvas import Canvas
from triptych.sample.config import SamplingConfig
from triptych.sample.generate import generate
from triptych.serve import engine as engine_module
from triptych.serve.engine import Engine
from triptych.serve.job import (
    CancelledError,
    DeadlineError,
    Done,
    EngineStoppedError,
    Event,
    Failed,
    Job,
    QueueFullError,
    Step,
)
from triptych.serve.joint import ForwardPass, run_jointly
from triptych.vocab import Modality, Task


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    return Pipeline.from_pretrained("scenes", check_inputs=False)


@pytest.fixture
def engine(pipe):
    started = Engine(pipe.model)
    started.start()
    yield started
    started.close()


class Listener:
    """Collects the events of a job."""

    def __init__(self):
        self.events: list[Event] = []
        self.is_done = threading.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if not isinstance(event, Step):
            self.is_done.set()

    @property
    def steps(self) -> list[Step]:
        return [event for event in self.events if isinstance(event, Step)]

    def end(self) -> Event:
        assert self.is_done.wait(60), "the job did not end"
        return self.events[-1]

    def error(self) -> Exception:
        end = self.end()
        assert isinstance(end, Failed)
        return end.error

    def canvas(self) -> Canvas:
        end = self.end()
        assert isinstance(end, Done), end
        return end.canvas


def submit(engine: Engine, job: Job) -> Listener:
    listener = Listener()
    engine.submit([(job, listener)])
    return listener


def submit_before_start(engine: Engine, jobs: list[tuple[Job, Any]]) -> None:
    """Give an engine jobs that it finds all at once."""
    with engine._changed:  # it cannot take any while it is locked
        engine.start()
        engine.submit(jobs)


def same(a: Canvas, b: Canvas) -> bool:
    return all(np.array_equal(x.ids, y.ids) for x, y in zip(a.spans, b.spans))


@pytest.fixture(scope="module")
def jobs(pipe) -> list[Job]:
    """Every direction, with different samplers, temperatures, guidance, lengths and candidates."""
    image, audio = pipe.text_to_image("a cat", seed=3), pipe.text_to_speech("a cat", seed=3)
    requests = pipe._requests
    made = [
        (requests.text_to_image("two dogs left of a red heart"), {}),
        (requests.text_to_image("a cat"), {"guidance_scale": 2.0, "sampler": "random_order", "num_steps": 5}),
        (requests.text_to_image("a green hat"), {"sampler": "maskgit", "num_steps": 6, "temperature": 1.3}),
        (requests.text_to_image("three foxes"), {"sampler": "remdm", "num_steps": 12}),
        (requests.text_to_image("a blue car"), {"sampler": "blocks", "num_steps": 8, "top_p": 0.9}),
        (requests.text_to_speech("three foxes", None, None), {"guidance_scale": 1.5}),
        (requests.text_to_speech("a hat", None, 0.8), {"temperature": 0.5}),
        (requests.caption(image, None, None), {}),
        (requests.caption(image, "a picture", None), {"best_of": 1, "length": "draw"}),
        (requests.answer(image, "how many cats are there", None), {}),
        (requests.transcribe(audio, None), {}),
        (requests.transcribe(audio, None), {"single_pass": True}),
        (requests.complete("there are two", None), {"temperature": 1.0}),
    ]
    return [
        Job(f"job-{i}", request.canvas, pipe.sampling_config(request.target, request.use, **changes), seed=i)
        for i, (request, changes) in enumerate(made)
    ]


@pytest.fixture(scope="module")
def offline(pipe, jobs) -> list[Canvas]:
    return [generate(pipe.model, [job.canvas], job.config, [job.seed])[0] for job in jobs]


@pytest.mark.parametrize("max_tokens", [1, 300, 100_000])
def test_results_equal_those_offline_in_any_company(pipe, jobs, offline, max_tokens):
    sizes = []
    engine = Engine(pipe.model, max_tokens=max_tokens, on_round=lambda count, *_: sizes.append(count))
    listeners = [Listener() for _ in jobs]
    submit_before_start(engine, list(zip(jobs, listeners)))
    results = [listener.canvas() for listener in listeners]
    engine.close()
    assert all(map(same, results, offline))
    assert max(sizes) == 1 if max_tokens == 1 else max(sizes) > 1


def test_steps_and_forecasts_change_no_result(engine, jobs, offline, pipe):
    watched = replace(jobs[0], wants_steps=True, top_k=5)
    listener = submit(engine, watched)
    assert same(listener.canvas(), offline[0])
    steps = listener.steps
    assert [each.step for each in steps] == list(range(len(steps)))
    assert steps[-1].num_steps == len(steps)
    masks = set(pipe.vocabulary.mask_ids.tolist())
    for before, after in itertools.pairwise(steps):
        masked = [i for i, token in enumerate(before.tokens) if token in masks]
        assert after.outlook.positions.tolist() == masked
        assert (np.diff(after.outlook.prob, axis=1) <= 0).all()
        assert (after.outlook.entropy >= -1e-9).all()
        assert after.outlook.ids.shape == (len(masked), 5)
    # An id that a step fills in at temperature 0.7 is nearly always among the five likeliest.
    first = steps[0]
    filled = [i for i, position in enumerate(first.outlook.positions) if first.tokens[position] not in masks]
    assert filled
    assert any(first.tokens[first.outlook.positions[i]] in first.outlook.ids[i] for i in filled)


def test_a_job_joins_while_another_runs(pipe, jobs):
    rounds = []
    engine = Engine(pipe.model, on_round=lambda count, *_: rounds.append(count))
    engine.start()
    first = submit(engine, Job("long", jobs[1].canvas, SamplingConfig(num_steps=16), 0, wants_steps=True))
    while not first.steps:
        time.sleep(0.001)
    late = [submit(engine, Job(f"late-{i}", jobs[1].canvas, SamplingConfig(num_steps=2), i)) for i in range(3)]
    first.canvas()
    for each in late:
        each.canvas()
    engine.close()
    assert rounds[0] == 1
    assert max(rounds) > 1


def test_short_jobs_do_not_wait_for_long_ones(pipe, jobs):
    """With room for one pass in a round, the job that has had least goes first, and nobody starves."""
    engine = Engine(pipe.model, max_tokens=1)
    ended = []

    def note(name):
        def listen(event):
            if not isinstance(event, Step):
                ended.append(name)
                done.release()

        return listen

    done = threading.Semaphore(0)
    counts = (("long", 16), ("short 1", 2), ("short 2", 2))
    submit_before_start(
        engine, [(Job(name, jobs[1].canvas, SamplingConfig(num_steps=count), 0), note(name)) for name, count in counts]
    )
    for _ in range(3):
        assert done.acquire(timeout=60)
    engine.close()
    assert ended[-1] == "long"


def test_a_long_job_is_served_beside_an_endless_stream_of_short_ones(pipe, jobs):
    engine = Engine(pipe.model, max_tokens=1)
    engine.start()
    long = submit(engine, Job("long", jobs[1].canvas, SamplingConfig(num_steps=8), 0))
    count = 0
    while not long.is_done.is_set() and count < 400:
        shorts = [
            submit(engine, Job(f"short-{count}-{i}", jobs[1].canvas, SamplingConfig(num_steps=1), i)) for i in range(2)
        ]
        count += 1
        for each in shorts:
            each.end()
    engine.close()
    assert isinstance(long.end(), Done)
    assert count < 100


def test_cancelling_ends_a_job_within_one_step(engine, jobs):
    listener = Listener()
    stopped_at = []

    def stop_after_two(event):
        listener(event)
        if isinstance(event, Step) and event.step == 1:
            stopped_at.append(event.step)
            engine.cancel("slow")

    engine.submit([(Job("slow", jobs[1].canvas, SamplingConfig(num_steps=16), 0, wants_steps=True), stop_after_two)])
    assert isinstance(listener.error(), CancelledError)
    assert [each.step for each in listener.steps] == [0, 1]
    assert isinstance(submit(engine, jobs[0]).end(), Done)


def test_a_listener_that_raises_ends_its_own_job_only(engine, jobs):
    def gone(event):
        raise RuntimeError("the event loop is closed")

    engine.submit([(Job("gone", jobs[1].canvas, SamplingConfig(num_steps=16), 0, wants_steps=True), gone)])
    assert isinstance(submit(engine, jobs[0]).end(), Done)


def test_a_deadline_that_passes_frees_the_place(engine, jobs):
    late = Job("late", jobs[1].canvas, SamplingConfig(num_steps=16), 0, deadline=time.monotonic() - 1)
    assert isinstance(submit(engine, late).error(), DeadlineError)
    assert isinstance(submit(engine, jobs[0]).end(), Done)


def test_a_poisoned_job_fails_alone(engine, jobs, offline, pipe, monkeypatch):
    """A pass that fails is run again job by job, and only the cause fails."""
    real, poisoned = engine_module.run_jointly, jobs[3].canvas.text.ids

    def fails(model, passes):
        for each in passes:
            if poisoned_tokens in each.tokens.flatten().tolist():
                raise IndexError("poison")
        return real(model, passes)

    poisoned_tokens = int(pipe.vocabulary.to_global(jobs[3].canvas.text.modality, poisoned)[-1])
    healthy = [i for i, job in enumerate(jobs) if poisoned_tokens not in _given_tokens(pipe, job)]
    assert len(healthy) > 3
    monkeypatch.setattr(engine_module, "run_jointly", fails)
    bad = submit(engine, jobs[3])
    others = [(i, submit(engine, jobs[i])) for i in healthy]
    assert isinstance(bad.error(), IndexError)
    # Captions and other texts may generate the poisoned word themselves.
    outcomes = [listener.end() for _, listener in others]
    assert any(isinstance(end, Done) for end in outcomes)
    for (i, _), end in zip(others, outcomes):
        if isinstance(end, Done):
            assert same(end.canvas, offline[i])
    assert engine.is_alive


def _given_tokens(pipe, job: Job) -> list[int]:
    given = [(span.modality, span.ids[span.ids >= 0]) for span in job.canvas.spans]
    return [token for modality, ids in given for token in pipe.vocabulary.to_global(modality, ids).tolist()]


def test_wrong_arguments_are_the_jobs_own_error(engine, jobs, pipe):
    image = pipe._requests.caption(pipe.text_to_image("a cat", seed=3), None, None)
    wrong = Job("wrong", image.canvas, SamplingConfig(guidance_scale=3.0), 0)
    assert "guidance needs a known text" in str(submit(engine, wrong).error())
    assert engine.is_alive


def test_a_full_queue_refuses_all_of_several_jobs(pipe, jobs):
    engine = Engine(pipe.model, max_running=1, max_queue=2)
    first, *others = [(replace(jobs[0], name=f"{i}"), Listener()) for i in range(5)]
    submit_before_start(engine, [first])
    with engine._changed:
        with pytest.raises(QueueFullError):
            engine.submit(others[:3])
        assert (engine.num_running, engine.num_queued) == (1, 0)
        engine.submit(others[:2])
        with pytest.raises(QueueFullError):
            engine.submit(others[2:3])
        assert (engine.num_running, engine.num_queued) == (1, 2)
    engine.close(seconds=60)
    assert all(isinstance(listener.end(), Done) for _, listener in (first, *others[:2]))
    assert not any(listener.events for _, listener in others[2:])


def test_a_short_job_does_not_wait_for_a_place_among_long_ones(pipe, jobs):
    """A step of 40 jobs takes 10 rounds, all steps of all 160."""
    rounds = []
    engine = Engine(pipe.model, max_running=4, max_queue=100, on_round=lambda count, *_: rounds.append(count))
    crowd = [Job(f"long-{i}", jobs[1].canvas, SamplingConfig(num_steps=16), i) for i in range(40)]
    submit_before_start(engine, [(job, Listener()) for job in crowd])
    while len(rounds) < 3:
        time.sleep(0.001)
    before = len(rounds)
    assert isinstance(submit(engine, Job("short", jobs[1].canvas, SamplingConfig(num_steps=2), 0)).end(), Done)
    assert len(rounds) - before < 40
    assert max(rounds) == 4
    engine.close()


def test_the_engine_that_dies_ends_its_jobs_and_takes_no_more(pipe, jobs, monkeypatch, caplog):
    engine = Engine(pipe.model)

    def broken(self, tasks):
        raise MemoryError

    monkeypatch.setattr(Engine, "_choose", broken)
    engine.start()
    assert isinstance(submit(engine, jobs[0]).error(), EngineStoppedError)
    engine._thread.join(10)
    assert not engine.is_alive
    assert engine.has_died
    with pytest.raises(EngineStoppedError):
        submit(engine, jobs[1])
    assert "the engine has stopped" in caplog.text


def test_closing_lets_jobs_finish_for_a_while(pipe, jobs):
    engine = Engine(pipe.model)
    engine.start()
    quick = submit(engine, jobs[0])
    engine.close(seconds=30)
    assert isinstance(quick.end(), Done)
    assert not engine.has_died
    with pytest.raises(EngineStoppedError):
        submit(engine, jobs[1])


def test_closing_ends_what_does_not_finish(pipe, jobs):
    engine = Engine(pipe.model)
    engine.start()
    slow = Listener()

    def dawdle(event):
        slow(event)
        time.sleep(0.05)

    engine.submit([(Job("slow", jobs[1].canvas, SamplingConfig(num_steps=16), 0, wants_steps=True), dawdle)])
    engine.close(seconds=0.1)
    assert isinstance(slow.error(), EngineStoppedError)
    assert len(slow.steps) < 16


def test_joint_passes_equal_separate_ones_bit_for_bit(pipe):
    rng, vocabulary = np.random.default_rng(0), pipe.vocabulary
    passes = []
    for rows, length in ((2, 40), (1, 25), (3, 40), (1, 120)):
        tokens = torch.from_numpy(rng.integers(0, vocabulary.size - 1, (rows, length)))
        tokens[:, 0], tokens[:, 1] = vocabulary.task(Task.TEXT), vocabulary.bos(Modality.TEXT)  # as all sequences have
        positions = torch.arange(length).expand(rows, length)
        passes.append(ForwardPass(tokens, positions, torch.arange(rows * length)[: max(16, length // 2)]))
    with torch.inference_mode():
        joint = run_jointly(pipe.model, passes)
        alone = [run_jointly(pipe.model, [each])[0] for each in passes]
    assert all(map(torch.equal, joint, alone))


def test_steps_without_a_forward_pass_are_reported_too(engine, jobs):
    """With more steps than tokens, a sampler that follows a schedule has nothing to do in some."""
    listener = submit(
        engine,
        Job("idle", jobs[0].canvas, SamplingConfig(sampler="ancestral", num_steps=200), 0, wants_steps=True, top_k=3),
    )
    listener.canvas()
    assert 16 < len(listener.steps) <= 200
    without = [each for each in listener.steps if not len(each.outlook.positions)]
    assert 0 < len(without) < len(listener.steps)
    assert all(each.outlook.ids.shape == each.outlook.prob.shape == (0, 3) for each in without)
    assert all(len(each.outlook.confidence) == len(each.tokens) for each in without)
