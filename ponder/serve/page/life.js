// The Game of Life: the board to start from, and beside it the model's board so many generations later. The page says
// generation where the domain says step: a step, here, is one of the model's.

import { count, h, Misfit } from "./dom.js";
import { Grid, rowsOf, sidesOf } from "./grid.js";
import { after } from "./rules/life.js";

const ALIVE = "Oo1";
const LIMIT = 99; // two digits in the puzzle's text

export class Life {
  static title = "Life";
  static hint = "Rows of . and O apart by / or line breaks, then a colon and the number of generations: .../OOO/...:01";

  static words(text) {
    return text.replaceAll(/\bstep(s?)\b/g, "generation$1");
  }

  static takes({ min_side: least, max_side: most }) {
    return least === most ? `${least}×${least}` : `sides of ${least} to ${most}`;
  }

  static square = true;

  static sides({ max_side: side }) {
    return [side, side];
  }

  static resized(params, side) {
    return { ...params, min_side: side, max_side: side };
  }

  static measure(text) {
    return sidesOf(rowsOf(text.split(":")[0]));
  }

  static read(text, { min_side: least, max_side: most }) {
    const [, board, number] = /^([^:]*):\s*(\d{1,2})\s*$/.exec(text.trim()) ?? [];
    if (board === undefined) throw new Error("Write the board, a colon and the number of generations, as in .../OOO/...:01");
    const rows = rowsOf(board);
    const odd = /[^.0Oo1]/.exec(rows.join(""));
    if (odd) throw new Error(`“${odd[0]}” is neither . (dead) nor O (alive).`);
    if (rows.some((row) => row.length !== rows[0].length)) throw new Error("The rows of the board differ in length.");
    const sides = [rows.length, rows[0]?.length ?? 0];
    if (sides.some((side) => side < least || side > most)) {
      throw new Misfit(`The board is ${sides.join("×")}; its sides may be ${least === most ? least : `${least} to ${most}`}.`);
    }
    return { rows: rows.map((row) => [...row].map((cell) => Number(ALIVE.includes(cell)))), steps: Number(number) };
  }

  constructor(params, edited, _board, accuracy) {
    this.params = params;
    this.accuracy = accuracy ?? {};
    this.beyond = h("p", { class: "hint", role: "status" });
    this.edited = edited;
    this.steps = h("input", { type: "number", id: "life-steps", min: 1, max: LIMIT, value: 1, inputmode: "numeric", oninput: () => this.#changed() });
    this.boards = h("div", { class: "boards" });
    const settings = [h("label", { for: "life-steps" }, "Generations ahead ", this.steps)];
    if (params.min_side < params.max_side) {
      this.sides = ["Rows", "Columns"].map((name) =>
        h("input", { type: "number", min: params.min_side, max: params.max_side, inputmode: "numeric", "aria-label": name, onchange: () => this.#resize() }),
      );
      settings.push(h("span", { class: "sides" }, "Board ", this.sides[0], " × ", this.sides[1]));
    }
    this.element = h("div", {}, this.boards, h("div", { class: "settings" }, ...settings), this.beyond);
    this.clear();
  }

  get text() {
    const rows = this.given.map((row) => row.map((cell) => (cell ? "O" : ".")).join(""));
    return `${rows.join("/")}:${this.steps.value.padStart(2, "0")}`;
  }

  load(text) {
    const { rows, steps } = Life.read(text, this.params);
    this.steps.value = steps;
    this.#lay(rows);
  }

  clear() {
    const side = Math.max(this.params.min_side, Math.min(this.params.max_side, 8)); // of several sizes, a handy one
    this.#lay(Array.from({ length: side }, () => Array(side).fill(0)));
  }

  show(answer, before, _, refused) {
    this.given.flat().forEach((cell, i) => this.grid.paint(i, "", cell ? "alive" : "dead", cell ? "alive" : "dead"));
    const k = Number(this.steps.value) || 0;
    this.caption.textContent = `After ${count(k, "generation")}`;
    this.beyond.textContent = this.#farther(k);
    const [now, then] = [answer?.board.flat(), before?.board.flat()];
    const truth = refused ? after(this.given, k, this.params.boundary === "torus").flat() : now;
    let changes = 0;
    this.given.flat().forEach((_, i) => {
      const cell = now?.[i];
      const look = answer === null ? "unknown" : cell === null ? "odd" : cell ? "alive" : "dead";
      const changed = then !== undefined && cell !== then[i];
      changes += changed;
      const wrong = refused && cell !== truth[i];
      const looks = [look, changed && "changed", wrong && "wrong"].filter(Boolean).join(" ");
      this.after.paint(i, look === "odd" ? "?" : "", looks, `${look === "odd" ? "no cell" : look}${wrong ? ", wrong" : ""}`);
    });
    return changes;
  }

  #lay(rows) {
    this.given = rows;
    if (this.sides) [this.sides[0].value, this.sides[1].value] = [rows.length, rows[0].length];
    const shape = { rows: rows.length, columns: rows[0].length };
    this.grid = new Grid({
      ...shape,
      label: "Board to start from. Arrow keys move, Space toggles a cell.",
      kind: "life",
      press: (index, dragging) => this.#press(index, dragging),
      key: (index, key) => key === " " && this.#press(index, false),
    });
    this.after = new Grid({ ...shape, label: "Board the model predicts", kind: "life after" });
    this.caption = h("p", { class: "caption" });
    this.boards.replaceChildren(
      h("div", {}, h("p", { class: "caption" }, "Start"), this.grid.element),
      h("div", {}, this.caption, this.after.element),
    );
    this.show(null, null);
  }

  #press(index, dragging) {
    const [r, c] = [Math.floor(index / this.grid.columns), index % this.grid.columns];
    if (!dragging) this.stroke = 1 - this.given[r][c];
    this.given[r][c] = this.stroke;
    this.#changed();
    return true;
  }

  // Asked for more generations than it ever saw in training: that, and how it did when it was tested so.
  #farther(k) {
    const { max_steps: longest, horizon } = this.params;
    const trained = Math.ceil(longest * horizon - 1e-9);
    if (!(k > trained)) return "";
    const tested = Object.entries(this.accuracy)
      .map(([split, { valid, n }]) => ({ ahead: Number(/^plus_(\d+)$/.exec(split)?.[1]), valid, n }))
      .filter(({ ahead, valid }) => ahead && valid)
      .sort((a, b) => a.ahead - b.ahead);
    const fit = tested.findLast(({ ahead }) => ahead <= k - trained) ?? tested[0];
    const how = fit && ` ${count(fit.ahead, "generation")} beyond its training it was right on ${(100 * fit.valid.value).toFixed(1)}% of ${fit.n.toLocaleString("en")} test boards.`;
    return `It was trained on ${count(trained, "generation")} at most.${how ?? ""}`;
  }

  #resize() {
    const [height, width] = this.sides.map((input) =>
      Math.min(Math.max(Number(input.value) || this.params.min_side, this.params.min_side), this.params.max_side),
    );
    this.#lay(Array.from({ length: height }, (_, r) => Array.from({ length: width }, (_, c) => this.given[r]?.[c] ?? 0)));
    this.edited();
  }

  #changed() {
    this.show(null, null);
    this.edited();
  }
}
