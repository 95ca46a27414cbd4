// Makes tables sortable and long ones filterable, shows where one continues, opens folded data for printing, and shows
// the values of marks in figures.
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

// Figures: shows what the mark at the pointer or in focus is, keeps one series in view, and opens a figure as a file.
const NEAR = 12;
const tip = document.createElement("div");
Object.assign(tip, { className: "tip", hidden: true, ariaHidden: "true" });
document.body.append(tip);
let shown;
function showTip(mark) {
  shown = mark;
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.querySelector("title").textContent;
  const at = mark.getBoundingClientRect();
  const left = Math.min(at.left + (at.width - tip.offsetWidth) / 2, innerWidth - tip.offsetWidth - 4);
  const above = at.top - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${above < 4 ? at.bottom + 6 : above}px`;
}
addEventListener("scroll", () => showTip(shown), true);
document.querySelectorAll(".drawn svg").forEach(readable);
document.querySelectorAll("figure:has(svg)").forEach(addOpener);

function readable(svg) {
  const parts = [...svg.querySelectorAll("[data-s]")];
  const labels = parts.filter((part) => part.ariaLabel);
  const marks = [...svg.querySelectorAll("title")].map((title) => title.parentNode);
  const stops = [...labels, ...marks];
  const reach = (to) => stops.forEach((stop) => stop.setAttribute("tabindex", stop === to ? 0 : -1));
  const show = (stop) => {
    const label = labels.includes(stop);
    svg.classList.toggle("picks", label);
    parts.forEach((part) => part.classList.toggle("picked", label && part.dataset.s === stop.dataset.s));
    showTip(label ? undefined : stop);
  };
  // The smallest of those that are nearest to the pointer.
  const nearest = (event, within) => {
    const places = stops.map((stop) => {
      const box = stop.getBoundingClientRect();
      const dx = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
      const dy = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
      return { stop, far: Math.hypot(dx, dy), size: box.width * box.height };
    });
    const near = places.filter((place) => place.far < within);
    return near.sort((a, b) => a.far - b.far || a.size - b.size)[0]?.stop;
  };
  reach(stops[0]);
  const on = (event, act) => svg.parentNode.addEventListener(event, act); // an SVG that hears of focus could be focused
  on("pointermove", (event) => event.pointerType === "mouse" && show(nearest(event, NEAR)));
  on("pointerleave", (event) => event.pointerType === "mouse" && show());
  on("click", (event) => show(nearest(event, 2 * NEAR))); // also a tap, and no swipe
  on("focusout", () => show());
  on("focusin", (event) => {
    reach(event.target);
    show(event.target);
  });
  on("keydown", (event) => {
    const at = stops.indexOf(event.target);
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (event.key === "Escape") show();
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    stops.at(to % stops.length).focus();
  });
}

// A link to a file that is made of the page itself: it works in a copy of the page, and is not there without a script.
function addOpener(one) {
  const link = document.createElement("a");
  const ariaLabel = `Open SVG of ${one.querySelector(".scroll").ariaLabel}`;
  Object.assign(link, { className: "opener", textContent: "Open SVG", href: "#", target: "_blank", ariaLabel });
  const make = () => {
    const text = new XMLSerializer().serializeToString(one.querySelector("svg")).replace(/ tabindex="-?\d"/g, "");
    link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  };
  for (const event of ["pointerdown", "focus"]) link.addEventListener(event, make, { once: true });
  one.querySelector("figcaption").append(" ", link);
}
