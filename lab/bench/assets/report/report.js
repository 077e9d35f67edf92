// Draws the page from the JSON in it: results.json of `dmtree bench`, or crash.json of `dmtree bench crash`.
//
// Every shown number carries its source: `data-cell` names the cell, `data-field` is a JSON pointer into it (or a sum of
// pointers, joined by +), and `data-value` is the number unrounded. `cargo xtask report-check` compares them with the file.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
// Readable on white for most eyes (Okabe and Ito), then darker ones.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#7f6a00", "#000000", "#777777", "#5b2a86"];
const colour = (i) => COLOURS[i % COLOURS.length];

// Texts and numbers ------------------------------------------------------------------------------

function h(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes ?? {})) if (v !== undefined && v !== null) e.setAttribute(k, v);
  e.append(...children.flat().filter((c) => c !== undefined && c !== null));
  return e;
}

/** The number that a pointer, or a sum of pointers, names in an object. */
function at(object, field) {
  const one = (pointer) => pointer.split("/").slice(1).reduce((v, k) => v?.[k], object);
  return field.split("+").map(one).reduce((a, b) => a + b);
}

const source = (cell, field, value) => ({ "data-cell": cell, "data-field": field, "data-value": value });
/** Thousands apart: 1,234,567.8. */
const apart = (text) => text.replace(/^-?\d+/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ","));
const count = (v) => apart(String(v));
const digits = (n, unit = "") => (v) => apart(v.toFixed(n)) + unit;
const percent = (n) => (v) => `${(v * 100).toFixed(n)} %`;
const mib = (v) => apart((v / 2 ** 20).toFixed(1));
const mops = (v) => apart(v.toFixed(v >= 10 ? 2 : v >= 0.1 || v === 0 ? 3 : 5));
const number = (v) => count(Number(v.toFixed(v >= 100 ? 0 : v >= 10 ? 1 : v >= 1 ? 2 : 3)));
const distinct = (list) => [...new Set(list)];

function time(ns) {
  if (ns < 1e3) return `${ns}ns`;
  if (ns < 1e5) return `${(ns / 1e3).toFixed(2)}us`;
  return ns < 1e7 ? `${count(Math.round(ns / 1e3))}us` : `${apart((ns / 1e6).toFixed(1))}ms`;
}

/** A table. A column is [head, row => text, or attributes and text of its cell], and "l" if it is left-aligned, "w" if it may wrap. */
function table(columns, rows) {
  const cell = ([, of, side], row) => {
    const c = of(row);
    const [attributes, text] = Array.isArray(c) ? c : [{}, c];
    return h("td", { ...attributes, class: [side, attributes.class].filter(Boolean).join(" ") || undefined }, text);
  };
  const head = h("tr", {}, columns.map(([name, , side]) => h("th", { class: side }, name)));
  return h("div", { class: "wide" }, h("table", { class: columns.length > 11 ? "many" : undefined }, head, rows.map((r) => h("tr", {}, columns.map((c) => cell(c, r))))));
}

/** A column of a table that shows a field of its row; `of` gives the object that the field is in, and `cell` its name. */
function shown(head, field, text, of = (row) => row, cell = (row) => key(row)) {
  return [head, (row) => {
    const value = at(of(row), field);
    return value === undefined ? "-" : [source(cell(row), field, value), text(value)];
  }];
}

/** A part that is made when it is first unfolded, so that many of them cost nothing. */
function folded(summary, make) {
  const e = h("details", {}, h("summary", {}, summary));
  e.make = () => { e.append(...make()); e.make = () => {}; };
  e.addEventListener("toggle", () => e.make());
  return e;
}

function unfold() {
  for (const e of document.querySelectorAll("details")) { e.open = true; e.make(); }
}

// Figures ----------------------------------------------------------------------------------------

const PLOT = { marginLeft: 64, marginRight: 14, marginTop: 34, style: { fontFamily: "sans-serif", fontSize: "11px", background: "white" } };
const HEIGHT = 218;

/** What every chart has: a title, and a vertical axis from 0 to above all values. */
function frame(title, axis, values) {
  const high = Math.max(...values.filter((v) => Number.isFinite(v)), 0) || 1;
  return {
    y: { domain: [0, high * 1.12], nice: 4 },
    marks: [
      Plot.axisY({ ticks: 4, label: axis, labelAnchor: "center", labelArrow: "none", tickSize: 0 }),
      Plot.gridY({ ticks: 4 }),
      Plot.ruleY([0]),
      Plot.text([title], { frameAnchor: "top-left", dy: -24, fontSize: 13, fontWeight: "bold" }),
    ],
  };
}

/** Gives the drawn elements of a mark the sources of their rows. */
function nameSources(svg, mark, rows, field = "source") {
  for (const e of svg.querySelectorAll(`g.${mark} > *`)) {
    for (const [k, v] of Object.entries(rows[e.__data__][field] ?? {})) e.setAttribute(k, v);
  }
}

/**
 * What says how sure rows are: a rule from low to high, and a dot for each run where a row stands for several. `x` gives the place of a
 * row. A rule of the rounds of one cell has its source in `spreadSource`.
 */
function errors(rows, x) {
  const spread = rows.filter((r) => r.low !== undefined);
  const runs = rows.flatMap((r, i) => (r.runs ?? []).map((run) => ({ ...run, of: r, at: i })));
  const marks = [
    Plot.ruleX(spread, { x: (r) => x(r, rows.indexOf(r)), y1: "low", y2: "high", stroke: "#111", strokeWidth: 1.5, className: "spread", title: (r) => `${r.name}: ${number(r.low)} to ${number(r.high)}` }),
    Plot.dot(runs, { x: (run) => x(run.of, run.at), y: "value", r: 2, fill: "white", stroke: "#111", className: "run", title: (run) => `${run.name}: ${number(run.value)}` }),
  ];
  const name = (svg) => {
    nameSources(svg, "spread", spread, "spreadSource");
    nameSources(svg, "run", runs);
  };
  return { marks, name };
}

