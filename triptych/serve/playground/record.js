// The microphone, as a WAV file: the server reads no other kind that every browser can record.

import { encodeWav } from "./wav.js";

export class Recorder {
  async start() {
    if (!navigator.mediaDevices) throw new Error("Browsers give the microphone only to localhost and https pages.");
    this.stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    this.recorder = new MediaRecorder(this.stream);
    this.parts = [];
    this.recorder.ondataavailable = (event) => this.parts.push(event.data);
    this.recorder.start();
  }

  async stop() {
    await new Promise((resolve) => {
      this.recorder.onstop = resolve;
      this.recorder.stop();
    });
    this.stream.getTracks().forEach((track) => track.stop());
    const context = new AudioContext();
    try {
      const recorded = await context.decodeAudioData(await new Blob(this.parts).arrayBuffer());
      return new Blob([encodeWav(recorded.getChannelData(0), recorded.sampleRate)], { type: "audio/wav" });
    } finally {
      context.close();
    }
  }
}
