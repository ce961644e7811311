// Requests to the server: the API key, waiting while the queue is full, and events of a stream.

const KEY = "triptych-key";
const ATTEMPTS = 6;

export class ApiError extends Error {}

export class Api {
  // `askForKey(message)` resolves to a key, or null if the user gives none; `onWait(text)` tells why nothing happens.
  constructor({ askForKey, onWait }) {
    this.askForKey = askForKey;
    this.onWait = onWait;
  }

  async json(path, body = null, signal = undefined) {
    return (await this.#response(path, body, signal)).json();
  }

  async *events(path, body, signal) {
    const response = await this.#response(path, body, signal);
    for await (const event of readEvents(response.body)) {
      if (event.error) throw new ApiError(event.error.message);
      yield event;
    }
  }

  async #response(path, body, signal) {
    for (let attempt = 1; ; attempt++) {
      const response = await this.#send(path, body, signal);
      if (response.ok) return response;
      const message = await messageOf(response);
      if (response.status === 401) {
        const key = await this.askForKey(sessionStorage.getItem(KEY) ? message : "This server asks for an API key.");
        if (!key) throw new ApiError("An API key is needed.");
        sessionStorage.setItem(KEY, key);
      } else if (response.status === 429 && attempt < ATTEMPTS) {
        const seconds = Math.min(Number(response.headers.get("Retry-After")) || 1, 30);
        this.onWait(`The server is busy. Trying again in ${seconds} s (attempt ${attempt + 1} of ${ATTEMPTS}).`);
        await sleep(seconds * 1000, signal);
      } else {
        throw new ApiError(message);
      }
    }
  }

  async #send(path, body, signal) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...(body && { "Content-Type": "application/json" }), ...(key && { Authorization: `Bearer ${key}` }) };
    try {
      return await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server does not answer. Is it still running?");
    }
  }
}

async function messageOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

function sleep(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

// The JSON objects of server-sent events.
async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
        if (data.trim() === "[DONE]") return;
        if (data) yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
