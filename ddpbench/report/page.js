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
tip.className = "tip";
tip.hidden = true;
tip.setAttribute("aria-hidden", "true");
document.body.append(tip);
let shown;
function showTip(mark) {
  shown = mark;
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.getAttribute("aria-label");
  const at = mark.getBoundingClientRect();
  const left = Math.min(at.left + (at.width - tip.offsetWidth) / 2, innerWidth - tip.offsetWidth - 4);
  const above = at.top - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${above < 4 ? at.bottom + 6 : above}px`;
}
addEventListener("scroll", () => showTip(shown), true);
for (const svg of document.querySelectorAll(".drawn svg")) readable(svg);
for (const one of document.querySelectorAll("figure:has(svg)")) addOpener(one);

function readable(svg) {
  for (const title of svg.querySelectorAll("title")) {
    title.parentNode.setAttribute("aria-label", title.textContent);
    title.remove(); // a browser would show it as well, later and elsewhere
  }
  const parts = [...svg.querySelectorAll("[data-s]")];
  const marks = [...svg.querySelectorAll("[aria-label]")];
  const labels = parts.filter((part) => part.querySelector("text"));
  for (const label of labels) {
    label.setAttribute("role", "img");
    label.setAttribute("aria-label", [...label.querySelectorAll("text")].map((text) => text.textContent).join(" "));
  }
  const stops = [...labels, ...marks];
  const reach = (to) => stops.forEach((stop) => stop.setAttribute("tabindex", stop === to ? "0" : "-1"));
  const show = (stop) => {
    const label = labels.includes(stop);
    svg.classList.toggle("picks", label);
    parts.forEach((part) => part.classList.toggle("picked", label && part.dataset.s === stop.dataset.s));
    showTip(label ? undefined : stop);
  };
  // The smallest of those that are nearest to the pointer.
  const nearest = (event, within) => {
    let found;
    let least = [within, Infinity];
    for (const stop of stops) {
      const box = stop.getBoundingClientRect();
      const dx = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
      const dy = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
      const now = [Math.hypot(dx, dy), box.width * box.height];
      if (now[0] < least[0] || (now[0] === least[0] && now[1] < least[1])) [found, least] = [stop, now];
    }
    return found;
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
  const svg = one.querySelector("svg");
  const link = document.createElement("a");
  const make = () => {
    const copy = svg.cloneNode(true);
    copy.removeAttribute("class");
    for (const node of copy.querySelectorAll("[tabindex]")) {
      node.prepend(document.createElementNS(copy.namespaceURI, "title"));
      node.firstChild.textContent = node.getAttribute("aria-label");
      for (const name of ["aria-label", "tabindex"]) node.removeAttribute(name);
    }
    const text = new XMLSerializer().serializeToString(copy);
    link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  };
  Object.assign(link, { className: "opener", textContent: "Open SVG", href: "#", target: "_blank" });
  link.setAttribute("aria-label", `Open SVG of ${one.querySelector(".scroll").getAttribute("aria-label")}`);
  for (const event of ["pointerenter", "pointerdown", "focus"]) link.addEventListener(event, make, { once: true });
  one.querySelector("figcaption").append(" ", link);
}
