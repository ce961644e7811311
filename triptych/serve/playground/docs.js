// The API's description as a page: every route of /openapi.json, with the fields of its body.

import { byId, h } from "./dom.js";

const MOST_VALUES = 8; // of a list of allowed values
const ANY = "any";

async function start() {
  const { theme = localStorage.getItem("triptych-theme") } = document.documentElement.dataset;
  if (theme) document.documentElement.dataset.theme = theme;
  const response = await fetch("/openapi.json");
  const api = await response.json();
  byId("version").textContent = response.ok ? `version ${api.info.version}` : api.error.message;
  if (response.ok) byId("routes").append(...routesOf(api));
  document.documentElement.dataset.ready = "true";
}

const routesOf = (api) =>
  Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, route]) => routeOf(api, method, path, route)));

function routeOf(api, method, path, route) {
  const [type, body] = Object.entries(route.requestBody?.content ?? {})[0] ?? [null, null];
  const title = h("h2", {}, h("span", { class: "method" }, method.toUpperCase()), ` ${path}`);
  const parts = [title, h("p", {}, route.description ?? route.summary)];
  if (body) parts.push(h("p", { class: "note" }, type), fieldsOf(api, resolved(api, body.schema)));
  return h("section", { class: "route", id: `${method}${path.replaceAll(/\W+/g, "-")}` }, ...parts);
}

function fieldsOf(api, schema) {
  const isRequired = (name) => (schema.required ?? []).includes(name);
  const fields = Object.entries(schema.properties ?? {}).map(([name, field]) => ({ name, field, type: typeOf(api, field) }));
  fields.sort((a, b) => isRequired(b.name) - isRequired(a.name));
  const rows = fields.filter(({ type }) => type !== ANY).map(({ name, field, type }) => {
    const title = h("th", { scope: "row" }, name, ...(isRequired(name) ? [h("span", { class: "required" }, " required")] : []));
    return h("tr", {}, title, h("td", {}, type), h("td", {}, noteOf(field)));
  });
  const others = fields.filter(({ type }) => type === ANY).map(({ name }) => name);
  const note = others.length ? [h("p", { class: "note" }, `Of OpenAI's API, without effect here, or refused with the reason: ${others.join(", ")}.`)] : [];
  return h("div", { class: "fields-of-body" }, h("table", {}, h("tbody", {}, ...rows)), ...note);
}

function resolved(api, schema) {
  return schema.$ref ? api.components.schemas[schema.$ref.split("/").at(-1)] : schema;
}

// A type in a few words.
function typeOf(api, schema) {
  const name = schema.$ref?.split("/").at(-1);
  const field = resolved(api, schema);
  if (field.enum) return field.enum.slice(0, MOST_VALUES).map((each) => JSON.stringify(each)).join(" | ");
  if ("const" in field) return JSON.stringify(field.const);
  const options = field.anyOf ?? field.oneOf;
  if (options) return [...new Set(options.map((each) => typeOf(api, each)))].filter((each) => each !== "null").join(" | ");
  if (field.type === "array") return `list of ${typeOf(api, field.items ?? {})}`;
  if (field.format === "binary") return "file";
  return name ?? field.type ?? ANY;
}

function noteOf(field) {
  const bounds = [field, ...(field.anyOf ?? [])].flatMap((each) => [
    ...("minimum" in each ? [`at least ${each.minimum}`] : []),
    ...("exclusiveMinimum" in each ? [`above ${each.exclusiveMinimum}`] : []),
    ...("maximum" in each ? [`at most ${each.maximum}`] : []),
    ...("exclusiveMaximum" in each ? [`below ${each.exclusiveMaximum}`] : []),
  ]);
  const preset = field.default === undefined || field.default === null ? [] : [`default ${JSON.stringify(field.default)}`];
  return [field.description, ...bounds, ...preset].filter(Boolean).join(", ");
}

start();
