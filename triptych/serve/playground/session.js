// What is on the page: the canvas, the runs that are shown, and what can be undone.

import { EMPTY, isGenerated, MODALITIES } from "./canvas.js";

const MOST = 100; // changes that can be undone

export class Session {
  constructor() {
    this.canvas = EMPTY;
    this.runs = []; // of the last Play: one, or two that are compared
    this.view = null; // number of the frame that is shown; null for the canvas itself
    this.undone = [];
    this.history = [];
  }

  get length() {
    return Math.max(0, ...this.runs.map((run) => run.frames.length));
  }

  // A run that ended earlier stays at its last frame.
  frameOf(run) {
    return run.frames[Math.min(this.view, run.frames.length - 1)];
  }

  get shown() {
    return this.view === null ? this.canvas : this.frameOf(this.runs[0]).canvas;
  }

  // A run has ended and nobody has said yet what is to become of it.
  get isReview() {
    return this.view !== null;
  }

  change(canvas) {
    this.undone.push(this.canvas);
    this.undone.splice(0, this.undone.length - MOST);
    this.canvas = canvas;
    this.view = null;
    if (this.runs.length > 1) this.runs = [];
  }

  begin(runs) {
    this.runs = runs;
    this.view = 0;
  }

  follow() {
    this.view = this.length - 1;
  }

  accept(run = this.runs[0]) {
    const { canvas } = this.frameOf(run);
    this.runs = [run];
    this.change(canvas);
  }

  discard() {
    this.history = this.history.filter((entry) => !this.runs.includes(entry.run));
    this.runs = [];
    this.view = null;
  }

  undo() {
    if (this.view !== null) this.discard();
    else if (this.undone.length) {
      this.canvas = this.undone.pop();
      this.runs = [];
    }
  }

  remember(run, label) {
    this.history.unshift({ run, canvas: run.last.canvas, seed: run.seed, label });
    this.history.splice(24);
  }
}

export const wantsGeneration = (canvas) => MODALITIES.some((each) => canvas[each] && isGenerated(canvas[each]));
