"""The engine: one thread that fills the canvases of all requests at once.

A job runs in a greenlet: the code of `sample.generate`, as offline, which is suspended at every forward pass. A round
takes the passes that wait, runs them as one, and resumes their jobs. So jobs with different samplers, temperatures,
guidance, lengths and modalities join and leave between steps, and whatever generation does (choosing a length, scoring
candidates) is batched in the same way.

    job 1    lengths   step 0   step 1   step 2
    job 2              step 0   step 1   step 2   score
    job 3                       lengths  step 0   step 1
    round      1         2        3        4        5       one forward pass each

A round has a budget of tokens, and room for so many jobs. Jobs that have had the fewest tokens come first, whenever
they came, so that a short job does not wait for long ones. Every few rounds the job that has waited for the most
rounds comes before all others, so that a long one does not starve.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from greenlet import greenlet
from torch import Tensor

from triptych.model.transformer import Transformer
from triptych.sample.canvas import Canvas
from triptych.sample.generate import generate
from triptych.sample.predictor import Forecast
from triptych.serve.job import (
    CancelledError,
    DeadlineError,
    Deliver,
    Done,
    EngineStoppedError,
    Failed,
    Job,
    Outlook,
    QueueFullError,
    Step,
)
from triptych.serve.joint import ForwardPass, run_jointly
from triptych.vocab import Modality, Vocabulary

_FAIR = 4  # every so many rounds, the job that has waited for the most rounds comes first
_log = logging.getLogger(__name__)

RoundObserver = Callable[[int, int, float], None]
"""Called after every round with the number of forward passes in it, their tokens, and its seconds."""


class Engine:
    """Fills canvases on a thread of its own. `submit` and `cancel` may be called from any thread."""

    def __init__(
        self,
        model: Transformer,
        *,
        max_running: int = 64,
        max_queue: int = 256,
        max_tokens: int = 2048,
        on_round: RoundObserver | None = None,
    ):
        """`max_running` jobs share a round, `max_queue` more may wait; a round has `max_tokens` tokens, or one pass."""
        self._model, self._on_round = model, on_round
        self._max_running, self._max_queue, self._max_tokens = max_running, max_queue, max_tokens
        self._num_rounds = 0
        self._tasks: dict[str, _Task] = {}
        self._changed = threading.Condition()
        self._is_closing = False
        self.has_died = False
        """Whether an error has ended the engine. Nothing starts it again."""
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait until the engine has ended."""
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._is_closing

    @property
    def pids(self) -> dict[int, int]:
        """Of processes of its own, by number: there are none."""
        return {}

    @property
    def num_queued(self) -> int:
        """How many jobs there are besides those that can share a round."""
        return max(0, len(self._tasks) - self._max_running)

    @property
    def num_running(self) -> int:
        return min(len(self._tasks), self._max_running)

    def submit(self, jobs: Sequence[tuple[Job, Deliver]]) -> None:
        """Take jobs, all or none. The events of each go to what stands beside it."""
        with self._changed:
            if not self.is_alive:
                raise EngineStoppedError("the engine has stopped")
            check_room(jobs, len(self._tasks), self._max_running, self._max_queue)
            for job, deliver in jobs:
                assert job.name not in self._tasks
                self._tasks[job.name] = _Task(job, deliver)
            self._changed.notify()

    def cancel(self, name: str) -> None:
        """Stop a job before its next step; nothing if it is not there any more."""
        with self._changed:
            if task := self._tasks.get(name):
                task.is_cancelled = True
                self._changed.notify()

    def close(self, seconds: float = 0.0) -> None:
        """Take no more jobs, give those there are some seconds to finish, end the others."""
        end = time.monotonic() + seconds
        with self._changed:
            self._is_closing = True
            self._changed.notify()
            while self._tasks and self._thread.is_alive() and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(left, 0.1))
            for task in self._tasks.values():
                task.is_ended = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    # -- the engine's thread ------------------------------------------------------------------------------------------

    def _main(self) -> None:
        error: Exception = EngineStoppedError("the server is shutting down")
        try:
            if next(self._model.parameters()).device.type == "cpu":
                # Jobs must not leave this thread, and rounds divide their work among threads themselves.
                torch.set_num_threads(1)
            with torch.inference_mode():
                while tasks := self._wait_for_work():
                    self._round(tasks)
        except BaseException as unexpected:
            _log.exception("the engine has stopped because of an error")
            self.has_died = True
            error = EngineStoppedError(f"the engine has stopped because of an error ({type(unexpected).__name__})")
        finally:
            with self._changed:
                self._is_closing = True
                abandoned = list(self._tasks.values())
                self._tasks.clear()
                self._changed.notify_all()
            for task in abandoned:
                task.fail(error)

    def _wait_for_work(self) -> "list[_Task]":
        """All tasks, once there are any; none when the engine is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._is_closing)
            return list(self._tasks.values())

    def _round(self, tasks: "Sequence[_Task]") -> None:
        for task in tasks:
            if (error := task.interruption()) is not None:
                task.fail(error)
            elif not task.is_started:
                task.start(self._model)
        chosen = list(self._choose(tasks))
        start = time.perf_counter()
        for task, result in self._run(chosen) if chosen else ():
            task.resume(result)
        self._forget_finished()
        if chosen and self._on_round is not None:
            num_tokens = sum(forward_pass.num_tokens for _, forward_pass in chosen)
            self._on_round(len(chosen), num_tokens, time.perf_counter() - start)

    def _choose(self, tasks: "Sequence[_Task]") -> "Iterator[tuple[_Task, ForwardPass]]":
        """Tasks of this round, with the forward passes they wait for."""
        in_order = sorted((task for task in tasks if task.waits_for is not None), key=lambda task: task.tokens_had)
        self._num_rounds += 1
        if in_order and self._num_rounds % _FAIR == 0:
            longest = max(in_order, key=lambda task: task.passed_over)
            in_order.remove(longest)
            in_order.insert(0, longest)
        tokens_left, places_left = self._max_tokens, self._max_running
        for task in in_order:
            forward_pass = task.waits_for
            assert forward_pass is not None
            is_first = places_left == self._max_running
            if places_left and (is_first or forward_pass.num_tokens <= tokens_left):
                tokens_left -= forward_pass.num_tokens
                places_left -= 1
                yield task, forward_pass
            else:
                task.passed_over += 1

    def _run(self, chosen: "list[tuple[_Task, ForwardPass]]") -> "Iterator[tuple[_Task, Tensor | Exception]]":
        """The results of a round. If it fails, every task gets a pass of its own, so that only the cause fails."""
        tasks, passes = zip(*chosen)
        try:
            yield from zip(tasks, run_jointly(self._model, passes))
            return
        except Exception:
            _log.exception("a forward pass of %d jobs has failed; each gets one of its own", len(tasks))
        for task, forward_pass in chosen:
            try:
                (result,) = run_jointly(self._model, [forward_pass])
                yield task, result
            except Exception as error:
                yield task, error

    def _forget_finished(self) -> None:
        with self._changed:
            for task in [task for task in self._tasks.values() if task.is_finished]:
                del self._tasks[task.job.name]
            self._changed.notify_all()


def check_room(jobs: Sequence[Any], num_there: int, max_running: int, max_queue: int) -> None:
    """Refuse jobs if there is not room for all of them besides those that are there."""
    if num_there + len(jobs) > max_running + max_queue:
        raise QueueFullError(f"there are {num_there} jobs, and room for {max_running + max_queue}")


class _Task:
    """A job on the engine's thread, and the greenlet it runs in."""

    def __init__(self, job: Job, deliver: Deliver):
        self.job, self._deliver = job, deliver
        self.is_cancelled = self.is_ended = self.is_finished = False
        self.waits_for: ForwardPass | None = None
        self.tokens_had = self.passed_over = 0
        self._greenlet: greenlet | None = None
        self._outlook: Outlook | None = None

    @property
    def is_started(self) -> bool:
        return self._greenlet is not None

    def interruption(self) -> Exception | None:
        """Why the job must not go on."""
        if self.is_cancelled:
            return CancelledError("cancelled")
        if self.is_ended:
            return EngineStoppedError("the server is shutting down")
        if self.job.deadline is not None and time.monotonic() > self.job.deadline:
            return DeadlineError("the deadline has passed")
        return None

    def start(self, model: Transformer) -> None:
        def run() -> None:
            network = _SuspendingNetwork(model)
            try:
                canvas = self._fill(network, next(model.parameters()).device)
            except Exception as error:
                self._end(Failed(error))
            else:
                self._end(Done(canvas))

        self._greenlet = greenlet(run)
        self._switch(self._greenlet.switch)

    def resume(self, result: Tensor | Exception) -> None:
        """Go on to the next forward pass or the end."""
        assert self._greenlet is not None
        assert self.waits_for is not None
        self.tokens_had += self.waits_for.num_tokens
        self.passed_over = 0
        if isinstance(result, Exception):
            self._switch(self._greenlet.throw, result)
        else:
            self._switch(self._greenlet.switch, result)

    def fail(self, error: Exception) -> None:
        """End the job, wherever it is."""
        if self._greenlet is not None and not self._greenlet.dead and self.waits_for is not None:
            self._switch(self._greenlet.throw, error)
        if not self.is_finished:
            self._end(Failed(error))

    def _switch(self, switch: Callable[..., Any], *arguments: Any) -> None:
        self.waits_for = None
        self.waits_for = switch(*arguments)  # None once the greenlet has ended

    def _fill(self, network: "_SuspendingNetwork", device: torch.device) -> Canvas:
        job = self.job
        (filled,) = generate(
            network,
            [job.canvas],
            job.config,
            [job.seed],
            device=device,
            callback=self._on_step if job.wants_steps else None,
            observer=_OutlookObserver(job.top_k, self._keep_outlook) if job.wants_steps else None,
        )
        return filled

    def _keep_outlook(self, outlook: Outlook) -> None:
        self._outlook = outlook

    def _on_step(self, step: int, num_steps: int, tokens: Tensor) -> None:
        sequence = tokens[0].cpu().numpy().copy()
        self._send(Step(step, num_steps, sequence, self._outlook or _no_outlook(len(sequence), self.job.top_k)))
        self._outlook = None

    def _end(self, event: Done | Failed) -> None:
        self.is_finished = True
        with suppress(Exception):
            self._deliver(event)

    def _send(self, step: Step) -> None:
        try:
            self._deliver(step)
        except Exception:  # the listener is gone
            self.is_cancelled = True


