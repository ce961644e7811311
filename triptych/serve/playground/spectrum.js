// The spectrogram: a short-time Fourier transform, drawn in one colour.

const SIZE = 512; // samples of a window
const RANGE = 70; // decibels below the loudest that are still drawn

// In place, radix 2: real and imaginary parts, whose length is a power of two.
export function fft(re, im) {
  const n = re.length;
  for (let i = 1, j = 0; i < n; i++) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [re[i], re[j]] = [re[j], re[i]];
      [im[i], im[j]] = [im[j], im[i]];
    }
  }
  for (let half = 1; half < n; half *= 2) {
    for (let k = 0; k < half; k++) {
      const angle = (-Math.PI * k) / half;
      const [c, s] = [Math.cos(angle), Math.sin(angle)];
      for (let a = k; a < n; a += 2 * half) {
        const b = a + half;
        const [x, y] = [re[b] * c - im[b] * s, re[b] * s + im[b] * c];
        [re[b], im[b]] = [re[a] - x, im[a] - y];
        re[a] += x;
        im[a] += y;
      }
    }
  }
}

// Power in decibels: `columns` spectra of SIZE / 2 bins, over the whole length of the samples.
export function spectrogram(samples, columns) {
  const hann = Float64Array.from({ length: SIZE }, (_, i) => 0.5 - 0.5 * Math.cos((2 * Math.PI * i) / SIZE));
  return Array.from({ length: columns }, (_, column) => {
    const first = Math.round(((column + 0.5) / columns) * samples.length - SIZE / 2);
    const re = Float64Array.from(hann, (weight, i) => weight * (samples[first + i] ?? 0));
    const im = new Float64Array(SIZE);
    fft(re, im);
    return Float64Array.from({ length: SIZE / 2 }, (_, i) => 10 * Math.log10(re[i] ** 2 + im[i] ** 2 + 1e-9));
  });
}

// `colours` are two colours [r, g, b]: of silence and of the loudest.
export function drawSpectrogram(canvas, samples, [quiet, loud]) {
  const columns = spectrogram(samples, canvas.width);
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(canvas.width, canvas.height);
  const top = columns.reduce((most, column) => column.reduce((a, b) => Math.max(a, b), most), -Infinity);
  columns.forEach((column, x) => {
    for (let y = 0; y < canvas.height; y++) {
      // Low frequencies have most of the height: the square root of the height is linear in frequency.
      const height = 1 - (y + 0.5) / canvas.height;
      const value = column[Math.min(column.length - 1, Math.floor(height ** 1.6 * column.length))];
      const level = Math.max(0, Math.min(1, 1 + (value - top) / RANGE)) ** 1.5;
      const at = 4 * (y * canvas.width + x);
      for (let c = 0; c < 3; c++) pixels.data[at + c] = quiet[c] + level * (loud[c] - quiet[c]);
      pixels.data[at + 3] = 255;
    }
  });
  context.putImageData(pixels, 0, 0);
}
