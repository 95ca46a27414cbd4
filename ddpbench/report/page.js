// Makes tables sortable and opens folded data for printing. The page is readable without it.
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const keyed = [...body.rows].map((row) => [keyOf(row.cells[index]), row]);
      keyed.sort((a, b) => compare(a[0], b[0], up));
      body.append(...keyed.map((pair) => pair[1]));
    });
  });
}

function keyOf(cell) {
  const text = cell.dataset.key ?? cell.textContent.trim();
  if (text === "") return null;
  const value = Number(text);
  return Number.isNaN(value) ? text : value;
}

// What was not measured comes last either way.
function compare(a, b, up) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order =
    typeof a === "number" && typeof b === "number"
      ? a - b
      : String(a).localeCompare(String(b), "en", { numeric: true });
  return up ? order : -order;
}

const folded = () => [...document.querySelectorAll("details:not([open])")];
let opened = [];
addEventListener("beforeprint", () => {
  opened = folded();
  opened.forEach((details) => (details.open = true));
});
addEventListener("afterprint", () => opened.forEach((details) => (details.open = false)));
