// The views of the middle: each is a function of the program that returns its elements.

function overview(app) {
  const p = app.program, memory = p.plan.memory;
  const tile = (value, what) => h("div.tile", null, h("b", null, value), h("span", null, what));
  const alike = p.alike, named = ({ kernels: [k, ...more] }) => `${k.number}${more.length ? ` +${more.length}` : ""}`;
  const cost = p.measured ? "measured" : "estimated";
  const parts = Object.entries(memory).filter(([k, n]) => n && !["planned_peak_bytes", "live_minimum_bytes", "offloaded_bytes"].includes(k)).sort((a, b) => b[1] - a[1]);
  const tints = ["pointwise", "contract", "rows", "columns", "body", "host", "pack"];
  const lines = [...p.lineKernels].map(([place, kernels]) => [place, kernels.filter((k) => p.place(k.lines[0]) === place).reduce((s, k) => s + k.share, 0), kernels.length]).sort((a, b) => b[1] - a[1]);
  const drawn = alike.slice(0, 60).filter((g) => g.share > 0.004);  // what is narrower would be all border
  const rest = 1 - drawn.reduce((s, g) => s + g.share, 0);  // with copies and calls of Python
  return h("div.view", null,
    h("h1", null, p.name), h("div.dim", null, `plan ${p.hash.slice(0, 8)} · ${p.plan.target} · ${plural(p.plan.threads, "thread")}`),
    h("div.tiles", null,
      tile(duration(p.seconds), "a run, estimated"),
      p.profile ? tile(duration(p.profile.seconds), `a run, measured (${p.profile.runs} runs)`) : null,
      tile(bytes(memory.planned_peak_bytes), "memory, planned to the byte"),
      memory.offloaded_bytes ? tile(bytes(memory.offloaded_bytes), "of state waits in a file") : null,
      again(p).length ? tile(thousands(again(p).length), "kernels run again, to save memory") : null,
      tile(thousands(p.kernels.length), `kernels, ${Object.keys(p.code || {}).length || new Set(p.kernels.map((k) => k.symbol)).size} distinct`),
      tile(String(p.plan.calls.host), "calls of Python in a run"),
      p.graphs ? tile(thousands(p.graphs.captured.nodes.length), "nodes captured") : null,
      p.plan.fallbacks ? tile(String(p.plan.fallbacks.length), "compiled with less ambition") : null),
    p.profile ? [h("h3", null, "Bottleneck"), h("p", null, p.profile.bottleneck)] : null,
    h("h3", null, `Where the time goes, ${cost}`),
    h("div.stack", null, drawn.map((g) => h("button", { style: { "--c": colourOf(g.kernels[0]), flex: `${g.share} 0 0` }, title: `${named(g)} ${g.kernels[0].name}: ${percent(g.share)}`, onclick: () => app.select({ type: "kernel", id: g.kernels[0].number }) })), rest > 0.001 ? h("i", { style: { flex: `${rest} 0 0`, "--c": "var(--line)" }, title: `${p.measured ? "all others, and between kernels" : "all others"}: ${percent(rest)}` }) : null),
    legend(p),
    h("h3", null, "What memory is for"),
    h("div.stack", null, parts.map(([k, n], i) => h("button", { style: { "--c": `var(--${tints[i % 7]})`, flex: `${n} 0 0` }, title: `${k.replace("_bytes", "")}: ${bytes(n)}`, onclick: () => app.go("memory") }))),
    h("div.legend", { style: { "margin-top": "8px" } }, parts.map(([k, n], i) => h("span", { style: { "--c": `var(--${tints[i % 7]})` } }, `${k.replace("_bytes", "")} ${bytes(n)}`))),
    h("div.cols", null,
      h("div", null, h("h3", null, "Kernels that take longest"), h("div.card", null, alike.slice(0, 12).map((g) =>
        h("button.row.heavy", { "data-kernel": g.kernels[0].number, title: g.kernels.length > 1 ? `kernel ${g.kernels[0].number} and ${g.kernels.length - 1} more of the same code` : g.kernels[0].name, onclick: () => app.select({ type: "kernel", id: g.kernels[0].number }) },
          h("span.num.dim", null, named(g)), h("span", null, h("i.chip", { style: { "--c": colourOf(g.kernels[0]) } }), g.kernels[0].name),
          h("span.num", null, duration(g.cost)), share(g.share / alike[0].share, colourOf(g.kernels[0])), h("span.num.dim", null, percent(g.share)))))),
      lines.length ? h("div", null, h("h3", null, "Lines that take longest"), h("div.card", null, lines.slice(0, 12).map(([place, part, n]) =>
        h("button.row.bylines", { onclick: () => app.select({ type: "line", id: place }) },
          h("span.mono", null, p.placeName(place)), h("span.num.dim", null, plural(n, "kernel")), share(part / lines[0][1]), h("span.num.dim", null, percent(part)))))) : null));
}

