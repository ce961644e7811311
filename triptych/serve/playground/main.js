// The playground: wires the panes, the transport and the server.

import { Api, ApiError } from "./api.js";
import { Board } from "./board.js";
import { blank, everyPosition, GAP, textOf, withMask, withOpenEnd, withTokens } from "./canvas.js";
import { Compare } from "./compare.js";
import { byId, h, save } from "./dom.js";
import { Encoder } from "./encode.js";
import { gifOf, pngOf, wavOf } from "./export.js";
import { HEAT_KINDS } from "./heat.js";
import { renderHistory } from "./history.js";
import { linkOf, readLink } from "./permalink.js";
import { PresetError, PRESETS, presetsFor } from "./presets.js";
import { Recorder } from "./record.js";
import { Run } from "./run.js";
import { Session, wantsGeneration } from "./session.js";
import { Tip } from "./tip.js";

const SEEDS = 1_000_000;
const TOP_K = 5;
const REPLAY_SECONDS = 0.25; // for each frame
const SAMPLING = ["sampler", "num_steps", "temperature", "guidance_scale", "top_p"];

const api = new Api({ askForKey, onWait: (text) => say(text) });
const session = new Session();
const tip = new Tip(byId("tip"));
const recorder = new Recorder();
let models = [];
let encoder = null;
let preset = "draw";
let playing = null; // AbortController of the run in progress
let replaying = null;
let usedSeed = null;
let pending = Promise.resolve(true); // a text that is being encoded

const model = () => models.find((each) => each.id === byId("model").value);
const limits = () => model().triptych;
const firstPreset = () => presetsFor(limits().modalities)[0];

// -- messages and errors ----------------------------------------------------------------------------------------------

function say(text, isError = false) {
  byId("message").textContent = text;
  byId("message").classList.toggle("error", isError);
}

// Runs something for the user, and returns whether it went well; what goes wrong is said in the line of messages.
async function attempt(work) {
  try {
    await work();
    return true;
  } catch (error) {
    if (error.name === "AbortError") return false;
    say(error.message || String(error), true);
    if (!(error instanceof PresetError) && !(error instanceof ApiError)) console.error(error);
    return false;
  } finally {
    render();
  }
}

function askForKey(message) {
  const dialog = byId("key-dialog");
  byId("key-message").textContent = message;
  byId("key").value = "";
  dialog.returnValue = "cancel";
  return new Promise((resolve) => {
    dialog.onclose = () => resolve(dialog.returnValue === "ok" ? byId("key").value.trim() : null);
    dialog.showModal();
    byId("key").focus();
  });
}

// -- changes of the canvas --------------------------------------------------------------------------------------------

// The canvas that is changed is the one on the page: a change of an earlier frame goes on from that frame.
function change(parts) {
  if (playing) return;
  if ("text" in parts) board.text.isEdited = false;
  session.change({ ...session.shown, ...parts });
  say("");
  render();
}

// Content is decoded again when tokens were changed by hand.
async function changeTokens(modality, segment) {
  change({ [modality]: modality === "text" ? segment : await withContent(segment) });
}

async function withContent(segment) {
  if (segment.ids.some((each) => each === null)) return segment;
  const { content } = await encoder.decoded(segment);
  return { ...segment, content };
}

