// The panel on the right: what is selected, and where in the user's source it comes from.

const link = (text, act, note) => h("button.link", { onclick: act, title: text }, text, note ? h("small", null, note) : null);
const facts = (rows) => h("dl.facts", null, rows.filter((r) => r && r[1] !== undefined && r[1] !== "").map(([k, v]) => [h("dt", null, k), h("dd", null, v)]));
const placeLinks = (app, lines) => { const p = app.program; return lines && lines.length ? h("div.links", null, p.places(lines).map((at) => link(p.placeName(at), () => app.select({ type: "line", id: at })))) : null; };
const kernelLinks = (app, found) => h("div.links", null, found.slice(0, 60).map((k) => link(`${k.number} ${k.name}`, () => app.select({ type: "kernel", id: k.number }), duration(k.seconds))), found.length > 60 ? h("span.dim", null, `and ${found.length - 60} more`) : null);

function decisionCard(app, d) {
  const priced = [[d.choice, d.seconds, "", true], ...(d.not || []).map((a) => [...a, false])];
  const most = Math.max(...priced.map((a) => a[1] || 0));
  return h("div.decision", null, h("span.dim", null, `${d.stage} · `), h("b", null, `${d.subject} → ${d.choice}`), h("p", null, d.why),
    d.not ? h("div.prices", null, priced.map(([name, seconds, refused, chosen]) => [
      h(`span${chosen ? "" : ".dim"}`, null, name, refused ? h("span.dim", null, ` (${refused})`) : ""),
      seconds === null || seconds === undefined ? h("span") : share(seconds / most, chosen ? "var(--accent)" : "var(--faint)"),
      h("span.num", null, seconds === null || seconds === undefined ? (refused ? "refused" : chosen ? "chosen" : "not priced") : duration(seconds))])) : null);
}

function valueText(p, id) {
  const v = p.plan.values[id];
  return `${v.label ? `${v.label}  ` : ""}${v.type}  ${v.home}${v.offset !== undefined ? ` +${v.offset}` : ""}`;
}
function producers(p) {
  if (!p.made) {
    p.made = new Map(); p.read = new Map();
    for (const k of p.kernels) { k.writes.forEach((w) => p.made.set(w, k)); k.reads.forEach((r) => (p.read.get(r) || p.read.set(r, []).get(r)).push(k)); }
  }
  return p;
}

