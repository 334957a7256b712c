// Arithmetic: operators that give a reverse Polish expression its value.

const [MASK, ADD, EQUALS, ZERO] = [1, 2, 6, 7];

export class ArithmeticRules {
  constructor({ params, graph }) {
    this.params = params;
    this.symbols = graph.vocabulary;
    this.length = graph.inputs.tokens.shape[1];
    this.largest = 10 ** String(params.ood_high).length - 1;
  }

  read(text) {
    const [expression, value] = text.split("=").map((part) => part.replaceAll(/\s/g, ""));
    if (!value) throw new Error(`the value is missing; write it after “=”, as in 3 4 ? 5 ? = 17`);
    let depth = 0;
    for (const [i, symbol] of [...expression].entries()) {
      if ("+-*/×÷".includes(symbol)) throw new Error(`the expression has “${symbol}” at position ${i + 1}; write ? for every operator`);
      if (!"?123456789".includes(symbol)) throw new Error(`the expression has “${symbol}” at position ${i + 1}; allowed: 1 to 9, ? for operators`);
      if (symbol === "?" && depth < 2) throw new Error(`the ? at position ${i + 1} has only ${depth} number before it; it takes two`);
      depth += symbol === "?" ? -1 : 1;
    }
    const operands = [...expression].filter((symbol) => symbol !== "?").length;
    const { min_operands: fewest, max_operands: most, align } = this.params;
    if (operands < fewest || operands > most) throw new Error(`the expression has ${operands} operands; allowed: ${fewest} to ${most}`);
    if (depth !== 1) throw new Error(`the expression leaves ${depth} numbers; ${operands} operands need ${operands - 1} times ?`);
    if (!/^\d{1,9}$/.test(value) || Number(value) > this.largest) throw new Error(`the value ${value} is out of range; allowed: 0 to ${this.largest}`);
    const tokens = [...`${expression}=${Number(value)}`].map((symbol) => this.symbols.indexOf(symbol));
    const padding = Array(this.length - tokens.length).fill(0);
    return align === "left" ? [...tokens, ...padding] : [...padding, ...tokens];
  }

  conflicts(inputs) {
    return this.solutions(inputs, 1).length ? "" : `no operators give ${this.#value(inputs)}`;
  }

  check(inputs, answer) {
    const { fault, value } = this.#evaluated(inputs, answer);
    return fault < 0 && value === this.#value(inputs);
  }

  explain(inputs, answer) {
    const { fault, value, left, right } = this.#evaluated(inputs, answer);
    const position = fault + 1 - this.#first(inputs);
    if (fault < 0) return `evaluates to ${value}, not ${this.#value(inputs)}`;
    if (answer[fault] < ADD || answer[fault] >= EQUALS) return `position ${position} holds '${this.#symbol(answer[fault])}', not an operator`;
    return right === 0 ? `divides ${left} by zero at position ${position}` : `divides ${left} by ${right} inexactly at position ${position}`;
  }

  // In the order + - * /, the first operator first.
  solutions(inputs, limit) {
    const places = inputs.flatMap((token, i) => (token === MASK ? [i] : []));
    const found = [];
    for (let code = 0; code < 4 ** places.length && found.length < limit; code += 1) {
      const answer = inputs.map(() => 0);
      places.forEach((place, i) => (answer[place] = ADD + ((code >> (2 * (places.length - 1 - i))) & 3)));
      if (this.check(inputs, answer)) found.push(answer);
    }
    return found;
  }

  // The answers that the model finds likeliest after its own, at most `count`, as if each operator were chosen by itself.
  likeliest(inputs, { data, dims }, count) {
    const places = inputs.flatMap((token, i) => (token === MASK ? [i] : []));
    const all = Array.from({ length: 4 ** places.length }, (_, code) => {
      const answer = inputs.map(() => 0);
      places.forEach((place, i) => (answer[place] = ADD + ((code >> (2 * (places.length - 1 - i))) & 3)));
      return { answer, sure: places.reduce((sum, place) => sum + data[place * dims[2] + answer[place]], 0) };
    });
    all.sort((a, b) => b.sure - a.sure);
    const own = (place, token) => data.subarray(place * dims[2], (place + 1) * dims[2]).every((each) => each <= data[place * dims[2] + token]);
    const others = all.filter(({ answer }) => !places.every((place) => own(place, answer[place])));
    return others.slice(0, count).map(({ answer }) => answer);
  }

  json(inputs, answer) {
    const operators = answer.filter((_, i) => inputs[i] === MASK).map((token) => this.#symbol(token));
    return { expression: this.text(inputs, answer), operators };
  }

  text(inputs, answer) {
    const filled = inputs.map((token, i) => (token === MASK ? answer[i] : token));
    return filled.slice(this.#first(inputs), inputs.indexOf(EQUALS)).map((token) => this.#symbol(token)).join(" ");
  }

  #symbol(token) {
    return token > 0 ? this.symbols[token] : "?";
  }

  #first(inputs) {
    return inputs.findIndex((token) => token !== 0);
  }

  #value(inputs) {
    return Number(inputs.slice(inputs.indexOf(EQUALS) + 1).filter((token) => token).map((token) => token - ZERO).join(""));
  }

  // What an answer comes to; `fault` is the position that stops it, or -1.
  #evaluated(inputs, answer) {
    const stack = [];
    for (let i = this.#first(inputs); inputs[i] !== EQUALS; i += 1) {
      if (inputs[i] !== MASK) stack.push(inputs[i] - ZERO);
      else {
        const [left, right] = stack.splice(-2);
        const operator = answer[i] - ADD;
        if (operator < 0 || operator > 3 || (operator === 3 && (right === 0 || left % right !== 0))) return { fault: i, left, right };
        stack.push([left + right, left - right, left * right, left / right][operator]);
      }
    }
    return { fault: -1, value: stack[0] };
  }
}
