// The image pane: the code grid over the decoded image.

import { h } from "./dom.js";
import { CellGrid } from "./grid.js";
import { action, cellsOf, countNote, fileAction, paneOf } from "./pane.js";

export class ImagePane {
  constructor(actions) {
    this.actions = actions;
    this.saveButton = action("PNG", () => actions.exportPng());
    const buttons = actions ? [
      fileAction("Open", "image/*", (file) => actions.loadFile(file)),
      action("Mask all", () => actions.maskAll("image")),
      action("Remove", () => actions.remove("image")),
      this.saveButton,
    ] : [];
    Object.assign(this, paneOf("image", "Image", ...buttons));
    this.image = h("img", { alt: "the decoded image", draggable: "false" });
    this.cells = h("div", { class: "codes" });
    this.stage = h("div", { class: "stage" }, this.image, this.cells);
    const offer = actions
      ? ["Drop an image here, or ", action("start with a blank one", () => actions.addBlank("image"), { class: "action link" }), "."]
      : ["no image"];
    this.offer = h("p", { class: "offer" }, ...offer);
    this.root.append(this.stage, this.offer);
    this.grid = new CellGrid(this.cells, {
      label: "Codes of the image",
      onPaint: actions && ((cells, isMasked) => actions.mask("image", this.#positions(cells), isMasked)),
      onCell: (cell, element) => actions?.tip("image", cell === null ? null : this.order[cell]?.[0], element),
      onKey: (event, cell) => /^[1-5]$/.test(event.key) && actions?.pinOption("image", this.order[cell][0], Number(event.key) - 1),
    });
  }

  #positions(cells) {
    return cells.flatMap((cell) => this.order[cell]);
  }

  render(segment, heatKind) {
    this.root.classList.toggle("absent", !segment);
    this.stage.hidden = !segment;
    this.offer.hidden = Boolean(segment);
    this.saveButton.disabled = !segment?.content;
    this.note.textContent = segment ? countNote(segment) : "";
    if (!segment) return;
    const { rows, columns, codebooks } = segment.layout;
    this.order = Array.from({ length: rows * columns }, (_, i) => Array.from({ length: codebooks }, (_, k) => i * codebooks + k));
    const name = (i, [first]) => {
      const place = `row ${Math.floor(i / columns) + 1}, column ${(i % columns) + 1}`;
      return segment.ids[first] === null ? place : `${place}, code ${segment.ids[first]}`;
    };
    this.grid.update(cellsOf(segment, this.order, heatKind, name), columns);
    this.image.hidden = !segment.content;
    if (segment.content && this.image.src !== segment.content) this.image.src = segment.content;
  }
}
