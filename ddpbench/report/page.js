// Makes tables sortable and long ones filterable, shows where one goes on, and opens folded data for printing.
// The page is readable without it.
"use strict";
const FILTERED_FROM = 10;
const clearings = new Map();
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  if (body.rows.length >= FILTERED_FROM) addFilter(table, body);
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

// A row stays if it holds every word that was typed, in whatever order and case.
function addFilter(table, body) {
  const rows = [...body.rows].map((row) => [row, row.textContent.replace(/\s+/g, " ").toLowerCase()]);
  const caption = table.caption.textContent.trim();
  const label = document.createElement("label");
  const input = document.createElement("input");
  const count = document.createElement("span");
  const bar = document.createElement("div");
  bar.className = "filter";
  input.type = "search";
  input.autocomplete = "off";
  input.spellcheck = false;
  input.setAttribute("aria-controls", table.id);
  input.setAttribute("aria-label", `Filter rows of: ${caption}`);
  count.setAttribute("role", "status");
  label.append("Filter rows", input);
  bar.append(label, count);
  table.closest(".tabled").before(bar);
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const [row, text] of rows) {
      row.hidden = !words.every((word) => text.includes(word));
      if (!row.hidden) left += 1;
    }
    count.textContent = words.length ? `${left} of ${rows.length} rows` : "";
  };
  const clear = () => {
    input.value = "";
    apply();
  };
  input.addEventListener("input", apply);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") clear();
  });
  clearings.set(body, clear);
}

// A link that leads to a row shows it, whatever the filter says.
function showTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target?.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
  const row = target?.closest("tr[hidden]");
  if (!row) return;
  clearings.get(row.parentElement)?.();
  row.scrollIntoView();
}
addEventListener("hashchange", showTarget);

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

// What is wider than its region fades out at the right until it is scrolled to its end.
function hint(region) {
  const hidden = region.scrollWidth - region.clientWidth - region.scrollLeft;
  region.classList.toggle("more", hidden > 1);
}
const sizes = new ResizeObserver((entries) => entries.forEach((entry) => hint(entry.target.closest(".scroll"))));
for (const region of document.querySelectorAll(".scroll")) {
  region.addEventListener("scroll", () => hint(region), { passive: true });
  sizes.observe(region);
  sizes.observe(region.firstElementChild);
}

const folded = () => [...document.querySelectorAll("details:not([open])")];
let opened = [];
addEventListener("beforeprint", () => {
  opened = folded();
  opened.forEach((details) => (details.open = true));
});
addEventListener("afterprint", () => opened.forEach((details) => (details.open = false)));
