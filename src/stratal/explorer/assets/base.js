"use strict";
// Elements, numbers in print, and the data with what follows from it.

/** Make an element: h("b.name", {title: ..}, child ..). Text is always a text node. */
function h(tag, attributes, ...children) {
  const [name, ...classes] = tag.split(".");
  const made = document.createElement(name);
  if (classes.length) made.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [k, v] of Object.entries(value)) made.style.setProperty(k, v);
    else made.setAttribute(key, value);
  }
  if (name === "button" && !made.type) made.type = "button";
  made.append(...children.flat(3).filter((c) => c !== null && c !== undefined && c !== false));
  return made;
}

function clear(element, ...children) {
  element.replaceChildren(...children.flat(3).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

function scaled(value, units, digits = 3) {
  for (const [unit, size] of units)
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(digits))} ${unit}`;
  const [unit, size] = units[units.length - 1];
  return `${Number((value / size).toPrecision(digits))} ${unit}`;
}
const duration = (s) => (s ? scaled(s, [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]]) : "0");
const bytes = (n) => (n ? scaled(n, [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]]) : "0 B");
const flops = (n) => (n ? scaled(n, [["GF", 1e9], ["MF", 1e6], ["kF", 1e3], ["F", 1]]) : "–");
const percent = (x) => (x >= 0.0995 ? `${Math.round(x * 100)} %` : `${(x * 100).toFixed(1)} %`);
const thousands = (n) => n.toLocaleString("en");
const plural = (n, noun) => `${thousands(n)} ${noun}${n === 1 ? "" : "s"}`;

const CLASSES = {
  contract: "sums of products", rows: "reductions of rows", columns: "reductions of columns",
  pointwise: "element-wise", body: "loops of a record", pack: "packing", copy: "copies", host: "Python",
};
function classOf(command) {
  if (command.do !== "kernel") return command.do === "host" ? "host" : "copy";
  if (/^pack/.test(command.tactic)) return "pack";
  return CLASSES[command.kind] ? command.kind : "body";
}
const colourOf = (command) => `var(--${classOf(command)})`;

function nested(commands, depth = 0, out = []) {
  for (const command of commands) {
    out.push([command, depth]);
    for (const key of ["condition", "body", "then", "otherwise"]) if (command[key]) nested(command[key], depth + 1, out);
  }
  return out;
}

/** One program: the rows of the data, joined. */
class Program {
  constructor(row) {
    Object.assign(this, row);
    this.commands = nested(this.plan.commands).map(([c, depth]) => ({ ...c, depth }));
    this.launched = this.commands.filter((c) => c.do === "kernel");
    this.launched.forEach((k, i) => Object.assign(k, (row.kernels || [])[i] || { lines: [] }));
    this.kernels = this.launched;
    this.host = this.commands.filter((c) => c.do === "host");
    this.byKernel = new Map(this.kernels.map((k) => [k.number, k]));
    const measured = (this.profile && this.profile.kernels) || [];
    for (const m of measured) if (m.number && this.byKernel.has(m.number)) this.byKernel.get(m.number).measured = m;
    for (const c of this.commands) c.cost = c.seconds === undefined ? 0 : c.measured ? c.measured.seconds : this.profile && c.do === "kernel" ? 0 : c.seconds * c.times;
    const sum = this.commands.reduce((n, c) => n + c.cost, 0);
    this.total = Math.max(sum, this.profile ? this.profile.seconds : 0) || 1;  // with what passes between kernels
    this.members = new Map();
    const optimised = this.graphs && this.graphs.optimised;
    if (optimised) {
      for (const [node, numbers] of Object.entries(optimised.kernels))
        for (const n of numbers) (this.members.get(n) || this.members.set(n, []).get(n)).push(Number(node));
    }
    this.source = this.source || { lines: [], files: [] };
    this.lineKernels = new Map();
    for (const k of this.kernels) {
      k.lines = k.lines || [];
      k.share = k.cost / this.total;
      const seen = new Set(k.lines.map((l) => this.place(l)));
      for (const place of seen) (this.lineKernels.get(place) || this.lineKernels.set(place, []).get(place)).push(k);
    }
  }
  get measured() { return Boolean(this.profile); }
  /** Kernels of one code, those that cost most together first: layers of one shape look harmless one by one. */
  get alike() {
    const found = new Map();
    for (const k of this.kernels) {
      const key = `${k.symbol} ${k.name}`;
      (found.get(key) || found.set(key, { kernels: [], cost: 0, share: 0 }).get(key)).kernels.push(k);
    }
    for (const group of found.values()) {
      group.kernels.sort((a, b) => b.cost - a.cost);
      for (const k of group.kernels) { group.cost += k.cost; group.share += k.share; }
    }
    return [...found.values()].sort((a, b) => b.share - a.share);
  }
  place(line) { const [file, no] = this.source.lines[line]; return `${file}:${no}`; }
  placeName(place) { const [file, no] = place.split(":"); return `${this.source.files[file].name}:${no}`; }
  lineName(line) { return this.placeName(this.place(line)); }
  places(lines) { return [...new Set((lines || []).map((l) => this.place(l)))]; }
  names(row) { return row.lines && row.lines.length ? this.places(row.lines).map((p) => this.placeName(p)) : row.from || []; }
  decisionsAt(lines) {
    const asked = new Set(this.places(lines));
    return (this.decisions || []).map((d, i) => [d, i]).filter(([d]) => this.places(d.lines).some((p) => asked.has(p)));
  }
}

/** Show long lists: only rows in sight are in the document. */
function list(className, head, rows, draw, height = 30) {
  const sheet = h("div.sheet");
  const box = h("div.list", { tabindex: "-1" }, head, sheet);
  sheet.style.height = `${rows.length * height}px`;
  let from = -1, to = -1;
  const update = () => {
    const first = Math.max(0, Math.floor(box.scrollTop / height) - 8);
    const last = Math.min(rows.length, first + Math.ceil((box.clientHeight || 900) / height) + 20);
    if (first === from && last === to) return;
    [from, to] = [first, last];
    clear(sheet, rows.slice(first, last).map((row, i) => {
      const made = draw(row);
      made.classList.add("row", className);
      made.style.top = `${(first + i) * height}px`;
      return made;
    }));
  };
  box.addEventListener("scroll", update, { passive: true });
  new ResizeObserver(update).observe(box);
  update();
  return box;
}
