// Arithmetic: an expression in reverse Polish order whose operators are sought, shown the way one reads it, too.

import { h, Misfit } from "./dom.js";

const SIGNS = { "+": "+", "-": "−", "*": "×", "/": "÷" };

export class Arithmetic {
  static title = "Arithmetic";
  static hint = "Digits and a ? for every operator in reverse Polish order, then = and the value: 3 4 ? 5 ? = 17";

  static takes({ min_operands: least, max_operands: most }) {
    return least === most ? `${least} operands` : `${least} to ${most} operands`;
  }

  static read(text, { min_operands: least, max_operands: most }) {
    const [, expression, value] = /^([^=]*)=\s*(\d*)\s*$/.exec(text.trim()) ?? [];
    if (expression === undefined) throw new Error("Write the expression, = and a whole number, as in 3 4 ? 5 ? = 17");
    const symbols = [...expression.replaceAll(/\s/g, "")];
    const odd = symbols.find((symbol) => !/[1-9?]/.test(symbol));
    if (odd) throw new Error(`“${odd}” is neither a digit from 1 to 9 nor ?.`);
    const operands = symbols.filter((symbol) => symbol !== "?").length;
    if (symbols.length && (operands < least || operands > most)) throw new Misfit(`This has ${operands} operands, the model takes ${Arithmetic.takes({ min_operands: least, max_operands: most })}.`);
    return { expression: symbols.join(" "), value };
  }

  constructor(params, edited) {
    this.params = params;
    this.edited = edited;
    const changed = () => {
      this.show(null, null);
      edited();
    };
    this.expression = h("input", { type: "text", id: "expression", spellcheck: "false", autocomplete: "off", autocapitalize: "off", oninput: changed });
    this.value = h("input", { type: "text", id: "value", inputmode: "numeric", autocomplete: "off", oninput: changed });
    this.formula = h("p", { class: "formula", role: "img" });
    const help = `Each ? takes the last two numbers before it. ${params.min_operands} to ${params.max_operands} operands, 1 to 9 each.`;
    this.element = h(
      "div",
      { class: "arithmetic" },
      this.formula,
      h(
        "div",
        { class: "inputs" },
        h("label", { for: "expression" }, "Operands, and ? for operators"),
        this.expression,
        h("label", { for: "value" }, "Value"),
        this.value,
      ),
      h("p", { class: "hint" }, help),
    );
    this.clear();
  }

  get text() {
    return `${this.expression.value.trim()} = ${this.value.value.trim()}`;
  }

  load(text) {
    const { expression, value } = Arithmetic.read(text, this.params);
    [this.expression.value, this.value.value] = [expression, value];
    this.show(null, null);
  }

  clear() {
    this.load(" = ");
  }

  show(answer, before, _, refused) {
    let changes = 0;
    const then = before?.expression.split(" ");
    const sought = [...this.expression.value.replaceAll(/\s/g, "")];
    const symbols = answer === null ? sought : answer.expression.split(" ");
    const pieces = symbols.map((symbol, i) => {
      if (sought[i] !== "?") return [symbol];
      const changed = then !== undefined && symbol !== then[i];
      changes += changed;
      const look = `${changed ? "changed" : symbol === "?" ? "open" : "filled"}${refused ? " wrong" : ""}`;
      return [h("b", { class: `operator ${look}` }, SIGNS[symbol] ?? symbol)];
    });
    const read = infix(pieces, sought);
    const shown = [...(read ?? pieces.flatMap((piece) => [...piece, " "])), refused ? " ≠ " : " = ", this.value.value || "…"];
    this.formula.classList.toggle("raw", read === null);
    this.formula.replaceChildren(...shown);
    this.formula.setAttribute("aria-label", this.formula.textContent);
    return changes;
  }
}

// Reverse Polish to infix; null while the expression is incomplete.
function infix(pieces, sought) {
  const stack = [];
  for (const [i, piece] of pieces.entries()) {
    if (sought[i] !== "?") stack.push({ shown: piece, whole: true });
    else if (stack.length < 2) return null;
    else {
      const [left, right] = stack.splice(-2).map(({ shown, whole }) => (whole ? shown : ["(", ...shown, ")"]));
      stack.push({ shown: [...left, " ", ...piece, " ", ...right], whole: false });
    }
  }
  return stack.length === 1 ? stack[0].shown : null;
}