/**
 * Bars; a row is {name, colour, value, source}, {published, publishedSource} where a figure is published, {low, high, spreadSource} with
 * an error bar, and {runs} where the value is the average of several cells.
 */
function bars(title, axis, rows) {
  const each = Math.min(Math.max(190 / rows.length, 34), 56);
  const place = (_, i) => i;
  const marked = rows.filter((r) => r.published !== undefined);
  const top = (r) => Math.max(r.value, r.published ?? 0, r.high ?? 0);
  const f = frame(title, axis, rows.map(top));
  const sure = errors(rows, (_, i) => i);
  const tick = (stroke, strokeWidth, className) =>
    Plot.tickY(marked, { x: (r) => rows.indexOf(r), y: "published", stroke, strokeWidth, className, inset: -3 });
  const svg = Plot.plot({
    ...PLOT, y: f.y, height: HEIGHT, marginBottom: 14,
    // Room for the title, whatever the number of bars.
    width: 78 + Math.max(each * rows.length + 10, 8 * title.length),
    x: { type: "band", domain: rows.map(place), axis: null, padding: 0.2 },
    marks: [
      ...f.marks,
      Plot.barY(rows, {
        x: place, y: "value", fill: "colour", className: "bar",
        title: (r) => `${r.name}: ${number(r.value)}` + (r.published === undefined ? "" : `; published ${number(r.published)}`),
      }),
      tick("white", 5, "under"), tick("#111", 2.5, "published"), ...sure.marks,
      // The number stands above whatever is higher, bar or mark, so that the two never cross.
      Plot.text(rows, { x: place, y: top, text: (r) => number(r.value), dy: -8, fontSize: 10 }),
    ],
  });
  nameSources(svg, "bar", rows);
  nameSources(svg, "published", marked, "publishedSource");
  sure.name(svg);
  return svg;
}

/** Curves over a setting; a row is that of a bar with {x, label}. */
function curves(title, axis, across, rows) {
  const labels = new Map(d3.sort(rows, (r) => r.x).map((r) => [r.x, r.label]));
  const ticks = [...labels.keys()];
  const [low, high] = [ticks[0] ?? 0, ticks.at(-1) ?? 1];
  // Doublings are evenly spaced; a first step of 1 to 6 threads shall not take half of the width.
  const doubling = ticks.every((t, i) => i === 0 || t >= 1.9 * ticks[i - 1]);
  const type = low > 0 && ticks.length > 2 && (doubling || high / low >= 80) ? "log" : "linear";
  const width = Math.min(Math.max(38 * ticks.length, 220), 380);
  const scale = (type === "log" ? d3.scaleLog : d3.scaleLinear)([low, high], [0, width - 20]);
  let free = -Infinity;
  for (const t of ticks) {
    // A name that would touch the one before it is left out.
    const [x, half] = [scale(t), 3.4 * labels.get(t).length];
    if (x - half <= free) labels.set(t, ""); else free = x + half + 3;
  }
  const marked = rows.filter((r) => r.published !== undefined);
  const f = frame(title, axis, rows.flatMap((r) => [r.value, r.published ?? 0, r.high ?? 0]));
  const sure = errors(rows, (r) => r.x);
  const svg = Plot.plot({
    ...PLOT, y: f.y, height: HEIGHT + 22, width: width + 78, marginBottom: 36,
    x: { type, domain: [low, high], insetLeft: 10, insetRight: 10 },
    marks: [
      ...f.marks,
      Plot.axisX(ticks, { text: (t) => labels.get(t), label: across, labelAnchor: "center", labelArrow: "none", tickSize: 4 }),
      Plot.line(rows, { x: "x", y: "value", z: "name", stroke: "colour", strokeWidth: 2, sort: "x" }),
      Plot.dot(rows, { x: "x", y: "value", fill: "colour", r: 3, className: "point", title: (r) => `${r.name}, ${r.label}: ${number(r.value)}` }),
      ...sure.marks,
      Plot.dot(marked, {
        x: "x", y: "published", stroke: "colour", strokeWidth: 2, r: 5, symbol: "diamond", className: "published",
        title: (r) => `${r.name}, published: ${number(r.published)}`,
      }),
    ],
  });
  nameSources(svg, "point", rows);
  nameSources(svg, "published", marked, "publishedSource");
  sure.name(svg);
  return svg;
}

/** Curves along their points, in the order of the rows, which are {name, colour, x, y, label, source}; `share`: y up to 1, decades across. */
function paths(title, axes, rows, share = false) {
  const f = frame(title, axes[1], rows.map((r) => r.y));
  const decades = d3.range(...d3.extent(rows, (r) => Math.log10(r.x)).map((l, i) => i === 0 ? Math.floor(l) : Math.floor(l) + 2)).map((l) => 10 ** l);
  const svg = Plot.plot({
    ...PLOT, y: share ? { domain: [0, 1] } : f.y, height: HEIGHT + 22, width: 360, marginBottom: 36, marginRight: 28,
    x: share ? { type: "log", domain: [decades[0], decades.at(-1)] } : { domain: [0, d3.max(rows, (r) => r.x) * 1.08 || 1] },
    marks: [
      ...f.marks,
      Plot.axisX(...(share ? [decades] : []), { ticks: 5, tickFormat: number, label: axes[0], labelAnchor: "center", labelArrow: "none", tickSize: 4 }),
      Plot.line(rows, { x: "x", y: "y", z: "name", stroke: "colour", strokeWidth: 1.6 }),
      Plot.dot(rows, { x: "x", y: "y", fill: "colour", r: share ? 1.2 : 3, className: "point", title: (r) => `${r.name}${r.label}: ${number(r.x)}, ${number(r.y)}` }),
    ],
  });
  nameSources(svg, "point", rows);
  return svg;
}

/** A figure: its heading with the buttons, its legend, its charts. */
function figure(stem, heading, legend, charts) {
  const save = (text, run) => { const b = h("button", {}, text); b.addEventListener("click", () => run()); return b; };
  const e = h("figure", {},
    h("h3", {}, h("b", {}, heading),
      save("Save SVG", () => download(`${stem}.svg`, new Blob([sheet(e)], { type: "image/svg+xml" }))),
      save("Save PNG", () => picture(e).then((png) => download(`${stem}.png`, png)))),
    h("p", { class: "legend" }, legend), h("div", { class: "panels" }, charts));
  return e;
}

