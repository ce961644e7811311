// The text pane: what is written, and a chip for each token.

import { textOf } from "./canvas.js";
import { h } from "./dom.js";
import { CellGrid } from "./grid.js";
import { action, cellsOf, countNote, paneOf } from "./pane.js";
import { shownPiece } from "./tip.js";

export class TextPane {
  constructor(actions) {
    this.actions = actions;
    this.#buildActions();
    this.chips = h("div", { class: "chips" });
    this.end = h("span", { class: "open-end", title: "the model chooses the length" }, "open end");
    this.plain = h("p", { class: "plain" });
    this.root.append(...(actions ? [this.input, this.examples] : [this.plain]), h("div", { class: "chip-line" }, this.chips, this.end));
    this.grid = new CellGrid(this.chips, {
      label: "Tokens of the text",
      onPaint: actions && ((cells, isMasked) => actions.mask("text", cells, isMasked)),
      onCell: (cell, element) => actions?.tip("text", cell, element),
      onKey: (event, cell) => this.#press(event, cell),
    });
  }

  #buildActions() {
    const { actions } = this;
    this.openButton = action("Open end", () => actions.openEnd(), { "aria-pressed": "false" });
    const buttons = actions ? [
      action("Add gap", () => actions.addGap()),
      this.openButton,
      action("Mask all", () => actions.maskAll("text")),
      action("Clear", () => actions.remove("text")),
    ] : [];
    Object.assign(this, paneOf("text", "Text", ...buttons));
    this.input = h("textarea", {
      rows: 2,
      "aria-label": "Text",
      spellcheck: "false",
      maxlength: 20000,
      oninput: () => (this.isEdited = true),
      onchange: () => actions.write(this.input.value),
      onkeydown: (event) => {
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        actions.play();
      },
    });
    this.examples = h("div", { class: "examples" });
  }

  setExamples(examples) {
    this.input.placeholder = examples.length ? `${examples[0]} …` : "Write a text …";
    this.examples.replaceChildren(...examples.map((each) => action(each, () => this.actions.example(each), { class: "action example" })));
  }

  render(segment, heatKind) {
    this.root.classList.toggle("absent", !segment);
    const text = textOf(segment);
    this.plain.textContent = text || "no text";
    if (!this.isEdited) this.input.value = text;
    this.note.textContent = segment && (segment.ids.length || segment.open) ? countNote(segment) : "";
    this.end.hidden = !segment?.open;
    this.openButton.setAttribute("aria-pressed", String(Boolean(segment?.open)));
    const count = segment?.ids.length ?? 0;
    const order = Array.from({ length: count }, (_, i) => [i]);
    const name = (i) => (segment.masked[i] ? `token ${i + 1}` : `${shownPiece(segment.pieces[i] ?? "")}, token ${i + 1}`);
    const cells = count ? cellsOf(segment, order, heatKind, name) : [];
    cells.forEach((cell, i) => (cell.text = segment.masked[i] ? "" : shownPiece(segment.pieces[i] ?? "")));
    this.grid.update(cells, Math.max(1, count));
  }

  // Typing on a chip pins what is typed; 1 to 5 pin what the model expected.
  #press(event, cell) {
    if (!this.actions) return false;
    if (["Backspace", "Delete"].includes(event.key)) this.actions.removeToken(cell);
    else if (/^[1-5]$/.test(event.key) && this.actions.pinOption("text", cell, Number(event.key) - 1)) return true;
    else if (event.key === "Enter") this.#edit(cell, "");
    else if (event.key.length === 1 && event.key.trim()) this.#edit(cell, event.key);
    else return false;
    return true;
  }

  #edit(cell, first) {
    const chip = this.grid.cells[cell];
    const input = h("input", { class: "pin", "aria-label": `Write token ${cell + 1}`, spellcheck: "false" });
    input.value = first;
    const end = (text) => {
      input.onblur = null;
      input.remove();
      if (text.trim()) this.actions.pinText(cell, text.trim());
      else this.actions.refresh();
      this.grid.focus(cell);
    };
    input.onblur = () => end(input.value);
    input.onkeydown = (event) => {
      event.stopPropagation();
      if (event.key === "Enter") end(input.value);
      if (event.key === "Escape") end("");
    };
    chip.replaceChildren(input);
    input.focus();
  }
}
