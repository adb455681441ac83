// A graph as nested groups, and where each lies. Only what is expanded is laid out.

const VIEWS = new Set(["reshape", "permute", "broadcast", "slice", "pad", "flip", "item", "cast", "bitcast", "squeeze", "expand", "concat", "stop_gradient"]);
const REDUCTIONS = new Set(["sum", "max", "min", "prod", "mean", "argmax", "argmin", "cumsum", "sort", "any", "all"]);
function familyOf(op) {
  if (/^(conv|contract|matmul|dot)/.test(op)) return "contract";
  if (REDUCTIONS.has(op)) return "rows";
  if (op === "input" || op === "const") return "host";
  return VIEWS.has(op) ? "pack" : "pointwise";
}

const NODE_HEIGHT = 26, GROUP_HEIGHT = 36, GAP_X = 18, GAP_Y = 26, PAD = 14, HEADER = 26, MOST_ACROSS = 1500, MOST_CALLS = 24;
const textWidth = (text) => 26 + 7 * Math.min(text.length, 38);

/** Build groups by the paths of nodes. Inputs, and what constants alone decide, are left to the panel. */
function groupsOf(graph, phases) {
  const nodes = graph.nodes.map(([op, inputs, type, lines, path, note], id) => ({ id, op, inputs, type, lines, note, path: graph.paths[path], users: [] }));
  nodes.forEach((n) => n.inputs.forEach((i) => nodes[i].users.push(n.id)));
  const root = newGroup("", null, 0);
  const constant = new Set();
  for (const node of nodes) {
    if (node.op !== "input" && node.inputs.every((i) => constant.has(i))) constant.add(node.id);
    if (node.op === "input" || constant.has(node.id)) continue;
    let at = root;
    const path = node.path.length ? node.path : ["not of a line"];
    for (const name of phases ? [phases(node.id), ...path] : path) {
      let next = at.named.get(name);
      if (!next) { next = newGroup(name, at, at.depth + 1); at.named.set(name, next); at.children.push(next); }
      at = next;
    }
    node.parent = at;
    at.children.push(node);
  }
  split(root);
  tidy(root);
  const groups = [];
  number(root, groups);
  lift(nodes);
  return { root, nodes, groups };
}

function newGroup(name, parent, depth) {
  return { group: true, name, parent, depth, named: new Map(), children: [], edges: new Map(), expanded: false };
}

/** Split groups of nodes alone into what hangs together: several calls of one function stand apart. */
function split(group) {
  group.children = group.children.flatMap((child) => {
    if (!child.group) return [child];
    split(child);
    return parted(child);
  });
}

function parted(group) {
  const own = group.children;
  if (own.length < 4 || own.some((c) => c.group)) return [group];
  const of = new Map(own.map((n) => [n.id, n.id]));
  const find = (x) => { while (of.get(x) !== x) { of.set(x, of.get(of.get(x))); x = of.get(x); } return x; };
  for (const n of own) for (const i of n.inputs) if (of.has(i)) of.set(find(i), find(n.id));
  const parts = new Map();
  for (const n of own) (parts.get(find(n.id)) || parts.set(find(n.id), []).get(find(n.id))).push(n);
  const found = [...parts.values()].filter((p) => p.length > 1);
  if (found.length < 2 || found.length > MOST_CALLS) return [group];
  const made = found.map((part, k) => {
    const call = newGroup(`${group.name} · ${k + 1}`, group.parent, group.depth);
    call.children = part;
    part.forEach((n) => { n.parent = call; });
    return call;
  });
  group.children = own.filter((n) => parts.get(find(n.id)).length === 1);
  return group.children.length ? [...made, group] : made;
}

/** Merge a group with the only group in it; put a group of one node in its parent's place. */
function tidy(group) {
  group.children = group.children.map((child) => {
    if (!child.group) return child;
    tidy(child);
    if (child.children.length === 1) {
      const only = child.children[0];
      only.parent = group;
      if (only.group) only.name = only.name.startsWith(child.name) ? only.name : `${child.name} / ${only.name}`;
      return only;
    }
    return child;
  });
}

