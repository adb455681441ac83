// Memory over time, roofline, timeline.

const BLOCK_KINDS = {
  "kept for later": "pointwise", "passed on": "columns", "packed operand": "contract", "carried by a loop": "rows",
  recomputed: "host", "written as output": "body", "copied from or to a file": "rows",
};
const MARGIN = { left: 84, right: 20, top: 92, bottom: 30 };

/** Let the pointer show what `view.pick` finds, as `text` of it, and a click select it. */
function hoverable(view, text, selected) {
  const { surface } = view, { canvas } = surface;
  const hover = (e, found) => {
    if (found !== view.hot) { view.hot = found; surface.ask(); }
    canvas.style.cursor = found ? "pointer" : "default";
    surface.tip(e, found && text(found));
  };
  canvas.addEventListener("pointermove", (e) => hover(e, view.pick(e)));
  canvas.addEventListener("pointerleave", (e) => hover(e, null));
  canvas.addEventListener("click", (e) => { const found = view.pick(e), what = found && selected(found); if (what) view.app.select(what); });
}

/** Fill a bar of time; `state` is hot, chosen or neither. Its label stays in sight where the bar begins further left. */
function bar(c, [x, y, w, hh], colour, state, label) {
  c.fillStyle = ink(colour);
  c.globalAlpha = state ? 1 : 0.82;
  c.fillRect(x, y, Math.max(w - 0.6, 0.7), Math.max(hh - 0.6, 0.8));
  c.globalAlpha = 1;
  if (state) { c.strokeStyle = ink("ink"); c.lineWidth = state === "chosen" ? 2 : 1.2; c.strokeRect(x, y, Math.max(w, 1), Math.max(hh, 1)); }
  const from = Math.max(x, MARGIN.left), letters = Math.floor((x + w - from - 10) / 6);
  if (hh < 14 || letters < 4) return;
  c.fillStyle = ink("on-bar");
  c.textAlign = "left";
  c.fillText(cut(label, letters), from + 5, y + Math.min(hh / 2, 15));
}

/** Write a text that stays legible over what is drawn below it. */
function halo(c, text, x, y, colour) {
  c.lineWidth = 4; c.lineJoin = "round"; c.strokeStyle = ink("bg"); c.strokeText(text, x, y);
  c.fillStyle = ink(colour); c.fillText(text, x, y);
}

