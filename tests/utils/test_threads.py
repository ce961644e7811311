"""Calls in threads: all of them, once each, with their results in order, each with one torch thread."""

import os
import threading
import time

import pytest
import torch

from triptych.utils import threads
from triptych.utils.threads import map_in_threads


@pytest.fixture(params=[1, 2, 3])
def num_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    assert torch.get_num_threads() == request.param, "the number of threads of the caller has changed"
    torch.set_num_threads(before)


def test_results_are_in_order(num_threads):
    calls = []

    def square(number):
        calls.append(number)
        time.sleep(0.001 * (number % 3))
        return number * number

    assert map_in_threads(square, range(40)) == [number * number for number in range(40)]
    assert sorted(calls) == list(range(40))
    assert map_in_threads(square, []) == []


def test_every_thread_computes_with_one_core(num_threads):
    all_here = threading.Barrier(num_threads, timeout=20)

    def call(_):
        all_here.wait()  # every call runs in a thread of its own
        return threading.get_ident(), torch.get_num_threads()

    idents, numbers = zip(*map_in_threads(call, range(num_threads)))
    assert len(set(idents)) == num_threads
    assert set(numbers) == {1}
    assert (threading.get_ident() in idents) == (num_threads == 1)


@pytest.mark.parametrize("items", [[0], [0, 1]])
def test_one_item_or_another_device_stays_in_this_thread(items):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    device = "cpu" if len(items) == 1 else "meta"
    try:
        idents = map_in_threads(lambda _: threading.get_ident(), items, device)
    finally:
        torch.set_num_threads(before)
    assert set(idents) == {threading.get_ident()}


def test_a_slow_call_does_not_hold_up_the_others(num_threads):
    """A thread takes the next call when it is ready: with equal shares, each would have half of the quick calls."""
    first_has_started, done = threading.Event(), []

    def call(number):
        if number == 0:
            first_has_started.set()
            deadline = time.monotonic() + 20
            while num_threads > 1 and len(done) < 20 and time.monotonic() < deadline:
                time.sleep(0.001)
            return len(done)
        done.append(number)
        return -1

    assert map_in_threads(call, range(21))[0] == (20 if num_threads > 1 else 0)
    assert first_has_started.is_set()


@pytest.mark.parametrize("is_inference", [True, False])
def test_the_grad_mode_of_the_caller_holds_in_the_threads(num_threads, is_inference):
    with torch.inference_mode(is_inference), torch.set_grad_enabled(not is_inference):
        modes = map_in_threads(lambda _: (torch.is_inference_mode_enabled(), torch.is_grad_enabled()), range(6))
    assert set(modes) == {(is_inference, not is_inference)}


def test_an_error_reaches_the_caller_and_nothing_runs_after_it(num_threads):
    calls = []

    def call(number):
        calls.append(number)
        if number == 2:
            raise ValueError("of call 2")
        time.sleep(0.002)

    with pytest.raises(ValueError, match="of call 2"):
        map_in_threads(call, range(1000))
    after = len(calls)
    assert after < 900
    time.sleep(0.02)
    assert len(calls) == after
    assert map_in_threads(abs, [-1, -2, -3]) == [1, 2, 3]


def test_calls_inside_of_calls(num_threads):
    assert map_in_threads(lambda i: map_in_threads(lambda j: (i, j), range(3)), range(3)) == [
        [(i, j) for j in range(3)] for i in range(3)
    ]


def test_several_callers_at_once(num_threads):
    """Their own threads, as in a server, have torch's number of threads too."""
    results = {}

    def call(name):
        results[name] = torch.get_num_threads(), map_in_threads(lambda number: name * number, range(50))

    callers = [threading.Thread(target=call, args=(name,)) for name in range(1, 5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(20)
    assert results == {name: (num_threads, [name * number for number in range(50)]) for name in range(1, 5)}


def test_a_forked_process_starts_threads_of_its_own(num_threads):
    assert map_in_threads(abs, [-1, -2]) == [1, 2]
    child = os.fork()
    if not child:
        try:
            is_right = not threads._pools and map_in_threads(abs, [-3, -4, -5]) == [3, 4, 5]
            os._exit(0 if is_right else 1)
        except BaseException:
            os._exit(2)
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert ended == (child, 0)
