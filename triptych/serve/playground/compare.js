// Two runs of one canvas with different seeds, side by side.

import { Board } from "./board.js";
import { h } from "./dom.js";
import { action } from "./pane.js";

export class Compare {
  constructor(root, onKeep) {
    this.sides = ["A", "B"].map((name, i) => {
      const [board, seed, keep] = [new Board(), h("span", { class: "note" }), action(`Keep ${name}`, () => onKeep(i))];
      const section = h("section", { class: "side", "aria-label": name }, h("header", {}, h("h2", {}, name), seed, keep), board.root);
      root.append(section);
      return { board, seed, keep };
    });
  }

  render(session, heatKind, isPlaying) {
    this.sides.forEach(({ board, seed, keep }, i) => {
      const run = session.runs[i];
      board.render(session.frameOf(run).canvas, heatKind);
      seed.textContent = `seed ${run.seed}`;
      keep.disabled = isPlaying;
    });
  }

  showOnly(modalities) {
    for (const { board } of this.sides) board.showOnly(modalities);
  }

  recolour() {
    for (const { board } of this.sides) board.recolour();
  }
}
