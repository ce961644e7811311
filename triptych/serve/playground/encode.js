// From what a user writes or drops to segments, and from tokens to their content.

import { GAP, segmentOf } from "./canvas.js";
import { uriOf } from "./wav.js";

export class Encoder {
  constructor(api, model, limits) {
    Object.assign(this, { api, model, limits });
  }

  // A text, in which ___ is one masked token.
  async text(text) {
    const parts = text.split(GAP);
    if (parts.length === 1) {
      // Words that the model does not know may still make a prompt that its reader understands.
      const made = await this.#encode("text", text).catch(() => this.#encode("text", text, { prompt: true }));
      return { ...segmentOf(made), typed: text };
    }
    const [tokens, pieces] = [[], []];
    for (const [i, part] of parts.entries()) {
      if (i) {
        tokens.push(null);
        pieces.push(null);
      }
      const made = await this.words(part, i > 0);
      tokens.push(...made.tokens);
      pieces.push(...made.pieces);
    }
    return segmentOf({ modality: "text", tokens, pieces });
  }

  // Tokens of words; those that follow others begin with a space, which the API would remove.
  async words(text, isAfter) {
    const words = text.trim();
    if (!words) return { tokens: [], pieces: [] };
    if (isAfter) {
      const { tokens, pieces } = await this.#encode("text", `a ${words}`);
      if (pieces[0] === "a") return { tokens: tokens.slice(1), pieces: pieces.slice(1) };
    }
    return this.#encode("text", words);
  }

  async file(file) {
    const modality = file.type.startsWith("image/") ? "image" : "audio";
    const type = file.type.startsWith(`${modality}/`) ? file.type : `${modality}/unknown`;
    return segmentOf(await this.#encode(modality, await uriOf(new Blob([file], { type }))));
  }

  // The segment with its content; what is not known counts as any token.
  async decoded(segment) {
    const { modality, ids } = segment;
    if (ids.every((each) => each === null)) {
      const { image, audio } = this.limits;
      return { ...segment, layout: { text: {}, image, audio: { ...audio, frames: ids.length / audio.codebooks } }[modality] };
    }
    const json = await this.api.json("/v1/decode", { model: this.model, modality, tokens: ids });
    return { ...segment, ...segmentOf(json), ids, stats: segment.stats };
  }

  #encode(modality, content, options = {}) {
    return this.api.json("/v1/encode", { model: this.model, modality, content, ...options });
  }
}
