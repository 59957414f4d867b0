/* Write the probabilities of VS Code's language detection for this machine's source files, labelled by their extension.

       NODE_PATH=ENVIRONMENT/node_modules node score_code_files.js FOLDER MOST_A_LANGUAGE OUT.json

   The detector's names are extensions; a file's label is its own. Equal contents count once; "message" is their hash. */

"use strict";
const { createHash } = require("crypto");
const fs = require("fs");
const path = require("path");
const { ModelOperations } = require("@vscode/vscode-languagedetection");

const LEAST = 200, LARGEST = 100_000, MOST_SEEN = 400_000; // bytes, bytes, files
const ALIASES = { pl: "pm", pyi: "py", mjs: "js", cjs: "js", cc: "cpp", hpp: "cpp", hh: "cpp", yml: "yaml", htm: "html", bash: "sh", pxd: "py" };

function* files(folder, seen = { count: 0 }) {
  let entries;
  try {
    entries = fs.readdirSync(folder, { withFileTypes: true });
  } catch {
    return; // a folder that this user may not read
  }
  for (const entry of entries.sort((a, b) => (a.name < b.name ? -1 : 1))) {
    const place = path.join(folder, entry.name);
    if (entry.isDirectory()) yield* files(place, seen);
    else if (entry.isFile() && ++seen.count <= MOST_SEEN) yield place;
  }
}

function candidates(folder, most, names) {
  const count = new Map(), known = new Set(), found = [];
  for (const place of files(folder)) {
    const extension = path.extname(place).slice(1).toLowerCase();
    const label = ALIASES[extension] ?? extension;
    if (!names.has(label) || (count.get(label) ?? 0) >= most) continue;
    const size = fs.statSync(place).size;
    if (size < LEAST || size > LARGEST) continue;
    const bytes = fs.readFileSync(place);
    const message = createHash("sha256").update(bytes).digest("hex");
    if (bytes.includes(0) || known.has(message)) continue;
    known.add(message);
    count.set(label, (count.get(label) ?? 0) + 1);
    found.push({ label, message, text: bytes.toString("utf8") });
  }
  return found;
}

async function main() {
  const [folder, most, out] = process.argv.slice(2);
  const model = new ModelOperations();
  const first = await model.runModel("def main():\n    return [1, 2, 3]\n\nprint(main())\n");
  const names = first.map((one) => one.languageId).sort();
  const scored = { names, probs: [], label: [], message: [] };
  for (const { label, message, text } of candidates(folder, Number(most), new Set(names))) {
    const found = new Map((await model.runModel(text)).map((one) => [one.languageId, one.confidence]));
    if (!found.size) continue; // too short for the model
    scored.probs.push(names.map((name) => Number((found.get(name) ?? 0).toPrecision(7))));
    scored.label.push(label);
    scored.message.push(message);
  }
  fs.writeFileSync(out, JSON.stringify(scored));
}

main();
