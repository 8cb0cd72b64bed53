// Shows each event of /events. Texts come from users: they are set as text, never as HTML.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const MOST_SAMPLES = 600, MOST_ROWS = 100;
const LIMITS = {
  program: "good", finished: "good", workers: "warn", source: "warn", function: "warn",
  wire: "warn", device: "warn", consumers: "warn", "no workers": "bad",
};
const KINDS = {
  joined: "good", began: "work", left: "unknown", removed: "unknown", moved: "warn",
  unreachable: "warn", lost: "bad", crashed: "bad", failed: "bad",
};
const STATES = { here: "good", suspected: "warn", draining: "work" };
const CHARTS = [
  { name: "Elements per second", field: "rate", tone: "blue", show: count },
  { name: "Bytes per second", field: "byte_rate", tone: "violet", show: (x) => `${bytes(x)}/s` },
  { name: "Programs wait", field: "lag", tone: "orange", show: percent, most: 1 },
  { name: "Queues filled", field: "fill", tone: "green", show: percent, most: 1 },
];

let samples = [];

function make(tag, attributes = {}, ...content) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...content);
  return element;
}

function count(value) {
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)} M`;
  if (value >= 1000 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value.toFixed(value < 10 ? 2 : 1);
}

function bytes(value) {
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (value < 1000 || unit === "GB") {
      return `${value.toFixed(unit === "B" || value >= 100 ? 0 : 1)} ${unit}`;
    }
    value /= 1000;
  }
}

function percent(share) {
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

function seconds(value) {
  return value < 10 ? `${value.toFixed(1)} s` : `${Math.round(value)} s`;
}

function pill(text, kind) {
  return make("span", { class: "pill", "data-kind": kind || "unknown" }, text);
}

function bar(share, tone) {
  const filled = make("i");
  filled.style.width = `${Math.min(100, Math.max(0, 100 * share))}%`;
  return make("span", { class: `bar tone-${tone}` }, filled);
}

// A number as it is read by people, with the number itself for programs.
function figure(name, value, show, tag = "b") {
  return make(tag, { "data-field": name, "data-value": value }, show(value));
}

function jobName(job) {
  const repetition = job.repetition ? ` · repetition ${job.repetition}` : "";
  return (job.name === null ? `anonymous ${job.job.split("/").pop()}` : job.name) + repetition;
}

function tile(name, field, value, show, note) {
  return make("div", { class: "tile" }, make("dl", {},
    make("dt", {}, name), figure(field, value, show, "dd")), make("div", { class: "note" }, note));
}

function showTiles(status) {
  const now = samples.at(-1);
  const here = status.workers.filter((worker) => worker.state === "here").length;
  const wanted = status.wanted_workers;
  const reading = status.jobs.filter((job) => job.clients).length;
  const used = wanted > 4 * here ? "readers could use many more" : `readers could use ${wanted}`;
  document.getElementById("tiles").replaceChildren(
    tile("Elements per second", "rate", now.rate, count, "handed out to programs"),
    tile("Bytes per second", "byte_rate", now.byte_rate, bytes, "of these elements"),
    tile("Programs wait", "lag", now.lag, percent, "of their time for elements"),
    tile("Workers", "workers", here, count, wanted > here ? used : "as many as readers can use"),
    tile("Readers", "readers", status.readers.length, count, `of ${reading} ${reading === 1 ? "job" : "jobs"}`),
  );
}

function line(points, most) {
  const last = Math.max(1, points.length - 1);
  return points.map((y, x) => `${(300 * x / last).toFixed(1)},${(90 - 86 * y / most).toFixed(1)}`);
}

function svg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 1.5, 2, 3, 5, 7.5, 10].map((step) => step * power).find((step) => step >= value) || 1;
}

function chart({ name, field, tone, show, most }) {
  const points = samples.map((sample) => sample[field]);
  const top = most || niceCeiling(Math.max(...points));
  const drawn = line(points, top);
  const picture = svg("svg", {
    viewBox: "0 0 300 92", preserveAspectRatio: "none", role: "img",
    "aria-label": `${name}: ${show(points.at(-1))}`,
  });
  for (const y of [4, 47, 90]) picture.append(svg("line", { class: "grid", x1: 0, x2: 300, y1: y, y2: y }));
  picture.append(svg("polygon", { class: "area", points: `0,90 ${drawn.join(" ")} 300,90` }));
  picture.append(svg("polyline", { class: "stroke", points: drawn.join(" ") }));
  const span = Math.round(samples.at(-1).time - samples[0].time);
  const ago = span < 120 ? `${span} s ago` : `${Math.round(span / 60)} min ago`;
  return make("div", { class: `chart tone-${tone}` },
    make("div", { class: "head" }, make("span", { class: "name" }, name),
      make("span", { class: "value" }, show(points.at(-1)))),
    picture,
    make("div", { class: "foot" }, make("span", {}, ago),
      make("span", { class: "top" }, `top: ${show(top)}`), make("span", {}, "now")));
}

function stage(name, text, limit) {
  return make("div", { class: "stage", "data-limit": limit }, make("b", {}, name), text);
}

function showStages(job, status) {
  const usable = status.workers.filter((worker) => worker.state === "here");
  const busy = usable.reduce((sum, worker) => sum + worker.busy, 0) / Math.max(1, usable.length);
  const at = (...places) => (places.includes(job.limit) ? "yes" : "no");
  const slow = (place, otherwise) => (job.limit === place && job.slowest ? job.slowest : otherwise);
  return make("div", { class: "stages" },
    stage("Source", slow("source", "on the workers"), at("source", "workers")),
    stage("Functions", slow("function", `workers compute ${percent(busy)}`), at("function", "workers")),
    stage("Wire", `${bytes(job.byte_rate)}/s`, at("wire")),
    stage("Device", job.delivering ? `copies ${percent(job.delivering)}` : "no copies seen", at("device")),
    stage("Program", `waits ${percent(job.lag)}`, job.limit === "program" ? "fine" : "no"));
}

function fact(name, ...content) {
  return make("span", {}, ...content, ` ${name}`);
}

function showJob(job, status) {
  const limit = job.limit === "program" ? "limited by the program" : job.limit;
  const titles = {
    workers: "waits for workers", source: "waits for its source", function: "waits for a function",
    wire: "waits for the wire", device: "waits for the device",
  };
  const shown = make("div", { class: "job", "data-job": job.job },
    make("div", { class: "title" }, make("b", {}, jobName(job)),
      pill(titles[job.limit] || limit, LIMITS[job.limit]),
      make("span", {}, `${job.mode.toLowerCase()} · ${job.form}`)));
  if (job.clients) shown.append(showStages(job, status));
  const fill = job.budget ? job.held / job.budget : 0;
  shown.append(make("p", { class: "advice" }, job.advice), make("div", { class: "facts" },
    fact("elements/s", figure("rate", job.rate, count)),
    fact("", figure("byte_rate", job.byte_rate, (x) => `${bytes(x)}/s`)),
    fact("handed out", figure("consumed", job.consumed, count)),
    fact("leased", figure("leased", job.leased, count)),
    fact(job.clients === 1 ? "reader" : "readers", figure("clients", job.clients, count)),
    make("span", {}, bar(fill, "green"), figure("held", job.held, bytes), ` of ${bytes(job.budget)} queued`)));
  return shown;
}

function row(cells, tag = "td") {
  return make("tr", {}, ...cells.map(([content, kind = ""]) => make(tag, { class: kind }, content)));
}

function showTable(id, heads, rows, empty) {
  const table = document.getElementById(id);
  document.getElementById(`${id.slice(0, -1)}-count`).textContent = rows.length;
  if (!rows.length) {
    table.replaceChildren(make("caption", { class: "empty" }, empty));
    return;
  }
  const shown = rows.slice(0, MOST_ROWS);
  table.replaceChildren(make("thead", {}, row(heads, "th")), make("tbody", {}, ...shown));
  if (shown.length < rows.length) {
    table.append(make("caption", { class: "empty" }, `the first ${MOST_ROWS} of ${rows.length}`));
  }
}

function share(value, tone, field) {
  return make("span", {}, bar(value, tone), figure(field, value, percent, "span"));
}

function showWorker(worker) {
  const shown = row([
    [make("span", {}, worker.address,
      make("span", { class: "minor" }, ...worker.tags.map((tag) => ` · ${tag}`)))],
    [pill(worker.state, STATES[worker.state])],
    [share(worker.busy, "blue", "busy")],
    [figure("rate", worker.rate, count, "span"), "number"],
    [figure("byte_rate", worker.byte_rate, (x) => `${bytes(x)}/s`, "span"), "number minor"],
    [figure("streams", worker.streams, count, "span"), "number minor"],
    [figure("restarts", worker.restarts, count, "span"), "number minor"],
    [seconds(worker.last_seen), "number minor"],
  ]);
  shown.dataset.worker = worker.address;
  return shown;
}

function showReader(reader, jobs) {
  const job = jobs.get(reader.job);
  const consumer = reader.consumer < 0 ? "" : ` · consumer ${reader.consumer}`;
  const shown = row([
    [(job ? jobName(job) : reader.job) + consumer],
    [share(reader.lag, "orange", "lag")],
    [figure("rate", reader.rate, count, "span"), "number"],
    [figure("held", reader.held, bytes, "span"), "number minor"],
    [figure("consumed", reader.consumed, count, "span"), "number minor"],
    [seconds(reader.last_seen), "number minor"],
  ]);
  shown.dataset.reader = reader.client;
  return shown;
}

function showEvent(event) {
  const time = new Date(1000 * event.time);
  return make("li", {},
    make("time", { datetime: time.toISOString() }, time.toLocaleTimeString("en-GB")),
    pill(event.kind, KINDS[event.kind]), make("span", {}, event.text));
}

function show(status) {
  const jobs = new Map(status.jobs.map((job) => [job.job, job]));
  showTiles(status);
  document.getElementById("charts").replaceChildren(...CHARTS.map(chart));
  const order = [...status.jobs].sort((a, b) => b.clients - a.clients);
  const shown = order.slice(0, MOST_ROWS).map((job) => showJob(job, status));
  document.getElementById("job-count").textContent = status.jobs.length;
  document.getElementById("jobs").replaceChildren(
    ...(shown.length ? shown : [make("p", { class: "empty" }, "No program has read yet.")]));
  showTable("workers", [
    ["address"], ["state"], ["computes"], ["elements/s", "number"], ["bytes/s", "number minor"],
    ["streams", "number minor"], ["crashes", "number minor"], ["seen", "number minor"],
  ], status.workers.map(showWorker), "No worker has joined.");
  showTable("readers", [
    ["reads"], ["waits"], ["elements/s", "number"], ["queued", "number minor"],
    ["handed out", "number minor"], ["seen", "number minor"],
  ], status.readers.map((reader) => showReader(reader, jobs)), "No program reads now.");
  document.getElementById("events").replaceChildren(...status.events.map(showEvent).reverse());
}

function showState(text, kind) {
  const live = document.getElementById("live");
  live.textContent = text;
  live.dataset.kind = kind;
}

const feed = new EventSource("/events");
feed.onmessage = (event) => {
  const message = JSON.parse(event.data);
  samples = (message.first ? message.samples : samples.concat(message.samples)).slice(-MOST_SAMPLES);
  show(message.status);
  showState("live", "good");
};
feed.onerror = () => showState("the dispatcher does not answer; trying again", "bad");