/** The arena: time runs right, one moment per command; offsets run up; above, the bytes alive. */
class MemoryMap {
  constructor(program, app) {
    Object.assign(this, { program, app, map: program.memory, from: 0, to: Math.max(1, program.memory.moments) });
    this.surface = new Surface((c, w, hh) => this.draw(c, w, hh));
    this.map.blocks.forEach((b, id) => { b.id = id; });
    this.copies = this.map.copies || [];
    this.top = this.copies.length ? MARGIN.top + 34 : MARGIN.top;  // room for a lane of copies
    hoverable(this, (b) => blockText(program, b), (b) => ({ type: "block", id: b.id }));
    zoomable(this, this.surface.canvas, 0, () => this.map.moments);
    this.live = new Array(this.map.moments + 2).fill(0);
    for (const b of this.map.blocks) { this.live[b.first] += b.bytes; this.live[Math.min(b.last, this.map.moments) + 1] -= b.bytes; }
    for (let k = 1; k < this.live.length; k++) this.live[k] += this.live[k - 1];
  }
  get element() { return this.surface.box; }
  x(moment) { return MARGIN.left + ((this.surface.width - MARGIN.left - MARGIN.right) * (moment - this.from)) / (this.to - this.from); }
  y(offset) { return this.top + (this.surface.height - this.top - MARGIN.bottom) * (1 - offset / Math.max(1, this.map.bytes)); }
  box(b) {
    const [x, y] = [this.x(b.first), this.y(b.offset + b.bytes)];
    return [x, y, this.x(Math.min(b.last + 1, this.map.moments)) - x, this.y(b.offset) - y];
  }
  pick(event) {
    const [px, py] = this.surface.at(event);
    if (px < MARGIN.left) return null;
    return this.map.blocks.find((b) => { const [x, y, w, hh] = this.box(b); return px >= x && px <= x + Math.max(w, 2) && py >= y && py <= y + Math.max(hh, 2); }) || null;
  }
  draw(c, width, height) {
    const { map } = this;
    c.font = "11px ui-sans-serif, system-ui, sans-serif";
    c.textBaseline = "middle";
    c.fillStyle = ink("panel");
    c.fillRect(MARGIN.left, this.top, width - MARGIN.left - MARGIN.right, height - this.top - MARGIN.bottom);
    c.textAlign = "right";
    for (let k = 0; k <= 4; k++) {
      const y = this.y((map.bytes * k) / 4);
      c.fillStyle = ink("line");
      c.fillRect(MARGIN.left, y, width - MARGIN.left - MARGIN.right, 1);
      c.fillStyle = ink("dim");
      c.fillText(bytes((map.bytes * k) / 4), MARGIN.left - 8, y);
    }
    c.fillText("alive", MARGIN.left - 8, MARGIN.top - 22);
    if (this.copies.length) {
      c.font = "10px ui-sans-serif, system-ui, sans-serif";
      c.fillText("to file", MARGIN.left - 8, this.top - 26); c.fillText("from file", MARGIN.left - 8, this.top - 15);
      c.font = "11px ui-sans-serif, system-ui, sans-serif";
    }
    c.save();
    c.beginPath();
    c.rect(MARGIN.left, 0, width - MARGIN.left - MARGIN.right, height);
    c.clip();
    c.fillStyle = ink("accent-soft");
    for (const [a, b] of map.loops) c.fillRect(this.x(a), this.top, this.x(b + 1) - this.x(a), height - this.top - MARGIN.bottom);
    c.beginPath();
    c.moveTo(this.x(0), MARGIN.top - 14);
    for (let k = 0; k < map.moments; k++) {
      const y = MARGIN.top - 14 - (60 * this.live[k]) / Math.max(1, map.bytes);
      c.lineTo(this.x(k), y);
      c.lineTo(this.x(k + 1), y);
    }
    c.lineTo(this.x(map.moments), MARGIN.top - 14);
    c.fillStyle = ink("accent-soft");
    c.fill();
    c.strokeStyle = ink("accent");
    c.lineWidth = 1;
    c.stroke();
    for (const b of map.blocks) this.block(c, b);
    this.drawCopies(c);
    c.fillStyle = ink("dim");
    c.textAlign = "center";
    const every = Math.max(1, Math.ceil((this.to - this.from) / 24));
    map.kernels.forEach((n, k) => { if (n && (n - 1) % every === 0) c.fillText(String(n), this.x(k + 0.5), height - 14); });
    c.restore();
    c.textAlign = "right";
    c.fillStyle = ink("dim");
    c.fillText("kernel", MARGIN.left - 8, height - 14);
    c.textAlign = "left";
    if (!map.blocks.length) c.fillText("nothing lives in the arena", MARGIN.left + 16, this.top + 20);
  }
  block(c, b) {
    const box = this.box(b);
    if (box[0] > this.surface.width || box[0] + box[2] < MARGIN.left) return;
    bar(c, box, BLOCK_KINDS[b.kind], this.chosen === b.id ? "chosen" : b === this.hot ? "hot" : "", b.label || b.type);
  }
  /** Copies from and to the file, while kernels run: below, what the arena gets; above, what it gives. */
  drawCopies(c) {
    for (const [first, last, , reads] of this.copies) {
      c.fillStyle = ink(reads ? "rows" : "contract");
      c.fillRect(this.x(first), this.top - (reads ? 19 : 30), Math.max(this.x(last + 1) - this.x(first) - 0.6, 1.2), 7);
    }
  }
}

function blockText(program, b) {
  const numbers = program.memory.kernels.slice(b.first, b.last + 1).filter(Boolean);
  const life = numbers.length ? (numbers.length > 1 ? `kernels ${numbers[0]} to ${numbers[numbers.length - 1]}` : `kernel ${numbers[0]}`) : `moments ${b.first} to ${b.last}`;
  return `${b.label || `%${b.root}`}  ${b.type}\n${bytes(b.bytes)} at ${b.offset.toLocaleString("en")}, ${life}\n${b.kind}${b.lines.length ? `, ${program.names(b).join(", ")}` : ""}`;
}

/** Let the wheel zoom `view.from` and `view.to` around the pointer, and dragging move them. */
function zoomable(view, canvas, least, most) {
  const limit = (from, span) => {
    span = Math.min(Math.max(span, (most() - least) / 5000), most() - least);
    view.from = Math.min(Math.max(from, least), most() - span);
    view.to = view.from + span;
    view.surface.ask();
  };
  canvas.addEventListener("wheel", (e) => {
    e.preventDefault();
    const wide = view.surface.width - MARGIN.left - MARGIN.right, span = view.to - view.from;
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) return limit(view.from + (e.deltaX * span) / wide, span);
    const share = Math.min(1, Math.max(0, (view.surface.at(e)[0] - MARGIN.left) / wide));
    const now = span * Math.exp(e.deltaY * 0.0016);
    return limit(view.from + share * (span - now), now);
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (e) => { drag = [e.clientX, view.from]; });
  window.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointermove", (e) => {
    if (!drag || Math.abs(e.clientX - drag[0]) < 4) return;
    const span = view.to - view.from;
    limit(drag[1] - ((e.clientX - drag[0]) * span) / (view.surface.width - MARGIN.left - MARGIN.right), span);
  });
}

