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
    "look", "looks", "_Look", "judge_looks", "Settings", "guidance", "unsaid", "at_once", "guide", "constrain", "temper",
    "asked_n", "Places", "is_by_hand", "Tagged", "Load", "_Kept", "_Table", "begin_with", "begin_moments",
    "HeldOut", "NotNow", "Ahead", "Spikes", "most_in_a_row", "apart", "on_first", "from_first", "rehearse", "Dealt",
    "Swept", "Planned", "carry_out", "train_briefly", "antimask", "z_weight", "Sound", "speak", "infill_sound", "EMBEDDED",
    "picture", "pictures", "sound", "sounds", "verb", "Verb", "found", "Records", "Group", "Estimate", "Layout", "PRESETS",
}
PHRASES = (
    "embedded world", "embedded model", "embedded tokenizers", "begin anew", "begins anew", "goes on from", "go on after",
    "in any company", "mended", "is made if need be", "of late", "--meet", "--rehearse", "--only-draw", "--half",
)
# fmt: on
ALLOWED = {
    "grammar.py": {"verb"},  # the verb of a sentence
}


def identifiers(path: Path) -> set[str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_identifiers(path: Path) -> None:
    if path != LEGACY:
        assert not identifiers(path) & IDENTIFIERS - ALLOWED.get(path.name, set())


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_phrases(path: Path) -> None:
    text = re.sub(r"\s+", " ", path.read_text())
    assert [phrase for phrase in PHRASES if re.search(rf"(?<![\w-]){re.escape(phrase)}(?![\w-])", text)] == []
