"""The studies in the repository: pages agree with the records, and figures can be redrawn."""

from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from triptych.cli.study import STUDIES
from triptych.studies.base import Study, read_study
from triptych.utils.trials import TrialRecords

KEPT = sorted(path.parent for path in (Path(__file__).parents[2] / "studies").glob("*/study.json"))


def study_of(folder: Path) -> Study:
    return import_module(f"triptych.studies.{STUDIES[read_study(folder)['study']][0]}").STUDY


def test_every_folder_is_a_study() -> None:
    assert len(KEPT) >= 6
    folders = [path for path in KEPT[0].parent.iterdir() if path.is_dir()]
    assert sorted(folders) == KEPT


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_the_page_has_the_command_and_the_findings(folder: Path) -> None:
    page = (folder / "README.md").read_text()
    assert f"triptych study {read_study(folder)['study']} --out studies/{folder.name}" in page, "the command is missing"
    assert "](figure.png)" in page
    for line in study_of(folder).findings(list(TrialRecords(folder))):
        assert line in page


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_the_figure_can_be_redrawn_from_the_records(folder: Path, tmp_path: Path) -> None:
    study_of(folder).draw(list(TrialRecords(folder)), tmp_path / "figure.png")
    drawn, kept = Image.open(tmp_path / "figure.png"), Image.open(folder / "figure.png")
    assert drawn.size == pytest.approx(kept.size, abs=3)