const again = (p) => p.kernels.filter((k) => k.again);

function share(part, colour, of) {
  return h("span.share", { title: of === undefined ? null : percent(of), style: colour ? { "--c": colour } : null }, h("i", { style: { width: `${Math.min(100, part * 100)}%` } }));
}
function legend(p) {
  const used = new Set(p.kernels.map(classOf));
  return h("div.legend", { style: { "margin-top": "8px" } }, Object.entries(CLASSES).filter(([k]) => used.has(k)).map(([k, name]) => h("span", { style: { "--c": `var(--${k})` } }, name)));
}

function sortable(app, key, columns, rows, make) {
  const state = (app.sorted[key] = app.sorted[key] || { by: 0, down: false, filter: "" });
  const box = h("div.view.whole");
  const show = () => {
    const [, value] = columns[state.by];
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = rows.filter((r) => words.every((w) => r.text.includes(w)));
    kept.sort((a, b) => { const [x, y] = [value(a), value(b)]; return (x < y ? -1 : x > y ? 1 : 0) * (state.down ? -1 : 1); });
    const head = h(`div.row.head.${key}`, null, columns.map(([name, , right], k) => h(`button${right ? ".num" : ""}${k === state.by ? ".on" : ""}`, { onclick: () => { Object.assign(state, { down: k === state.by ? !state.down : Boolean(right), by: k }); show(); } }, name, k === state.by ? (state.down ? " ↓" : " ↑") : "")));
    const made = list(key, head, kept, make);
    if (box.lastChild && box.lastChild.classList.contains("list")) box.lastChild.replaceWith(made); else box.append(made);
    count.textContent = plural(kept.length, "row");
  };
  const count = h("span.dim");
  const filter = h("input.filter", { placeholder: "filter", "aria-label": "filter rows", value: state.filter, oninput: (e) => { state.filter = e.target.value; show(); } });
  return { box, show, count, filter };
}

function kernels(app) {
  const p = app.program;
  const words = { host: (c) => `Python: ${c.op}`, copy: (c) => `copy ${c.label || ""}`, "copy-start": (c) => `begin to copy ${c.label}`, "copy-done": (c) => `wait for the copy of ${c.label}`, kernel: (c) => c.name };
  const rows = p.commands.filter((c) => words[c.do]).map((c, i) => ({
    c, i, names: p.names(c), name: words[c.do](c),
    text: `${c.number || ""} ${words[c.do](c)} ${c.again ? "again" : ""} ${c.tactic || ""} ${p.names(c).join(" ")} ${(c.ops || []).join(" ")}`.toLowerCase(),
  }));
  const seconds = (r) => r.c.seconds * r.c.times;
  const most = Math.max(...rows.map((r) => r.c.cost), 1e-12);
  const columns = [["#", (r) => r.i, true], ["kernel", (r) => r.name], ["tactic", (r) => r.c.tactic || ""], ["from", (r) => r.names[0] || ""], ["flops", (r) => r.c.flops, true], ["bytes", (r) => r.c.read_bytes + r.c.written_bytes, true], ["est.", seconds, true], ["share", (r) => r.c.cost, true], [p.measured ? "measured" : "bound", (r) => (p.measured ? (r.c.measured || {}).seconds || 0 : r.c.bound), p.measured]];
  const { box, show, count, filter } = sortable(app, "kernels", columns, rows, (r) => {
    const c = r.c;
    return h(`button${app.isSelected("kernel", c.number) ? ".on" : ""}`, { "data-kernel": c.number || "", onclick: () => c.number && app.select({ type: "kernel", id: c.number }) },
      h("span.num.dim", null, c.number ? String(c.number) : ""), h("span", { title: r.name, style: { "padding-left": `${c.depth * 12}px` } }, h("i.chip", { style: { "--c": colourOf(c) } }), r.name),
      h("span.dim", null, c.tactic || ""), h("span.mono.dim", null, r.names[0] || ""), h("span.num", null, flops(c.flops)),
      h("span.num", null, bytes(c.read_bytes + c.written_bytes)), h("span.num", null, duration(seconds(r))), share(c.cost / most, colourOf(c), c.cost / p.total),
      p.measured ? h("span.num", null, c.measured ? duration(c.measured.seconds) : "") : h("span.dim", null, c.do === "host" ? "Python" : c.again ? `${c.bound}, again` : c.bound));
  });
  box.append(h("div.bar", null, h("h2", null, "Kernels"), count, h("span.push"), filter));
  show();
  return box;
}