const keyOfLegend = (name, background, c) => h("span", {}, h("i", { class: c, style: background && `background:${background}` }), h("b", {}, name));
const publishedLine = () => keyOfLegend("published", undefined, "line");
const publishedDiamond = () => h("span", {}, h("b", {}, "\u25c7 published, in the colour of the system that stands for it"));

/** A figure as one SVG: its texts and charts where they stand on the page. */
function sheet(e) {
  const from = e.getBoundingClientRect();
  const inside = [...e.querySelectorAll("i, b, .panels > svg")].map((part) => [part, part.getBoundingClientRect()]);
  const width = Math.ceil(Math.max(...inside.map(([, r]) => r.right)) - from.left) + 8;
  const height = Math.ceil(from.height) + 8;
  const svg = d3.create("svg:svg").attr("xmlns", d3.namespaces.svg).attr("width", width).attr("height", height)
    .attr("viewBox", `-4 -4 ${width} ${height}`).attr("font-family", "sans-serif");
  svg.append("rect").attr("x", -4).attr("y", -4).attr("width", "100%").attr("height", "100%").attr("fill", "white");
  for (const [part, r] of inside) {
    const [x, y] = [r.left - from.left, r.top - from.top];
    const style = getComputedStyle(part);
    if (part.tagName === "I") {
      svg.append("rect").attr("x", x).attr("y", y).attr("width", r.width).attr("height", r.height).attr("fill", style.backgroundColor);
    } else if (part.tagName === "B") {
      svg.append("text").attr("x", x).attr("y", y + 0.78 * r.height).attr("font-size", style.fontSize).attr("font-weight", style.fontWeight).text(part.textContent);
    } else {
      svg.append(() => part.cloneNode(true)).attr("x", x).attr("y", y);
    }
  }
  return new XMLSerializer().serializeToString(svg.node());
}

