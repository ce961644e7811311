"""Commands that are stopped or killed: exit codes after several signals, and processes that are left behind."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_client import is_running, process_tree
from test_faults import words
from train_fakes import events

from triptych.training import checkpoint as ckpt
from triptych.training.signals import STOP_SIGNALS, handled_signals
from triptych.utils.parent import with_parent


def start(command: list[str], environment: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background processes ignore it
    )


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]", seconds: float = 180) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.01)


# -- several signals --------------------------------------------------------------------------------------------------

COMMAND = """
import atexit, contextlib, sys, time
from triptych.cli import main
from triptych.cli.command import Command

where = sys.argv.pop()

def say_and_wait(what, seconds=60):
    print(what, flush=True)
    time.sleep(seconds)

def run(args):
    if where == "late":
        atexit.register(say_and_wait, "exiting")
    if where.startswith("late"):  # "latest" waits after the handlers of the command are gone
        return
    try:
        say_and_wait("running")
    finally:
        say_and_wait("cleaning up")

if where != "start":
    main.COMMANDS["info"] = Command("", lambda parser: None, run)
if where == "latest":
    atexit.register(say_and_wait, "exiting", 0.5)
if where == "start":
    main._choose = lambda words: say_and_wait("running")
sys.argv[1:] = ["info"]
raise SystemExit(main.main())
"""


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_at_the_start_has_its_exit_code(number: signal.Signals) -> None:
    process = start([sys.executable, "-c", COMMAND, "start"])
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(number)
    output = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else 75), output
    assert output[1] == "triptych: stopped.\n"


def handles_signals(process: "subprocess.Popen[str]") -> bool:
    """Whether the process has handlers of its own: Python's is for SIGINT only."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(caught >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_while_modules_are_imported_has_its_exit_code(number: signal.Signals) -> None:
    for milliseconds in (0, 5, 20, 50, 100, 150):
        process = start([sys.executable, "-m", "triptych", "info", "scenes"])
        wait_for(lambda: handles_signals(process), process)  # noqa: B023 (called at once)
        time.sleep(milliseconds / 1000)
        process.send_signal(number)
        output = process.communicate(timeout=60)
        assert process.returncode == (130 if number == signal.SIGINT else 75), (milliseconds, output)
        assert output[1] in ("", "triptych: stopped.\n")


def test_signals_are_handled_before_anything_is_imported_that_takes_long() -> None:
    code = "import sys, triptych.__main__; sys.exit(bool({'triptych.cli.main', 'argparse', 'numpy'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"triptych": "triptych.__main__:main"}


@pytest.mark.parametrize("second", STOP_SIGNALS)
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_cleanup_with_the_code_of_the_first(
    first: signal.Signals, second: signal.Signals
) -> None:
    process = start([sys.executable, "-c", COMMAND, "middle"])
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(first)
    assert process.stdout.readline() == "cleaning up\n"
    process.send_signal(second)  # a repetition, as of a terminal and a launcher
    time.sleep(0.6)
    assert process.poll() is None, "a repetition must not end it"
    process.send_signal(second)
    assert process.wait(60) == (130 if first == signal.SIGINT else 75)
    process.communicate()


@pytest.mark.parametrize("when", ["late", "latest"])
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_after_the_end_does_not_change_the_exit_code(number: signal.Signals, when: str) -> None:
    process = start([sys.executable, "-c", COMMAND, when])
    assert process.stdout is not None
    assert process.stdout.readline() == "exiting\n"
    process.send_signal(number)
    output = process.communicate(timeout=60)
    assert (process.returncode, output[1]) == (0, "")


def test_a_hangup_is_ignored_under_nohup(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert handled_signals() == [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP in handled_signals()


@pytest.mark.slow
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_signals_to_a_run_until_it_has_ended(number: signal.Signals, world: Path, tmp_path: Path) -> None:
    """Whatever a run does when a signal comes, from its first step to the last instruction of Python."""
    run = tmp_path / "run"
    process = start([sys.executable, "-m", "triptych", *words(world, run, "num_steps=100000", "save_every=100000")])
    wait_for(lambda: (run / "records.jsonl").exists() and len(events(run, "step")) > 3, process)
    process.send_signal(number)
    while process.poll() is None:
        time.sleep(0.05)
        process.send_signal(number)
    assert process.returncode == (130 if number == signal.SIGINT else 75), process.communicate()
    process.communicate()


# -- processes that are left behind -----------------------------------------------------------------------------------


def test_a_command_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    follower = "import time, triptych.utils.parent as p; p.follow_parent(); print('ready', flush=True); time.sleep(60)"
    starter = (
        "import os, subprocess, sys, time; from triptych.utils.parent import with_parent;"
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], env=with_parent(os.environ),"
        " stdout=subprocess.PIPE);"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(60)"
    )
    process = start([sys.executable, "-c", starter, follower])
    assert process.stdout is not None
    child = int(process.stdout.readline())
    time.sleep(0.7)
    assert is_running(child)
    process.kill()
    process.communicate()
    until = time.monotonic() + 20
    while is_running(child):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_command_ends_if_the_process_that_started_it_has_ended_before() -> None:
    follower = "import time, triptych.utils.parent as p; p.follow_parent(); time.sleep(60)"
    process = start([sys.executable, "-c", follower], {**with_parent({}), "TRIPTYCH_PARENT": "1"})
    assert process.wait(30) == -signal.SIGTERM
    process.communicate()


@pytest.mark.slow
def test_ranks_end_and_save_when_their_launcher_is_killed(world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = words(world, run, "num_steps=100000", "save_every=100000", "parallel.timeout=60")
    launcher = start([sys.executable, "-m", "triptych", *command, "--nproc", "2"])
    wait_for(lambda: (run / "records.jsonl").exists() and len(events(run, "step")) > 3, launcher)
    ranks = process_tree(launcher.pid)[1:]
    assert len(ranks) >= 2
    launcher.kill()
    launcher.communicate()
    until = time.monotonic() + 60
    while any(map(is_running, ranks)):
        assert time.monotonic() < until, "ranks train without their launcher"
        time.sleep(0.05)
    (saved,) = ckpt.list_checkpoints(run / "checkpoints")
    ckpt.verify(saved)
