"""`triptych paper`: a page of what agrees with the paper, from the records of all studies."""

import argparse
from pathlib import Path

from triptych.cli.command import STUDY, Command
from triptych.cli.study import study_of
from triptych.errors import UserError


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.description = """\
Make a page of every figure and table of the paper: its claim, what the records of the studies say, whether they agree
(or cannot decide at this size), the command, its cost and date. Nothing is run; studies without records are listed with
their commands.

examples:
  triptych paper                                         docs/paper.md from studies/
  triptych paper --studies runs/studies --out runs/paper.md"""
    parser.add_argument(
        "--studies",
        type=Path,
        default=Path("studies"),
        metavar="FOLDER",
        help="folder with a folder for each study (default: studies)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("docs/paper.md"), metavar="FILE", help="the page (default: docs/paper.md)"
    )


def _run(args: argparse.Namespace) -> None:
    if not args.studies.is_dir():
        raise UserError(f"{args.studies} is no folder: --studies names the folder that holds the folders of studies.")
    if args.out.suffix != ".md":
        raise UserError(f"the page is Markdown: --out must end in .md, got {args.out}.")
    from triptych.studies.paper_page import VERDICTS, find_kept, paper_page

    kept = find_kept(args.studies, study_of)
    page = paper_page(kept, args.out)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(page)
    verdicts = [claim.verdict for study in kept for claim in study.claims]
    counted = ", ".join(f"{verdicts.count(name)} {text}" for name, text in VERDICTS.items())
    print(f"{len(kept)} studies with {len(verdicts)} claims: {counted}")
    print(f"wrote {args.out}")


COMMANDS = {"paper": Command("what agrees with the paper: a page from all studies", _describe, _run, group=STUDY)}
