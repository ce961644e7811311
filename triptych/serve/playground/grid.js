// Cells that a pointer or the keyboard masks and restores; all three panes are made of them.
//
// A drag is one change: it masks, or restores with Shift or if it began on a masked cell (so that fingers can, too).

import { h } from "./dom.js";

const BETWEEN = 5; // pixels between the points of a drag that are looked at

export class CellGrid {
  // `onPaint(cells, isMasked)` when cells are to be masked or restored; `onCell(cell or null, element)` when the pointer
  // or the focus is on another cell; `onKey(event, cell)` returns whether it took a key. Without onPaint, the cells can
  // only be read.
  constructor(root, { label, onPaint = null, onCell = () => {}, onKey = () => false }) {
    Object.assign(this, { root, onPaint, onCell, onKey });
    this.cells = [];
    this.shape = "";
    this.cursor = 0;
    root.setAttribute("role", "grid");
    root.setAttribute("aria-label", label);
    root.classList.toggle("read-only", !onPaint);
    root.addEventListener("pointerdown", (event) => this.#begin(event));
    root.addEventListener("pointermove", (event) => this.#move(event));
    for (const each of ["pointerup", "pointercancel"]) window.addEventListener(each, () => this.#end());
    root.addEventListener("pointerover", (event) => this.#point(event.target));
    root.addEventListener("pointerleave", () => this.onCell(null, null));
    root.addEventListener("focusin", (event) => this.#point(event.target));
    root.addEventListener("focusout", () => this.onCell(null, null));
    root.addEventListener("keydown", (event) => this.#press(event));
  }

  // `cells`: { text, name, isMasked, isKnown, isNew, heat } each, in rows of `columns`.
  update(cells, columns) {
    const shape = `${cells.length} ${columns}`;
    if (shape !== this.shape) this.#build(cells.length, columns);
    this.shape = shape;
    cells.forEach((cell, i) => paint(this.cells[i], cell));
    this.states = cells;
  }

  focus(cell) {
    if (!this.cells.length) return;
    this.cells[this.cursor]?.setAttribute("tabindex", "-1");
    this.cursor = Math.max(0, Math.min(cell, this.cells.length - 1));
    this.cells[this.cursor].setAttribute("tabindex", "0");
    this.cells[this.cursor].focus({ preventScroll: false });
  }

  #build(count, columns) {
    const hadFocus = this.root.contains(document.activeElement);
    this.columns = columns;
    this.cursor = Math.max(0, Math.min(this.cursor, count - 1));
    this.cells = Array.from({ length: count }, (_, i) =>
      h("div", { class: "cell", role: "gridcell", tabindex: i === this.cursor ? 0 : -1 }),
    );
    const rows = Array.from({ length: Math.ceil(count / columns) }, (_, row) =>
      h("div", { class: "row", role: "row" }, ...this.cells.slice(row * columns, (row + 1) * columns)),
    );
    this.root.replaceChildren(...rows);
    this.root.style.setProperty("--columns", columns);
    if (hadFocus) this.focus(this.cursor);
  }

  #indexAt(element) {
    return this.cells.indexOf(element?.closest?.(".cell"));
  }

  #point(element) {
    const cell = this.#indexAt(element);
    if (cell >= 0) this.onCell(cell, this.cells[cell]);
  }

  #begin(event) {
    const cell = this.#indexAt(event.target);
    if (!this.onPaint || cell < 0 || event.button !== 0 || event.target.closest("input")) return;
    event.preventDefault();
    this.focus(cell);
    const { isMasked, isKnown } = this.states[cell];
    this.drag = { masks: !event.shiftKey && !(isMasked && isKnown), cells: new Set(), from: event };
    this.#take(cell);
  }

  #move(event) {
    if (!this.drag) return;
    const { clientX: x0, clientY: y0 } = this.drag.from;
    const [dx, dy] = [event.clientX - x0, event.clientY - y0];
    const count = Math.max(1, Math.ceil(Math.hypot(dx, dy) / BETWEEN));
    for (let i = 1; i <= count; i++) {
      const at = document.elementFromPoint(x0 + (dx * i) / count, y0 + (dy * i) / count);
      if (this.root.contains(at)) this.#take(this.#indexAt(at));
    }
    this.drag.from = event;
  }

  #take(cell) {
    if (cell < 0) return;
    this.drag.cells.add(cell);
    this.cells[cell].classList.add(this.drag.masks ? "masking" : "restoring");
  }

  #end() {
    if (!this.drag) return;
    const { cells, masks } = this.drag;
    this.drag = null;
    for (const each of cells) this.cells[each].classList.remove("masking", "restoring");
    this.onPaint([...cells], masks);
  }

  #press(event) {
    const cell = this.#indexAt(event.target);
    if (cell < 0 || event.target.closest("input") || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    const ends = { Home: 0, End: this.cells.length - 1 };
    if (event.key in moves) {
      const next = cell + moves[event.key];
      if (next >= 0 && next < this.cells.length) this.focus(next);
    } else if (event.key in ends) {
      this.focus(ends[event.key]);
    } else if (event.key === " " && this.onPaint) {
      this.onPaint([cell], !this.states[cell].isMasked);
    } else if (!this.onKey(event, cell)) {
      return;
    }
    event.preventDefault();
  }
}

function paint(element, { text = "", name, isMasked, isNew, heat }) {
  if (element.textContent !== text && !element.querySelector("input")) element.textContent = text;
  element.setAttribute("aria-label", name);
  element.setAttribute("aria-selected", String(isMasked));
  element.classList.toggle("masked", isMasked);
  element.classList.toggle("new", Boolean(isNew));
  element.classList.toggle("heated", heat !== null && heat !== undefined);
  if (heat !== null && heat !== undefined) element.style.setProperty("--heat", heat.toFixed(3));
}
