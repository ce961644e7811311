"""The command line as a process. Signals have their exit codes before anything is imported that takes long."""

from triptych.cli.stopping import StopHandlers


def main() -> int:
    """Run the command line of this process; returns the exit code."""
    stops = StopHandlers(until_exit=True)
    from triptych.cli.main import main as run

    return run(stops=stops)


if __name__ == "__main__":
    raise SystemExit(main())
