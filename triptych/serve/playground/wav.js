// WAV files of 16-bit samples, and data URIs.

export function bytesOf(uri) {
  return Uint8Array.from(atob(uri.slice(uri.indexOf(",") + 1)), (each) => each.charCodeAt(0));
}

export function uriOf(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

// The first channel of a file, as numbers from -1 to 1.
export function decodeWav(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let [channels, rate] = [1, 0];
  for (let at = 12; at + 8 <= view.byteLength; ) {
    const [name, size] = [String.fromCharCode(...bytes.subarray(at, at + 4)), view.getUint32(at + 4, true)];
    if (name === "fmt ") [channels, rate] = [view.getUint16(at + 10, true), view.getUint32(at + 12, true)];
    if (name === "data") {
      const count = Math.floor(Math.min(size, view.byteLength - at - 8) / 2 / channels);
      const samples = Float32Array.from({ length: count }, (_, i) => view.getInt16(at + 8 + 2 * channels * i, true) / 32768);
      return { samples, rate };
    }
    at += 8 + size + (size % 2);
  }
  throw new Error("not a WAV file");
}

export function encodeWav(samples, rate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const word = (at, text) => [...text].forEach((each, i) => view.setUint8(at + i, each.charCodeAt(0)));
  word(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  word(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // one channel
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  word(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((each, i) => view.setInt16(44 + 2 * i, Math.max(-1, Math.min(1, each)) * 32767, true));
  return new Uint8Array(view.buffer);
}