function number(group, groups) {
  group.key = groups.length;
  groups.push(group);
  group.count = 0;
  let sum = 0;
  for (const child of group.children) {
    if (child.group) number(child, groups);
    group.count += child.group ? child.count : 1;
    sum += child.group ? child.middling * child.count : child.id;
  }
  group.middling = sum / Math.max(1, group.count);
}

function chain(item) {
  const found = [];
  for (let at = item; at; at = at.parent) found.push(at);
  return found.reverse();
}

/** Give each group the edges between its children, whatever lies in them. */
function lift(nodes) {
  for (const node of nodes) {
    if (!node.parent) continue;
    const mine = chain(node);
    for (const i of node.inputs) {
      if (!nodes[i].parent) continue;
      const theirs = chain(nodes[i]);
      let k = 0;
      while (mine[k] === theirs[k]) k++;
      const a = theirs[k], b = mine[k];
      const key = `${a.group ? "g" : "n"}${a.group ? a.key : a.id}>${b.group ? "g" : "n"}${b.group ? b.key : b.id}`;
      mine[k - 1].edges.set(key, [a, b]);
    }
  }
}

/** Where in the order of the graph an item stands; a group stands where its nodes do on average. */
const orderOf = (item) => (item.group ? item.middling : item.id);

/** Put items in layers, each below what it reads; where groups read each other, the one that is earlier goes first. */
function layered(items, edges) {
  for (const item of items) Object.assign(item, { layer: 0, before: [], after: [], waits: 0, done: false });
  for (const [a, b] of edges.values()) { a.after.push(b); b.waits++; }
  const layers = [], ready = items.filter((i) => !i.waits);
  let next = 0;
  for (let left = items.length; left; left--) {
    let item = ready.shift();
    if (!item) { while (items[next].done) next++; item = items[next]; }
    item.done = true;
    (layers[item.layer] = layers[item.layer] || []).push(item);
    for (const b of item.after) {
      if (b.done) continue;
      b.before.push(item);
      b.layer = Math.max(b.layer, item.layer + 1);
      if (--b.waits === 0) ready.push(b);
    }
  }
  return layers;
}

/** Lay a group out in layers, and what is expanded in it before; sizes and relative places stay in the items. */
function layOut(group) {
  const items = group.children.slice().sort((a, b) => orderOf(a) - orderOf(b));
  for (const item of items) {
    if (item.group && item.expanded) layOut(item);
    else {
      item.width = item.group ? textWidth(`${item.name}  ${item.count}`) + 26 : textWidth(item.op) + 6;
      item.height = item.group ? GROUP_HEIGHT : NODE_HEIGHT;
    }
  }
  const layers = layered(items, group.edges);
  const top = group.parent ? HEADER + PAD : PAD;
  let y = top, widest = 0;
  const rows = [];
  for (const layer of layers) {
    for (const item of layer) item.middle = item.before.length ? item.before.reduce((s, a) => s + a.x + a.width / 2, 0) / item.before.length : 0;
    layer.sort((a, b) => a.middle - b.middle || orderOf(a) - orderOf(b));
    let row = [], width = 0;
    const end = () => {
      const height = Math.max(...row.map((i) => i.height));
      let x = -width / 2;
      for (const item of row) { item.x = x; item.y = y + (height - item.height) / 2; x += item.width + GAP_X; }
      widest = Math.max(widest, width);
      rows.push(...row);
      y += height + GAP_Y;
      [row, width] = [[], 0];
    };
    for (const item of layer) {
      if (row.length && width + item.width > MOST_ACROSS) { y -= 0; end(); y -= GAP_Y / 2; }
      width += item.width + (row.length ? GAP_X : 0);
      row.push(item);
    }
    end();
  }
  const title = group.parent ? textWidth(`${group.name}  ${group.count}`) + 30 : 0;
  group.width = Math.max(widest + 2 * PAD, title);
  group.height = y - GAP_Y + PAD;
  for (const item of rows) item.x += group.width / 2;
}

/** Turn relative places into absolute ones; list what is drawn, outer before inner. */
function placed(group, x, y, out) {
  group.ax = x;
  group.ay = y;
  out.push(group);
  for (const item of group.children) {
    if (item.group && item.expanded) placed(item, x + item.x, y + item.y, out);
    else { item.ax = x + item.x; item.ay = y + item.y; out.push(item); }
  }
  return out;
}