/** A figure as PNG, two pixels for one of the page. */
async function picture(e) {
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([sheet(e)], { type: "image/svg+xml" }));
  await image.decode();
  const canvas = h("canvas", { width: 2 * image.width, height: 2 * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function download(name, blob) {
  h("a", { href: URL.createObjectURL(blob), download: name }).click();
}

// Results of an experiment -----------------------------------------------------------------------

const key = (c) => [c.system, c.workload, c.distribution, c.fabric, c.variant ?? ""].join(" ").trimEnd();
const gainKey = (g) => `gain of ${g.system} over ${g.over} ${g.workload} ${g.distribution}`;
const matchKey = (m) => `cores of ${m.system} for ${m.other} ${m.workload} ${m.distribution}`;
const system = (c) => {
  const marks = [
    ...(c.published ? ["as published"] : []),
    ...(c.foretold_keys ? ["keys foretold"] : []),
    ...(c.cpu ? [`CPU ${c.cpu}`] : []),
  ];
  return c.system + (marks.length ? ` (${marks.join(", ")})` : "");
};
const label = (c) => system(c) + (c.variant ? ` [${c.variant}]` : "");
/** The curve or colour of a cell: its system, and what is varied besides the axis. */
const series = (c) => system(c) + (c.place?.besides ? `, ${c.place.besides}` : "");
const saturated = (c) => c.open?.saturated === true;
/** The section of a cell: its distribution, unless that is what varies. */
const group = (c) => ["distribution", "theta"].includes(c.place?.setting) ? "distribution" : c.distribution;
const swept = (c) => new Map(c.place?.swept ?? []);
/** Columns that name a cell: its system, each setting that varies, its workload. */
function naming(cells, workload = (c) => c.workload) {
  const settings = distinct(cells.flatMap((c) => [...swept(c).keys()]));
  const columns = settings.map((s) => [s.replace(/[._-]/g, (mark) => mark + "\u200b"), (c) => swept(c).get(s) ?? "-", "l"]);
  // Results of before have the settings in one text.
  const all = cells.some((c) => c.variant && !c.place?.swept) ? label : system;
  return [["system", all, "l"], ...columns, ["workload", workload, "l"]];
}
/** What limits a phase by its busiest server, as the table of the terminal says. */
const LIMITS = { jobs: "merge", cores: "merge", workers: "flush", cpu: "CPU", "in-wire": "wire", "out-wire": "wire" };
const limit = (b) => b.utilization < 0.8 ? "waiting" : LIMITS[b.server] ?? "NIC";
const busiestText = (b) => `${b.node} ${b.server} ${(b.utilization * 100).toFixed(0)} %`;

const MN_VERBS = "/mn/read+/mn/write+/mn/atomic";
const CN_VERBS = "/cn/read+/cn/write+/cn/atomic";

const FIGURES = [
  { stem: "throughput", heading: "Throughput", axis: "million operations / s", field: "/mops", published: "/published_figure/mops" },
  { stem: "p99", heading: "Latency, 99th percentile", axis: "microseconds", field: "/p99_ns", unit: 1e3, unless: saturated },
  { stem: "round_trips", heading: "Dependent round trips", axis: "per operation", field: "/round_trips" },
];

/** Figures of what varies with a setting, besides; each of the cells that have it. */
const VARIED = [
  { stem: "bytes", heading: "Bytes at memory nodes", axis: "per operation", field: "/mn/bytes_read+/mn/bytes_written" },
  { stem: "splits", heading: "Leaves that inserts divide", axis: "per cent of the inserts", field: "/splits/per_insert", unit: 0.01, unless: (c) => !c.splits },
  { stem: "load_factor", heading: "Leaves that are divided", axis: "per cent full", field: "/splits/load_factor", unit: 0.01, unless: (c) => !c.splits?.load_factor },
  { stem: "cache", heading: "Cache in use", axis: "MiB of a compute node", field: "/memory/cache_used_bytes", unit: 1 << 20, unless: (c) => !c.memory },
  { stem: "metadata", heading: "Metadata of a leaf", axis: "bytes", field: "/memory/leaf_metadata", unless: (c) => c.memory?.leaf_metadata === undefined },
];

/** The name of a setting with its unit. */
function across(setting, simulated, variant) {
  if (setting === "key-form" && variant.includes("shifting(")) return "share of the key space";
  return {
    threads: simulated ? "threads of each compute node" : "threads", coroutines: "coroutines of a thread", cns: "compute nodes",
    mns: "memory nodes", "mn-cores": "cores of a memory node", "value-size": "bytes of a value", "scan-length": "pairs that a scan asks for",
    load: "operations offered in a second", theta: "exponent of the law", "cache-bytes": "cache of a compute node", "cache-at-billion": "cache of a node, at 1e9 keys", "key-form": "bytes of a key",
  }[setting] ?? setting;
}

/** A row of a chart for cells at one place: one cell, or several that differ in the seed. */
function row(f, mine, names) {
  const [first] = mine;
  const figures = mine.map((c) => ({ name: key(c), value: at(c, f.field) / (f.unit ?? 1), source: source(key(c), f.field, at(c, f.field)) }));
  const values = figures.map((one) => one.value);
  const published = f.published && first.published_figure ? at(first, f.published) : undefined;
  const out = {
    name: series(first), colour: colour(names.indexOf(series(first))), value: d3.mean(values), x: first.place?.x, label: first.place?.label,
    published, publishedSource: source(key(first), f.published, published),
  };
  if (mine.length > 1) return { ...out, runs: figures, low: d3.min(values), high: d3.max(values) };
  const s = first.mops_summary;
  const half = s.half_width_95;
  // The rounds of a cell: the 95 % interval of the average, of fewer than five the extremes.
  const spread = f.field !== "/mops" || s.rounds < 2 ? {}
    : half !== undefined ? { low: s.average - half, high: s.average + half, spreadSource: source(key(first), "/mops_summary/half_width_95", half) }
    : { low: s.min, high: s.max, spreadSource: source(key(first), "/mops_summary/max", s.max) };
  return { ...out, ...spread, source: figures[0].source };
}

/** A chart per workload and setting that varies: bars, or curves where one does that is not the seed. */
function charts(f, cells, names) {
  const chart = (c) => `${c.workload} ${c.place?.setting ?? ""}`;
  return distinct(cells.map(chart)).map((one) => {
    const mine = cells.filter((c) => chart(c) === one);
    const [varied, workload] = [mine.find((c) => c.place && c.place.setting !== "seed"), mine[0].workload];
    const place = (c) => `${series(c)} ${varied ? c.place.x : ""} ${c.distribution}`;
    const rows = d3.groups(mine.filter((c) => !f.unless?.(c)), place).map(([, cells]) => row(f, cells, names));
    return varied ? curves(workload, f.axis, across(varied.place.setting, !!varied.sim, varied.variant), rows) : bars(workload, f.axis, rows);
  });
}

/** Settings that change the load: over them latency is shown by throughput. */
const LOADS = ["load", "threads", "coroutines", "cns"];

/** Latency over throughput, for what a sweep over the load has measured: a figure, or none. */
function latencyByThroughput(stem, all, names) {
  const cells = all.filter((c) => LOADS.includes(c.place?.setting) && !saturated(c));
  if (cells.length === 0) return [];
  const drawn = d3.groups(cells, (c) => `${c.workload}, ${c.place.setting}`).flatMap(([title, mine]) =>
    [["median", "/p50_ns"], ["99th percentile", "/p99_ns"]].map(([what, field]) => paths(`${title}: ${what}`, ["million operations / s", "microseconds"],
      d3.sort(mine, (c) => c.place.x).map((c) => ({
        name: series(c), colour: colour(names.indexOf(series(c))), x: c.mops, y: at(c, field) / 1e3, label: `, ${c.place.setting} ${c.place.label}`,
        source: source(key(c), field, at(c, field)),
      })))));
  return [figure(`latency_by_throughput_${stem}`, "Latency by throughput", distinct(cells.map(series)).map((n) => keyOfLegend(n, colour(names.indexOf(n)))), drawn)];
}

/** How latencies are distributed: a chart per workload, with a curve for each cell; where a setting varies, a chart per system. */
function distributions(stem, all) {
  const cells = all.filter((c) => c.cdf?.length && !saturated(c));
  if (cells.length === 0) return [];
  const curve = (c) => c.variant ?? system(c);
  const names = distinct(cells.map(curve));
  const chart = (c) => c.variant ? `${c.workload}, ${system(c)}` : c.workload;
  const drawn = () => d3.groups(cells, chart).map(([title, mine]) => paths(title, ["microseconds", "share of the operations"],
    mine.flatMap((c) => c.cdf.map(([ns, share], i) => ({
      name: curve(c), colour: colour(names.indexOf(curve(c))), x: Math.max(ns, 1) / 1e3, y: share, label: "", source: source(key(c), `/cdf/${i}/0`, ns),
    }))), true));
  return [folded("Distribution of latencies", () => [figure(`cdf_${stem}`, "Operations that took no longer", names.map((n, i) => keyOfLegend(n, colour(i))), drawn())])];
}

function facts(r) {
  const c = r.config;
  const profile = (p) => p.name + (p.set ? ` with ${p.set.join(", ")}` : "") + ` (${p.hash})`;
  const own = (c.where ?? []).map((w) => ["where", Object.entries(w).map(([k, v]) => `${k} ${v}`).join(", ")]);
  const places = d3.groups(r.cells.filter((x) => x.place), (x) => x.place.setting);
  const ends = (cells) => d3.extent(cells, (x) => x.place.x).map((end) => cells.find((x) => x.place.x === end).place.label);
  const varied = places.map(([setting, cells]) => `${setting} from ${ends(cells).join(" to ")}`);
  const besides = distinct(r.cells.flatMap((x) => [...swept(x).keys()])).filter((s) => !places.some(([setting]) => setting === s));
  const values = (s) => distinct(r.cells.map((x) => swept(x).get(s)).filter((v) => v !== undefined)).join(", ");
  varied.push(...besides.map((s) => `${s} ${values(s)}`));
  // Where a setting varies in every cell, its default says nothing.
  const set = (name, text) => r.cells.length > 0 && r.cells.every((x) => swept(x).has(name)) ? `varied ${name}` : text;
  const made = new Date(r.created_unix * 1000).toISOString().slice(0, 16).replace("T", " ");
  const rows = [
    ["nodes", `${set("cns", `${c.cns} compute nodes`)}, ${set("mns", `${c.mns} memory nodes`)}`],
    ["clients", `${set("threads", `${c.threads} threads`)} x ${set("coroutines", `${c.coroutines} coroutines`)}${c.profile ? " per compute node" : ""}; ${set("load", `load ${c.load}`)}`],
    ["data", `${set("keys", `${count(c.keys)} keys`)} (${set("key-form", c["key-form"])}), ${set("value-size", `values of ${c["value-size"]} bytes`)}`],
    ...own,
    c.profile && ["profile", profile(c.profile)],
    varied.length > 0 && ["varied", varied.join("; ")],
    ["seed", set("seed", r.seed) === r.seed ? r.seed : "varied"], ["rounds", c.rounds], ["configuration", r.config_hash],
    ["made", `${made} UTC by dmtree ${r.version}${r.commit ? `, commit ${r.commit},` : ""} on ${r.machine.cpu} (${r.machine.cores} cores, ${r.machine.os})`],
  ];
  return h("dl", {}, rows.filter(Boolean).flatMap(([k, v]) => [h("dt", {}, k), h("dd", {}, String(v))]));
}

function ratio(f) {
  return f.ratio.toFixed(3) + (f.outside ? ` OUTSIDE ${f.bounds.map(digits(2)).join("..")}` : "");
}

/** How the cells compare with what was published. */
function verdict(r) {
  const judged = r.cells.filter((c) => c.published_figure?.bounds);
  const outside = judged.filter((c) => c.published_figure.outside);
  const why = (c) => `${key(c)}: ratio ${ratio(c.published_figure)}: ${c.published_figure.reason ?? "no reason is known"}`;
  const without = r.published.without_counterpart;
  return [
    h("h2", {}, "Compared with what was published"), h("p", {}, `Published: ${r.published.source}.`),
    judged.length > 0 && h("p", { class: outside.length ? "bad" : "fine" },
      `${judged.length - outside.length} of the ${judged.length} cells for which the experiment states bounds lie within them.`),
    outside.length > 0 && h("ul", {}, outside.map((c) => h("li", { class: "bad" }, why(c)))),
    without.length > 0 && h("p", {}, `Its rows without a system here: ${without.join(", ")}.`),
  ].filter(Boolean);
}

/** A row for every cell: what it did, and beside it what an operation cost. */
function cellTables(r, cells) {
  const summary = (s) => s.rounds <= 1 ? undefined : s.average.toFixed(3)
    + (s.half_width_95 !== undefined ? ` \u00b1${s.half_width_95.toFixed(3)}` : ` (${s.min.toFixed(3)}..${s.max.toFixed(3)})`);
  const percentile = (head, field) => [head, (c) => saturated(c) ? "saturated" : shown(head, field, time)[1](c)];
  const compared = cells.some((c) => c.published_figure);
  const names = naming(cells);
  const speed = [
    ...names,
    ["Mops", (c) => [source(key(c), "/mops", c.mops), summary(c.mops_summary) ?? mops(c.mops)], "w"],
    ...(compared ? [
      shown("published", "/published_figure/mops", mops),
      ["ratio", (c) => c.published_figure
        ? [{ class: c.published_figure.outside ? "bad" : undefined, ...source(key(c), "/published_figure/ratio", c.published_figure.ratio) }, ratio(c.published_figure)]
        : "-", "w"],
    ] : []),
    ...(cells.some((c) => c.drain) ? [
      shown("to the end\nof its work", "/drain/mops", mops), shown("work left\ns", "/drain/seconds", digits(3)),
      ["limit", (c) => c.sim?.busiest ? limit(c.sim.busiest) : "-", "l"],
    ] : []),
    percentile("p50", "/p50_ns"), percentile("p90", "/p90_ns"), percentile("p99", "/p99_ns"), percentile("p99.9", "/p999_ns"),
    ["errors", (c) => [{ class: c.errors ? "bad" : undefined, ...source(key(c), "/errors", c.errors) }, count(c.errors)]],
  ];
  const cost = [
    ...names,
    shown("round\ntrips", "/round_trips", digits(2)), shown("verbs\nMN", MN_VERBS, digits(2)), shown("verbs\nCN", CN_VERBS, digits(2)),
    shown("bytes\nMN", "/mn/bytes_read+/mn/bytes_written", digits(0)), shown("bytes\nCN", "/cn/bytes_read+/cn/bytes_written", digits(0)),
    ...(cells.some((c) => c.sim) ? [["busiest server", (c) => c.sim?.busiest ? [source(key(c), "/sim/busiest/utilization", c.sim.busiest.utilization), busiestText(c.sim.busiest)] : "-", "w"]] : []),
    ...(cells.some((c) => c.splits) ? [
      shown("splits of\nan insert", "/splits/per_insert", percent(2)), shown("full at\na split", "/splits/load_factor", percent(1)),
    ] : []),
    shown("shared", "/combined", count),
  ];
  return [
    h("div", { class: "figures" }, table(speed, cells), table(cost, cells)),
    cells.some(saturated) ? h("p", {}, `${r.saturated_means}.`) : undefined,
    r.config.profile && r.config.load === "closed" ? h("p", {}, "The load is closed: latencies are those of a system driven as hard as its clients can. An open load (", h("code", {}, "--load open:RATE"), ") says more about latency.") : undefined,
  ];
}

/** How many cores of memory nodes do what systems do without any. */
function matched(rows) {
  const cores = (m) => m.cores === undefined ? `over ${m.most_cores}` : [source(matchKey(m), "/cores", m.cores), m.cores.toFixed(1)];
  return [
    h("h2", {}, "Cores that match"),
    h("p", {}, "Cores of a memory node at which a system that needs them does as much as one that does not; a straight line between two points that were measured."),
    table([
      ["workload", (m) => `${m.workload} ${m.distribution}`, "l"], ["does as much as", (m) => m.other, "l"], ["system", (m) => m.system, "l"],
      ["cores", cores], shown("most cores", "/most_cores", digits(0), undefined, matchKey), shown("share there", "/share", digits(2), undefined, matchKey),
    ], rows),
  ];
}

function gains(g) {
  const names = g.rows.map((row) => `${row.system} over ${row.over}: ${row.claim}`);
  const bar = (row) => {
    const i = g.rows.indexOf(row);
    return {
      name: names[i], colour: colour(i), value: row.here, source: source(gainKey(row), "/here", row.here),
      published: row.published, publishedSource: source(gainKey(row), "/published", row.published),
    };
  };
  const drawn = distinct(g.rows.map((row) => row.workload))
    .map((w) => bars(`${w}: gains`, "throughput by throughput", g.rows.filter((row) => row.workload === w).map(bar)));
  return [
    h("h2", {}, "Gains beside those published"),
    h("p", {}, `Throughput of a system by that of the one before it. Published: ${g.source}.`),
    figure("gains", "Gains", [...names.map((n, i) => keyOfLegend(n, colour(i))), publishedLine()], drawn),
    table([
      ["what", (x) => x.claim, "l"], ["workload", (x) => x.workload, "l"], ["system", (x) => x.system, "l"], ["over", (x) => x.over, "l"],
      shown("here", "/here", digits(2), undefined, gainKey), shown("published", "/published", digits(1), undefined, gainKey),
    ], g.rows),
  ];
}

/** Time of operations, step by step. */
function steps(r) {
  const rows = r.cells.flatMap((c) => Object.entries(c.steps_ns ?? {}).map(([kind, times]) => ({ c, kind, times })));
  if (rows.length === 0) return [];
  const names = distinct(rows.flatMap((row) => Object.keys(row.times)));
  const one = (name) => [name, ({ c, kind, times }) => name in times
    ? [source(key(c), `/steps_ns/${kind}/${name}`, times[name]), digits(0)(times[name])] : "0"];
  return [
    h("h2", {}, "Time of an operation, step by step"), h("p", {}, "Nanoseconds of an average operation."),
    table([["cell", (row) => key(row.c), "l"], ["operation", (row) => row.kind, "l"], ...names.map(one),
      ["together", (row) => digits(0)(d3.sum(Object.values(row.times)))]], rows),
  ];
}

/** Figures of the buckets of a series. */
const OVER_TIME = [
  { title: "throughput", axis: "million operations / s", field: "mops" },
  { title: "latency of reads, 99th percentile", axis: "microseconds", field: "read_p99_ns", unit: 1e3 },
  { title: "READs of a read", axis: "per read", field: "reads_of_read" },
  { title: "cache in use", axis: "MiB of a compute node", field: "cache_bytes", unit: 1 << 20 },
  { title: "trainings", axis: "published", field: "trainings" },
];

/** Curves over virtual time; a row is that of a bar, with x in milliseconds. */
function timeline(title, axis, rows) {
  const f = frame(title, axis, rows.map((r) => r.value));
  const svg = Plot.plot({
    ...PLOT, y: f.y, height: HEIGHT + 22, width: 420, marginBottom: 36,
    marks: [
      ...f.marks,
      Plot.axisX({ ticks: 6, label: "virtual time, ms", labelAnchor: "center", labelArrow: "none", tickSize: 4 }),
      Plot.line(rows, { x: "x", y: "value", z: "name", stroke: "colour" }),
      Plot.dot(rows, { x: "x", y: "value", fill: "colour", r: 1.2, className: "point", title: (r) => `${r.name}, ${r.x.toFixed(2)} ms: ${number(r.value)}` }),
    ],
  });
  nameSources(svg, "point", rows);
  return svg;
}

/** Cells over time: a figure for each workload. */
function overTime(r) {
  const all = r.cells.filter((c) => c.series);
  if (all.length === 0) return [];
  const parts = distinct(all.map((c) => `${c.workload}, ${c.distribution}`)).map((what, n) => {
    const cells = all.filter((c) => `${c.workload}, ${c.distribution}` === what);
    const drawn = OVER_TIME.filter((f) => cells.some((c) => c.series.buckets.some((b) => b[f.field] > 0))).map((f) => timeline(f.title, f.axis,
      cells.flatMap((c, i) => c.series.buckets.map((b, at) => ({
        name: label(c), colour: colour(i), x: (at + 0.5) * c.series.bucket_us / 1e3, value: b[f.field] / (f.unit ?? 1),
        source: source(key(c), `/series/buckets/${at}/${f.field}`, b[f.field]),
      })))));
    return figure(`over_time_${n}`, what, cells.map((c, i) => keyOfLegend(label(c), colour(i))), drawn);
  });
  const training = (c) => c.series.training_p99_ns === undefined ? "-"
    : [source(key(c), "/series/training_p99_ns", c.series.training_p99_ns), time(c.series.training_p99_ns)];
  return [
    h("h2", {}, "Over time"), h("div", { class: "figures" }, parts),
    table([["cell", key, "l"], shown("p99 of reads", "/series/read_p99_ns", time), ["in buckets with\na training", training]], all),
  ];
}

/** What the nodes did in the measuring window of a cell. */
function nodes(c) {
  const of = (head, field, text) => [head, ([n, i]) => [source(key(c), `/sim/nodes/${i}${field}`, at(n, field)), text(at(n, field))]];
  const cpu = (n) => `${percent(0)(d3.mean(n.cpu))} (${(d3.min(n.cpu) * 100).toFixed(0)} to ${(d3.max(n.cpu) * 100).toFixed(0)})`;
  // A thin bar for each thread: its busy share.
  const strip = (n) => Plot.plot({
    width: 2 * n.cpu.length, height: 16, margin: 0, axis: null, x: { domain: [0, n.cpu.length] }, y: { domain: [0, 1] }, style: { background: "#eee" },
    marks: [Plot.rectY(n.cpu, { x1: (_, i) => i, x2: (_, i) => i + 0.75, y: (v) => v, fill: COLOURS[0] })],
  });
  const [from, to] = c.sim.window_ns;
  return [
    table([
      ["node", ([n]) => n.node, "l"], of("Mverbs/s\nserved", "/mverbs", digits(2)), of("Gb/s\nin", "/in_gbps", digits(1)), of("Gb/s\nout", "/out_gbps", digits(1)),
      of("in-wire", "/in_wire", percent(0)), of("out-wire", "/out_wire", percent(0)), of("responder", "/responder", percent(0)),
      of("initiator", "/initiator", percent(0)), of("busy\ncores", "/busy_cores", digits(2)), ["CPU of threads", ([n]) => n.cpu.length ? cpu(n) : "-"],
      ["", ([n]) => n.cpu.length ? strip(n) : "", "l"],
    ], c.sim.nodes.map((n, i) => [n, i])),
    h("p", {}, `Window of ${((to - from) / 1e6).toFixed(3)} ms of virtual time with ${count(c.sim.window_ops)} operations; trace ${c.sim.trace_hash}.`),
  ];
}

function resources(r) {
  const simulated = r.cells.filter((c) => c.sim);
  if (simulated.length === 0) return [];
  const title = (c) => key(c) + (c.sim.busiest ? `: busiest is ${busiestText(c.sim.busiest)}` : "");
  return [
    h("h2", {}, "What the nodes did"),
    h("p", {}, "In the measuring window. Wire rates count headers; a share of 100 % is a server that others wait for. A bar per thread shows its CPU."),
    ...simulated.map((c) => folded(title(c), () => nodes(c))),
  ];
}

/** What keys cost in memory. */
function memory(r) {
  const of = (head, field, text) => shown(head, `/memory${field}`, text);
  const cells = r.cells.filter((c) => c.memory);
  const names = naming(cells, (c) => `${c.workload}, ${c.distribution}`);
  const onNodes = [
    ...names, of("keys", "/keys", count),
    of("bytes per key\non memory nodes", "/mn_bytes_per_key", digits(1)), of("of a leaf\nbesides pairs", "/leaf_metadata", digits(0)), of("of tables,\nanywhere", "/table_bytes_per_key", digits(1)),
    ["MiB on all\nmemory nodes", (c) => mib(c.memory.mn_bytes_per_key * c.memory.keys)],
    of("process\npeak, MiB", "/peak_bytes", mib),
    ["x held\nbytes", (c) => c.memory.peak_bytes === undefined ? "-" : (c.memory.peak_bytes / Math.max(c.memory.held_bytes, 1)).toFixed(2)],
  ];
  const inCaches = [
    ...names, of("MiB of cache on\na compute node", "/cache_used_bytes", mib), of("its budget,\nMiB", "/cache_budget_bytes", mib),
    of("bytes per\ncached key", "/cn_bytes_per_cached_key", digits(1)), of("cached", "/cached_share", percent(0)), of("hits", "/cache_hit_rate", percent(1)),
  ];
  return [h("h2", {}, "Memory"), h("div", { class: "figures" }, table(onNodes, cells), table(inCaches, cells))];
}

function settings(r) {
  const { profile, ...others } = r.config;
  const text = (t) => () => [h("pre", {}, t)];
  return [
    h("h2", {}, "Settings"), h("p", {}, `Seed ${r.seed}, configuration ${r.config_hash}.`),
    folded("All settings", text(JSON.stringify(others, null, 2))),
    profile && folded(`Profile ${profile.name} (${profile.hash})`, text(profile.toml)),
  ];
}

function experiment(r) {
  const names = distinct(r.cells.map(series));
  const legend = (f, cells) => {
    const published = f.published && cells.some((c) => c.published_figure);
    const mark = cells.some((c) => c.place && c.place.setting !== "seed") ? publishedDiamond : publishedLine;
    const mine = names.filter((n) => cells.some((c) => series(c) === n));
    return [...mine.map((n) => keyOfLegend(n, colour(names.indexOf(n)))), published && mark()].filter(Boolean);
  };
  const parts = distinct(r.cells.map(group)).flatMap((d) => {
    const cells = r.cells.filter((c) => group(c) === d);
    const all = [...FIGURES, ...(cells.some((c) => c.place && c.place.setting !== "seed") ? VARIED : [])];
    const drawn = all.map((f) => [f, cells.filter((c) => !f.unless?.(c))]).filter(([, cells]) => cells.length > 0);
    const stem = d.replace(/[^A-Za-z0-9.]+/g, "-").replace(/^-|-$/g, "");
    return [
      h("h2", {}, d),
      h("div", { class: "figures" }, drawn.map(([f, cells]) => figure(`${f.stem}_${stem}`, f.heading, legend(f, cells), charts(f, cells, names))),
        latencyByThroughput(stem, cells, names)),
      ...distributions(stem, cells),
      ...cellTables(r, cells),
    ];
  });
  const errors = r.cells.filter((c) => c.errors).flatMap((c) =>
    [h("p", { class: "bad" }, `${count(c.errors)} errors in ${key(c)}`), h("ul", {}, c.error_samples.map((s) => h("li", {}, s)))]);
  return [
    h("h1", {}, r.experiment), h("p", {}, r.description), h("p", { class: "note" }, r.note),
    r.interrupted ? h("p", { class: "bad" }, "Interrupted: only finished cells are shown.") : undefined,
    r.failure ? h("p", { class: "bad" }, `Ended early: ${r.failure}`) : undefined,
    facts(r), ...(r.published ? verdict(r) : []), ...parts, ...(r.gains ? gains(r.gains) : []), ...(r.matched ? matched(r.matched) : []),
    ...overTime(r), ...steps(r), ...resources(r), ...memory(r), ...errors, ...settings(r),
  ];
}

// A node that dies -------------------------------------------------------------------------------

function crash(o) {
  const s = o.setup;
  const title = `1 of ${s.cns} compute nodes ${s.hung ? "hangs" : "dies"}: ${count(s.keys)} keys, ${s.update_percent} % updates`;
  const both = (side) => (_, i) => `/${side}/${i}/reads+/${side}/${i}/updates`;
  const curve = (name, i, buckets, field) => buckets.map((b, n) => {
    const pointer = field(b, n);
    const count = at(o, pointer);
    return { name, colour: colour(i), x: (n + 0.5) * s.bucket_us / 1e3, value: count / s.bucket_us, source: source("crash", pointer, count) };
  });
  const lines = [
    curve("survivors, all", 0, o.survivors, both("survivors")),
    curve("survivors, updates", 1, o.survivors, (_, i) => `/survivors/${i}/updates`),
    curve("the node that dies", 8, o.dead, both("dead")),
  ];
  const rows = lines.flat();
  const f = frame(title, "million operations / s", rows.map((r) => r.value));
  const ms = (ns) => `${(ns / 1e6).toFixed(2)} ms`;
  // Numbers of moments that are close together stand in rows of their own.
  const last = [];
  const moments = o.moments.map((m, i) => {
    const x = m.at_ns / 1e6;
    let row = last.findIndex((before) => x - before > 0.02 * s.until_us / 1e3);
    if (row < 0) row = last.length;
    last[row] = x;
    return { ...m, i, x, row };
  });
  const svg = Plot.plot({
    ...PLOT, y: f.y, width: 830, height: 330 + 12 * last.length, marginTop: 34 + 12 * last.length, marginBottom: 36, x: { domain: [0, s.until_us / 1e3] },
    marks: [
      ...f.marks.slice(0, -1),
      Plot.text([title], { frameAnchor: "top-left", dy: -24 - 12 * last.length, fontSize: 13, fontWeight: "bold" }),
      Plot.axisX({ label: "virtual time, ms", labelAnchor: "center", labelArrow: "none" }),
      Plot.ruleX(moments, { x: "x", stroke: COLOURS[3], strokeDasharray: "3 3" }),
      ...last.map((_, row) => Plot.text(moments.filter((m) => m.row === row), { x: "x", frameAnchor: "top", dy: -12 - 12 * row, text: (m) => String(m.i + 1), fill: COLOURS[3] })),
      Plot.line(rows, { x: "x", y: "value", z: "name", stroke: "colour" }),
      Plot.dot(rows, { x: "x", y: "value", fill: "colour", r: 1.5, className: "point", title: (r) => `${r.name}, ${r.x.toFixed(2)} ms: ${number(r.value)}` }),
    ],
  });
  nameSources(svg, "point", rows);
  const findings = [
    ["survivors before, Mops", "/before_mops", mops], ["at least meanwhile, Mops", "/least_mops", mops], ["afterwards, Mops", "/after_mops", mops],
    ["longest read of a survivor from the crash on", "/longest_read_ns", ms], ["longest update", "/longest_update_ns", ms],
    ["written keys looked up in the end", "/keys_checked", count], ["lost or wrong", "/keys_wrong", count],
    ["unacknowledged updates of the dead node that took effect", "/taken_effect", count], ["failed operations of survivors", "/errors", count],
  ];
  const whole = [() => o, () => "crash"];
  return [
    h("h1", {}, title),
    h("p", { class: "note" }, `simulated cluster, profile ${s.profile}, seed ${s.seed}: ${s.cns} compute nodes of ${s.threads} threads with ${s.coroutines} clients each; lease ${ms(s.lease_us * 1e3)}; trace ${o.trace_hash}`),
    figure("crash", "Throughput", lines.map(([first]) => first).filter(Boolean).map((r) => keyOfLegend(r.name, r.colour)), [svg]),
    h("h2", {}, "Moments"),
    table([
      ["", (m) => String(m.i + 1)], ["at", (m) => [source("crash", `/moments/${m.i}/at_ns`, m.at_ns), ms(m.at_ns)]],
      ["after the crash", (m) => ms(m.at_ns - s.crash_us * 1e3)], ["what", (m) => m.what, "l"],
    ], moments),
    h("h2", {}, "Findings"),
    table([["", ([name]) => name, "l"], ["", ([, field, text]) => shown("", field, text, ...whole)[1]()]], findings),
    ...o.samples.map((text) => h("p", { class: "bad" }, text)),
  ];
}

// The page ---------------------------------------------------------------------------------------

/** Says in the page itself what a browser made of it, for the test that renders it. */
function probe() {
  const box = (e) => e.getBoundingClientRect();
  const svgs = [...document.querySelectorAll("svg")].filter((s) => s.closest("figure"));
  let overlaps = 0;
  for (const s of svgs) {
    const outer = box(s);
    const texts = [...s.querySelectorAll("text")].map(box).filter((r) => r.width > 0);
    texts.forEach((a, i) => {
      if (a.left < outer.left - 1 || a.right > outer.right + 1 || a.top < outer.top - 1 || a.bottom > outer.bottom + 1) overlaps++;
      for (const c of texts.slice(0, i)) if (a.left + 1 < c.right && c.left + 1 < a.right && a.top + 2 < c.bottom && c.top + 2 < a.bottom) overlaps++;
    });
  }
  const figures = [...document.querySelectorAll("figure")];
  const whole = (f) => new DOMParser().parseFromString(sheet(f), "image/svg+xml").querySelectorAll("svg > svg").length === f.querySelectorAll("svg").length;
  Object.assign(document.body.dataset, {
    charts: svgs.filter((s) => box(s).width > 0 && box(s).height > 0).length, overlaps,
    overflow: [document.documentElement, ...document.querySelectorAll(".wide")].filter((e) => e.scrollWidth > e.clientWidth + 1).length,
    figures: figures.length, sheets: figures.filter(whole).length,
  });
}

document.title = `dmtree ${data.experiment ?? "crash"}`;
document.querySelector("main").append(...(data.moments ? crash(data) : experiment(data)).filter(Boolean));
// All of it on paper, and at the address report.html#open.
window.addEventListener("beforeprint", unfold);
if (location.hash === "#open") unfold();
probe();
