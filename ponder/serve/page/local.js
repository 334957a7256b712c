// The other back end: the models run in the browser (onnxruntime, WebAssembly), and the rules judge. It is asked for the same
// things as the server (api.js); `ponder site` writes the files that it reads.

import { ArithmeticRules } from "./rules/arithmetic.js";
import { LifeRules } from "./rules/life.js";
import { MazeRules } from "./rules/maze.js";
import { SudokuRules } from "./rules/sudoku.js";

const RULES = { sudoku: SudokuRules, maze: MazeRules, life: LifeRules, arithmetic: ArithmeticRules };

export class Local {
  constructor() {
    this.known = new Map();
    this.sessions = new Map();
    this.loading = true; // while the runtime, some megabytes, is on its way
  }

  async models() {
    const models = await (await fetched("models.json")).json();
    for (const model of models) this.known.set(model.name, model);
    this.#runtime().catch(() => {}); // solve() says what is wrong with it
    return models;
  }

  async random(name) {
    const { puzzles } = this.known.get(name);
    return puzzles[Math.floor(Math.random() * puzzles.length)];
  }

  // Calls `onStep` with every step and returns the answer.
  async solve({ model: name, puzzle, fallback, steps }, onStep, signal) {
    const model = this.known.get(name);
    const rules = new RULES[model.domain](model);
    const inputs = rules.read(puzzle);
    const wrong = rules.conflicts(inputs);
    if (wrong) throw new Error(`this puzzle has no solution: ${wrong}`);
    if (steps !== null && !(steps >= 1 && steps <= model.budget)) throw new Error(`steps ${steps} is out of range: ${name} takes 1 to ${model.budget}`);
    const { run, start } = await this.#network(model);
    const tries = steps === null ? model.search : 0;
    const limit = steps ?? (tries ? model.max_steps : model.budget);
    const think = async (tokens, watch = () => {}) => {
      let state = start;
      for (let step = 1; ; step += 1) {
        const out = await run(tokens, state, step - 1);
        await new Promise((resolve) => setTimeout(resolve)); // the page draws, and hears whoever presses Stop
        signal.throwIfAborted();
        state = out.state;
        const valid = rules.check(tokens, out.answer);
        watch({ step, answer: rules.json(tokens, out.answer), confidence: out.confidence, valid });
        // A puzzle that asks for so many steps gets them; any other ends when the checker accepts.
        if ((out.over ?? valid) || step >= limit) return { ...out, step, valid };
      }
    };
    const first = await think(inputs, onStep);
    let found = null;
    if (!first.valid && tries && rules.likeliest) found = listed(rules, inputs, first, tries);
    else if (!first.valid && tries) found = await supposing(rules.suppositions(inputs, first.logits, tries), think);
    return concluded(rules, inputs, first, fallback, found);
  }

  async #runtime() {
    this.ort ??= import("../ort/ort.js").catch(() => {
      this.ort = null;
      throw new Error("the runtime could not be loaded (ort/ort.js). Is there a connection?");
    });
    const ort = await this.ort;
    ort.env.wasm.numThreads = 1; // more would need headers that a plain host does not send
    ort.env.wasm.wasmPaths = { wasm: new URL("../ort/ort.wasm", import.meta.url).href };
    return ort;
  }

  // One ACT step as a function, and the states it starts from.
  async #network({ name, graph }) {
    const ort = await this.#runtime();
    if (!this.sessions.has(name)) {
      const bytes = new Uint8Array(await (await fetched(`models/${encodeURIComponent(name)}.onnx`)).arrayBuffer());
      this.sessions.set(name, await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] }));
    }
    this.loading = false;
    const session = this.sessions.get(name);
    const whole = (values) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
    const start = {};
    for (const [state, vector] of Object.entries(graph.initial)) {
      const [, positions, width] = graph.inputs[state].shape;
      const values = new Float32Array(positions * width);
      for (let i = 0; i < positions; i += 1) values.set(vector, i * width);
      start[state] = new ort.Tensor("float32", values, [1, positions, width]);
    }
    const run = async (inputs, state, done) => {
      const feeds = { tokens: whole(inputs), task_ids: whole([0]).reshape([1]), ...state };
      if ("steps" in graph.inputs) feeds.steps = whole([done]).reshape([1]);
      const out = await session.run(feeds);
      const next = Object.entries(graph.carry).map(([name, made]) => [name, out[made]]);
      return {
        answer: best(out.logits),
        logits: out.logits,
        confidence: out.q_halt ? round(1 / (1 + Math.exp(-out.q_halt.data[0]))) : null,
        // A model without states says the same at every step: it takes one.
        over: out.over ? Boolean(out.over.data[0]) : next.length ? null : true,
        state: Object.fromEntries(next),
      };
    };
    return { run, start };
  }
}

async function fetched(path) {
  const response = await fetch(path).catch(() => null);
  if (!response?.ok) throw new Error(`${path} could not be loaded${response ? ` (${response.status})` : ""}. Is there a connection?`);
  return response;
}

// The likeliest symbol at each position.
function best({ data, dims }) {
  const [, positions, symbols] = dims;
  return Array.from({ length: positions }, (_, i) => {
    const row = data.subarray(i * symbols, (i + 1) * symbols);
    return row.indexOf(row.reduce((most, value) => (value > most ? value : most)));
  });
}

// One more cell filled in on trial, one supposition after the other; null where none leads to an answer that is accepted.
async function supposing(supposed, think) {
  let taken = 0;
  for (const [i, tokens] of supposed.entries()) {
    const { answer, confidence, step, valid } = await think(tokens);
    taken += step;
    if (valid) return { answer, confidence, tries: i + 1, taken, how: "supposing one more cell" };
  }
  return null;
}

// Other answers that the model finds likely, one after the other, none of which takes a step; null likewise.
function listed(rules, inputs, { logits, confidence }, tries) {
  const answers = rules.likeliest(inputs, logits, tries);
  const at = answers.findIndex((answer) => rules.check(inputs, answer));
  return at < 0 ? null : { answer: answers[at], confidence, tries: at + 1, taken: 0, how: "checking what the model finds likely" };
}

// The last step as an answer, or what a search found, or the exact one where it is refused and was asked for; and what there
// is to say about it.
function concluded(rules, inputs, first, fallback, found) {
  const step = first.step;
  const { answer, confidence, valid } = found ? { ...found, valid: true } : first;
  const known = rules.solutions(inputs, 2);
  const notes = found ? [`found by ${found.how} (try ${found.tries}, ${found.taken} more ACT steps)`] : [];
  let [given, verified, by] = [answer, valid, "model"];
  if (known !== null && !known.length) notes.push("this puzzle has no solution");
  else if (!valid) {
    notes.push(`the model's answer is wrong: ${rules.explain(inputs, answer)}`);
    if (known !== null && fallback) [given, verified, by] = [known[0], true, "exact"];
  }
  if (known?.length > 1) notes.push(`several solutions exist${verified ? ", this is one of them" : ""}`);
  return { answer: rules.json(inputs, given), text: rules.text(inputs, given), verified, by, note: notes.join("; "), steps: step, tries: found?.tries ?? 0, confidence };
}

function round(value) {
  return Number(value.toFixed(6));
}
