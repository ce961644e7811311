"""The engine: one thread that fills the canvases of all requests at once.

A job runs in a greenlet: the code of `sample.generate`, as offline, which is suspended at every forward pass. A round
takes the passes that wait, runs them as one, and resumes their jobs. So jobs with different samplers, temperatures,
guidance, lengths and modalities join and leave between steps, and whatever generation does (choosing a length, scoring
candidates) is batched in the same way.

    job 1    lengths   step 0   step 1   step 2
    job 2              step 0   step 1   step 2   score
    job 3                       lengths  step 0   step 1
    round      1         2        3        4        5       one forward pass each

A round has a budget of tokens. Jobs that have had the fewest tokens come first, so that a short job does not wait for
long ones; a job that was passed over several times in a row comes before all others, so that a long one does not
starve.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
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

_PASSED_OVER = 4  # rounds after which a job comes first
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
        """`max_running` jobs share rounds, `max_queue` more may wait; a round has `max_tokens` tokens, or one pass."""
        self._model, self._on_round = model, on_round
        self._max_running, self._max_queue, self._max_tokens = max_running, max_queue, max_tokens
        self._queue: deque[_Task] = deque()
        self._tasks: dict[str, _Task] = {}  # queued and running
        self._running: list[_Task] = []
        self._changed = threading.Condition()
        self._is_closing = False
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
    def num_queued(self) -> int:
        return len(self._queue)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def submit(self, job: Job, deliver: Deliver) -> None:
        """Queue a job. Its events go to `deliver`."""
        with self._changed:
            if not self.is_alive:
                raise EngineStoppedError("the engine has stopped")
            if len(self._queue) >= self._max_queue:
                raise QueueFullError(f"{self._max_queue} jobs are waiting already")
            assert job.name not in self._tasks
            self._tasks[job.name] = task = _Task(job, deliver)
            self._queue.append(task)
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
                while self._has_work():
                    self._round()
        except BaseException as unexpected:
            _log.exception("the engine has stopped because of an error")
            error = EngineStoppedError(f"the engine has stopped because of an error ({type(unexpected).__name__})")
        finally:
            with self._changed:
                self._is_closing = True
                abandoned = list(self._tasks.values())
                self._tasks.clear()
                self._queue.clear()
                self._running.clear()
                self._changed.notify_all()
            for task in abandoned:
                task.fail(error)

    def _has_work(self) -> bool:
        """Wait for work; False when the engine is to end."""
        with self._changed:
            while not self._tasks:
                if self._is_closing:
                    return False
                self._changed.wait()
            while self._queue and len(self._running) < self._max_running:
                self._running.append(self._queue.popleft())
        return True

    def _round(self) -> None:
        for task in [*self._queue, *self._running]:
            if (error := task.interruption()) is not None:
                task.fail(error)
        for task in self._running:
            if not task.is_started and not task.is_finished:
                task.start(self._model)
        self._forget_finished()
        chosen = list(self._choose())
        if not chosen:
            return
        start = time.perf_counter()
        for task, result in self._run(chosen):
            task.resume(result)
        self._forget_finished()
        if self._on_round is not None:
            num_tokens = sum(forward_pass.num_tokens for _, forward_pass in chosen)
            self._on_round(len(chosen), num_tokens, time.perf_counter() - start)

    def _choose(self) -> "Iterator[tuple[_Task, ForwardPass]]":
        """Tasks of this round, with the forward passes they wait for."""
        left = self._max_tokens
        waiting = [(task, task.waits_for) for task in self._running if task.waits_for is not None]
        for task, forward_pass in sorted(waiting, key=lambda pair: pair[0].priority):
            if left > 0 and (forward_pass.num_tokens <= left or left == self._max_tokens):
                left -= forward_pass.num_tokens
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
            self._running = [task for task in self._running if not task.is_finished]
            self._queue = deque(task for task in self._queue if not task.is_finished)
            self._changed.notify_all()


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

    @property
    def priority(self) -> tuple[bool, int]:
        """Tasks with the lowest come first."""
        return self.passed_over < _PASSED_OVER, self.tokens_had

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
