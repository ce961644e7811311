// What the three panes share: a head with a title and actions, and the way from cells to positions.

import { h } from "./dom.js";
import { heatOf } from "./heat.js";

export function paneOf(modality, title, ...actions) {
  const note = h("span", { class: "note" });
  const root = h(
    "section",
    { class: `pane ${modality}`, "aria-label": title },
    h("header", {}, h("h2", {}, title), note, h("div", { class: "actions" }, ...actions)),
  );
  return { root, note };
}

export const action = (label, onclick, properties = {}) => h("button", { type: "button", class: "action", onclick, ...properties }, label);

export function fileAction(label, accept, onFile) {
  const input = h("input", { type: "file", accept, onchange: () => {
    if (input.files.length) onFile(input.files[0]);
    input.value = "";
  } });
  return h("label", { class: "action" }, label, input);
}

// The cells of a segment. `order[i]` lists the positions of cell i; a cell of several codebooks is masked as one.
export function cellsOf(segment, order, heatKind, nameOf) {
  const heat = heatOf(segment, heatKind);
  return order.map((positions, i) => {
    const known = positions.filter((at) => heat[at] !== null);
    const isMasked = positions.some((at) => segment.masked[at]);
    return {
      name: `${nameOf(i, positions)}, ${isMasked ? "masked" : segment.stats.step[positions[0]] === null ? "given" : "generated"}`,
      isMasked,
      isKnown: positions.every((at) => segment.ids[at] !== null),
      isNew: !isMasked && segment.stats.step[positions[0]] !== null,
      heat: known.length ? known.reduce((sum, at) => sum + heat[at], 0) / known.length : null,
    };
  });
}

export function countNote(segment) {
  const left = segment.masked.filter(Boolean).length;
  if (segment.open && !segment.ids.length) return "length open";
  return `${segment.ids.length} tokens${left ? `, ${left} masked` : ""}${segment.open ? ", open end" : ""}`;
}
