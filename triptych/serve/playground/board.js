// Three panes that show one canvas. Without actions the canvas can only be read.

import { MODALITIES } from "./canvas.js";
import { h } from "./dom.js";
import { AudioPane } from "./pane_audio.js";
import { ImagePane } from "./pane_image.js";
import { TextPane } from "./pane_text.js";

export class Board {
  constructor(actions = null) {
    this.text = new TextPane(actions);
    this.image = new ImagePane(actions);
    this.audio = new AudioPane(actions);
    this.root = h("div", { class: actions ? "board" : "board read-only" }, this.text.root, this.image.root, this.audio.root);
  }

  // The panes of what a model has.
  showOnly(modalities) {
    for (const each of MODALITIES) this[each].root.hidden = !modalities.includes(each);
    this.root.dataset.count = modalities.length;
  }

  render(canvas, heatKind) {
    this.text.render(canvas.text, heatKind);
    this.image.render(canvas.image, heatKind);
    this.audio.render(canvas.audio, heatKind);
    const shown = ["image", "audio"].filter((each) => canvas[each]);
    this.root.dataset.media = shown.join(" ");
  }

  recolour() {
    this.audio.recolour();
  }
}
