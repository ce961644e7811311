"""The page of what agrees with the paper: complete, in order, and never older than the records."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from triptych.cli.main import main
from triptych.cli.study import STUDIES, study_of
from triptych.errors import UserError
from triptych.recipes.proxy import proxy
from triptych.studies.base import Claim, join, read_study
from triptych.studies.lr_transfer import STUDY
from triptych.studies.paper_items import ITEMS
from triptych.studies.paper_page import VERDICTS, KeptStudy, find_kept, paper_page, place_of, read_kept
from triptych.utils.trials import TrialRecords

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "paper.md"


@pytest.fixture(scope="module")
def kept() -> list[KeptStudy]:
    return find_kept(ROOT / "studies", study_of)


def study(name: str, *claims: Claim, **changes) -> KeptStudy:
    return replace(KeptStudy(Path("studies") / name, name, claims, 12.3, "2026-01-02", "proxy"), **changes)


def section(page: str, place: str) -> str:
    return re.split(rf"^## {place}\b.*$", page, flags=re.MULTILINE)[1].split("\n## ")[0]


def test_the_page_in_the_repository_is_made_from_the_kept_records(kept: list[KeptStudy]) -> None:
    assert paper_page(kept, PAGE) == PAGE.read_text(), "run `triptych paper`"


def test_every_figure_and_table_is_on_the_page_in_order() -> None:
    places = [item.place for item in ITEMS]
    for kind, count in (("Figure", 29), ("Table", 10)):
        numbered = [f"{kind} {number}" for number in range(1, count + 1)]
        assert sorted(place for place in places if place.startswith(kind)) == sorted(numbered)
    assert len(set(places)) == len(places)
    headings = re.findall(r"^## (\w+ [\d.]+)", paper_page([], PAGE), flags=re.MULTILINE)
    assert headings == places


def test_every_item_has_a_study_or_a_reason() -> None:
    for item in ITEMS:
        assert bool(item.studies) != bool(item.missing), item.place
        assert set(item.studies) <= set(STUDIES), item.place
    assert {name for item in ITEMS for name in item.studies} == set(STUDIES), "a study that reproduces nothing"


def test_the_paper_map_lists_every_item() -> None:
    text = (ROOT / "docs" / "paper-map.md").read_text()
    for item in ITEMS:
        assert re.search(rf"\b{re.escape(item.place)}\b", text), item.place


def test_claims_of_kept_studies_have_a_place_on_the_page(kept: list[KeptStudy]) -> None:
    places = {item.place: item for item in ITEMS}
    for each in kept:
        assert each.claims, each.name
        assert each.date != "date not recorded", each.name
        for claim in each.claims:
            assert each.name in places[place_of(claim)].studies, claim.place


def test_claims_are_counted_and_shown_with_their_verdicts() -> None:
    claims = [
        Claim("Figure 4", "It is flat.", "0.1 (0.0 to 0.2)", "agrees"),
        Claim("Figure 4 b", "It is a | valley.", "0.3", "disagrees"),
        Claim("Figure 8", "It lies between.", "0.5", "undecided"),
        Claim("Appendix Z", "Something else.", "1", "agrees"),
    ]
    page = paper_page([study("batch-size", *claims[:2]), study("gamma", *claims[2:])], PAGE)
    assert "| agrees | 2 | 0 |\n| disagrees | 1 | 0 |\n| cannot be decided at this size | 1 | 0 |" in page
    flat = section(page, "Figure 4")
    assert "| It is flat. | 0.1 (0.0 to 0.2) | **agrees** |\n| It is a \\| valley. | 0.3 | **disagrees** |" in flat
    assert "- `triptych study batch-size --out studies/batch-size`, recipe proxy, 12 core-minutes, 2026-01-02" in flat
    assert f"**{VERDICTS['undecided']}**" in section(page, "Figure 8")
    assert "Something else." in section(page, "Appendix Z")
    assert page.index("## Table 10") < page.index("## Appendix Z")


def test_studies_that_have_not_run_are_listed_with_their_commands() -> None:
    page = paper_page([], PAGE)
    assert "- `triptych study gamma --out studies/gamma`: not run yet" in section(page, "Figure 9")
    waiting = sum(bool(item.studies) for item in ITEMS)
    absent = sum(bool(item.missing) for item in ITEMS)
    assert f"{waiting} wait for a study that has not been run yet, and {absent} are not reproduced" in page
    one = paper_page([study("gamma")], PAGE)
    assert "not run yet" not in section(one, "Figure 9")
    assert "not run yet" in section(one, "Figure 4")


def test_what_is_not_reproduced_says_why_and_what_to_run() -> None:
    text = section(paper_page([], PAGE), "Figure 15")
    assert "**Not reproduced**: the training data and the weights" in text
    assert "`triptych eval paper MODEL --data FOLDER`" in text


def test_links_are_relative_to_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "gamma"
    folder.mkdir(parents=True)
    (folder / "figure.png").touch()
    page = paper_page([study("gamma", folder=folder)], tmp_path / "pages" / "paper.md")
    assert "[figure](../runs/gamma/figure.png)" in page
    assert "README.md)" not in page


def test_records_that_allow_no_claim_yet_say_why(tmp_path: Path) -> None:
    join(tmp_path, "lr-transfer", proxy(), {"tokens": 1.0})
    empty = read_kept(tmp_path, lambda name: STUDY)
    assert (empty.claims, empty.problem) == ((), "no run is finished yet.")
    TrialRecords(tmp_path).add({"key": "a", "seconds": 90.0})

    def refuse(records: object) -> list[Claim]:
        raise UserError("two seeds are needed.")

    kept = read_kept(tmp_path, lambda name: replace(STUDY, claims=refuse))
    threads = read_study(tmp_path)["environment"]["threads"]
    assert (kept.problem, kept.core_minutes, kept.recipe) == ("two seeds are needed.", 1.5 * threads, "proxy")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", kept.date)
    assert "no claim yet: two seeds are needed." in paper_page([kept], PAGE)


def test_losses_of_an_earlier_version_are_marked_and_counted_apart() -> None:
    claims = [Claim("Figure 9", "It grows.", "0.4", "agrees"), Claim("Figure 8", "It lies between.", "0.5", "agrees")]
    page = paper_page([study("gamma", claims[0]), study("batch-size", claims[1], is_current=False)], PAGE)
    assert "| agrees | 2 | 1 |" in page
    assert "losses of an earlier version" in section(page, "Figure 8")
    assert "losses of an earlier version" not in section(page, "Figure 9")


def test_the_command_writes_the_page(tmp_path: Path, capsys) -> None:
    out = tmp_path / "page.md"
    join(tmp_path / "studies" / "a", "lr-transfer", proxy(), {"tokens": 1.0})
    command = partial(main, ["paper", "--studies", str(tmp_path / "studies"), "--out", str(out)])
    assert command() == 0
    assert "1 studies with 0 claims" in capsys.readouterr().out
    first = out.read_text()
    assert "no claim yet: no run is finished yet." in first
    assert command() == 0
    assert out.read_text() == first
    for words, message in (
        (["--studies", str(tmp_path / "none")], "is no folder: --studies names the folder that holds"),
        (["--out", str(tmp_path / "page.html")], "--out must end in .md"),
    ):
        assert main(["paper", *words]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
