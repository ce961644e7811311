// Files of what the panes show: PNG, WAV, and a GIF of the denoising.

import { isEmpty } from "./canvas.js";
import { loadImage } from "./dom.js";
import { encodeGif } from "./gif.js";
import { drawSpectrogram } from "./spectrum.js";
import { shownPiece } from "./tip.js";
import { bytesOf, decodeWav } from "./wav.js";

const SIDE = 256;
const [INK, PAPER, MASK] = ["#1d1b18", "#f7f4ee", "#e4ddd0"];
const DELAY = 18; // hundredths of a second
const PAUSE = 150; // after the last frame

export const pngOf = (image) => new Blob([bytesOf(image.content)], { type: "image/png" });
export const wavOf = (audio) => new Blob([bytesOf(audio.content)], { type: "audio/wav" });

// The image of every frame, or its spectrogram, or its text.
export async function gifOf(frames) {
  const last = frames.at(-1).canvas;
  const isMoving = (each) => last[each]?.stats.step.some((step) => step !== null);
  const modality = ["image", "audio", "text"].find(isMoving) ?? ["image", "audio", "text"].find((each) => !isEmpty(last[each]));
  const pixels = [];
  for (const { canvas } of frames) pixels.push(await frameOf(canvas[modality]));
  const delays = pixels.map((_, i) => (i === pixels.length - 1 ? PAUSE : DELAY));
  return new Blob([encodeGif(SIDE, SIDE, pixels, delays)], { type: "image/gif" });
}

async function frameOf(segment) {
  const canvas = new OffscreenCanvas(SIDE, SIDE);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingEnabled = false;
  context.fillStyle = PAPER;
  context.fillRect(0, 0, SIDE, SIDE);
  if (segment) await DRAW[segment.modality](context, segment);
  return context.getImageData(0, 0, SIDE, SIDE).data;
}

const DRAW = {
  async image(context, segment) {
    if (segment.content) context.drawImage(await loadImage(segment.content), 0, 0, SIDE, SIDE);
    const { rows, columns, codebooks } = segment.layout;
    context.fillStyle = MASK;
    for (let i = 0; i < rows * columns; i++) {
      if (!segment.masked[i * codebooks]) continue;
      const [x, y] = [i % columns, Math.floor(i / columns)];
      context.fillRect(Math.floor((x * SIDE) / columns), Math.floor((y * SIDE) / rows), Math.ceil(SIDE / columns) - 1, Math.ceil(SIDE / rows) - 1);
    }
  },
  async audio(context, segment) {
    if (segment.content) {
      const spectrum = new OffscreenCanvas(SIDE, SIDE - 32);
      drawSpectrogram(spectrum, decodeWav(bytesOf(segment.content)).samples, [[247, 244, 238], [29, 27, 24]]);
      context.drawImage(spectrum, 0, 0);
    }
    const frames = segment.ids.length / segment.layout.codebooks || 1;
    for (let i = 0; i < frames; i++) {
      context.fillStyle = segment.masked[i * segment.layout.codebooks] ? MASK : INK;
      context.fillRect((i * SIDE) / frames, SIDE - 26, Math.max(1, SIDE / frames - 1), 20);
    }
  },
  async text(context, segment) {
    context.font = "16px sans-serif";
    let [x, y] = [14, 34];
    segment.ids.forEach((_, i) => {
      const word = segment.masked[i] ? "" : shownPiece(segment.pieces[i] ?? "");
      const width = segment.masked[i] ? 40 : context.measureText(word).width;
      if (x + width > SIDE - 14) [x, y] = [14, y + 28];
      context.fillStyle = segment.masked[i] ? MASK : INK;
      if (segment.masked[i]) context.fillRect(x, y - 15, width, 20);
      else context.fillText(word, x, y);
      x += width + 6;
    });
  },
};
