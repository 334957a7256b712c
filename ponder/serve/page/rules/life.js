// The Game of Life, played by the rules.

import { count } from "../dom.js";

const [DEAD, ALIVE] = [1, 2];
const LIMIT = 99;

// A board (rows of 0 and 1) so many generations on.
export function after(board, generations, torus) {
  const [height, width] = [board.length, board[0].length];
  const at = (rows, r, c) => (torus ? rows[(r + height) % height][(c + width) % width] : (rows[r]?.[c] ?? 0));
  for (let k = 0; k < generations; k += 1) {
    const now = board;
    board = now.map((row, r) =>
      row.map((cell, c) => {
        let near = -cell;
        for (const dr of [-1, 0, 1]) for (const dc of [-1, 0, 1]) near += at(now, r + dr, c + dc);
        return Number(near === 3 || (near === 2 && cell === 1));
      }),
    );
  }
  return board;
}

export class LifeRules {
  constructor({ params, graph }) {
    this.torus = params.boundary === "torus";
    this.symbols = graph.vocabulary;
    this.length = graph.inputs.tokens.shape[1];
  }

  read(text) {
    const steps = Number(text.split(":")[1]);
    if (!(steps >= 1 && steps <= LIMIT)) throw new Error(`life puzzle asks for ${steps} steps; allowed: 1 to ${LIMIT}`);
    const tokens = [...text].map((symbol) => this.symbols.indexOf(symbol));
    if (tokens.length > this.length) throw new Error(`this board is too large for the model: its text takes ${tokens.length} characters, ${this.length} fit`);
    return [...tokens, ...Array(this.length - tokens.length).fill(0)];
  }

  conflicts() {
    return "";
  }

  check(inputs, answer) {
    return this.#wrong(inputs, answer) === null;
  }

  explain(inputs, answer) {
    const { r, c, alive, steps } = this.#wrong(inputs, answer);
    return `row ${r + 1}, column ${c + 1} should be ${alive ? "alive" : "dead"} after ${count(steps, "step")}`;
  }

  solutions(inputs) {
    const { truth, width } = this.#solved(inputs);
    const answer = inputs.map(() => 0);
    truth.forEach((row, r) => row.forEach((alive, c) => (answer[r * (width + 1) + c] = DEAD + alive)));
    return [answer];
  }

  json(inputs, answer) {
    return { board: this.#cells(inputs, answer).map((row) => row.map((token) => ({ [DEAD]: 0, [ALIVE]: 1 })[token] ?? null)) };
  }

  text(inputs, answer) {
    return this.#cells(inputs, answer).map((row) => row.map((token) => ({ [DEAD]: ".", [ALIVE]: "O" })[token] ?? "?").join("")).join("/");
  }

  // The puzzle's shape, its steps and the board they lead to.
  #solved(inputs) {
    const [board, steps] = inputs.filter((token) => token).map((token) => this.symbols[token]).join("").split(":");
    const rows = board.split("/").map((row) => [...row].map((cell) => Number(cell === "O")));
    return { height: rows.length, width: rows[0].length, steps: Number(steps), truth: after(rows, Number(steps), this.torus) };
  }

  #cells(inputs, answer) {
    const { height, width } = this.#solved(inputs);
    return Array.from({ length: height }, (_, r) => answer.slice(r * (width + 1), r * (width + 1) + width));
  }

  // The first cell that is not as it should be; null where all are.
  #wrong(inputs, answer) {
    const { truth, steps } = this.#solved(inputs);
    const cells = this.#cells(inputs, answer);
    for (const [r, row] of truth.entries()) {
      for (const [c, alive] of row.entries()) if (cells[r][c] !== DEAD + alive) return { r, c, alive, steps };
    }
    return null;
  }
}
