// A canvas in the fragment of an address, which is not sent to the server: model, seed, sampling, voice and tokens.
//
// A segment is { t: tokens, m: ranges of masked positions, o: open, w: what the user wrote }.

import { MODALITIES, segmentOf, withMask } from "./canvas.js";

export function linkOf({ canvas, model, seed, sampling, voice }) {
  const parts = MODALITIES.filter((each) => canvas[each]).map((each) => [each, packed(canvas[each])]);
  const json = JSON.stringify({ v: 1, model, seed, sampling, voice, beside: canvas.beside, segments: Object.fromEntries(parts) });
  const text = String.fromCharCode(...new TextEncoder().encode(json));
  return `#c=${btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

// What a link holds, or null if the fragment is none. `decode(segment)` resolves to a segment with its content.
export async function readLink(fragment, decode) {
  if (!fragment.startsWith("#c=")) return null;
  const text = atob(fragment.slice(3).replaceAll("-", "+").replaceAll("_", "/"));
  const link = JSON.parse(new TextDecoder().decode(Uint8Array.from(text, (each) => each.charCodeAt(0))));
  if (link.v !== 1) throw new Error("a link of another version");
  const canvas = { text: null, image: null, audio: null, beside: link.beside ?? null };
  for (const modality of MODALITIES) {
    const part = link.segments[modality];
    if (part) canvas[modality] = await unpacked(modality, part, decode);
  }
  const seed = Math.max(0, Math.trunc(Number(link.seed)) || 0);
  return { canvas, model: String(link.model), seed, sampling: link.sampling ?? {}, voice: String(link.voice ?? "") };
}

function packed({ ids, masked, open, typed }) {
  const ranges = [];
  masked.forEach((each, i) => {
    if (each && masked[i - 1]) ranges.at(-1)[1] = i + 1;
    else if (each) ranges.push([i, i + 1]);
  });
  return { t: ids, m: ranges, ...(open && { o: 1 }), ...(typed !== null && { w: typed }) };
}

async function unpacked(modality, { t, m, o = 0, w = null }, decode) {
  const bare = segmentOf({ modality, tokens: t, pieces: modality === "text" ? [] : null });
  const segment = await decode(bare);
  const positions = m.flatMap(([start, stop]) => Array.from({ length: stop - start }, (_, i) => start + i));
  return { ...withMask(segment, positions, true), open: Boolean(o), typed: w === null ? null : String(w) };
}
