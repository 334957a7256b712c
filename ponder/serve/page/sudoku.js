// Sudoku: type digits, or pick them from the pad.

import { h } from "./dom.js";
import { Grid } from "./grid.js";

const BOXES = { 4: [2, 2], 6: [2, 3], 9: [3, 3] };

export class Sudoku {
  static title = "Sudoku";
  static hint = "Row by row, a dot or 0 for an empty cell.";

  static read(text, { size }) {
    const cells = [...text.replaceAll(/[\s/|+-]/g, "").replaceAll(/[0_]/g, ".")];
    if (cells.length !== size * size) {
      throw new Error(`A ${size}×${size} sudoku has ${size * size} cells, this text has ${cells.length}.`);
    }
    const odd = cells.findIndex((cell) => cell !== "." && !(cell >= "1" && cell <= String(size)));
    if (odd >= 0) {
      const place = `row ${Math.floor(odd / size) + 1}, column ${(odd % size) + 1}`;
      throw new Error(`“${cells[odd]}” in ${place} is not a digit from 1 to ${size}.`);
    }
    return cells;
  }

  constructor({ size }, edited) {
    this.size = size;
    this.edited = edited;
    this.given = Array(size * size).fill(".");
    this.grid = new Grid({
      rows: size,
      columns: size,
      label: `Sudoku, ${size} by ${size}. Type digits; arrow keys move.`,
      kind: "sudoku",
      press: () => {},
      key: (index, key) => this.#type(index, key),
    });
    const digits = Array.from({ length: size }, (_, i) => String(i + 1));
    const pad = [...digits, "⌫"].map((digit) =>
      h(
        "button",
        {
          type: "button",
          class: "key",
          "aria-label": digit === "⌫" ? "Empty the chosen cell" : `Put ${digit} into the chosen cell`,
          onclick: () => this.#type(this.grid.at, digit === "⌫" ? "." : digit),
        },
        digit,
      ),
    );
    const keys = h("div", { class: size > 6 ? "pad many" : "pad", role: "group", "aria-label": "Digits" }, ...pad);
    keys.style.setProperty("--keys", size + 1);
    this.element = h("div", {}, this.grid.element, keys);
    this.show(null, null);
  }

  get text() {
    return this.given.join("");
  }

  load(text) {
    this.given = Sudoku.read(text, { size: this.size });
    this.show(null, null);
  }

  clear() {
    this.load(".".repeat(this.size ** 2));
  }

  // An answer (null: the puzzle alone), with what differs from the answer before it set off. Returns how many cells do.
  show(answer, before) {
    let changes = 0;
    const [high, wide] = BOXES[this.size];
    const [now, then] = [this.#digits(answer), this.#digits(before)];
    now.forEach((digit, i) => {
      const [r, c] = [Math.floor(i / this.size), i % this.size];
      const given = this.given[i] !== ".";
      const spoilt = given && digit !== this.given[i];
      const changed = before !== null && digit !== then[i];
      changes += changed;
      const look = [given ? "given" : "filled", changed && "changed", spoilt && "spoilt"];
      look.push(r % high === 0 && r > 0 && "over", c % wide === 0 && c > 0 && "left");
      const spoken = digit === "." ? "empty" : `${digit}${given ? ", given" : ""}${changed ? ", changed" : ""}`;
      this.grid.paint(i, digit === "." ? "" : digit, look.filter(Boolean).join(" "), spoken);
    });
    return changes;
  }

  #digits(answer) {
    return answer === null ? this.given : answer.grid.flat().map((digit) => (digit ? String(digit) : "?"));
  }

  #type(index, key) {
    const digit = ["0", ".", " ", "Backspace", "Delete"].includes(key) ? "." : key;
    if (digit !== "." && !(/^[1-9]$/.test(digit) && Number(digit) <= this.size)) return false;
    this.given[index] = digit;
    this.show(null, null);
    this.edited();
    return true;
  }
}