def _no_outlook(length: int, top_k: int) -> Outlook:
    """Of a step without a forward pass, because it fills nothing: samplers that follow a schedule have such."""
    empty = np.zeros((0, top_k))
    return Outlook(empty[:, 0].astype(np.int64), empty.astype(np.int64), empty, empty[:, 0], np.zeros(length))


class _SuspendingNetwork:
    """The model as generation sees it: a forward pass suspends the job until the engine has run it."""

    def __init__(self, model: Transformer):
        self._model = model
        self.vocabulary: Vocabulary = model.vocabulary

    def hidden_states(self, tokens: Tensor, positions: Tensor, *, query_idx: Tensor) -> Tensor:
        engine = greenlet.getcurrent().parent
        assert engine is not None
        return engine.switch(ForwardPass(tokens, positions, query_idx))

    def logits(self, hidden_nD: Tensor, modality: Modality, *, out: Tensor) -> Tensor:
        return self._model.logits(hidden_nD, modality, out=out)


class _OutlookObserver:
    """Keeps the forecast for the first sequence of a batch: with `best_of`, the first candidate."""

    def __init__(self, top_k: int, keep: Callable[[Outlook], None]):
        self.top_k, self._keep = top_k, keep

    def __call__(self, step: int, forecast: Forecast) -> None:
        count = int(forecast.where[0].sum())
        ids, prob, entropy = (x[:count].cpu().numpy() for x in (forecast.ids, forecast.prob, forecast.entropy))
        positions = forecast.where[0].nonzero()[:, 0].cpu().numpy()
        self._keep(Outlook(positions, ids, prob, entropy, forecast.confidence[0].cpu().numpy()))
