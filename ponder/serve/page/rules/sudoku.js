// Sudoku: each digit once in every row, column and box; and an exact search.

import { GridRules } from "./grid.js";

const EMPTY = 1;
const FIRST = 2; // the token of digit 1
const PATIENCE = 20_000; // boards that a search looks at before it gives up: a few seconds

export class SudokuRules extends GridRules {
  constructor(model) {
    super(model);
    const size = (this.size = this.board.rows);
    const [high, wide] = this.board.boxes;
    const all = [...Array(size).keys()];
    this.units = [
      ...all.map((r) => ({ name: `row ${r + 1}`, cells: all.map((c) => r * size + c) })),
      ...all.map((c) => ({ name: `column ${c + 1}`, cells: all.map((r) => r * size + c) })),
      ...all.map((b) => {
        const [down, across] = [Math.floor((b * wide) / size) * high, (b * wide) % size];
        const cells = all.map((i) => (down + Math.floor(i / wide)) * size + across + (i % wide));
        return { name: `the box of rows ${down + 1}-${down + high}, columns ${across + 1}-${across + wide}`, cells };
      }),
    ];
    this.peers = Array.from({ length: size * size }, (_, cell) => {
      const near = new Set(this.units.flatMap(({ cells }) => (cells.includes(cell) ? cells : [])));
      near.delete(cell);
      return [...near];
    });
  }

  // Which unit repeats a digit; empty where none does.
  conflicts(tokens) {
    for (const { name, cells } of this.units) {
      for (let digit = 1; digit <= this.size; digit += 1) {
        const times = cells.filter((cell) => tokens[cell] === digit + EMPTY).length;
        if (times > 1) return `${name} holds ${digit} ${times === 2 ? "twice" : `${times} times`}`;
      }
    }
    return "";
  }

  // The puzzle with one more cell given, at most `count` times: the two likeliest symbols of the cell that the model is least
  // sure about, then those of the next.
  suppositions(inputs, { data, dims }, count) {
    const open = inputs.flatMap((token, cell) => (token === EMPTY ? [cell] : []));
    const likely = open.map((cell) => {
      const row = data.subarray(cell * dims[2] + FIRST, cell * dims[2] + FIRST + this.size);
      const [first, second] = [...row.keys()].sort((a, b) => row[b] - row[a]);
      return { cell, digits: [first, second], apart: row[first] - row[second] };
    });
    likely.sort((a, b) => a.apart - b.apart);
    const pairs = likely.flatMap(({ cell, digits }) => digits.map((digit) => inputs.with(cell, digit + FIRST)));
    return pairs.slice(0, count);
  }

  check(inputs, answer) {
    const kept = inputs.every((token, i) => token < FIRST || token === answer[i]);
    return kept && answer.every((token) => token >= FIRST) && this.conflicts(answer) === "";
  }

  explain(inputs, answer) {
    for (const [cell, after] of answer.entries()) {
      const before = inputs[cell];
      if (before >= FIRST && before !== after) return `${this.place(cell)}: the given ${this.symbol(before)} became ${this.symbol(after)}`;
      if (this.symbol(after) === "?") return `${this.place(cell)} holds no symbol`;
      if (after === EMPTY) return `${this.place(cell)} is empty`;
    }
    return this.conflicts(answer);
  }

  json(_, answer) {
    const digits = answer.map((token) => Math.max(token - EMPTY, 0));
    return { grid: Array.from({ length: this.size }, (_, r) => digits.slice(r * this.size, (r + 1) * this.size)) };
  }

  // Up to `limit` solutions; null where the search takes too long.
  solutions(inputs, limit) {
    const found = [];
    const stack = [inputs.map((token) => (token >= FIRST ? 1 << (token - FIRST) : (1 << this.size) - 1))];
    for (let seen = 0; stack.length && found.length < limit; seen += 1) {
      if (seen === PATIENCE) return null;
      const board = stack.pop();
      if (!this.#narrowed(board)) continue;
      const open = board.flatMap((bits, cell) => (bits & (bits - 1) ? [cell] : []));
      if (!open.length) found.push(board.map((bits) => Math.log2(bits) + FIRST));
      else {
        const cell = open.reduce((best, next) => (count(board[next]) < count(board[best]) ? next : best));
        for (let digit = this.size - 1; digit >= 0; digit -= 1) {
          if (board[cell] & (1 << digit)) stack.push(board.with(cell, 1 << digit));
        }
      }
    }
    return found;
  }

  // Strikes out what naked and hidden singles exclude, until nothing changes; false where the board is impossible. A cell is
  // the set of its candidates, as bits.
  #narrowed(board) {
    for (let before = null; before !== board.join(); ) {
      before = board.join();
      for (const [cell, bits] of board.entries()) {
        if (bits === 0) return false;
        if (!(bits & (bits - 1))) for (const peer of this.peers[cell]) board[peer] &= ~bits;
      }
      for (const { cells } of this.units) {
        let [once, twice] = [0, 0];
        for (const cell of cells) [once, twice] = [once | board[cell], twice | (once & board[cell])];
        if (once !== (1 << this.size) - 1) return false;
        for (const cell of cells) if (board[cell] & once & ~twice) board[cell] &= once & ~twice;
      }
    }
    return true;
  }
}

function count(bits) {
  let n = 0;
  for (; bits; bits &= bits - 1) n += 1;
  return n;
}
