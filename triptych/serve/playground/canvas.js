// The canvas: a text, an image and audio, each known, masked or open at its end. Functions return new values.
//
//   segment   { modality, ids, masked, pieces, open, content, layout, stats, outlook }
//     ids       what is or was at each position; null where nothing is known yet
//     masked    whether a position is to be generated
//     pieces    of texts: the text of each token
//     typed     of texts: what the user wrote, until a token is changed
//     content   data URI of what `ids` decode to; null if that has not been asked for
//     stats     how each position was generated: { confidence, entropy, step }, null where it was given
//     outlook   by position: what the model expected there last

export const MODALITIES = ["text", "image", "audio"];
export const GAP = "___";

export const EMPTY = { text: null, image: null, audio: null, beside: null };

export function segmentOf(json) {
  const { modality, tokens, pieces = null, content = null, ...layout } = json;
  return {
    modality,
    ids: [...tokens],
    masked: tokens.map((each) => each === null),
    pieces: pieces && [...pieces],
    typed: null,
    open: false,
    content,
    layout,
    stats: blankStats(tokens.length),
    outlook: new Map(),
  };
}

export function blankStats(length) {
  const none = () => new Array(length).fill(null);
  return { confidence: none(), entropy: none(), step: none() };
}

export function blank(modality, limits) {
  if (modality === "image") {
    const { rows, columns, codebooks } = limits.image;
    return segmentOf({ modality, tokens: new Array(rows * columns * codebooks).fill(null), ...limits.image });
  }
  if (modality === "audio") return { ...segmentOf({ modality, tokens: [], ...limits.audio, frames: 0 }), open: true };
  return segmentOf({ modality, tokens: [], pieces: [] });
}

export const tokensOf = (segment) => segment.ids.map((id, i) => (segment.masked[i] ? null : id));
export const isEmpty = (segment) => !segment || (!segment.ids.length && !segment.open);
export const isGenerated = (segment) => !isEmpty(segment) && (segment.open || segment.masked.some(Boolean));

// Mask positions, or restore those of which something is known.
export function withMask(segment, positions, isMasked) {
  const masked = [...segment.masked];
  for (const i of positions) masked[i] = isMasked || segment.ids[i] === null;
  // Only a beginning can come before an open end.
  return { ...segment, masked, open: segment.open && !masked.some(Boolean), typed: null };
}

export const everyPosition = (segment) => segment.ids.map((_, i) => i);

// Put tokens in place of one position, or of none at the end.
export function withTokens(segment, position, ids, pieces = null, count = 1) {
  const splice = (list, values) => list.toSpliced(position, count, ...values);
  const none = ids.map(() => null);
  const { confidence, entropy, step } = segment.stats;
  return {
    ...segment,
    ids: splice(segment.ids, ids),
    masked: splice(segment.masked, ids.map((id) => id === null)),
    pieces: segment.pieces && splice(segment.pieces, pieces ?? none),
    stats: { confidence: splice(confidence, none), entropy: splice(entropy, none), step: splice(step, none) },
    typed: null,
    content: null,
    outlook: ids.length === count ? segment.outlook : new Map(),
    open: segment.open && !ids.includes(null),
  };
}

// An open end: the model chooses the length. What comes before it must be known.
export function withOpenEnd(segment, isOpen) {
  if (!isOpen) return { ...segment, open: false };
  const first = segment.masked.indexOf(true);
  const kept = first < 0 ? segment : withTokens(segment, first, [], [], segment.ids.length - first);
  return { ...kept, open: true, typed: first < 0 ? segment.typed : null };
}

export function textOf(segment) {
  if (isEmpty(segment)) return "";
  if (segment.typed !== null) return segment.typed;
  return segment.ids.map((_, i) => (segment.masked[i] ? ` ${GAP}` : segment.pieces[i] ?? "")).join("").trim();
}

// What the API is asked to fill.
export function requestSegment(segment) {
  const { modality, open } = segment;
  if (segment.typed !== null && !segment.masked.some(Boolean)) return { modality, content: segment.typed, open };
  return { modality, tokens: tokensOf(segment), open };
}

// The requests that fill a canvas: a list of phases, each a list of requests that run together, each the modalities of
// one canvas of the API. That has a text and at most one of image and audio, so a text for both is generated first.
export function phasesOf(canvas) {
  const media = ["image", "audio"].filter((each) => canvas[each]);
  const known = media.filter((each) => !isGenerated(canvas[each]));
  let wanted = media.filter((each) => isGenerated(canvas[each]));
  const phases = [];
  if (isGenerated(canvas.text)) {
    const beside = [canvas.beside, ...known, ...wanted].find((each) => each && media.includes(each));
    phases.push([beside ? ["text", beside] : ["text"]]);
    wanted = wanted.filter((each) => each !== beside);
  }
  const hasText = phases.length > 0 || !isEmpty(canvas.text);
  if (wanted.length) phases.push(wanted.map((each) => (hasText ? ["text", each] : [each])));
  return phases;
}
