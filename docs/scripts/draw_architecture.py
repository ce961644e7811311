"""Draw docs/images/architecture-light.svg and architecture-dark.svg: `python docs/scripts/draw_architecture.py`."""

from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).parent.parent / "images"
WIDTH, HEIGHT = 1240, 490
FONT = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, 'DejaVu Sans', sans-serif"
CELL, GAP = 22, 3
# The example sequence: an image with its caption. (label, modality); modality None is the task token.
SEQUENCE = [
    ("T", None),
    ("B", "image"),
    *[("", "image")] * 4,
    ("E", "image"),
    ("B", "text"),
    *[("", "text")] * 4,
    ("E", "text"),
]
MASKED = {2, 4, 5, 9, 11}  # positions of the example that are masked


@dataclass
class Theme:
    ink: str
    muted: str
    line: str
    panel: str
    cell: str
    mask: str
    mask_ink: str
    fills: dict[str, str] = field(default_factory=dict)
    strokes: dict[str, str] = field(default_factory=dict)


LIGHT = Theme(
    ink="#1f2328",
    muted="#59636e",
    line="#8c959f",
    panel="#f6f8fa",
    cell="#ffffff",
    mask="#57606a",
    mask_ink="#ffffff",
    fills={"text": "#dbeafe", "image": "#fef0cd", "audio": "#d5f5e3"},
    strokes={"text": "#2563eb", "image": "#c47f00", "audio": "#15803d"},
)
DARK = Theme(
    ink="#f0f6fc",
    muted="#9198a1",
    line="#6e7681",
    panel="#161b22",
    cell="#0d1117",
    mask="#aeb6bf",
    mask_ink="#0d1117",
    fills={"text": "#172b4d", "image": "#3d2e0a", "audio": "#12331f"},
    strokes={"text": "#6ea8fe", "image": "#e3b341", "audio": "#4ac26b"},
)


class Drawing:
    def __init__(self, theme: Theme):
        self.theme, self.parts = theme, []

    def box(self, x: float, y: float, w: float, h: float, *, fill: str, stroke: str, radius: float = 8) -> None:
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="{radius}" fill="{fill}" stroke="{stroke}"/>'
        )

    def text(self, x: float, y: float, text: str, *, size: int = 13, color: str = "", bold: bool = False) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" fill="{color or self.theme.ink}" '
            f'text-anchor="middle"{weight}>{escape(text)}</text>'
        )

    def lines(self, x: float, y: float, lines: list[str]) -> None:
        for i, line in enumerate(lines):
            self.text(x, y + 18 * i, line, size=12, color=self.theme.muted)

    def line(self, points: list[tuple[float, float]], extra: str = "") -> None:
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        stroke = f'stroke="{self.theme.line}" stroke-width="1.6" stroke-linejoin="round"'
        self.parts.append(f'<path d="{path}" fill="none" {stroke}{extra}/>')

    def arrow(self, points: list[tuple[float, float]], *, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.line(points, f' marker-end="url(#head)"{dash}')

    def column(self, x: float, y: float, masked: set[int]) -> None:
        """The example sequence, top to bottom; masked positions are dark."""
        for i, (label, modality) in enumerate(SEQUENCE):
            top = y + i * (CELL + GAP)
            fill = self.theme.fills[modality] if modality else self.theme.cell
            stroke = self.theme.strokes[modality] if modality else self.theme.line
            if i in masked:
                fill = self.theme.mask
            self.box(x, top, 46, CELL, fill=fill, stroke=stroke, radius=4)
            shown = "M" if i in masked else label
            color = self.theme.mask_ink if i in masked else self.theme.muted
            self.text(x + 23, top + 15.5, shown, size=11, color=color, bold=i in masked)

    def svg(self) -> str:
        title = "Tokenizers, one vocabulary, masking, a bidirectional transformer, a head per modality, samplers"
        arrow_head = f'<path d="M0 0.5 L9 5 L0 9.5 z" fill="{self.theme.line}"/>'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="{FONT}" '
                f'role="img" aria-label="{title}">',
                '<defs><marker id="head" viewBox="0 0 10 10" refX="8.5" refY="5" markerWidth="7" markerHeight="7" '
                f'orient="auto-start-reverse">{arrow_head}</marker></defs>',
                *self.parts,
                "</svg>\n",
            ]
        )


