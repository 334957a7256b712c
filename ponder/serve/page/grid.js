// A board of cells: one of them takes part in the tab order, arrow keys move between them.

import { h } from "./dom.js";

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class Grid {
  // press(index, dragging): a cell was clicked, or the mouse was dragged onto it. key(index, key): true if it was used.
  constructor({ rows, columns, label, kind, press = null, key = null }) {
    this.rows = rows;
    this.columns = columns;
    this.press = press;
    this.key = key;
    this.at = 0;
    this.cells = Array.from({ length: rows * columns }, (_, i) =>
      h("div", { role: press ? "gridcell" : "cell", class: "cell", tabindex: press ? (i ? -1 : 0) : null, "data-index": i }),
    );
    const lines = Array.from({ length: rows }, (_, r) =>
      h("div", { role: "row", class: "row" }, ...this.cells.slice(r * columns, (r + 1) * columns)),
    );
    this.element = h("div", { role: press ? "grid" : "table", class: `board ${kind}`, "aria-label": label }, ...lines);
    this.element.style.setProperty("--rows", rows);
    this.element.style.setProperty("--columns", columns);
    if (press) this.#listen();
  }

  // What a cell shows, its look (class names) and what a screen reader says of it.
  paint(index, text, look, spoken) {
    const cell = this.cells[index];
    const [r, c] = [Math.floor(index / this.columns) + 1, (index % this.columns) + 1];
    cell.textContent = text;
    cell.className = `cell ${look}`;
    cell.setAttribute("aria-label", `row ${r}, column ${c}: ${spoken}`);
  }

  focus(index) {
    this.cells[this.at].tabIndex = -1;
    this.cells[this.at].removeAttribute("aria-selected");
    this.at = index;
    this.cells[index].tabIndex = 0;
    this.cells[index].setAttribute("aria-selected", "true");
    this.cells[index].focus();
  }

  #listen() {
    let touched = false;
    const indexOf = (event) => event.target.closest?.("[data-index]")?.dataset.index;
    this.element.addEventListener("pointerdown", (event) => {
      const index = indexOf(event);
      touched = event.pointerType === "touch";
      if (index === undefined || touched || event.button !== 0) return;
      event.preventDefault(); // no text selection while painting
      event.target.releasePointerCapture?.(event.pointerId);
      this.focus(Number(index));
      this.press(Number(index), false);
    });
    this.element.addEventListener("pointerover", (event) => {
      const index = indexOf(event);
      if (index !== undefined && event.pointerType === "mouse" && event.buttons & 1) this.press(Number(index), true);
    });
    // A finger that moves scrolls the page; only a tap paints.
    this.element.addEventListener("click", (event) => {
      const index = indexOf(event);
      if (index === undefined || !touched) return;
      this.focus(Number(index));
      this.press(Number(index), false);
    });
    this.element.addEventListener("focusin", (event) => {
      const index = Number(indexOf(event));
      if (index !== this.at) this.focus(index);
    });
    this.element.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (this.#move(event.key) || this.key(this.at, event.key)) event.preventDefault();
    });
  }

  #move(key) {
    let [r, c] = [Math.floor(this.at / this.columns), this.at % this.columns];
    if (key in MOVES) {
      r = Math.min(Math.max(r + MOVES[key][0], 0), this.rows - 1);
      c = Math.min(Math.max(c + MOVES[key][1], 0), this.columns - 1);
    } else if (key === "Home") c = 0;
    else if (key === "End") c = this.columns - 1;
    else return false;
    this.focus(r * this.columns + c);
    return true;
  }
}

// Text as rows: apart by line breaks or '/', else by spaces, else (where the width is known) one run of cells.
export function rowsOf(text, columns = null) {
  const trimmed = text.trim();
  const parts = trimmed.split(/[/\n]/.test(trimmed) ? /\s*\/\s*|\s*\n\s*/ : /\s+/);
  const rows = parts.map((part) => part.replaceAll(/\s/g, "")).filter((row) => row);
  const flat = rows.join("");
  if (columns && flat.length % columns === 0 && rows.some((row) => row.length !== columns)) {
    return Array.from({ length: flat.length / columns }, (_, r) => flat.slice(r * columns, (r + 1) * columns));
  }
  return rows;
}

// Rows and columns of a board's text, or null where its rows differ.
export function sidesOf(rows) {
  return rows.length && rows.every((row) => row.length === rows[0].length) ? [rows.length, rows[0].length] : null;
}
