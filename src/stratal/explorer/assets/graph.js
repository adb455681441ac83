// The graph on a canvas: pan, zoom, expand, select. What is out of sight is not drawn.

/** A canvas that fills its box, sharp on every screen; draw(context, width, height) when asked. */
class Surface {
  constructor(draw) {
    this.canvas = h("canvas", { tabindex: "0" });
    this.box = h("div.surface", null, this.canvas);
    this.draw = draw;
    this.asked = false;
    new ResizeObserver(() => this.resize()).observe(this.box);
  }
  resize() {
    const ratio = window.devicePixelRatio || 1;
    [this.width, this.height] = [this.box.clientWidth, this.box.clientHeight];
    if (!this.width) return;
    this.canvas.width = this.width * ratio;
    this.canvas.height = this.height * ratio;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    if (this.onsize) this.onsize();
    this.paint();
  }
  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.paint(); });
  }
  paint() {
    if (!this.width) return;
    const context = this.canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    this.draw(context, this.width, this.height);
  }
  at(event) {
    const r = this.canvas.getBoundingClientRect();
    return [event.clientX - r.left, event.clientY - r.top];
  }
  /** Show a text beside the pointer, or none. */
  tip(event, text) {
    if (!this.note) { this.note = h("div.tip"); this.box.append(this.note); }
    this.note.hidden = !text;
    if (!text) return;
    this.note.textContent = text;
    const [x, y] = this.at(event);
    this.note.style.left = `${Math.min(x + 14, this.width - this.note.offsetWidth - 8)}px`;
    this.note.style.top = `${y + 16 + this.note.offsetHeight > this.height ? y - this.note.offsetHeight - 10 : y + 16}px`;
  }
}

let palette = null;
function ink(name) {
  if (!palette) palette = new Map();
  if (!palette.has(name)) palette.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return palette.get(name);
}

const EXPANDED_AT_FIRST = 46, MOST_OPENED = 16;

class GraphView {
  constructor(program, which, app) {
    Object.assign(this, { program, which, app, zoom: 1, left: 0, top: 0, hot: null });
    const graph = program.graphs[which];
    Object.assign(this, groupsOf(graph, phasesOf(program, which)));
    this.root.expanded = true;
    this.expandTo(EXPANDED_AT_FIRST);
    this.surface = new Surface((c, w, hh) => this.draw(c, w, hh));
    this.surface.onsize = () => { if (!this.fitted) this.fit(this.chosen && [...this.chosen].map((id) => this.nodes[id]).filter((n) => n.parent)); };
    this.relay();
    this.listen();
  }
  get element() { return this.surface.box; }

  expandTo(most) {
    const queue = [this.root];
    let shown = this.root.children.length;
    while (queue.length) {
      const group = queue.shift();
      for (const child of group.children.filter((c) => c.group).sort((a, b) => b.count - a.count)) {
        if (shown + child.children.length > most || child.children.length > MOST_OPENED) continue;
        child.expanded = true;
        shown += child.children.length;
        queue.push(child);
      }
    }
  }
  relay() { layOut(this.root); this.items = placed(this.root, 0, 0, []); this.surface.ask(); }

