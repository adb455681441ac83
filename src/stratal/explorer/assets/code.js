// Texts of code: deflated in the data, unpacked when looked at.

const unpacked = new Map();
async function unpack(base64) {
  if (unpacked.has(base64)) return unpacked.get(base64);
  const raw = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  const text = await new Response(stream).text();
  unpacked.set(base64, text);
  return text;
}

const CODE = [["loops", "Loops"], ["llvm", "LLVM"], ["assembly", "Assembly"]];
let lastCode = "loops";

/** Return a kernel's code with a switch between loops, LLVM text and assembly. */
function codeOf(program, kernel) {
  const code = (program.code || {})[kernel.symbol];
  if (!code) return null;
  const shown = h("pre", { "data-code": "" });
  const buttons = CODE.map(([key, name]) => h("button", { onclick: () => show(key) }, name));
  const show = async (key) => {
    lastCode = key;
    buttons.forEach((b, i) => b.classList.toggle("on", CODE[i][0] === key));
    if (!code[key]) {
      const option = key === "loops" ? "" : " --llvm";
      shown.textContent = `not in this file: stratal explain SCRIPT --kernel ${kernel.number}${option} prints it`;
      return;
    }
    try { shown.textContent = await unpack(code[key]); }
    catch (error) { shown.textContent = `this browser cannot unpack it: ${error.message}`; }
  };
  show(lastCode);
  return [
    code.steps && code.steps.length ? [h("h3", null, "Schedule"), h("pre", null, code.steps.join("\n"))] : null,
    h("h3", null, "Code"), h("div.seg", { style: { "margin-bottom": "8px" } }, buttons), shown,
  ];
}