const PANELS = {
  kernel(app, { id }) {
    const p = producers(app.program), k = p.byKernel.get(id), m = k.measured;
    const before = [...new Set(k.reads.map((r) => p.made.get(r)).filter((x) => x && x !== k))];
    const after = [...new Set(k.writes.flatMap((w) => p.read.get(w) || []).filter((x) => x !== k))];
    const members = p.members.get(id) || [];
    const nodes = members.map((n) => p.graphs.optimised.nodes[n]);
    const near = p.decisionsAt(k.lines);
    const mine = near.filter(([d]) => d.stage === "tactic" || d.stage === "pack" || d.stage === "fuse" || d.stage === "layout");
    return [
      h("div.crumb", null, `kernel ${id} of ${p.kernels.length}`), h("h2", null, h("i.chip", { style: { "--c": colourOf(k) } }), k.name),
      placeLinks(app, k.lines) || h("p", null, (k.from || []).join(", ")),
      facts([["tactic", k.tactic], ["estimated", `${duration(k.seconds)}${k.times > 1 ? ` × ${k.times}` : ""}${m ? "" : `, ${percent(k.share)} of the run`}`],
        m ? ["measured", `${duration(m.seconds)}, ${percent(m.share)} of the run, ${percent(m.of_roofline)} of the roofline`] : null,
        ["bound by", k.bound === "latency" ? "the launch itself" : k.bound === "compute" ? "arithmetic" : "memory traffic"],
        ["operations", flops(k.flops)], ["reads", bytes(k.read_bytes)], ["writes", bytes(k.written_bytes)], ["chunks", String(k.chunks)],
        k.over ? ["writes over", k.over.join(", ")] : null, k.again ? ["again", "it computes what an earlier kernel computed, to save memory"] : null, ["symbol", h("span.mono", null, k.symbol)]]),
      k.why ? [h("h3", null, "Why it is a kernel of its own"), h("p", null, k.why)] : null,
      nodes.length ? [h("h3", null, `Fused into it: ${plural(nodes.length, "node")}`), h("div.ops", null, nodes.map(([op, , type], i) => h("button", { title: type, onclick: () => app.select({ type: "node", graph: "optimised", id: members[i] }) }, op, h("span.dim", null, `  ${type}`)))),
        h("div.links", { style: { "margin-top": "6px" } }, link("show in the graph", () => app.reveal("optimised", members)))] : null,
      before.length ? [h("h3", null, "Reads what these made"), kernelLinks(app, before)] : null,
      after.length ? [h("h3", null, "Read by"), kernelLinks(app, after)] : null,
      mine.length ? [h("h3", null, "Decisions at its lines"), mine.sort((a, b) => (b[0].not ? 1 : 0) - (a[0].not ? 1 : 0)).slice(0, 8).map(([d]) => decisionCard(app, d)), mine.length > 8 ? h("p", null, `and ${mine.length - 8} more in Decisions`) : null] : null,
      h("h3", null, "Buffers"), h("div.ops", null, [["reads", k.reads], ["writes", k.writes]].map(([what, ids]) => ids.map((v) => h("button", { title: valueText(p, v), onclick: () => app.selectValue(v) }, h("span.dim", null, `${what} `), `%${v} ${valueText(p, v)}`)))),
      codeOf(p, k),
    ];
  },
  node(app, { graph: which, id }) {
    const p = app.program, g = p.graphs[which], [op, inputs, type, lines, path, note] = g.nodes[id];
    if (!g.users) { g.users = new Map(); g.nodes.forEach((n, i) => n[1].forEach((j) => (g.users.get(j) || g.users.set(j, []).get(j)).push(i))); }
    const nodeLink = (n) => h("button", { onclick: () => app.select({ type: "node", graph: which, id: n }) }, `%${n} ${g.nodes[n][0]}`, h("span.dim", null, `  ${g.nodes[n][2]}  ${g.nodes[n][0] === "input" || g.nodes[n][0] === "const" ? g.nodes[n][5] : ""}`));
    const found = which === "optimised" ? (g.kernels[id] || []).map((n) => p.byKernel.get(n)) : [...new Set(p.places(lines).flatMap((at) => p.lineKernels.get(at) || []))];
    const users = g.users.get(id) || [];
    return [h("div.crumb", null, `%${id} of the graph as ${which === "optimised" ? "compiled" : "captured"} · ${g.paths[path].join(" / ")}`), h("h2", null, op),
      placeLinks(app, lines), facts([["type", h("span.mono", null, type)], ["attributes", note]]),
      h("div.links", { style: { "margin-top": "8px" } }, link("show in the graph", () => app.reveal(which, [id]))),
      found.length ? [h("h3", null, which === "optimised" ? "Computed by" : "Kernels of its lines"), kernelLinks(app, found)] : null,
      inputs.length ? [h("h3", null, "Operands"), h("div.ops", null, inputs.map(nodeLink))] : null,
      users.length ? [h("h3", null, "Used by"), h("div.ops", null, users.slice(0, 40).map(nodeLink))] : null];
  },
  block(app, { id }) {
    const p = app.program, b = p.memory.blocks[id];
    const numbers = [...new Set(p.memory.kernels.slice(b.first, b.last + 1).filter(Boolean))];
    const members = new Set(b.members);
    const touching = p.kernels.filter((k) => k.reads.concat(k.writes).some((v) => members.has(v)));
    return [h("div.crumb", null, "buffer of the arena"), h("h2", null, b.label || `%${b.root}`), placeLinks(app, b.lines),
      facts([["type", h("span.mono", null, b.type)], ["takes", bytes(b.bytes)], ["offset", b.offset.toLocaleString("en")], ["it is", b.kind], ["alive", numbers.length ? `kernels ${numbers[0]} to ${numbers[numbers.length - 1]}` : ""], b.members.length > 1 ? ["shared by", `${b.members.length} values in place`] : null]),
      h("h3", null, "Kernels that read or write it"), kernelLinks(app, touching)];
  },
  decision(app, { id }) {
    const p = app.program, d = p.decisions[id];
    const found = [...new Set(p.places(d.lines).flatMap((at) => p.lineKernels.get(at) || []))];
    return [h("div.crumb", null, `decision ${id + 1} of ${p.decisions.length}`), h("h2", null, d.subject), placeLinks(app, d.lines), decisionCard(app, d),
      d.basis ? h("p", null, `prices are ${d.basis}`) : null, found.length ? [h("h3", null, "Kernels of its lines"), kernelLinks(app, found)] : null];
  },
  line(app, { id: place }) {
    const p = app.program, found = p.lineKernels.get(place) || [];
    const near = (p.decisions || []).filter((d) => p.places(d.lines).includes(place));
    const nodes = p.graphs ? p.graphs.captured.nodes.map((n, i) => [n, i]).filter(([n]) => p.places(n[3]).includes(place)) : [];
    return [h("div.crumb", null, "line of the program"), h("h2", null, p.placeName(place)),
      facts([["kernels", String(found.length)], ["estimated", `${duration(found.reduce((s, k) => s + k.seconds * k.times, 0))}, whole kernels counted`], ["nodes", String(nodes.length)]]),
      nodes.length ? h("div.links", { style: { "margin-top": "8px" } }, link("show its nodes in the graph", () => app.reveal("captured", nodes.map(([, i]) => i)))) : null,
      h("h3", null, "Kernels"), found.length ? kernelLinks(app, found) : h("p", null, "no kernel computes what this line made: it was folded, or fused away"),
      near.length ? [h("h3", null, "Decisions"), near.slice().sort((a, b) => (b.not ? 1 : 0) - (a.not ? 1 : 0)).slice(0, 12).map((d) => decisionCard(app, d))] : null];
  },
};