/** Kernels at their intensity and rate under the roofs; an area is a share of the run. Both axes are logarithmic. */
class Roofline {
  constructor(program, app) {
    Object.assign(this, { program, app });
    this.roofs = (program.profile && program.profile.roofs) || program.roofs;
    this.dots = program.kernels.map((k) => {
      const moved = k.read_bytes + k.written_bytes, m = k.measured;
      const seconds = m ? m.seconds / Math.max(m.calls, 1) : k.seconds;
      return { k, x: k.flops / moved, y: k.flops / seconds / 1e9, share: m ? m.share : k.share };
    }).filter((d) => d.x > 0 && Number.isFinite(d.x) && d.y > 0).sort((a, b) => b.share - a.share);
    const xs = this.dots.map((d) => d.x), ys = this.dots.map((d) => d.y).concat(this.roofs.compute.map((r) => r[1]));
    this.x0 = Math.log10(Math.min(0.05, ...xs)) - 0.15; this.x1 = Math.log10(Math.max(100, ...xs)) + 0.2;
    this.y0 = Math.max(Math.log10(Math.min(0.1, ...ys)), -3); this.y1 = Math.log10(Math.max(...ys)) + 0.35;
    this.surface = new Surface((c, w, hh) => this.draw(c, w, hh));
    hoverable(this, (d) => `${d.k.number} ${d.k.name}\n${d.y.toPrecision(3)} GFLOP/s at ${d.x.toPrecision(3)} FLOP/byte\n${percent(d.share)} of the run, ${d.k.measured ? "measured" : "estimated"}`, (d) => ({ type: "kernel", id: d.k.number }));
  }
  get element() { return this.surface.box; }
  x(v) { return 70 + ((this.surface.width - 100) * (Math.log10(v) - this.x0)) / (this.x1 - this.x0); }
  y(v) { return this.surface.height - 48 - ((this.surface.height - 78) * (Math.log10(v) - this.y0)) / (this.y1 - this.y0); }
  radius(d) { return 3.5 + 26 * Math.sqrt(Math.min(1, d.share)); }
  pick(event) {
    const [px, py] = this.surface.at(event);
    return this.dots.slice().reverse().find((d) => Math.hypot(this.x(d.x) - px, this.y(d.y) - py) <= this.radius(d) + 1) || null;
  }
  draw(c, width, height) {
    c.font = "11px ui-sans-serif, system-ui, sans-serif";
    c.textBaseline = "middle";
    for (let p = Math.ceil(this.x0); p <= this.x1; p++) {
      c.fillStyle = ink("line-soft"); c.fillRect(this.x(10 ** p), 30, 1, height - 78);
      c.fillStyle = ink("dim"); c.textAlign = "center"; c.fillText(String(10 ** p), this.x(10 ** p), height - 34);
    }
    for (let p = Math.ceil(this.y0); p <= this.y1; p++) {
      c.fillStyle = ink("line-soft"); c.fillRect(70, this.y(10 ** p), width - 100, 1);
      c.fillStyle = ink("dim"); c.textAlign = "right"; c.fillText(String(Number((10 ** p).toPrecision(2))), 62, this.y(10 ** p));
    }
    c.textAlign = "center"; c.fillText("operations per byte", (width + 40) / 2, height - 14);
    c.textAlign = "left"; c.fillText("GFLOP/s", 14, 16);
    c.textAlign = "right"; c.fillText(`roofs: ${this.roofs.basis}`, width - 30, 16);
    for (const d of this.dots) {
      c.fillStyle = ink(classOf(d.k));
      c.globalAlpha = d === this.hot || d.k.number === this.chosen ? 0.95 : 0.5;
      c.beginPath(); c.arc(this.x(d.x), this.y(d.y), this.radius(d), 0, 7); c.fill();
      c.globalAlpha = 1;
      c.lineWidth = d.k.number === this.chosen ? 2.5 : 1;
      c.strokeStyle = d.k.number === this.chosen ? ink("ink") : ink(classOf(d.k));
      c.stroke();
    }
    this.drawRoofs(c, width);
    c.textAlign = "left";
  }
  drawRoofs(c, width) {
    const peak = Math.max(...this.roofs.compute.map((r) => r[1]));
    c.lineWidth = 1.5;
    for (const [name, gbs] of this.roofs.memory) {
      const knee = peak / gbs, from = 10 ** this.x0;
      c.strokeStyle = ink("columns");
      line(c, this.x(from), this.y(from * gbs), this.x(knee), this.y(peak));
      c.save();
      c.translate(this.x(knee / 14), this.y(peak / 14) - 9);
      c.rotate(Math.atan2(this.y(peak) - this.y(peak / 10), this.x(knee) - this.x(knee / 10)));
      c.textAlign = "center"; halo(c, `${name} ${Number(gbs.toPrecision(3))} GB/s`, 0, 0, "columns");
      c.restore();
    }
    const widest = Math.max(...this.roofs.memory.map((r) => r[1]));
    const labels = [];  // [rate of the first, its text]: rates next to each other share a line of text
    for (const [name, rate] of this.roofs.compute.slice().sort((a, b) => b[1] - a[1])) {
      c.lineWidth = 1.5; c.strokeStyle = ink("contract");
      line(c, this.x(rate / widest), this.y(rate), width - 30, this.y(rate));
      const last = labels[labels.length - 1], text = String(Number(rate.toPrecision(3)));
      if (!last || this.y(rate) - this.y(last.rate) >= 16) labels.push({ rate, names: [[name, text]] });
      else last.names.push([name, text]);
    }
    c.textAlign = "right";
    for (const { rate, names } of labels) halo(c, `${names.map((n) => n.join(" ")).join(", ")} GFLOP/s`, width - 32, this.y(rate) - 9, "contract");
  }
}
function line(c, x0, y0, x1, y1) { c.beginPath(); c.moveTo(x0, y0); c.lineTo(x1, y1); c.stroke(); }

