"use strict";
// Nothing here is needed to read the page: every figure stands in it. The script adds sorting and values under the pointer; it asks
// nothing of the network.
const all = (query, root = document) => [...root.querySelectorAll(query)];
const make = (name, text = "") => Object.assign(document.createElement(name), { textContent: text });

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
  const said = make("output", document.querySelector("figure output") ? "" : "Point at or touch a dot to see its numbers here.");
  figure.append(said);
  tell(figure.querySelector("svg"), said);
}

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
