"""The field's names: private words of earlier versions do not come back."""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = sorted(ROOT.joinpath("triptych").rglob("*.py"))
PROSE = [*CODE, ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LEGACY = ROOT / "triptych" / "utils" / "legacy.py"  # the one table of old names

# fmt: off
IDENTIFIERS = {
    "Ahead", "Dealt", "EMBEDDED", "Estimate", "Group", "HeldOut", "Layout", "Load", "NotNow", "PRESETS",
    "Places", "Planned", "Records", "Settings", "Sound", "Spikes", "Swept", "Tagged", "Verb", "_Kept", "_Look",
    "_Table", "antimask", "apart", "asked_n", "at_once", "begin_moments", "begin_with", "carry_out",
    "constrain", "found", "from_first", "guidance", "guide", "infill_sound", "is_by_hand", "judge_looks",
    "look", "looks", "most_in_a_row", "on_first", "picture", "pictures", "rehearse", "sound", "sounds",
    "speak", "temper", "train_briefly", "unsaid", "verb", "z_weight",
}
PHRASES = (
    "embedded world", "embedded model", "embedded tokenizers", "begin anew", "begins anew", "goes on from",
    "go on after", "in any company", "mended", "is made if need be", "of late", "--meet", "--rehearse",
    "--only-draw", "--half",
)
# fmt: on
# A Picture is the content of an image, which is pixels; a look is a kind of object in a colour.
ALLOWED_IN_SCENES = {"picture", "pictures", "look", "looks"}
SCENES = ROOT / "triptych" / "scenes"


def identifiers(path: Path) -> set[str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_identifiers(path: Path) -> None:
    if path != LEGACY:
        allowed = ALLOWED_IN_SCENES if path.is_relative_to(SCENES) else set()
        assert not identifiers(path) & IDENTIFIERS - allowed


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_phrases(path: Path) -> None:
    text = re.sub(r"\s+", " ", path.read_text())
    assert [phrase for phrase in PHRASES if re.search(rf"(?<![\w-]){re.escape(phrase)}(?![\w-])", text)] == []