const actions = {
  refresh: () => render(),
  tip(modality, position, element) {
    const segment = session.shown[modality];
    if (position === null || !segment) tip.hide();
    else tip.show(element, segment, position, !playing);
  },
  mask(modality, positions, isMasked) {
    change({ [modality]: withMask(session.shown[modality], positions, isMasked) });
  },
  maskAll(modality) {
    const segment = session.shown[modality];
    if (segment) change({ [modality]: withMask(segment, everyPosition(segment), !segment.masked.every(Boolean)) });
  },
  remove: (modality) => change({ [modality]: null }),
  addBlank: (modality) => change({ [modality]: blank(modality, limits()) }),
  openEnd() {
    const text = session.shown.text ?? blank("text", limits());
    change({ text: withOpenEnd(text, !text.open) });
  },
  addGap() {
    const text = session.shown.text ?? blank("text", limits());
    change({ text: withTokens(text, text.ids.length, [null], null, 0) });
  },
  removeToken(position) {
    change({ text: withTokens(session.shown.text, position, [], []) });
  },
  pinText: (position, words) => attempt(async () => {
    const { tokens, pieces } = await encoder.words(words, position > 0);
    change({ text: withTokens(session.shown.text, position, tokens, pieces) });
  }),
  pinOption(modality, position, number) {
    const segment = session.shown[modality];
    const option = segment.outlook.get(position)?.options[number];
    if (playing || !option || option.id === null) return false;
    attempt(() => changeTokens(modality, withTokens(segment, position, [option.id], [option.piece ?? null])));
    return true;
  },
  write,
  play: () => play(),
  example(text) {
    write(text);
    choosePreset(["draw", "speak", "both"].includes(preset) ? preset : firstPreset());
  },
  loadFile: (file) => attempt(async () => {
    const segment = await encoder.file(file);
    change({ [segment.modality]: segment });
  }),
  record: (button) => attempt(async () => {
    if (button.getAttribute("aria-pressed") === "true") {
      button.setAttribute("aria-pressed", "false");
      button.textContent = "Record";
      const segment = await encoder.file(await recorder.stop());
      change({ audio: segment });
    } else {
      await recorder.start();
      button.setAttribute("aria-pressed", "true");
      button.textContent = "Stop recording";
      say("Recording. Press again to stop.");
    }
  }),
  exportPng: () => session.shown.image?.content && save(pngOf(session.shown.image), "triptych.png"),
  exportWav: () => session.shown.audio?.content && save(wavOf(session.shown.audio), "triptych.wav"),
};

function write(text) {
  if (playing) return;
  pending = pending.then(() => attempt(async () => {
    const before = session.shown.text;
    if (text.trim() === textOf(before).trim()) return (board.text.isEdited = false);
    if (!text.trim()) return change({ text: null });
    const segment = await encoder.text(text);
    change({ text: { ...segment, open: Boolean(before?.open) && !text.includes(GAP) } });
  }));
}

// Whether the text that is being written has become tokens; if it has not, the reason has been said.
function settled() {
  if (board.text.isEdited) write(board.text.input.value);
  return pending;
}

async function choosePreset(name) {
  if ((await settled()) || PRESETS[name].replacesText) await attempt(() => usePreset(name));
}

async function usePreset(name) {
  if (playing) return;
  const canvas = { ...PRESETS[name].make(session.shown, limits()) };
  canvas.beside = null;
  preset = name;
  change(canvas);
}

// -- runs -------------------------------------------------------------------------------------------------------------

function sampling() {
  const given = SAMPLING.map((name) => [name, byId(name).value]).filter(([, value]) => value !== "");
  return Object.fromEntries(given.map(([name, value]) => [name, name === "sampler" ? value : Number(value)]));
}

const seedNow = () => Math.max(0, Math.floor(Number(byId("seed").value) || 0));

// The seed in the field is used once, unless it is locked.
function nextSeed() {
  if (!byId("lock").checked && seedNow() === usedSeed) newSeed();
  usedSeed = seedNow();
  return usedSeed;
}

function newSeed() {
  byId("seed").value = Math.floor(Math.random() * SEEDS);
}

// What Play fills: the canvas; after a run, what the run began with; with the active preset if nothing is masked.
async function canvasToPlay() {
  if (wantsGeneration(session.shown) && !session.isReview) return session.shown;
  if (session.isReview) return session.runs[0].start;
  await usePreset(preset);
  return session.shown;
}

async function play({ from = null, count = 1 } = {}) {
  if (playing) return playing.abort();
  replaying = null;
  if (!(await settled())) return;
  await attempt(async () => {
    const canvas = from ?? (await canvasToPlay());
    if (!wantsGeneration(canvas)) throw new PresetError("Nothing is masked: choose a preset, or click on cells.");
    const first = nextSeed();
    const runs = Array.from({ length: count }, (_, i) => new Run(api, canvas, { ...runOptions(), seed: first + i }, follow));
    await playRuns(runs);
  });
}

function runOptions() {
  const voice = byId("voice").value;
  const request = limits().voice_request;
  return {
    model: model().id,
    sampling: sampling(),
    topK: Math.min(TOP_K, limits().top_k),
    previewEvery: Math.max(0, Math.floor(Number(byId("preview_every").value) || 0)),
    voiced: voice ? (text) => request.replace("{voice}", () => voice).replace("{text}", () => text) : null,
  };
}