/** Draw the user's source, with what each line costs; the lines of what is selected are marked. */
function sourceBox(app, large) {
  const p = app.program, files = p.source.files;
  const known = files.map((f, i) => [f, i]).filter(([f]) => f.text);
  if (!known.length) return large ? h("div.empty", null, "The source could not be read when this page was made.") : null;
  if (!known.some(([, i]) => i === app.file)) app.file = known[0][1];
  const marked = new Set(app.markedPlaces());
  const cost = new Map();
  for (const k of p.kernels) { const place = k.lines.length ? p.place(k.lines[0]) : ""; cost.set(place, (cost.get(place) || 0) + k.share); }
  const most = Math.max(...cost.values(), 1e-12);
  const box = h("div.text", { tabindex: "0" });
  let first = null;
  files[app.file].text.split("\n").forEach((text, k) => {
    const place = `${app.file}:${k + 1}`, known = p.lineKernels.has(place), part = cost.get(place) || 0;
    const row = h(`${known ? "button" : "div"}.ln${marked.has(place) ? ".on" : ""}`, known ? { "data-line": place, onclick: () => app.select({ type: "line", id: place }), title: `${plural(p.lineKernels.get(place).length, "kernel")}, ${percent(part)} of the run` } : null,
      h("span.no", null, String(k + 1)), h("i.heat", { style: { width: `${part ? Math.max(3, (30 * part) / most) : 0}px` } }), h("span", null, text || " "));
    if (marked.has(place) && !first) first = row;
    box.append(row);
  });
  if (first) requestAnimationFrame(() => { box.scrollTop = first.offsetTop - box.offsetTop - box.clientHeight / 3; });
  const choose = h("select", { "aria-label": "file", onchange: (e) => { app.file = Number(e.target.value); app.showPanel(); if (large) app.show(); } },
    known.map(([f, i]) => h("option", { value: i, selected: i === app.file ? "" : null }, f.name)));
  return h("div.source", null, h("div.bar", null, choose, h("span.push"), h("span.dim", null, "bars: share of the run")), box);
}
