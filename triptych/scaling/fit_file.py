"""Reads the file that `triptych fit --save` writes, for `triptych plan --law`."""

from dataclasses import dataclass
from pathlib import Path

from triptych.errors import DataError, UserError
from triptych.scaling.law import Law
from triptych.utils.json_files import read_json


@dataclass(frozen=True)
class SavedFit:
    name: str
    law: Law
    """The chosen law, of N and D."""
    laws: list[Law]
    """The same law fitted to resampled runs."""


def read_fit(path: Path) -> SavedFit:
    if not path.is_file():
        raise UserError(f"there is no file {path}. Create it with: triptych fit RUNS --save {path}")
    try:
        content = read_json(path)
        fit = content["fits"][content["chosen"]]
        law, laws = fit["law"], list(fit["rounds"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a file written by `triptych fit RUNS --save` ({error!r}).") from error
    chosen = Law.from_json(law)
    if chosen.form.columns != ("N", "D"):
        raise DataError(f"{path} holds a law of {' and '.join(chosen.form.columns)}; expected one of N and D.")
    return SavedFit(str(path), chosen, [Law.from_json(each) for each in laws])
