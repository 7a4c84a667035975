"use strict";
document.documentElement.classList.add("js");

const whenIdle = window.requestIdleCallback ?? ((work) => setTimeout(work, 50));

/* The table of all rows. Only a part of the rows is in the page at a time: sorting replaces it once. Rows of one
   machine and engine are a section, and are sorted within it. If there are several, a row above each names it. */
function board(table) {
  const STEP = 100;
  const sections = [...table.tBodies].map((body) => ({ body, head: body.querySelector("tr.machine") }));
  const headers = [...table.tHead.rows[0].cells];
  const form = document.getElementById("filters");
  const status = document.getElementById("status");
  const more = document.getElementById("more");
  const folded = document.getElementById("more-filters");
  const names = [...form.querySelectorAll("select")].map((select) => select.name);
  const rows = sections.flatMap(({ body, head }, section) => (
    [...body.rows].filter((element) => element !== head).map((element) => ({
      element, section, values: JSON.parse(element.dataset.f), keys: [], text: null,
    }))
  ));
  rows.forEach((row, place) => { row.place = place; });
  const collator = new Intl.Collator("en", { numeric: true });
  let state = {};
  let found = rows;
  let limit = STEP;

  function key(row, column) {
    if (!(column in row.keys)) {
      const cell = row.element.cells[column];
      const text = cell.dataset.v ?? cell.textContent;
      const isNumber = headers[column].classList.contains("number");
      row.keys[column] = text === "" || text === "–" ? null : isNumber ? Number(text) : text;
    }
    return row.keys[column];
  }

  /* Reads the keys of all columns while nothing else is to be done, so that a click has only to sort. */
  function readAhead(start = 0) {
    for (const row of rows.slice(start, start + 200)) headers.forEach((_, column) => key(row, column));
    if (start + 200 < rows.length) whenIdle(() => readAhead(start + 200));
  }

  function sorted(chosen) {
    const descending = (state.sort ?? "").startsWith("-");
    const column = headers.findIndex((header) => header.dataset.key === (state.sort ?? "").replace("-", ""));
    headers.forEach((header, place) => {
      if (place === column) header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else header.removeAttribute("aria-sort");
    });
    if (column < 0) return chosen;
    const sign = descending ? -1 : 1;
    const compare = headers[column].classList.contains("number") ? (a, b) => a - b : collator.compare;
    return chosen.slice().sort((first, second) => {
      if (first.section !== second.section) return first.section - second.section;
      const a = key(first, column);
      const b = key(second, column);
      if (a === null || b === null) return (a === null) - (b === null) || first.place - second.place;
      return sign * compare(a, b) || first.place - second.place;
    });
  }

  function fits(row, words) {
    if (state.group && row.element.dataset.group !== state.group) return false;
    for (const [place, name] of names.entries()) {
      const wanted = state[name];
      if (wanted?.startsWith("=") && row.values[place] !== wanted.slice(1)) return false;
      if (name === "subset" && !wanted && !state.group && !("whole" in row.element.dataset)) return false;
    }
    if (!words.length) return true;
    row.text ??= row.element.textContent.toLowerCase();
    return words.every((word) => row.text.includes(word));
  }

  function show() {
    const inOrder = !state.sort;
    const shown = found.slice(0, limit);
    shown.forEach((row, place) => {
      const before = shown[place - 1]?.element.dataset.group;
      row.element.classList.toggle("first", inOrder && place > 0 && before !== row.element.dataset.group);
    });
    for (const { body } of sections) body.remove(); // detached, thousands of rows go at once
    const bodies = sections.map(({ body, head }, section) => {
      const own = shown.filter((row) => row.section === section).map((row) => row.element);
      body.replaceChildren(...(head && own.length ? [head] : []), ...own);
      return body;
    });
    table.append(...bodies.filter((body) => body.rows.length));
    more.hidden = shown.length === found.length;
    table.setAttribute("aria-rowcount", found.length + 1);
    const group = state.group ? ", all of one set of conditions" : "";
    const several = new Set(found.map((row) => row.section)).size > 1;
    const apart = several && state.sort ? ", sorted within each machine and engine" : "";
    const part = shown.length < found.length ? `, the first ${shown.length} shown` : "";
    status.textContent = `${found.length} of ${rows.length} rows${group}${apart}${part}`;
  }

  function update() {
    const words = (state.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    found = sorted(rows.filter((row) => fits(row, words)));
    limit = STEP;
    show();
  }

  function write() {
    const given = new URLSearchParams(Object.entries(state).filter(([, value]) => value)).toString();
    history.replaceState(null, "", given ? `#${given}` : location.pathname + location.search);
    update();
  }

  function read() {
    const fragment = location.hash.slice(1);
    if (!document.getElementById(fragment)) state = Object.fromEntries(new URLSearchParams(fragment));
    for (const field of form.elements) if (field.name) field.value = state[field.name] ?? "";
    if (folded && names.some((name) => state[name])) folded.open = true;
    update();
  }

  headers.forEach((header) => {
    const button = header.querySelector("button");
    button.disabled = false;
    button.addEventListener("click", () => {
      const name = header.dataset.key;
      const first = header.classList.contains("number") && name !== "rank" && name !== "gamma" ? `-${name}` : name;
      const second = first === name ? `-${name}` : name;
      state.sort = state.sort === first ? second : state.sort === second ? "" : first;
      write();
    });
  });
  form.addEventListener("input", (event) => {
    state[event.target.name] = event.target.value;
    write();
  });
  form.addEventListener("reset", () => { state = {}; setTimeout(write); });
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", (event) => {
    const wanted = event.target.dataset.more;
    if (!wanted) return;
    const before = Math.min(limit, found.length);
    limit = wanted === "all" ? found.length : limit + Number(wanted);
    show();
    found[before]?.element.querySelector("a").focus({ preventScroll: true });
  });
  addEventListener("hashchange", read);
  let held = null;
  addEventListener("beforeprint", () => { held = limit; limit = found.length; show(); });
  addEventListener("afterprint", () => { limit = held ?? limit; show(); });
  form.hidden = false;
  if (folded) folded.open = matchMedia("(min-width: 48rem)").matches; // a phone shows the table first
  read();
  table.classList.add("ready");
  whenIdle(() => readAhead());
}

/* Copies a text; without the clipboard of a secure page by what is selected. */
function copying(button) {
  const source = document.getElementById(button.dataset.copy);
  const said = button.parentElement.querySelector(".said");
  button.hidden = false;
  button.addEventListener("click", async () => {
    let done = false;
    try {
      await navigator.clipboard.writeText(source.textContent);
      done = true;
    } catch {
      getSelection().selectAllChildren(source);
      done = document.execCommand("copy");
    }
    said.textContent = done ? "Copied" : "Selected: copy it with your keyboard";
  });
}

/* Says above a region that it is wider than the screen, until its end is in sight. */
function hinting(region) {
  const hint = document.createElement("p");
  hint.className = "hint";
  hint.setAttribute("aria-hidden", "true");
  hint.textContent = "Scroll sideways for more →";
  region.before(hint);
  const update = () => { hint.hidden = region.scrollLeft + region.clientWidth >= region.scrollWidth - 8; };
  region.addEventListener("scroll", update, { passive: true });
  new ResizeObserver(update).observe(region);
  update();
}

document.addEventListener("DOMContentLoaded", () => {
  const table = document.getElementById("board");
  if (table) board(table);
  document.querySelectorAll("[data-copy]").forEach(copying);
  document.querySelectorAll(".scroll").forEach(hinting);
});
