// Symbols on a grid as tokens, and how places of it are called.

export class GridRules {
  constructor({ board, graph }) {
    this.board = board;
    this.symbols = graph.vocabulary;
  }

  read(text) {
    return [...text].filter((symbol) => symbol !== "/").map((symbol) => this.symbols.indexOf(symbol));
  }

  // A model may predict anything: what is no symbol reads as a question mark.
  symbol(token) {
    return token > 0 ? this.symbols[token] : "?";
  }

  place(cell) {
    return `row ${Math.floor(cell / this.board.columns) + 1}, column ${(cell % this.board.columns) + 1}`;
  }

  rows(tokens) {
    const { rows, columns } = this.board;
    return Array.from({ length: rows }, (_, r) => tokens.slice(r * columns, (r + 1) * columns).map((token) => this.symbol(token)).join(""));
  }

  json(_, answer) {
    return { grid: this.rows(answer) };
  }

  text(_, answer) {
    return this.rows(answer).join(this.board.between);
  }
}