async function playRuns(runs) {
  session.begin(runs);
  playing = new AbortController();
  const { signal } = playing;
  say("");
  render();
  try {
    await Promise.all(runs.map((run) => run.play(signal)));
    for (const run of runs) session.remember(run, PRESETS[preset].label.toLowerCase());
    say([...new Set(runs.flatMap((run) => run.warnings))].join(" "));
  } catch (error) {
    playing.abort(); // the other run, too
    if (runs.every((run) => run.frames.length === 1)) session.discard();
    throw error;
  } finally {
    playing = null;
    render();
  }
}

let drawn = 0;
function follow() {
  session.follow();
  drawn ||= requestAnimationFrame(() => {
    drawn = 0;
    render();
  });
}

async function replay() {
  const own = (replaying = {});
  for (let frame = 0; frame < session.length && replaying === own && session.isReview; frame++) {
    session.view = frame;
    render();
    await new Promise((resolve) => setTimeout(resolve, 1000 * REPLAY_SECONDS));
  }
}

function branch() {
  const from = session.shown;
  if (!byId("lock").checked) newSeed();
  session.change(from);
  return play({ from });
}

// -- drawing ----------------------------------------------------------------------------------------------------------

const board = new Board(actions);
const compare = new Compare(byId("compare"), (i) => {
  session.accept(session.runs[i]);
  render();
});

function render() {
  const heat = byId("heat").value;
  const isComparing = session.isReview && session.runs.length > 1;
  byId("board").hidden = isComparing;
  byId("compare").hidden = !isComparing;
  if (isComparing) compare.render(session, heat, Boolean(playing));
  else board.render(session.shown, heat);
  renderTransport();
  document.body.classList.toggle("run", session.isReview);
  board.text.input.readOnly = Boolean(playing);
  for (const button of byId("presets").children) button.setAttribute("aria-pressed", String(button.dataset.name === preset));
  byId("hint").textContent = PRESETS[preset].hint;
  byId("legend").hidden = heat === "none";
  byId("history-section").hidden = !session.history.length;
  renderHistory(byId("history"), session.history, (entry) => {
    if (!playing) change(entry.canvas);
  });
}

function renderTransport() {
  const { isReview, length, view } = session;
  const hasFrames = length > 1;
  const isOne = session.runs.length === 1;
  byId("play").textContent = playing ? "Stop" : isReview ? "Play again" : "Play";
  const scrubber = byId("scrubber");
  scrubber.max = Math.max(0, length - 1);
  scrubber.value = view ?? Math.max(0, length - 1);
  scrubber.disabled = !hasFrames || Boolean(playing);
  scrubber.style.setProperty("--done", `${(100 * scrubber.value) / Math.max(1, scrubber.max)}%`);
  byId("clock").textContent = hasFrames ? clockText() : "";
  scrubber.setAttribute("aria-valuetext", byId("clock").textContent);
  const set = (id, isEnabled) => (byId(id).disabled = Boolean(playing) || !isEnabled);
  set("replay", hasFrames);
  set("branch", isReview && isOne && wantsGeneration(session.shown));
  set("accept", isReview && isOne);
  set("discard", isReview);
  set("undo", isReview || session.undone.length > 0);
  set("compare-button", true);
  set("gif", hasFrames);
}

function clockText() {
  if (!session.isReview) return `${session.length - 1} steps recorded`;
  const place = `${session.view}/${session.length - 1}`;
  return session.runs.length > 1 ? `frame ${place}` : `${session.frameOf(session.runs[0]).label} · ${place}`;
}

// -- page -------------------------------------------------------------------------------------------------------------

function showModel() {
  const { examples, modalities, samplers, voices, words } = limits();
  encoder = new Encoder(api, model().id, limits());
  board.text.setExamples(examples);
  board.text.input.title = words.length ? `The model knows ${words.length} words: ${words.join(" ")}` : "";
  board.showOnly(modalities);
  compare.showOnly(modalities);
  const there = presetsFor(modalities);
  for (const button of byId("presets").children) button.hidden = !there.includes(button.dataset.name);
  preset = there[0];
  byId("voice-label").hidden = !voices.length;
  byId("voice").replaceChildren(...optionsOf("any", voices));
  byId("sampler").replaceChildren(...optionsOf("preset", samplers));
}

