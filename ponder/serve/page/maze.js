// Maze: paint walls, place the start and the goal.

import { h, Misfit } from "./dom.js";
import { Grid, rowsOf, sidesOf } from "./grid.js";

const TOOLS = { "#": "Wall", ".": "Free", S: "Start", G: "Goal" };
const LOOKS = { "#": "wall", ".": "free", S: "start", G: "goal", o: "path" };

export class Maze {
  static title = "Maze";
  static hint = "Row by row: # wall, . free, S start, G goal; rows apart by / or line breaks.";

  static read(text, { height, width }) {
    const rows = rowsOf(text.replaceAll("_", "."), width);
    const uneven = rows.findIndex((row) => row.length !== width);
    if (rows.length !== height || uneven >= 0) {
      const got = uneven >= 0 ? `row ${uneven + 1} of this text has ${rows[uneven].length}` : `this text has ${rows.length} rows`;
      throw new Misfit(`The maze is ${height} rows of ${width} cells, ${got}.`);
    }
    const cells = [...rows.join("")];
    const odd = cells.findIndex((cell) => !(cell in TOOLS));
    if (odd >= 0) {
      const place = `row ${Math.floor(odd / width) + 1}, column ${(odd % width) + 1}`;
      throw new Error(`“${cells[odd]}” in ${place} is none of # . S G.`);
    }
    return cells;
  }

  static takes({ height, width }) {
    return `${height}×${width}`;
  }

  static sides({ height, width }) {
    return [height, width];
  }

  static resized(params, height, width) {
    return { ...params, height, width };
  }

  static measure(text) {
    return sidesOf(rowsOf(text));
  }

  constructor(params, edited) {
    this.params = params;
    this.edited = edited;
    this.tool = "#";
    this.stroke = "#";
    this.grid = new Grid({
      rows: params.height,
      columns: params.width,
      label: "Maze. Arrow keys move, Space paints; or press #, dot, S or G.",
      kind: params.width > 15 ? "maze dense" : "maze",
      press: (index, dragging) => this.#press(index, dragging),
      key: (index, key) => this.#key(index, key),
    });
    const choices = Object.entries(TOOLS).map(([symbol, name]) =>
      h(
        "label",
        {},
        h("input", { type: "radio", name: "tool", value: symbol, checked: symbol === "#", onchange: () => (this.tool = symbol) }),
        h("span", {}, h("i", { class: `swatch ${LOOKS[symbol]}`, "aria-hidden": "true" }), name),
      ),
    );
    const tools = h("fieldset", { class: "tools" }, h("legend", {}, "Paint"), h("div", { class: "segments" }, ...choices));
    this.element = h("div", {}, this.grid.element, tools);
    this.clear();
  }

  get text() {
    return this.#rows(this.given).join("/");
  }

  load(text) {
    this.given = Maze.read(text, this.params);
    this.show(null, null);
  }

  clear() {
    const { height, width } = this.params;
    this.load(`S${".".repeat(height * width - 2)}G`);
  }

  show(answer, before, _, refused) {
    let changes = 0;
    const [now, then] = [this.#cells(answer), this.#cells(before)];
    const astray = refused ? this.#astray(now) : new Set();
    now.forEach((cell, i) => {
      const changed = before !== null && cell !== then[i];
      changes += changed;
      const spoilt = cell !== this.given[i] && !(this.given[i] === "." && cell === "o");
      const look = [LOOKS[cell] ?? "odd", changed && "changed", spoilt && "spoilt", astray.has(i) && "wrong"].filter(Boolean).join(" ");
      this.grid.paint(i, { S: "S", G: "G", "?": "?" }[cell] ?? "", look, `${LOOKS[cell] ?? "no symbol"}${astray.has(i) ? ", wrong" : ""}`);
    });
    return changes;
  }

  // What is wrong with a path: where it ends before it should and what does not hang on the start, else all of it.
  #astray(cells) {
    const { width } = this.params;
    const path = cells.flatMap((cell, i) => (cell === "o" ? [i] : []));
    const near = (i) => [i - width, i + width, i % width ? i - 1 : -1, (i + 1) % width ? i + 1 : -1].filter((j) => "oSG".includes(cells[j] ?? "#"));
    const reached = new Set([cells.indexOf("S")]);
    for (const i of reached) for (const j of i < 0 ? [] : near(i)) reached.add(j);
    const loose = path.filter((i) => !reached.has(i) || near(i).length < 2);
    return new Set(loose.length ? loose : path);
  }

  #rows(cells) {
    const { height, width } = this.params;
    return Array.from({ length: height }, (_, r) => cells.slice(r * width, (r + 1) * width).join(""));
  }

  #cells(answer) {
    return answer === null ? this.given : [...answer.grid.join("")];
  }

  #press(index, dragging) {
    // A stroke that begins on a wall, with the wall tool, rubs out.
    if (!dragging) this.stroke = this.tool === "#" && this.given[index] === "#" ? "." : this.tool;
    if (dragging && "SG".includes(this.stroke)) return;
    this.#put(index, this.stroke);
  }

  #key(index, key) {
    const symbol = key === " " ? this.tool : key.length === 1 ? key.toUpperCase() : "";
    if (symbol === "#" && this.given[index] === "#" && key !== "#") this.#put(index, ".");
    else if (symbol in TOOLS) this.#put(index, symbol);
    else return false;
    return true;
  }

  #put(index, symbol) {
    if ("SG".includes(symbol)) this.given = this.given.map((cell) => (cell === symbol ? "." : cell));
    this.given[index] = symbol;
    this.show(null, null);
    this.edited();
  }
}