function decisions(app) {
  const p = app.program;
  const rows = p.decisions.map((d, i) => ({ d, i, text: `${d.stage} ${d.subject} ${d.choice} ${d.why} ${p.names(d).join(" ")}`.toLowerCase() }));
  const columns = [["stage", (r) => r.i], ["subject", (r) => r.d.subject], ["choice", (r) => r.d.choice], ["because", (r) => r.d.why], ["from", (r) => p.names(r.d)[0] || ""]];
  const { box, show, count, filter } = sortable(app, "decisions", columns, rows, (r) => {
    const d = r.d;
    return h(`button${app.isSelected("decision", r.i) ? ".on" : ""}`, { onclick: () => app.select({ type: "decision", id: r.i }) },
      h("span.dim", null, d.stage), h("span", { title: d.subject }, d.subject), h("span", { title: d.choice }, d.choice, d.not ? h("span.dim", null, `  of ${d.not.length + 1}`) : ""),
      h("span.dim", { title: d.why }, d.why), h("span.mono.dim", null, p.names(d)[0] || ""));
  });
  box.append(h("div.bar", null, h("h2", null, "Decisions"), count, h("span.push"), filter));
  show();
  return box;
}

function graph(app) {
  const p = app.program;
  const which = app.which in p.graphs ? app.which : "captured";
  const key = `${app.index} ${which}`;
  const view = (app.graphs[key] = app.graphs[key] || new GraphView(p, which, app));
  app.drawn = view;
  const choose = (name, label) => h(`button${which === name ? ".on" : ""}`, { onclick: () => { app.which = name; app.show(); } }, label);
  const tool = (label, act) => h("button", { onclick: act }, label);
  return h("div.view.whole", null,
    h("div.bar", null, h("h2", null, "Graph"), p.graphs.optimised ? h("div.seg", null, choose("captured", "As captured"), choose("optimised", "As compiled")) : null,
      h("span.dim", null, `${plural(view.nodes.length, "node")}`), h("span.push"),
      h("div.seg", null, tool("Expand all", () => view.all(true)), tool("Collapse", () => view.all(false)), tool("Fit", () => view.fit()))),
    h("div.stage", null, view.element, h("div.hint", null, "drag to move · wheel to zoom · click a group to open it")), which === "optimised" ? h("div.bar.foot", null, legend(p)) : null);
}

function plotted(title, about, view, legendRow) {
  return h("div.view.whole", null, h("div.bar", null, h("h2", null, title), h("span.dim", null, about)), h("div.stage", null, view.element), h("div.bar.foot", null, legendRow));
}
function memory(app) {
  const p = app.program, map = p.memory;
  app.drawn = new MemoryMap(p, app);
  const used = new Set(map.blocks.map((b) => b.kind));
  const filed = p.plan.memory.offloaded_bytes, repeated = again(p).length;
  const about = [`arena ${bytes(map.bytes)}`, `live minimum ${bytes(map.live_minimum)}`, plural(map.blocks.length, "buffer"), repeated ? `${plural(repeated, "kernel")} run again` : "", filed ? `${bytes(filed)} of state in a file` : ""];
  return plotted("Memory over time", about.filter(Boolean).join(", "), app.drawn,
    h("div.legend", null, Object.entries(BLOCK_KINDS).filter(([k]) => used.has(k)).map(([k, c]) => h("span", { style: { "--c": `var(--${c})` } }, k))));
}
function roofline(app) {
  app.drawn = new Roofline(app.program, app);
  return plotted("Roofline", `${plural(app.drawn.dots.length, "kernel")}, ${app.program.measured ? "measured" : "estimated"}; areas are shares of the run`, app.drawn, legend(app.program));
}
function timeline(app) {
  app.drawn = new Timeline(app.program, app);
  return plotted("Timeline", app.program.profile.timeline.about, app.drawn, legend(app.program));
}
function source(app) { return h("div.view.whole", null, sourceBox(app, true)); }