const optionsOf = (first, names) => ["", ...names].map((each) => h("option", { value: each }, each || first));

const isDark = () => {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-pressed", String(isDark()));
  board.recolour();
  compare.recolour();
}

async function share() {
  const isStart = session.isReview && session.view >= session.length - 1;
  const run = session.runs[0];
  const canvas = isStart ? run.start : session.shown;
  const seed = session.isReview ? run.seed : seedNow();
  history.replaceState(null, "", linkOf({ canvas, model: model().id, seed, sampling: sampling(), voice: byId("voice").value }));
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link has been copied. It holds the canvas and the seed: Play makes the same again.");
  } catch {
    say("The link stands in the address bar. It holds the canvas and the seed: Play makes the same again.");
  }
}

async function openLink() {
  if (!location.hash) return false;
  const wanted = await readLink(location.hash, (segment) => encoder.decoded(segment)).catch(() => {
    throw new PresetError("This link is damaged: its canvas cannot be read.");
  });
  if (!wanted) return false;
  if (models.some((each) => each.id === wanted.model)) byId("model").value = wanted.model;
  showModel();
  byId("seed").value = wanted.seed;
  byId("voice").value = limits().voices.includes(wanted.voice) ? wanted.voice : "";
  usedSeed = null;
  for (const name of SAMPLING) byId(name).value = wanted.sampling[name] ?? "";
  change(wanted.canvas);
  say("A canvas from a link: Play fills it with its seed.");
  return true;
}

function connect() {
  const on = (id, event, work) => byId(id).addEventListener(event, work);
  on("play", "click", () => play());
  on("replay", "click", () => attempt(() => {
    session.view ??= 0;
    return replay();
  }));
  on("branch", "click", () => attempt(branch));
  on("accept", "click", () => {
    session.accept();
    render();
  });
  on("discard", "click", () => {
    session.discard();
    render();
  });
  on("undo", "click", undo);
  on("compare-button", "click", () => play({ count: 2 }));
  on("link", "click", () => attempt(share));
  on("gif", "click", () => attempt(async () => save(await gifOf(session.runs[0].frames), "triptych.gif")));
  on("heat", "change", render);
  on("model", "change", () => {
    session.discard();
    session.change({ text: null, image: null, audio: null, beside: null });
    showModel();
    render();
  });
  on("seed", "input", () => (usedSeed = null));
  on("scrubber", "input", () => {
    replaying = null;
    session.view = Number(byId("scrubber").value);
    render();
  });
  on("theme", "click", () => {
    const theme = isDark() ? "light" : "dark";
    localStorage.setItem("triptych-theme", theme);
    setTheme(theme);
  });
  on("key-cancel", "click", () => byId("key-dialog").close("cancel"));
  on("help-button", "click", () => byId("help").showModal());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme());
  addEventListener("hashchange", () => attempt(openLink));
  addEventListener("keydown", press);
  addEventListener("scroll", () => tip.hide(), { passive: true });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    if (file) actions.loadFile(file);
  });
}

function press(event) {
  const command = event.ctrlKey || event.metaKey;
  if (command && event.key === "Enter") play();
  else if (command && event.key === "z" && !event.target.closest("input, textarea")) undo();
  else return;
  event.preventDefault();
}

function undo() {
  if (playing) return;
  board.text.isEdited = false;
  session.undo();
  render();
}

function build() {
  byId("board").append(board.root);
  byId("heat").append(...Object.entries(HEAT_KINDS).map(([value, label]) => h("option", { value }, label)));
  const buttons = Object.entries(PRESETS).map(([name, { label, hint }]) =>
    h("button", { type: "button", "data-name": name, title: hint, onclick: () => {
      choosePreset(name);
    } }, label),
  );
  byId("presets").append(...buttons);
}

async function start() {
  build();
  connect();
  setTheme(localStorage.getItem("triptych-theme"));
  await attempt(async () => {
    models = (await api.json("/v1/models")).data;
    byId("model").replaceChildren(...models.map((each) => h("option", { value: each.id }, each.id)));
    byId("model-label").hidden = models.length < 2;
    showModel();
    if (!(await openLink())) session.canvas = PRESETS[preset].make(session.canvas, limits());
  });
  document.documentElement.dataset.ready = "true";
}

start();
