"use strict";
// Nothing here is needed to read the page: every figure stands in it. The script adds sorting, values under the pointer, and
// sliders, from the data-cells of the page itself; it asks nothing of the network.
const all = (query, root = document) => [...root.querySelectorAll(query)];
const make = (name, text = "") => Object.assign(document.createElement(name), { textContent: text });
const percent = (x, digits = 1) => `${(100 * x).toFixed(digits)}\u00a0%`;

// Tables sort by a click on a heading (or Enter on it); a second click turns the order around.
for (const button of all("table.sortable th button")) {
  button.addEventListener("click", () => {
    const heading = button.closest("th"), table = heading.closest("table"), body = table.tBodies[0];
    const column = [...heading.parentNode.children].indexOf(heading);
    const down = heading.getAttribute("aria-sort") !== "descending";
    for (const other of all("th[aria-sort]", table)) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => {
      const cell = row.children[column], text = cell.textContent.trim();
      const number = Number(cell.dataset.value ?? (text.replace("−", "-").replace(/(?<=\d),(?=\d{3})/g, "").match(/^[-+]?[\d.]+/) ?? [NaN])[0]);
      return Number.isNaN(number) ? text : number;
    };
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    const rows = [...body.rows].sort((a, b) => (down ? -1 : 1) * order(key(a), key(b)));
    body.append(...rows);
  });
}

// The numbers of the dot that is nearest to a pointer or a finger, within a finger's breadth, stand below its picture.
const tell = (svg, said) => {
  const near = ({ clientX, clientY }) => {
    const dots = all("title", svg).map(({ parentNode, textContent }) => {
      const box = parentNode.getBoundingClientRect();
      return [Math.hypot(clientX - (box.left + box.right) / 2, clientY - (box.top + box.bottom) / 2), textContent];
    });
    const [away, text] = dots.reduce((one, other) => (other[0] < one[0] ? other : one));
    if (away < 24) said.textContent = text;
  };
  for (const event of ["pointermove", "pointerdown"]) svg.addEventListener(event, near);
};
for (const figure of all("figure:has(g > title)")) {
  const said = make("output", document.querySelector("figure output") ? "" : "Point at or touch a dot: its numbers stand here.");
  figure.append(said);
  tell(figure.querySelector("svg"), said);
}

// Sliders. cells: of each whole percent of probability [rows], [Σp], [Σy], before and (with a calibrator) after.
const slider = (box, label, low, high, start, show) => {
  const name = make("label", label), input = Object.assign(make("input"), { type: "range", min: low, max: high, value: start });
  const out = make("output");
  name.append(input);
  box.append(name, out);
  input.addEventListener("input", () => show(Number(input.value), out));
  show(start, out);
  box.hidden = false;
};
const sum = (values, from = 0) => values.slice(from).reduce((a, b) => a + b, 0);
const kinds = {
  act(box, cells) {
    const [rows, , events] = cells.after ?? cells.before, n = sum(rows), k = sum(events);
    slider(box, "Act from a probability of ", 1, 99, 50, (t, out) => {
      const acted = sum(rows, t), caught = sum(events, t);
      out.textContent = `${t}\u00a0%: act on ${percent(acted / n)} of ${box.dataset.of}, catch ${percent(k ? caught / k : 0)} of the events, right in ` +
        `${acted ? percent(caught / acted) : "none"} of them, false alarms ${percent(n - k ? (acted - caught) / (n - k) : 0)}.`;
    });
  },
  answer(box, cells) {
    const [rows, , right] = cells.after ?? cells.before, n = sum(rows);
    slider(box, "Answer from a confidence of ", 0, 99, 80, (t, out) => {
      const answered = sum(rows, t), good = sum(right, t);
      out.textContent = `${t}\u00a0%: answer ${percent(answered / n)} of rows, wrong in ${answered ? percent(1 - good / answered, 2) : "none"} of them; ` +
        `the rest goes to a person.`;
    });
  },
  bins(box, cells) {
    const choices = [2, 4, 5, 10, 20, 25, 50, 100], size = 220, edge = 26, inner = size - 2 * edge, ns = "http://www.w3.org/2000/svg";
    const at = (x) => edge + inner * x, svg = document.createElementNS(ns, "svg");
    svg.setAttribute("viewBox", `0 0 ${size} ${size}`);
    const draw = (name, values, parent = svg) => {
      const made = document.createElementNS(ns, name);
      for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
      parent.append(made);
      return made;
    };
    slider(box, "Bins ", 0, choices.length - 1, 3, (place, out) => {
      const bins = choices[place], said = [];
      svg.replaceChildren();
      draw("path", { d: `M${at(0)} ${at(0)}V${at(1)}H${at(1)}`, class: "axis" });
      draw("path", { d: `M${at(0)} ${at(1)}L${at(1)} ${at(0)}`, class: "diagonal" });
      for (const x of [0, 50, 100]) {
        draw("text", { x: at(x / 100), y: size - 10, "text-anchor": "middle" }).textContent = x;
        draw("text", { x: edge - 4, y: at(1 - x / 100) + 3, "text-anchor": "end" }).textContent = x;
      }
      for (const [when, [rows, p, y]] of Object.entries(cells)) {
        const n = sum(rows), width = 100 / bins, most = [];
        for (let b = 0; b < bins; b += 1) {
          const inside = rows.map((_, i) => i).filter((i) => Math.min(Math.floor(i / width), bins - 1) === b);
          const [c, sp, sy] = [rows, p, y].map((part) => inside.reduce((total, i) => total + part[i], 0));
          if (c > 0) most.push([c, sp / c, sy / c]);
        }
        const error = most.reduce((total, [c, a, b]) => total + (c / n) * Math.abs(a - b), 0), largest = Math.max(...most.map(([c]) => c));
        for (const [c, a, b] of most) {
          const r = Math.max(5 * Math.sqrt(c / largest), 1.5), title = `${Math.round(c)} ${box.dataset.of}: ${percent(a)} predicted, ${percent(b)} seen`;
          const dot = when === "before" && cells.after
            ? draw("rect", { x: at(a) - r, y: at(1 - b) - r, width: 2 * r, height: 2 * r, class: when })
            : draw("circle", { cx: at(a), cy: at(1 - b), r, class: "after" });
          draw("title", {}, dot).textContent = title;
        }
        said.push(`${percent(error, 2)}${cells.after ? ` ${when}${when === "before" ? " (squares)" : " (circles)"}` : ""}`);
      }
      out.textContent = `${bins} bins of equal width: ECE ${said.join(", ")}. Axes in %: predicted across, seen upwards. More bins find more, and more of it is chance.`;
    });
    const said = make("output");
    box.append(svg, said);
    tell(svg, said);
  },
};
for (const box of all(".live")) kinds[box.dataset.kind](box, JSON.parse(box.dataset.cells));

// A link to a model unfolds it; browsers that do so by themselves lose nothing.
const unfold = () => {
  const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
  if (!target) return;
  for (let one = target.closest("details"); one; one = one.parentElement.closest("details")) one.open = true;
  target.scrollIntoView();
};
addEventListener("hashchange", unfold);
unfold();
// What is folded away on screen is printed.
let folded = [];
addEventListener("beforeprint", () => { folded = all("details:not([open])"); for (const one of folded) one.open = true; });
addEventListener("afterprint", () => { for (const one of folded) one.open = false; });
