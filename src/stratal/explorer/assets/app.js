// The application: which program, which view, what is selected; search, theme, and the address.

class App {
  constructor(rows) {
    this.programs = rows.map((row) => new Program(row));
    Object.assign(this, { index: 0, view: "overview", which: "optimised", graphs: {}, sorted: {}, file: 0, selected: null, drawn: null });
    this.root = document.getElementById("app");
    this.parts = { header: h("header"), nav: h("nav", { "aria-label": "views" }), main: h("main"), aside: h("aside") };
    this.root.append(...Object.values(this.parts));
    this.setTheme(this.preferred());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.setTheme(this.preferred()));
    document.addEventListener("keydown", (e) => {
      if (e.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) { e.preventDefault(); this.input.focus(); }
    });
    window.addEventListener("hashchange", () => { if (location.hash !== this.address) this.read(); });
    this.drawHeader();
    this.read();
  }
  get program() { return this.programs[this.index]; }

  // -- theme ----------------------------------------------------------------------------------------------
  preferred() { return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"; }
  setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    palette = null;
    if (this.drawn) this.drawn.surface.ask();
    if (this.themeButton) this.themeButton.textContent = theme === "dark" ? "☀" : "☾";
  }

  // -- where we are: #0/graph/kernel/12 --------------------------------------------------------------------
  read() {
    const [index, view, type, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
    this.index = Math.min(Math.max(Number(index) || 0, 0), this.programs.length - 1);
    this.view = VIEWS_OF.some(([k, , , has]) => k === view && has(this.program)) ? view : "overview";
    this.selected = this.parsed(type, rest);
    this.openFile();
    this.chooser.value = String(this.index);
    this.showAll();
  }
  parsed(type, rest) {
    const p = this.program, id = Number(rest[rest.length - 1]);
    if (type === "kernel" && p.byKernel.has(id)) return { type, id };
    if (type === "node" && p.graphs && p.graphs[rest[0]] && p.graphs[rest[0]].nodes[id]) return { type, graph: rest[0], id };
    if (type === "block" && p.memory && p.memory.blocks[id]) return { type, id };
    if (type === "decision" && p.decisions && p.decisions[id]) return { type, id };
    if (type === "line" && rest[0] && p.source.files[Number(rest[0].split(":")[0])]) return { type, id: rest[0] };
    return null;
  }
  write() {
    const s = this.selected;
    const parts = [this.index, this.view, ...(s ? [s.type, ...(s.graph ? [s.graph] : []), s.id] : [])];
    this.address = `#${parts.map((x) => encodeURIComponent(x)).join("/")}`;
    try { history.replaceState(null, "", this.address); } catch { /* a frame of a notebook has no address */ }
  }

  // -- moving ---------------------------------------------------------------------------------------------
  go(view) {
    const besides = (this.view === "source") !== (view === "source");  // that view has the source, the panel need not
    this.view = view;
    this.show();
    if (besides) this.showPanel();
  }
  isSelected(type, id) { return Boolean(this.selected) && this.selected.type === type && this.selected.id === id; }
  select(what) {
    this.selected = what;
    this.openFile();
    this.showPanel();
    this.mark();
    this.write();
  }
  /** Turn to the file that what is selected comes from. */
  openFile() {
    const place = this.markedPlaces()[0];
    if (place) this.file = Number(place.split(":")[0]);
  }
  selectValue(id) {
    const p = this.program;
    const block = p.memory ? p.memory.blocks.findIndex((b) => b.members.includes(id)) : -1;
    if (block >= 0) { this.view = "memory"; this.show(); this.select({ type: "block", id: block }); }
  }
  reveal(which, ids) {
    this.which = which;
    this.view = "graph";
    this.show();
    this.drawn.reveal(ids);
  }
  /** Mark what is selected in the view that is open. */
  mark() {
    const s = this.selected;
    for (const row of this.parts.main.querySelectorAll("[data-kernel]")) row.classList.toggle("on", Boolean(s) && s.type === "kernel" && row.dataset.kernel === String(s.id));
    for (const row of this.parts.main.querySelectorAll("[data-line]")) row.classList.toggle("on", this.markedPlaces().includes(row.dataset.line));
    if (!this.drawn || !s) return;
    if (this.drawn instanceof GraphView) {
      if (s.type === "node" && s.graph === this.drawn.which) this.drawn.reveal([s.id], false);
      else if (s.type === "kernel" && this.drawn.which === "optimised") this.drawn.reveal(this.program.members.get(s.id) || [], true);
    } else this.drawn.chosen = (this.drawn instanceof MemoryMap) === (s.type === "block") ? s.id : null;
    this.drawn.surface.ask();
  }
  markedPlaces() {
    const s = this.selected, p = this.program;
    if (!s) return [];
    if (s.type === "line") return [s.id];
    const row = { kernel: () => p.byKernel.get(s.id), node: () => ({ lines: p.graphs[s.graph].nodes[s.id][3] }), block: () => p.memory.blocks[s.id], decision: () => p.decisions[s.id] }[s.type]();
    return p.places(row.lines);
  }

  // -- drawing --------------------------------------------------------------------------------------------
  drawHeader() {
    this.chooser = h("select", { "aria-label": "program", onchange: (e) => { this.index = Number(e.target.value); this.selected = null; if (!VIEWS_OF.find(([k]) => k === this.view)[3](this.program)) this.view = "overview"; this.showAll(); } },
      this.programs.map((p, i) => h("option", { value: i }, `${p.name} · ${plural(p.kernels.length, "kernel")}`)));
    this.input = h("input", { placeholder: "Search kernels, nodes, buffers, lines", "aria-label": "search", autocomplete: "off", spellcheck: "false" });
    this.found = h("div.found", { role: "listbox", hidden: "" });
    this.signature = h("div.signature.mono");
    this.themeButton = h("button.theme", { title: "dark or light", "aria-label": "dark or light", onclick: () => this.setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark") });
    this.setTheme(document.documentElement.dataset.theme);
    const box = h("div.search", null, this.input, h("kbd", null, "/"), this.found);
    this.parts.header.append(h("div.brand", null, "Stratal ", h("span", null, "explorer")), this.chooser, this.signature, box, this.themeButton);
    attachSearch(this, box);
  }
  showAll() { this.signature.textContent = this.program.signature || ""; this.show(); this.showPanel(); }
  show() {
    const p = this.program;
    clear(this.parts.nav, VIEWS_OF.filter(([, , , has]) => has(p)).map(([key, name, , , count]) =>
      h(`button${key === this.view ? ".on" : ""}`, { "data-view": key, onclick: () => this.go(key) }, name, h("i", null, String(count(p))))));
    this.drawn = null;
    clear(this.parts.main, VIEWS_OF.find(([k]) => k === this.view)[2](this));
    this.mark();
    this.write();
  }
  showPanel() {
    const s = this.selected;
    const empty = h("div.panel", null, h("p", null, "Select a kernel, a node, a buffer, a decision or a line: what is known of it stands here, beside the source."));
    clear(this.parts.aside, s ? h("div.panel", { "data-panel": s.type }, PANELS[s.type](this, s)) : empty, this.view === "source" ? null : sourceBox(this, false));
  }
}

/** Rows to search: what, text, note, what it selects. */
function searchRows(p) {
  const rows = p.kernels.map((k) => ["kernel", `${k.number} ${k.name}`, (p.names(k)[0] || ""), { type: "kernel", id: k.number }, `${k.tactic} ${k.ops.join(" ")} ${p.names(k).join(" ")}`]);
  for (const [place, found] of p.lineKernels) {
    const [file, no] = place.split(":"), text = p.source.files[file].text;
    rows.push(["line", p.placeName(place), plural(found.length, "kernel"), { type: "line", id: place }, text ? text.split("\n")[no - 1] || "" : ""]);
  }
  if (p.memory) p.memory.blocks.forEach((b, id) => rows.push(["buffer", b.label || `%${b.root}`, bytes(b.bytes), { type: "block", id }, b.type]));
  if (p.graphs) for (const which of ["captured", "optimised"]) if (p.graphs[which]) p.graphs[which].nodes.forEach(([op, , type, , path, note], id) => rows.push([which === "captured" ? "node" : "compiled", `%${id} ${op}`, type, { type: "node", graph: which, id }, `${note} ${p.graphs[which].paths[path].join(" ")}`]));
  (p.decisions || []).forEach((d, id) => rows.push(["decision", `${d.subject} → ${d.choice}`, d.stage, { type: "decision", id }, d.why]));
  return rows.map((r) => [...r, `${r[1]} ${r[2]} ${r[4]}`.toLowerCase()]);
}

function attachSearch(app, box) {
  const MOST = 40;
  let chosen = 0, shown = [];
  const close = () => { app.found.hidden = true; };
  const take = (row) => { if (!row) return; close(); app.input.blur(); app.select(row[3]); };
  const show = () => {
    const p = app.program, words = app.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    p.rows = p.rows || searchRows(p);
    const fits = words.length ? p.rows.filter((r) => words.every((w) => r[5].includes(w))) : [];
    const rank = (r) => (r[1].toLowerCase().startsWith(words[0]) || r[1].toLowerCase().includes(` ${words[0]}`) ? 0 : r[1].toLowerCase().includes(words[0]) ? 1 : 2);
    shown = fits.length > 4000 ? fits.slice(0, MOST) : fits.map((r) => [rank(r), r]).sort((a, b) => a[0] - b[0]).slice(0, MOST).map((x) => x[1]);
    chosen = 0;
    app.found.hidden = !words.length;
    clear(app.found, shown.length ? shown.map((r, i) => h(`button${i === chosen ? ".on" : ""}`, { role: "option", onpointerdown: (e) => { e.preventDefault(); take(r); } }, h("span.what", null, r[0]), h("span", null, cut(r[1], 60)), h("span.what", null, cut(r[2], 22)))) : h("div.none", null, "nothing found"));
    if (fits.length > MOST) app.found.append(h("div.none", null, `and ${fits.length - MOST} more: another word narrows it down`));
  };
  app.input.addEventListener("input", show);
  app.input.addEventListener("focus", show);
  app.input.addEventListener("blur", close);
  app.input.addEventListener("keydown", (e) => {
    if (e.key === "Escape") { app.input.blur(); return; }
    if (e.key === "Enter") { take(shown[chosen]); return; }
    if (e.key !== "ArrowDown" && e.key !== "ArrowUp") return;
    e.preventDefault();
    chosen = Math.max(0, Math.min(shown.length - 1, chosen + (e.key === "ArrowDown" ? 1 : -1)));
    app.found.querySelectorAll("button").forEach((b, i) => { b.classList.toggle("on", i === chosen); if (i === chosen) b.scrollIntoView({ block: "nearest" }); });
  });
}

const app = new App(JSON.parse(document.getElementById("data").textContent));