  fit(items) {
    const all = items && items.length ? items : [this.root];
    const x0 = Math.min(...all.map((i) => i.ax)), x1 = Math.max(...all.map((i) => i.ax + i.width));
    const y0 = Math.min(...all.map((i) => i.ay)), y1 = Math.max(...all.map((i) => i.ay + i.height));
    const { width, height } = this.surface;
    if (!width) return;
    this.fitted = true;
    const whole = Math.min(width / (x1 - x0 + 60), height / (y1 - y0 + 60));
    this.zoom = Math.min(1, items ? Math.max(whole, 0.3) : Math.max(whole, Math.min(0.9, width / (x1 - x0 + 60))));
    this.left = (x0 + x1) / 2 - width / this.zoom / 2;
    this.top = items ? (y0 + y1) / 2 - height / this.zoom / 2 : y0 - 20 / this.zoom + Math.min(0, (y1 - y0 + 40 / this.zoom - height / this.zoom) / 2);
    this.surface.ask();
  }
  toggle(group, expanded = !group.expanded) {
    const before = [group.ax + group.width / 2, group.ay];
    group.expanded = expanded;
    this.relay();
    this.left += group.ax + group.width / 2 - before[0];
    this.top += group.ay - before[1];
  }
  all(expanded) {
    for (const g of this.groups) if (g !== this.root) g.expanded = expanded;
    this.relay();
    this.fit();
  }
  /** Show some nodes: open what they are in, and go there. */
  reveal(ids, fit = true) {
    this.chosen = new Set(ids);
    let changed = false;
    for (const id of ids) for (let at = this.nodes[id].parent; at && at !== this.root; at = at.parent) { changed = changed || !at.expanded; at.expanded = true; }
    if (changed) this.relay();
    const found = ids.map((id) => this.nodes[id]).filter((n) => n.parent);
    if (fit && found.length) this.fit(found);
    this.surface.ask();
  }
  shown(node) {
    let at = node;
    for (const item of chain(node).slice(1)) { at = item; if (item.group && !item.expanded) break; }
    return at;
  }

