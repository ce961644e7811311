// The audio pane: the spectrogram, and the rows of codes under it on the same time axis.

import { h } from "./dom.js";
import { CellGrid } from "./grid.js";
import { action, cellsOf, countNote, fileAction, paneOf } from "./pane.js";
import { drawSpectrogram } from "./spectrum.js";
import { bytesOf, decodeWav } from "./wav.js";

export class AudioPane {
  constructor(actions) {
    this.actions = actions;
    this.listenButton = action("Listen", () => this.#listen());
    this.recordButton = action("Record", () => actions.record(this.recordButton), { "aria-pressed": "false" });
    this.saveButton = action("WAV", () => actions.exportWav());
    const buttons = actions ? [
      this.listenButton,
      this.recordButton,
      fileAction("Open", "audio/*", (file) => actions.loadFile(file)),
      action("Mask all", () => actions.maskAll("audio")),
      action("Remove", () => actions.remove("audio")),
      this.saveButton,
    ] : [this.listenButton];
    Object.assign(this, paneOf("audio", "Audio", ...buttons));
    this.spectrogram = h("canvas", { width: 480, height: 160, role: "img", "aria-label": "spectrogram of the decoded audio" });
    this.playhead = h("div", { class: "playhead", hidden: true });
    this.cells = h("div", { class: "codes" });
    this.axis = h("p", { class: "axis" });
    this.stage = h("div", { class: "stage" }, h("div", { class: "spectrum" }, this.spectrogram, this.playhead), this.cells, this.axis);
    const offer = actions
      ? ["Drop a recording here, or ", action("let the model speak", () => actions.addBlank("audio"), { class: "action link" }), "."]
      : ["no audio"];
    this.offer = h("p", { class: "offer" }, ...offer);
    this.root.append(this.stage, this.offer);
    this.grid = new CellGrid(this.cells, {
      label: "Codes of the audio",
      onPaint: actions && ((cells, isMasked) => actions.mask("audio", cells.flatMap((cell) => this.order[cell]), isMasked)),
      onCell: (cell, element) => actions?.tip("audio", cell === null ? null : this.order[cell]?.[0], element),
      onKey: (event, cell) => /^[1-5]$/.test(event.key) && actions?.pinOption("audio", this.order[cell][0], Number(event.key) - 1),
    });
  }

  render(segment, heatKind) {
    this.root.classList.toggle("absent", !segment);
    this.stage.hidden = !segment;
    this.offer.hidden = Boolean(segment);
    this.note.textContent = segment ? countNote(segment) : "";
    this.listenButton.disabled = this.saveButton.disabled = !segment?.content;
    if (!segment) return;
    const { codebooks, frame_rate: rate } = segment.layout;
    const frames = segment.ids.length / codebooks;
    // A row for each codebook, a column for each frame.
    this.order = Array.from({ length: segment.ids.length }, (_, i) => [(i % frames) * codebooks + Math.floor(i / frames)]);
    const name = (i, [at]) => {
      const place = `frame ${(i % frames) + 1}, codebook ${Math.floor(i / frames) + 1}`;
      return segment.ids[at] === null ? place : `${place}, code ${segment.ids[at]}`;
    };
    this.grid.update(cellsOf(segment, this.order, heatKind, name), Math.max(1, frames));
    this.stage.classList.toggle("open", segment.open);
    const ends = frames ? ["0", `${(frames / rate).toFixed(2)} s`] : ["the model chooses the length"];
    this.axis.replaceChildren(...ends.map((each) => h("span", {}, each)));
    this.#draw(segment.content);
  }

  // `again` when only the colours have changed.
  #draw(content, again = false) {
    if (content === this.content && !again) return;
    this.content = content;
    const colours = coloursOf(this.spectrogram);
    if (content) drawSpectrogram(this.spectrogram, decodeWav(bytesOf(content)).samples, colours);
    else this.spectrogram.getContext("2d").clearRect(0, 0, this.spectrogram.width, this.spectrogram.height);
  }

  recolour() {
    this.#draw(this.content, true);
  }

  #listen() {
    if (this.player) return this.player.pause();
    this.player = new Audio(this.content);
    const follow = () => {
      if (!this.player) return;
      this.playhead.style.left = `${(100 * this.player.currentTime) / (this.player.duration || 1)}%`;
      requestAnimationFrame(follow);
    };
    const stop = () => {
      this.player = null;
      this.playhead.hidden = true;
      this.listenButton.textContent = "Listen";
    };
    this.player.onended = this.player.onpause = this.player.onerror = stop;
    this.listenButton.textContent = "Stop";
    this.playhead.hidden = false;
    this.player.play().then(follow, stop);
  }
}

// The spectrogram is drawn in the colours of the page.
function coloursOf(element) {
  const { backgroundColor, color } = getComputedStyle(element);
  return [backgroundColor, color].map((each) => each.match(/[\d.]+/g).slice(0, 3).map(Number));
}
