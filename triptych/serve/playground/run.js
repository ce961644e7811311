// A run: the canvas is filled by the server, and every step is kept as a frame.
//
// Requests that run together share the clock: a step of any of them makes a frame, with the rest as it was.

import { blankStats, isGenerated, MODALITIES, phasesOf, requestSegment, segmentOf, textOf } from "./canvas.js";

export class Run {
  // `onFrame(run)` is called when there is a new frame, or something new in the last one. `voiced(text)` is the text that
  // asks for the chosen voice; null without one.
  constructor(api, canvas, { model, seed, sampling, topK, previewEvery, voiced = null }, onFrame) {
    Object.assign(this, { api, start: canvas, model, seed, sampling, topK, previewEvery, voiced, onFrame });
    this.frames = [{ canvas: asGiven(canvas), label: "start" }];
    this.warnings = [];
    this.isDone = false;
  }

  get last() {
    return this.frames.at(-1);
  }

  async play(signal) {
    for (const phase of phasesOf(this.start)) {
      const base = this.last.canvas;
      await Promise.all(phase.map((modalities) => this.#fill(base, modalities, signal)));
    }
    this.isDone = true;
    this.onFrame(this);
  }

  async #fill(base, modalities, signal) {
    const target = modalities.filter((each) => isGenerated(base[each])).join(" and ");
    const asksForVoice = this.voiced && modalities.includes("audio") && base.text && !isGenerated(base.text);
    const segments = modalities.map((each) => requestSegment(base[each]));
    if (asksForVoice) {
      // The request for the voice is no part of the canvas: from here on, this request changes the audio alone.
      segments[0] = { modality: "text", content: this.voiced(textOf(base.text)) };
      modalities = [null, "audio"];
    }
    const body = {
      ...this.sampling,
      model: this.model,
      seed: this.seed,
      segments,
      stream: true,
      top_k: this.topK,
      preview_every: this.previewEvery,
    };
    for await (const event of this.api.events("/v1/canvas", body, signal)) {
      const kind = event.type.slice("canvas.".length);
      if (kind === "created") this.warnings.push(...event.warnings.map((each) => each.message));
      else if (kind === "start") this.#amend(modalities, (segment, i) => started(segment, event.segments[i]));
      else if (kind === "step") this.#step(modalities, event, target);
      else if (kind === "preview") this.#amend(modalities, (segment, i) => previewed(segment, event.contents[i]));
      else if (kind === "completed") this.#amend(modalities, (segment, i) => completed(segment, event.segments[i]));
    }
  }

  #step(modalities, event, target) {
    const canvas = { ...this.last.canvas };
    modalities.forEach((modality, i) => {
      if (!modality) return;
      const deltas = event.deltas.filter((delta) => delta.segment === i);
      canvas[modality] = stepped(canvas[modality], deltas, event.outlook[i], event.step);
    });
    this.frames.push({ canvas, label: `${target}, step ${event.step + 1}` });
    this.onFrame(this);
  }

  #amend(modalities, change) {
    const frame = this.last;
    frame.canvas = { ...frame.canvas };
    modalities.forEach((modality, i) => {
      if (modality) frame.canvas[modality] = change(frame.canvas[modality], i);
    });
    this.onFrame(this);
  }
}

// What an earlier run made is given in this one.
function asGiven(canvas) {
  const parts = MODALITIES.filter((each) => canvas[each]).map((each) => {
    const segment = canvas[each];
    return [each, { ...segment, stats: blankStats(segment.ids.length), outlook: new Map() }];
  });
  return { ...canvas, ...Object.fromEntries(parts) };
}

// The length has been chosen.
function started(before, json) {
  const segment = segmentOf(json);
  if (before.ids.length !== segment.ids.length) return { ...segment, layout: { ...before.layout, ...segment.layout } };
  return { ...before, ids: segment.ids, masked: segment.masked, pieces: segment.pieces, open: false, outlook: new Map() };
}

function stepped(segment, deltas, outlook, step) {
  const copy = { ...segment, ids: [...segment.ids], masked: [...segment.masked], open: false, outlook: new Map() };
  if (segment.pieces) copy.pieces = [...segment.pieces];
  const { confidence, entropy, step: steps } = segment.stats;
  copy.stats = { confidence: [...confidence], entropy: [...entropy], step: [...steps] };
  outlook.positions.forEach((position, i) => {
    const options = outlook.ids[i].map((id, k) => ({ id, prob: outlook.prob[i][k], piece: outlook.pieces?.[i][k] }));
    copy.outlook.set(position, { entropy: outlook.entropy[i], options: options.filter(({ prob }) => prob > 0) });
  });
  for (const { position, id, piece = null, confidence: probability = null } of deltas) {
    copy.ids[position] = id;
    copy.masked[position] = id === null;
    if (copy.pieces) copy.pieces[position] = piece;
    copy.stats.confidence[position] = probability;
    copy.stats.entropy[position] = copy.outlook.get(position)?.entropy ?? null;
    copy.stats.step[position] = id === null ? null : step;
  }
  // What the model expected of a position stays known after the position is filled.
  for (const [position, seen] of segment.outlook) if (!copy.outlook.has(position)) copy.outlook.set(position, seen);
  return copy;
}

const previewed = (segment, content) => (segment.modality === "text" ? segment : { ...segment, content });

function completed(before, json) {
  const segment = segmentOf(json);
  const isSame = before.ids.length === segment.ids.length;
  return {
    ...segment,
    typed: before.typed,
    stats: isSame ? before.stats : blankStats(segment.ids.length),
    outlook: isSame ? before.outlook : new Map(),
  };
}
