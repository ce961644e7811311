// A GIF encoder: one palette for all frames, LZW.

const COLOURS = 256;

// `frames` are RGBA bytes of width x height pixels; `delays` in hundredths of a second.
export function encodeGif(width, height, frames, delays) {
  const indexOf = paletteOf(frames);
  const out = [...ascii("GIF89a"), ...word(width), ...word(height), 0xf7, 0, 0, ...indexOf.bytes];
  out.push(0x21, 0xff, 11, ...ascii("NETSCAPE2.0"), 3, 1, 0, 0, 0); // repeat for ever
  frames.forEach((frame, i) => {
    out.push(0x21, 0xf9, 4, 0, ...word(delays[i]), 0, 0);
    out.push(0x2c, 0, 0, 0, 0, ...word(width), ...word(height), 0, 8);
    const packed = lzw(pixelsOf(frame, indexOf), 8);
    for (let at = 0; at < packed.length; at += 255) {
      const block = packed.slice(at, at + 255);
      out.push(block.length, ...block);
    }
    out.push(0);
  });
  out.push(0x3b);
  return Uint8Array.from(out);
}

const ascii = (text) => [...text].map((each) => each.charCodeAt(0));
const word = (value) => [value & 255, value >> 8];
const colourAt = (frame, at) => (frame[at] << 16) | (frame[at + 1] << 8) | frame[at + 2];
const channel = (colour, c) => (colour >> (16 - 8 * c)) & 255;

function pixelsOf(frame, { index }) {
  return Uint8Array.from({ length: frame.length / 4 }, (_, i) => index.get(colourAt(frame, 4 * i)));
}

// Every colour if there are few; otherwise the means of boxes that halve the pixels of the widest box (median cut).
function paletteOf(frames) {
  const counts = new Map();
  for (const frame of frames) {
    for (let at = 0; at < frame.length; at += 4) {
      const colour = colourAt(frame, at);
      counts.set(colour, (counts.get(colour) ?? 0) + 1);
    }
  }
  const boxes = counts.size <= COLOURS ? [...counts.keys()].map((each) => [each]) : cut([...counts.keys()], counts);
  const [bytes, index] = [new Uint8Array(3 * COLOURS), new Map()];
  boxes.forEach((box, i) => {
    const total = box.reduce((sum, each) => sum + counts.get(each), 0);
    for (let c = 0; c < 3; c++) {
      bytes[3 * i + c] = Math.round(box.reduce((sum, each) => sum + counts.get(each) * channel(each, c), 0) / total);
    }
    for (const colour of box) index.set(colour, i);
  });
  return { bytes, index };
}

function cut(colours, counts) {
  const boxes = [boxOf(colours)];
  while (boxes.length < COLOURS) {
    const widest = boxes.reduce((best, box, i) => (box.width > boxes[best].width ? i : best), 0);
    if (boxes[widest].width === 0) break;
    const { colours: inside, axis } = boxes[widest];
    inside.sort((a, b) => channel(a, axis) - channel(b, axis));
    const half = inside.reduce((sum, each) => sum + counts.get(each), 0) / 2;
    let [at, sum] = [0, 0];
    while (at < inside.length - 1 && sum < half) sum += counts.get(inside[at++]);
    boxes.splice(widest, 1, boxOf(inside.slice(0, at)), boxOf(inside.slice(at)));
  }
  return boxes.map((box) => box.colours);
}

function boxOf(colours) {
  const widths = [0, 1, 2].map((c) => {
    const values = colours.map((each) => channel(each, c));
    return values.reduce((a, b) => Math.max(a, b)) - values.reduce((a, b) => Math.min(a, b));
  });
  const axis = widths.indexOf(Math.max(...widths));
  return { colours, axis, width: widths[axis] };
}

// Codes of growing width, least significant bit first.
function lzw(pixels, bits) {
  const [clear, end] = [1 << bits, (1 << bits) + 1];
  const out = [];
  let [buffer, filled, width, next, codes] = [0, 0, bits + 1, end + 1, new Map()];
  const emit = (code) => {
    buffer |= code << filled;
    for (filled += width; filled >= 8; filled -= 8) {
      out.push(buffer & 255);
      buffer >>>= 8;
    }
  };
  emit(clear);
  let prefix = pixels[0];
  for (let i = 1; i < pixels.length; i++) {
    const key = (prefix << bits) | pixels[i];
    const code = codes.get(key);
    if (code !== undefined) {
      prefix = code;
      continue;
    }
    emit(prefix);
    if (next === 4096) {
      emit(clear);
      [width, next, codes] = [bits + 1, end + 1, new Map()];
    } else {
      if (next === 1 << width) width++;
      codes.set(key, next++);
    }
    prefix = pixels[i];
  }
  emit(prefix);
  emit(end);
  if (filled) out.push(buffer & 255);
  return out;
}