/** A profiled run: tracks of events [track, start, seconds, kernel, name]. */
class Timeline {
  constructor(program, app) {
    Object.assign(this, { program, app, times: program.profile.timeline });
    this.end = Math.max(...this.times.events.map((e) => e[1] + e[2]), 1e-9);
    [this.from, this.to] = [0, this.end];
    this.surface = new Surface((c, w, hh) => this.draw(c, w, hh));
    zoomable(this, this.surface.canvas, 0, () => this.end);
    hoverable(this, (e) => `${e[3] ? `${e[3]} ` : ""}${e[4]}\n${duration(e[2])}, from ${duration(e[1])}`, (e) => e[3] && { type: "kernel", id: e[3] });
  }
  get element() { return this.surface.box; }
  x(t) { return MARGIN.left + ((this.surface.width - MARGIN.left - MARGIN.right) * (t - this.from)) / (this.to - this.from); }
  pick(event) {
    const [px, py] = this.surface.at(event);
    const track = Math.floor((py - 44) / 40);
    if ((py - 44) % 40 > 30 || px < MARGIN.left) return null;
    return this.times.events.find((e) => e[0] === track && px >= this.x(e[1]) && px <= Math.max(this.x(e[1] + e[2]), this.x(e[1]) + 1.5)) || null;
  }
  draw(c, width) {
    c.font = "11px ui-sans-serif, system-ui, sans-serif";
    c.textBaseline = "middle";
    const span = this.to - this.from, tick = 10 ** Math.floor(Math.log10(span / 3)), step = span / tick > 12 ? tick * 5 : span / tick > 6 ? tick * 2 : tick;
    for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) {
      c.fillStyle = ink("line"); c.fillRect(this.x(t), 32, 1, this.times.tracks.length * 40 + 12);
      c.fillStyle = ink("dim"); c.textAlign = "center"; c.fillText(duration(t), this.x(t), 18);
    }
    this.times.tracks.forEach((name, k) => { c.fillStyle = ink("dim"); c.textAlign = "right"; c.fillText(cut(name, 13), MARGIN.left - 8, 44 + 40 * k + 15); });
    c.save();
    c.beginPath(); c.rect(MARGIN.left, 0, width - MARGIN.left - MARGIN.right, 1e5); c.clip();
    c.textAlign = "left";
    for (const e of this.times.events) {
      if (e[1] + e[2] < this.from || e[1] > this.to) continue;
      const x = this.x(e[1]), kernel = e[3] && this.program.byKernel.get(e[3]);
      const state = e[3] && e[3] === this.chosen ? "chosen" : e === this.hot ? "hot" : "";
      bar(c, [x, 44 + 40 * e[0], this.x(e[1] + e[2]) - x, 30], kernel ? classOf(kernel) : "faint", state, `${e[3] || ""} ${e[4]}`.trim());
    }
    c.restore();
  }
}
