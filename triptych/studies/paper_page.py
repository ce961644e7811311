"""One page from all kept studies: what agrees with the paper, figure by figure."""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from triptych.errors import UserError
from triptych.studies.base import Claim, Study, read_study
from triptych.studies.paper_items import ITEMS, PaperItem
from triptych.studies.verdict import Verdict
from triptych.training.validate import LOSS_VERSION
from triptych.utils.legacy import RENAMED_RECIPES
from triptych.utils.trials import TrialRecords

VERDICTS: dict[Verdict, str] = {
    "agrees": "agrees",
    "disagrees": "disagrees",
    "undecided": "cannot be decided at this size",
}
_PLACE = re.compile(r"(Figure|Table|Equation|Section|Appendix) [A-Z0-9.]*[A-Z0-9]")


@dataclass(frozen=True)
class KeptStudy:
    """What the page says about a folder of records."""

    folder: Path
    name: str
    claims: tuple[Claim, ...]
    core_minutes: float
    date: str
    recipe: str
    problem: str = ""
    """Why the records allow no claim yet."""
    is_current: bool = True
    """Whether the losses were computed as today; see `LOSS_VERSION`."""


def find_kept(studies: Path, study_of: Callable[[str], Study]) -> list[KeptStudy]:
    """All studies in the folders below `studies`, by folder."""
    folders = sorted(path.parent for path in studies.glob("*/study.json"))
    return [read_kept(folder, study_of) for folder in folders]


def read_kept(folder: Path, study_of: Callable[[str], Study]) -> KeptStudy:
    described, records = read_study(folder), list(TrialRecords(folder))
    study, claims, problem = study_of(described["study"]), [], ""
    try:
        claims = study.claims(records) if records else []
    except UserError as error:  # too few runs so far
        problem = str(error)
    seconds = sum(record.get("seconds", 0.0) for record in records)
    recipe = str(described["config"].get("recipe", ""))
    return KeptStudy(
        folder,
        described["study"],
        tuple(claims),
        seconds / 60 * int(described["environment"].get("threads") or 1),
        described["date"] or "date not recorded",
        RENAMED_RECIPES.get(recipe, recipe),
        problem if records else "no run is finished yet.",
        described["loss_version"] == LOSS_VERSION or not study.needs_data,
    )


def paper_page(kept: Sequence[KeptStudy], out: Path) -> str:
    """The page as Markdown, with links relative to `out`."""
    elsewhere = [
        PaperItem(place, "", "")
        for place in sorted({place_of(claim) for study in kept for claim in study.claims} - {i.place for i in ITEMS})
    ]
    items = [*ITEMS, *elsewhere]
    lines = [
        "# The paper, run again",
        "",
        "Every figure and table of [the paper](https://arxiv.org/abs/2602.21472) in order, and the equations and "
        "sections with claims of their own: what it says, what our records say, and whether the two agree. Verdicts "
        "are computed from the records and their intervals. `triptych paper` makes this page.",
        "",
        *_counts(kept, items),
    ]
    for item in items:
        lines += ["", *_section(item, kept, out)]
    return "\n".join(lines) + "\n"


def place_of(claim: Claim) -> str:
    """The item that a claim belongs to: panels are parts of their figure."""
    match = _PLACE.match(claim.place)
    return match[0] if match else claim.place


def _counts(kept: Sequence[KeptStudy], items: Sequence[PaperItem]) -> list[str]:
    verdicts = Counter(claim.verdict for study in kept for claim in study.claims)
    names = {study.name for study in kept}
    waiting = sum(bool(item.studies) and not names & set(item.studies) for item in items)
    absent = sum(bool(item.missing) for item in items)
    old = Counter(claim.verdict for study in kept for claim in study.claims if not study.is_current)
    rows = [f"| {text} | {verdicts[name]} | {old[name]} |" for name, text in VERDICTS.items()]
    return [
        "| claims | | of them with losses of an earlier version |",
        "|---|---|---|",
        *rows,
        "",
        f"Of {len(items)} figures, tables, equations and sections, {waiting} wait for a study that has not been run "
        f"yet, and {absent} are not reproduced.",
    ]


def _section(item: PaperItem, kept: Sequence[KeptStudy], out: Path) -> list[str]:
    lines = [f"## {item.place}" + (f": {item.title}" if item.title else ""), ""]
    if item.missing:
        claim = [f"{item.claim}", ""] if item.claim else []
        made_by = f": `{item.command}`" if item.command else ""
        return [*lines, *claim, f"**Not reproduced**: {item.missing}{made_by}."]
    claims = [(study, claim) for study in kept for claim in study.claims if place_of(claim) == item.place]
    if claims:
        lines += ["| the paper | here | verdict |", "|---|---|---|"]
        folders = Counter(study.name for study in {study.folder: study for study, _ in claims}.values())
        for study, each in claims:
            of = f" ({study.folder.name})" if folders[study.name] > 1 else ""
            lines.append(f"| {_cell(each.paper)} | {_cell(each.ours)}{of} | **{VERDICTS[each.verdict]}** |")
        lines.append("")
    elif item.claim:
        lines += [item.claim, ""]
    sources = [study for study in kept if study.name in item.studies or study in [source for source, _ in claims]]
    lines += [_source(study, out) for study in sources]
    ran = {study.name for study in sources}
    lines += [
        f"- `triptych study {name} --out studies/{name}`: not run yet" for name in item.studies if name not in ran
    ]
    if sources and not claims and not item.claim:
        lines += ["", "The figure is drawn; it has no claim that runs could decide."]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _source(study: KeptStudy, out: Path) -> str:
    """One line: command, recipe, cost, date and links."""
    folder = Path(os.path.relpath(study.folder, out.parent)).as_posix()
    links = [
        f"[{text}]({folder}/{name})"
        for text, name in (("results", "README.md"), ("figure", "figure.png"))
        if (study.folder / name).exists()
    ]
    shown = [
        f"`triptych study {study.name} --out studies/{study.folder.name}`",
        f"recipe {study.recipe}",
        f"{study.core_minutes:,.0f} core-minutes",
        study.date,
        *links,
    ]
    if not study.is_current:
        shown.append("losses of an earlier version")
    return f"- {', '.join(shown)}" + (f"; no claim yet: {_cell(study.problem)}" if study.problem else "")
