"""Counts, bytes and durations in short, readable form."""


def human_number(number: float) -> str:
    """Three digits and a letter: 1.24M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}" if number < 1e15 else f"{number:.1e}"
    return f"{number:.3g}"


def human_bytes(number: float) -> str:
    """Three digits and a decimal unit: 3.2 GB."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if number >= size:
            return f"{number / size:,.3g} {unit}" if number < 1000 * size else f"{number / size:,.0f} {unit}"
    return f"{number / 1e3:,.3g} kB"


def human_duration(seconds: float) -> str:
    """A measured time: 3 h 05 min, 4 min 09 s, 12 s."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def rough_duration(seconds: float) -> str:
    """Two digits and a unit: 45 seconds, 12 minutes, 3.4 hours, 21 days."""
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            number = seconds / size
            return f"{number:,.{1 if number < 9.95 else 0}f} {unit}"
    return f"{seconds:.0f} seconds"