  pick(x, y) {
    const [gx, gy] = [this.left + x / this.zoom, this.top + y / this.zoom];
    for (let k = this.items.length - 1; k > 0; k--) {
      const i = this.items[k];
      const height = i.group && i.expanded ? HEADER : i.height;
      if (gx >= i.ax && gx <= i.ax + i.width && gy >= i.ay && gy <= i.ay + height) return i;
    }
    return null;
  }
  listen() {
    const { canvas } = this.surface;
    let drag = null;
    canvas.addEventListener("pointerdown", (e) => { drag = { x: e.clientX, y: e.clientY, left: this.left, top: this.top, moved: false }; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener("pointermove", (e) => {
      if (drag) {
        const [dx, dy] = [e.clientX - drag.x, e.clientY - drag.y];
        if (Math.abs(dx) + Math.abs(dy) > 4) drag.moved = true;
        if (drag.moved) { this.left = drag.left - dx / this.zoom; this.top = drag.top - dy / this.zoom; this.surface.ask(); }
        return;
      }
      const found = this.pick(...this.surface.at(e));
      canvas.style.cursor = found ? "pointer" : "grab";
      if (found !== this.hot) { this.hot = found; this.surface.ask(); }
      this.surface.tip(e, found && !found.group ? `${found.op}  ${found.type}${found.note ? `\n${found.note}` : ""}` : null);
    });
    canvas.addEventListener("pointerup", (e) => {
      const clicked = drag && !drag.moved;
      drag = null;
      if (!clicked) return;
      const found = this.pick(...this.surface.at(e));
      if (!found) return;
      if (found.group) this.toggle(found);
      else this.app.select({ type: "node", graph: this.which, id: found.id });
    });
    canvas.addEventListener("wheel", (e) => {
      e.preventDefault();
      const [x, y] = this.surface.at(e);
      const zoom = Math.min(3, Math.max(0.02, this.zoom * Math.exp(-e.deltaY * 0.0016)));
      this.left += x / this.zoom - x / zoom;
      this.top += y / this.zoom - y / zoom;
      this.zoom = zoom;
      this.surface.ask();
    }, { passive: false });
    canvas.addEventListener("keydown", (e) => {
      const step = 80 / this.zoom;
      const moves = { ArrowUp: [0, -step], ArrowDown: [0, step], ArrowLeft: [-step, 0], ArrowRight: [step, 0] };
      if (moves[e.key]) { this.left += moves[e.key][0]; this.top += moves[e.key][1]; }
      else if (e.key === "+" || e.key === "-") this.zoom *= e.key === "+" ? 1.25 : 0.8;
      else if (e.key === "0") this.fit();
      else return;
      e.preventDefault();
      this.surface.ask();
    });
  }

  /** The kind of work of a node: of its kernel, or, of what was captured, of its op. */
  kind(node) {
    if (this.which === "captured") return familyOf(node.op);
    const kernels = this.program.graphs.optimised.kernels[node.id];
    if (!kernels) return "pack";
    return classOf(kernels.map((k) => this.program.byKernel.get(k)).reduce((a, b) => (b.seconds > a.seconds ? b : a)));
  }
  draw(c, width, height) {
    const { zoom } = this;
    c.translate(-this.left * zoom, -this.top * zoom);
    c.scale(zoom, zoom);
    const [x0, y0, x1, y1] = [this.left, this.top, this.left + width / zoom, this.top + height / zoom];
    const sees = (i) => i.ax < x1 && i.ax + i.width > x0 && i.ay < y1 && i.ay + i.height > y0;
    const inSight = this.items.filter(sees);
    for (const g of inSight) if (g.group && g.expanded && g !== this.root) this.hull(c, g);
    c.lineWidth = Math.max(1, 0.7 / zoom);
    c.strokeStyle = ink("faint");
    c.globalAlpha = 0.6;
    c.beginPath();
    for (const g of inSight) {
      if (!g.group || !g.expanded) continue;
      for (const [a, b] of g.edges.values()) {
        if (Math.max(a.ay, b.ay) < y0 || Math.min(a.ay, b.ay) > y1) continue;
        edge(c, a, b);
      }
    }
    c.stroke();
    c.globalAlpha = 1;
    this.strong(c);
    c.textBaseline = "middle";
    for (const i of inSight) if (!(i.group && i.expanded)) i.group ? this.group(c, i) : this.node(c, i);
  }
  hull(c, g) {
    c.fillStyle = g.depth % 2 ? ink("panel") : ink("bg");
    c.strokeStyle = g === this.hot ? ink("accent") : ink("line");
    c.lineWidth = 1;
    c.beginPath();
    c.roundRect(g.ax, g.ay, g.width, g.height, 10);
    c.fill();
    c.stroke();
    if (this.zoom < 0.28) return;
    c.fillStyle = ink("dim");
    c.textBaseline = "middle";
    c.font = "600 12px ui-sans-serif, system-ui, sans-serif";
    c.fillText(`▾ ${cut(g.name, 34)}`, g.ax + 11, g.ay + 16);
    c.font = "11px ui-sans-serif, system-ui, sans-serif";
    c.fillStyle = ink("faint");
    c.textAlign = "right";
    c.fillText(String(g.count), g.ax + g.width - 11, g.ay + 16);
    c.textAlign = "left";
  }
  group(c, g) {
    c.fillStyle = ink("raised");
    c.strokeStyle = g === this.hot ? ink("accent") : ink("faint");
    c.lineWidth = 1.2;
    c.beginPath();
    c.roundRect(g.ax, g.ay, g.width, g.height, 9);
    c.fill();
    c.stroke();
    this.mix(c, g);
    if (this.zoom < 0.2) return;
    c.fillStyle = ink("ink");
    c.font = "600 12px ui-sans-serif, system-ui, sans-serif";
    c.fillText(`▸ ${cut(g.name, 34)}`, g.ax + 11, g.ay + g.height / 2 - 2);
    c.fillStyle = ink("faint");
    c.font = "11px ui-sans-serif, system-ui, sans-serif";
    c.textAlign = "right";
    c.fillText(String(g.count), g.ax + g.width - 11, g.ay + g.height / 2 - 2);
    c.textAlign = "left";
  }
  /** Show what kinds of work are in a closed group, as a strip along its lower edge. */
  mix(c, g) {
    if (!g.mixed) {
      const count = new Map();
      const walk = (item) => { if (item.group) item.children.forEach(walk); else { const k = this.kind(item); count.set(k, (count.get(k) || 0) + 1); } };
      walk(g);
      g.mixed = [...count].sort((a, b) => b[1] - a[1]);
    }
    const wide = g.width - 22;
    let x = g.ax + 11;
    for (const [kind, n] of g.mixed) {
      c.fillStyle = ink(kind);
      c.fillRect(x, g.ay + g.height - 6, (wide * n) / g.count, 2.5);
      x += (wide * n) / g.count;
    }
  }
  node(c, n) {
    const colour = ink(this.kind(n));
    const chosen = this.chosen && this.chosen.has(n.id);
    c.fillStyle = this.zoom < 0.2 ? colour : ink("raised");
    c.beginPath();
    c.roundRect(n.ax, n.ay, n.width, n.height, 7);
    c.fill();
    c.lineWidth = chosen ? 2.2 : 1;
    c.strokeStyle = chosen || n === this.hot ? ink("accent") : ink("line");
    if (chosen) { c.fillStyle = ink("accent-soft"); c.fill(); }
    c.stroke();
    if (this.zoom < 0.2) return;
    c.fillStyle = colour;
    c.beginPath();
    c.roundRect(n.ax + 7, n.ay + 8, 4, n.height - 16, 2);
    c.fill();
    c.fillStyle = ink("ink");
    c.font = "12px ui-sans-serif, system-ui, sans-serif";
    c.fillText(cut(n.op, 34), n.ax + 17, n.ay + n.height / 2 + 0.5);
  }
  /** Draw what a chosen node reads and who reads it, through all groups. */
  strong(c) {
    if (!this.chosen || this.chosen.size > 40) return;
    c.lineWidth = 1.8 / Math.min(this.zoom, 1);
    c.strokeStyle = ink("accent");
    c.globalAlpha = 0.75;
    c.beginPath();
    for (const id of this.chosen) {
      const node = this.nodes[id];
      if (!node.parent) continue;
      for (const i of node.inputs) if (this.nodes[i].parent && !this.chosen.has(i)) edge(c, this.shown(this.nodes[i]), this.shown(node));
      for (const u of node.users) if (!this.chosen.has(u)) edge(c, this.shown(node), this.shown(this.nodes[u]));
    }
    c.stroke();
    c.globalAlpha = 1;
  }
}

const cut = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);

function edge(c, a, b) {
  const [ax, ay] = [a.ax + a.width / 2, a.ay + a.height], [bx, by] = [b.ax + b.width / 2, b.ay];
  c.moveTo(ax, ay);
  if (by >= ay) { const bend = Math.min(40, (by - ay) / 2 + 4); c.bezierCurveTo(ax, ay + bend, bx, by - bend, bx, by); }
  else { const side = Math.max(a.ax + a.width, b.ax + b.width) + 24; c.bezierCurveTo(ax, ay + 34, side, ay + 34, side, (ay + by) / 2); c.bezierCurveTo(side, by - 34, bx, by - 34, bx, by); }
}

/** Tell the forward part of a training step from the rest: it is what the outputs need. */
function phasesOf(program, which) {
  const graph = program.graphs[which];
  const captured = program.graphs.captured;
  if (!captured || !captured.updates || captured.updates.length < 2 || !captured.outputs.length) return null;
  const forward = new Set();
  if (which === "captured") {
    const queue = captured.outputs.slice();
    while (queue.length) { const n = queue.pop(); if (!forward.has(n)) { forward.add(n); queue.push(...graph.nodes[n][1]); } }
  } else {
    const values = program.plan.values;
    const root = (v) => { while (values[v].alias !== undefined) v = values[v].alias; return v; };
    const needed = new Set(program.plan.outputs.map(root));
    const kernels = new Set();
    for (const c of program.commands.slice().reverse())
      if (c.writes && c.writes.some((w) => needed.has(root(w)))) { if (c.number) kernels.add(c.number); (c.reads || []).forEach((r) => needed.add(root(r))); }
    for (const [node, numbers] of Object.entries(graph.kernels)) if (numbers.some((n) => kernels.has(n))) forward.add(Number(node));
    for (let id = graph.nodes.length - 1; id >= 0; id--) if (forward.has(id)) graph.nodes[id][1].forEach((i) => { if (!graph.kernels[i]) forward.add(i); });
  }
  return (id) => (forward.has(id) ? "forward" : "backward and update");
}
