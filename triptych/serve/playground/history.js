// The list of results.

import { textOf } from "./canvas.js";
import { h } from "./dom.js";

let shown = [];

export function renderHistory(root, entries, onChoose) {
  if (entries.length === shown.length && entries.every((entry, i) => entry === shown[i])) return; // the focus stays
  shown = [...entries];
  const items = entries.map((entry) => {
    const { image, text } = entry.canvas;
    const words = textOf(text) || "no text";
    const thumbnail = image?.content ? [h("img", { src: image.content, alt: "" })] : [];
    const caption = h("span", { class: "words" }, words);
    const note = h("span", { class: "note" }, `${entry.label} · seed ${entry.seed}`);
    const name = `${entry.label}, seed ${entry.seed}: ${words}`;
    return h("li", {}, h("button", { type: "button", "aria-label": name, onclick: () => onChoose(entry) }, ...thumbnail, caption, note));
  });
  root.replaceChildren(...items);
}
