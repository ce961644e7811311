"""Numbers for people."""

import pytest

from triptych.utils.units import rough_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 seconds"),
        (45, "45 seconds"),
        (89, "89 seconds"),
        (90, "1.5 minutes"),
        (720, "12 minutes"),
        (5399, "90 minutes"),
        (5400, "1.5 hours"),
        (12_240, "3.4 hours"),
        (86_400, "24 hours"),
        (21 * 86_400, "21 days"),
        (1234 * 86_400, "1,234 days"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert rough_duration(seconds) == text