def draw(theme: Theme) -> str:
    d = Drawing(theme)
    top, rows = 82, len(SEQUENCE) * (CELL + GAP) - GAP
    middle = top + rows / 2

    stages = [
        (92, "Tokenizers", "encode and decode"),
        (275, "One vocabulary", "a range per modality"),
        (455, "Forward process", "MASK with prob. 1 − α(t)"),
        (660, "Transformer", "bidirectional"),
        (873, "Output heads", "a table per modality"),
        (1111, "Objective or sampler", "the same network"),
    ]
    for x, name, note in stages:
        d.text(x, 34, name, size=15, bold=True)
        d.text(x, 54, note, color=theme.muted)

    centers = {"text": top + 44, "image": middle, "audio": top + rows - 44}
    first, last = centers["text"], centers["audio"]

    # Tokenizers, one per modality.
    notes = {"text": "byte-level BPE, tiktoken", "image": "MoVQ", "audio": "mel VQ, Higgs, DAC"}
    for name, y in centers.items():
        d.box(12, y - 34, 160, 68, fill=theme.fills[name], stroke=theme.strokes[name])
        d.text(92, y - 4, name.capitalize(), size=15, bold=True)
        d.text(92, y + 17, notes[name], size=12, color=theme.muted)
        if y != middle:
            d.line([(172, y), (210, y), (210, middle)])
    d.arrow([(172, middle), (244, middle)])

    # The sequence, then the same sequence with masked positions.
    d.column(252, top, set())
    d.arrow([(304, middle), (424, middle)])
    d.column(432, top, MASKED)
    d.arrow([(484, middle), (552, middle)])
    legend = ["an image and its caption;", "T task, B begin, E end, M MASK"]
    d.lines(275, top + rows + 24, legend)

    # The transformer.
    d.box(560, top, 200, rows, fill=theme.panel, stroke=theme.line)
    blocks = [
        ("Embeddings", "per modality, untied"),
        ("RMSNorm, attention", "rotary, QK-norm"),
        ("RMSNorm, SwiGLU", "no biases"),
    ]
    y = top + 18
    for i, (name, note) in enumerate(blocks):
        if i == 1:
            d.box(570, y - 10, 180, 176, fill="none", stroke=theme.line)
            d.text(660, y + 155, "× layers", size=12, color=theme.muted)
        d.box(577, y, 166, 62, fill=theme.cell, stroke=theme.line, radius=6)
        d.text(660, y + 27, name, bold=True)
        d.text(660, y + 46, note, size=12, color=theme.muted)
        y += 84 if i == 0 else 72
    d.text(660, top + rows - 20, "padding is not computed", size=12, color=theme.muted)

    # Heads: for masked positions only.
    d.line([(778, first), (778, last)])
    d.line([(760, middle), (778, middle)])
    for name, y in centers.items():
        d.arrow([(778, y), (805, y)])
        d.box(813, y - 34, 120, 68, fill=theme.fills[name], stroke=theme.strokes[name])
        d.text(873, y + 5, f"{name.capitalize()} ids", size=14, bold=True)
        d.line([(933, y), (958, y)])
    d.lines(873, top + rows + 24, ["masked positions only"])

    # Training and sampling.
    training, sampling = top + 68, top + rows - 68
    d.line([(958, first), (958, last)])
    cards = [
        (training, "Train", ["cross-entropy × ELBO weight of t,", "z-loss; logits in chunks,", "never all at once"]),
        (sampling, "Sample", ["choose positions, draw tokens;", "guidance, temperature, top-p;", "nine samplers"]),
    ]
    for y, name, lines in cards:
        d.arrow([(958, y), (986, y)])
        d.box(994, y - 58, 234, 116, fill=theme.panel, stroke=theme.line)
        d.text(1111, y - 28, name, size=15, bold=True)
        d.lines(1111, y - 4, lines)

    # Sampling repeats until no MASK is left.
    bottom = top + rows + 58
    d.arrow([(1111, sampling + 58), (1111, bottom), (455, bottom), (455, top + rows + 8)], dashed=True)
    d.text(783, bottom + 22, "repeat with fewer MASK tokens; decode when none is left", color=theme.muted)
    return d.svg()


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, theme in (("light", LIGHT), ("dark", DARK)):
        (IMAGES / f"architecture-{name}.svg").write_text(draw(theme))


if __name__ == "__main__":
    main()
