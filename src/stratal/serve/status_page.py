"""The status page: one HTML text that polls `/status`; nothing on it is loaded from elsewhere."""

from __future__ import annotations

from typing import Final

PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Stratal</title>
<link rel="icon" href="data:,">
<meta name="viewport" content="width=device-width"><style>
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif }
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .3rem .6rem }
th { font-weight: 600; opacity: .7 } .n { text-align: right; font-variant-numeric: tabular-nums }
tr + tr { border-top: 1px solid color-mix(in srgb, currentColor 20%, transparent) }
.bars { display: flex; align-items: end; gap: 2px; height: 2rem }
.bars i { width: .7rem; background: currentColor; opacity: .6 } .bad { color: light-dark(#b11, #f77) }
</style></head><body><h1>Stratal</h1><p id="line">...</p>
<form id="ask" hidden><label>API key <input id="key" type="password" autocomplete="off"></label></form>
<table><thead><tr><th>model</th><th>state</th><th class="n">rows/s</th>
<th class="n">requests</th><th class="n">late</th><th class="n">waiting</th>
<th>latency, 1 ms to 1 s</th><th class="n">budget left</th><th class="n">accuracy</th>
<th>drift, alerts</th></tr></thead><tbody id="models"></tbody></table>
<script>
let before = null
const cell = (row, text, kind = "") => {
  const c = row.insertCell(); c.textContent = text; c.className = kind }
function watch(row, w, variants) {
  if (!w) { for (let k = 0; k < 3; k++) cell(row, ""); return }
  const left = Math.round(100 * w.budget_left)
  cell(row, left + "%", left > 0 ? "n" : "n bad")
  const share = a => w.kind == "value" ? "error " + a.toPrecision(3) : (100 * a).toFixed(1) + "%"
  cell(row, w.accuracy == null ? "" : share(w.accuracy), w.alerts.includes("accuracy") ? "n bad" : "n")
  const drift = w.drifted ? w.drifted + " of " + w.watched + " features: "
    + w.worst.map(d => d.feature + " (PSI " + d.psi.toFixed(2) + ")").join(", ")
    : w.watched ? "none of " + w.watched + " features" : ""
  const burning = w.alerts.filter(a => a.startsWith("burn")).map(a => "alert: " + a)
  const cheaper = Object.entries(variants).filter(([, n]) => n).map(([v, n]) => n + " answered by " + v)
  cell(row, [drift, ...burning, ...cheaper].filter(Boolean).join("; "), w.alerts.length ? "bad" : "")
}
function show(s) {
  const now = performance.now()
  const some = (n, what) => n + " " + what + (n == 1 ? "" : "s")
  line.textContent = (s.ready ? "ready" : "not ready") + ", " + some(s.workers.length, "worker") + " ("
    + s.workers.filter(w => w.busy).length + " busy), " + some(s.queued, "request") + " waiting"
  models.replaceChildren()
  for (const m of s.models) {
    const old = before && before.rows[m.name], row = models.insertRow()
    const c = m.canary, tried = c ? ", " + c.version + " for " + (100 * c.share).toFixed(1) + "%" : ""
    cell(row, m.name + " " + m.version + tried)
    cell(row, m.why || m.state, m.state == "READY" ? "" : "bad")
    const rate = old == null ? "" : (1e3 * (m.rows - old) / (now - before.at)).toFixed(1)
    cell(row, rate, "n")
    for (const key of ["requests", "late", "waiting"]) cell(row, m[key], "n")
    const bars = document.createElement("div"); bars.className = "bars"
    let last = 0; const counts = m.histogram.map(([, n]) => { const c = n - last; last = n; return c })
    const most = Math.max(1, ...counts)
    m.histogram.forEach(([bound], k) => { const bar = document.createElement("i")
      bar.style.height = Math.max(2, 100 * counts[k] / most) + "%"
      bar.title = "up to " + bound + " s: " + counts[k]
      bars.append(bar) })
    row.insertCell().append(bars)
    watch(row, m.monitoring, m.variants)
  }
  for (const [name, why] of Object.entries(s.failed)) {
    const row = models.insertRow()
    cell(row, name); cell(row, "not loaded: " + why, "bad"); row.cells[1].colSpan = 9
  }
  before = { at: now, rows: Object.fromEntries(s.models.map(m => [m.name, m.rows])) }
}
let given = ""
ask.onsubmit = event => { event.preventDefault(); given = key.value; poll() }
const poll = () => fetch("status", given ? { headers: { "X-API-Key": given } } : {}).then(r => {
  ask.hidden = r.status != 401
  if (r.status == 401) line.textContent = "the server asks for a key"
  else return r.json().then(show) })
  .catch(() => { line.textContent = "the server does not answer" })
poll(); setInterval(() => { if (ask.hidden) poll() }, 1000)
</script></body></html>
"""
