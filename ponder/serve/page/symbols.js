// Symbols on a grid or in a line, as the domain describes them (`board` of /v1/models): type them, or pick them from the pad.

import { h, Misfit } from "./dom.js";
import { Grid } from "./grid.js";

const BLANK = ".";
const ERASE = ["0", " ", "Backspace", "Delete"];

export class Symbols {
  static title = null;
  static hint = "Symbol by symbol, row by row; a dot for an empty cell.";

  // The symbols of a text. What only draws a grid is left out, unless it is a symbol itself.
  static read(text, _, board) {
    const cells = [...text].filter((char) => board.symbols.includes(char) || !/[\s/|+-]/.test(char)).map((char) => board.also[char] ?? char);
    const { rows, columns } = board;
    if (board.sequence ? cells.length > columns : cells.length !== rows * columns) {
      const size = board.sequence ? `This takes up to ${columns} symbols` : `A ${rows}×${columns} grid has ${rows * columns} cells`;
      throw new Misfit(`${size}, this text has ${cells.length}.`);
    }
    const odd = cells.findIndex((cell) => !board.symbols.includes(cell));
    if (odd >= 0) {
      const place = board.sequence ? `position ${odd + 1}` : `row ${Math.floor(odd / columns) + 1}, column ${(odd % columns) + 1}`;
      throw new Error(`“${cells[odd]}” in ${place} is none of ${[...board.symbols].join(" ")}`);
    }
    return cells;
  }

  static takes(_, { rows, columns, sequence }) {
    return sequence ? `up to ${columns} symbols` : `${rows}×${columns}`;
  }

  constructor(_, edited, board) {
    this.board = board;
    this.edited = edited;
    this.fills = board.symbols.includes(BLANK); // where no cell is to be filled in, none is given either
    this.place = h("div", {});
    this.element = h("div", {}, this.place, board.sequence ? this.#line() : this.#pad());
    this.clear();
  }

  get text() {
    const { rows, columns, between } = this.board;
    return Array.from({ length: rows }, (_, r) => this.given.slice(r * columns, (r + 1) * columns).join("")).join(between);
  }

  load(text) {
    this.#lay(Symbols.read(text, null, this.board));
    if (this.input) this.input.value = this.text;
  }

  clear() {
    const { rows, columns, symbols, sequence } = this.board;
    this.load(sequence ? "" : (this.fills ? BLANK : symbols[0]).repeat(rows * columns));
  }

  // Which cells break a rule that the page knows.
  clashes() {
    return new Set();
  }

  // An answer (null: the puzzle alone), with what differs from the answer before it set off, and what is wrong with one that
  // the checker refused. Returns how many cells differ.
  show(answer, before, _, refused) {
    let changes = 0;
    const [high, wide] = this.board.boxes ?? [Infinity, Infinity];
    const [now, then] = [this.#cells(answer), this.#cells(before)];
    const clashes = answer === null || refused ? this.clashes(now) : new Set();
    this.complaint = answer === null && clashes.size ? "The marked cells clash: a digit stands twice in a row, a column or a box." : "";
    now.forEach((symbol, i) => {
      const [r, c] = [Math.floor(i / this.grid.columns), i % this.grid.columns];
      const given = this.fills && this.given[i] !== BLANK;
      const spoilt = given && symbol !== this.given[i];
      const changed = before !== null && symbol !== then[i];
      changes += changed;
      const look = [given || answer === null ? "given" : "filled", changed && "changed", spoilt && "spoilt", clashes.has(i) && "wrong"];
      look.push(r % high === 0 && r > 0 && "over", c % wide === 0 && c > 0 && "left");
      const empty = this.fills && symbol === BLANK;
      const spoken = empty ? "empty" : `${symbol}${given ? ", given" : ""}${changed ? ", changed" : ""}${clashes.has(i) ? ", clashes" : ""}`;
      this.grid.paint(i, empty ? "" : symbol, look.filter(Boolean).join(" "), spoken);
    });
    return changes;
  }

  #cells(answer) {
    if (answer === null) return this.given;
    const cells = answer.sequence === undefined ? answer.grid.flatMap((row) => [...row]) : [...answer.sequence];
    return cells.map((cell) => (cell === 0 ? "?" : String(cell))); // a domain may count its empty cells as 0
  }

  #lay(cells) {
    this.given = cells;
    const { rows, columns, sequence } = this.board;
    const wide = sequence ? Math.max(cells.length, 1) : columns;
    if (this.grid === undefined || sequence) {
      const typing = { press: () => {}, key: (index, key) => this.#type(index, key) };
      const label = sequence ? "The symbols, one a cell" : `Grid, ${rows} by ${columns}. Type symbols; arrow keys move.`;
      this.grid = new Grid({ rows, columns: wide, label, kind: "symbols", ...(sequence ? {} : typing) });
      this.place.replaceChildren(this.grid.element);
    }
    this.show(null, null);
  }

  #line() {
    const changed = () => {
      this.#lay([...this.input.value.replaceAll(/\s/g, "")]);
      this.edited();
    };
    this.input = h("input", { type: "text", id: "sequence", maxlength: this.board.columns, spellcheck: "false", autocomplete: "off", autocapitalize: "off", oninput: changed });
    return h("div", { class: "inputs sequence" }, h("label", { for: "sequence" }, `Up to ${this.board.columns} of ${[...this.board.symbols].join(" ")}`), this.input);
  }

  #pad() {
    const keys = [...[...this.board.symbols].filter((symbol) => symbol !== BLANK), ...(this.fills ? ["⌫"] : [])].map((symbol) =>
      h(
        "button",
        {
          type: "button",
          class: "key",
          "aria-label": symbol === "⌫" ? "Empty the chosen cell" : `Put ${symbol} into the chosen cell`,
          onclick: () => this.#type(this.grid.at, symbol === "⌫" ? BLANK : symbol),
        },
        symbol,
      ),
    );
    const pad = h("div", { class: keys.length > 7 ? "pad many" : "pad", role: "group", "aria-label": "Symbols" }, ...keys);
    pad.style.setProperty("--keys", Math.min(keys.length, 12));
    return pad;
  }

  #type(index, key) {
    const { symbols } = this.board;
    const near = symbols.includes(key) ? key : symbols.includes(key.toUpperCase()) ? key.toUpperCase() : key.toLowerCase();
    const symbol = symbols.includes(near) ? near : ERASE.includes(key) && this.fills ? BLANK : null;
    if (symbol === null || symbol.length !== 1) return false;
    this.given[index] = symbol;
    this.show(null, null);
    this.edited();
    return true;
  }
}

// No digit twice in a row, a column or a box.
export class Sudoku extends Symbols {
  static title = "Sudoku";

  clashes(cells) {
    const { columns, boxes, symbols } = this.board;
    const seen = new Map();
    cells.forEach((cell, i) => {
      if (cell === BLANK || !symbols.includes(cell)) return;
      const [r, c] = [Math.floor(i / columns), i % columns];
      for (const unit of [`row ${r}`, `column ${c}`, `box ${Math.floor(r / boxes[0])} ${Math.floor(c / boxes[1])}`]) {
        const key = `${unit} ${cell}`;
        seen.set(key, [...(seen.get(key) ?? []), i]);
      }
    });
    return new Set([...seen.values()].filter((places) => places.length > 1).flat());
  }
}
