// Presets: masks for the usual directions. Each takes the canvas and the model's limits and returns a new canvas; what
// it needs and does not have, it says with an error.

import { blank, EMPTY, everyPosition, GAP, isEmpty, isGenerated, segmentOf, withMask, withOpenEnd } from "./canvas.js";

export class PresetError extends Error {}

const draw = (canvas, limits) => ({ ...EMPTY, text: givenText(canvas, "Draw"), image: blank("image", limits) });
const speak = (canvas, limits) => ({ ...EMPTY, text: givenText(canvas, "Speak"), audio: blank("audio", limits) });

const drawAndSpeak = (canvas, limits) => ({ ...draw(canvas, limits), audio: blank("audio", limits) });

const caption = (canvas, limits) => ({
  ...EMPTY,
  image: given(canvas, "image", "A caption needs an image: draw one or drop a file."),
  text: openText(limits.caption_prompt),
});

const transcribe = (canvas, limits) => ({
  ...EMPTY,
  audio: given(canvas, "audio", "A transcript needs audio: speak a text, record, or drop a file."),
  text: openText(limits.transcript_prompt),
});

const complete = (canvas) => ({ ...EMPTY, text: canvas.text && !isEmpty(canvas.text) ? withOpenEnd(canvas.text, true) : openText() });

function answer(canvas) {
  const image = given(canvas, "image", "An answer needs an image and a question: draw one or drop a file.");
  const text = givenText(canvas, "Answer");
  return { ...EMPTY, image, text: text && withOpenEnd(text, true) };
}

// The middle of what there is: of the image, else of the audio, else of the text.
function fillIn(canvas) {
  if (canvas.image && !isGenerated(canvas.image)) {
    const { rows, columns, codebooks } = canvas.image.layout;
    const isInside = (i, size) => i >= Math.floor(size / 4) && i < Math.ceil((3 * size) / 4);
    const inside = everyPosition(canvas.image).filter((i) => {
      const cell = Math.floor(i / codebooks);
      return isInside(Math.floor(cell / columns), rows) && isInside(cell % columns, columns);
    });
    return { ...canvas, audio: null, image: withMask(canvas.image, inside, true) };
  }
  if (canvas.audio && !isGenerated(canvas.audio)) {
    return { ...canvas, image: null, audio: withMask(canvas.audio, middle(canvas.audio), true) };
  }
  if (isEmpty(canvas.text)) throw new PresetError("There is nothing to fill in: write a text, or drop a file.");
  return { ...EMPTY, text: withMask(withOpenEnd(canvas.text, false), middle(canvas.text), true) };
}

function middle(segment) {
  const step = segment.layout.codebooks ?? 1;
  const count = segment.ids.length / step;
  const [first, last] = [Math.floor(count / 3), Math.ceil((2 * count) / 3)];
  return everyPosition(segment).filter((i) => i >= first * step && i < last * step);
}

function given(canvas, modality, message) {
  const segment = canvas[modality];
  if (!segment || isGenerated(segment)) throw new PresetError(message);
  return segment;
}

function givenText(canvas) {
  return canvas.text && (isEmpty(canvas.text) ? null : withOpenEnd(canvas.text, false));
}

function openText(prompt) {
  // The text is sent as it is; its tokens come back with the first event.
  const segment = { ...segmentOf({ modality: "text", tokens: [], pieces: [] }), open: true };
  return prompt ? { ...segment, typed: prompt } : segment;
}

// `needs` are the modalities without which a model cannot do it.
export const PRESETS = {
  draw: { label: "Draw", hint: "The text is given, the image masked.", make: draw, needs: ["image"] },
  speak: { label: "Speak", hint: "The text is given, the model speaks it.", make: speak, needs: ["audio"] },
  both: { label: "Draw and speak", hint: "One text, drawn and spoken at once.", make: drawAndSpeak, needs: ["image", "audio"] },
  caption: { label: "Caption", hint: "The image is given, the model writes.", make: caption, needs: ["text", "image"], replacesText: true },
  transcribe: { label: "Transcribe", hint: "The audio is given, the model writes.", make: transcribe, needs: ["text", "audio"], replacesText: true },
  complete: { label: "Continue", hint: "The text is a beginning, the model continues it.", make: complete, needs: ["text"] },
  fill: { label: "Fill in", hint: `The middle is masked; in a text, write ${GAP} for a gap.`, make: fillIn, needs: [] },
  answer: { label: "Answer", hint: "Write a question about the image; the model answers.", make: answer, needs: ["text", "image"] },
};

export const presetsFor = (modalities) => Object.keys(PRESETS).filter((name) => PRESETS[name].needs.every((each) => modalities.includes(each)));