function compare(app) {
  const { diff } = app.program, p = app.program;
  const cell = (k, sign) => (k ? [h(`span.${sign === "+" ? "plus" : "minus"}`, null, sign), h("span.num.dim", null, String(k.number)), h("span", { title: `${k.name} · ${k.tactic}` }, k.name, h("span.dim", null, `  ${k.tactic}`)), h("span.num", null, duration(k.seconds * k.times))] : [h("span"), h("span"), h("span"), h("span")]);
  const head = h("div.row.head.compare", null, h("span"), h("span.num", null, "#"), h("span", null, `before: ${diff.name} ${diff.hash.slice(0, 8)}`), h("span.num", null, "est."), h("span"), h("span.num", null, "#"), h("span", null, `now: ${p.name} ${p.hash.slice(0, 8)}`), h("span.num", null, "est."), h("span.num", null, "change"));
  const rows = list("compare", head, diff.rows, ([what, a, b]) => {
    const before = a && diff.kernels[a - 1], now = b && p.byKernel.get(b);
    const change = before && now ? now.seconds * now.times - before.seconds * before.times : 0;
    return h(`button${what === "same" ? "" : before && now ? "" : now ? ".added" : ".removed"}`, { onclick: () => now && app.select({ type: "kernel", id: b }) }, cell(before, what === "same" ? " " : "−"), cell(now, what === "same" ? " " : "+"), h(`span.num.${change > 0 ? "minus" : "plus"}`, null, Math.abs(change) > 1e-9 ? `${change > 0 ? "+" : "−"}${duration(Math.abs(change))}` : ""));
  });
  const delta = (name, before, now, show) => h("div.tile", null, h("b", null, show(now)), h("span", null, `${name}, ${before === now ? "as before" : `before ${show(before)}`}`));
  return h("div.view.whole", null, h("div.bar", null, h("h2", null, "Compare"), h("span.dim", null, diff.hash === p.hash ? "the plans are equal" : `${plural(diff.rows.filter((r) => r[0] !== "same").length, "row")} differ`)),
    h("div", { style: { padding: "0 16px 16px" } }, h("div.tiles", null, delta("estimated", diff.seconds, p.seconds, duration), delta("kernels", diff.kernels.length, p.kernels.length, String), delta("memory", diff.memory.planned_peak_bytes, p.plan.memory.planned_peak_bytes, bytes), delta("arena", diff.memory.arena_bytes, p.plan.memory.arena_bytes, bytes))),
    rows);
}

const VIEWS_OF = [
  ["overview", "Overview", overview, () => true, () => ""],
  ["graph", "Graph", graph, (p) => p.graphs, (p) => thousands(p.graphs.captured.nodes.length)],
  ["kernels", "Kernels", kernels, () => true, (p) => thousands(p.kernels.length)],
  ["memory", "Memory", memory, (p) => p.memory, (p) => thousands(p.memory.blocks.length)],
  ["roofline", "Roofline", roofline, (p) => p.roofs, () => ""],
  ["timeline", "Timeline", timeline, (p) => p.profile && p.profile.timeline, () => ""],
  ["decisions", "Decisions", decisions, (p) => p.decisions && p.decisions.length, (p) => thousands(p.decisions.length)],
  ["source", "Source", source, (p) => p.source.files.some((f) => f.text), (p) => p.source.files.filter((f) => f.text).length],
  ["compare", "Compare", compare, (p) => p.diff, (p) => p.diff.rows.filter((r) => r[0] !== "same").length],
];
