// What the model expected at a position: a small table beside the cell.

import { h } from "./dom.js";

export class Tip {
  constructor(root) {
    this.root = root;
  }

  show(element, segment, position, canPin) {
    const seen = segment.outlook.get(position);
    if (!element || !seen) return this.hide();
    const rows = seen.options.slice(0, 5).map(({ id, prob, piece }, i) => {
      const bar = h("span", { class: "bar" });
      bar.style.setProperty("--part", prob);
      const key = h("kbd", {}, String(i + 1));
      return h("li", {}, ...(canPin ? [key] : []), h("span", { class: "option" }, nameOf(id, piece)), bar, h("span", { class: "percent" }, percent(prob)));
    });
    const confidence = segment.stats.confidence[position];
    const facts = [`entropy ${seen.entropy.toFixed(2)}`];
    if (confidence !== null) facts.push(`drawn with ${percent(confidence)}`);
    this.root.replaceChildren(h("ol", {}, ...rows), h("p", {}, facts.join(" · ")));
    this.root.hidden = false;
    const box = element.getBoundingClientRect();
    const { width, height } = this.root.getBoundingClientRect();
    const left = Math.max(8, Math.min(box.left, innerWidth - width - 8));
    const below = box.bottom + 6 + height < innerHeight;
    this.root.style.left = `${left}px`;
    this.root.style.top = `${below ? box.bottom + 6 : Math.max(8, box.top - height - 6)}px`;
  }

  hide() {
    this.root.hidden = true;
  }
}

const percent = (value) => `${(100 * value).toFixed(value > 0.0995 ? 0 : 1)} %`;

function nameOf(id, piece) {
  if (id === null) return "end";
  return piece === undefined || piece === null ? `code ${id}` : shownPiece(piece);
}

// White space is part of a token, and must be seen if there is nothing else.
export const shownPiece = (piece) => (piece.trim() ? piece.trim() : piece.replaceAll(" ", "␣").replaceAll("\n", "↵") || "∅");
