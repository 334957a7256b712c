// The page: which model, which puzzle, and what became of it.

import { Arithmetic } from "./arithmetic.js";
import { draw } from "./chart.js";
import { $, calm, count, h, Misfit, percent } from "./dom.js";
import { Life } from "./life.js";
import { Maze } from "./maze.js";
import { Plain } from "./plain.js";
import { Player } from "./player.js";
import { Sudoku, Symbols } from "./symbols.js";

const VIEWS = { sudoku: Sudoku, maze: Maze, life: Life, arithmetic: Arithmetic }; // in the order they are offered
const viewOf = (model) => VIEWS[model.domain] ?? (model.board ? Symbols : Plain);
const titleOf = (domain) => VIEWS[domain]?.title ?? `${domain[0].toUpperCase()}${domain.slice(1)}`;
const words = (text) => viewOf(model).words?.(text) ?? text;
const order = (domain) => [...Object.keys(VIEWS), domain].indexOf(domain);

// Who solves: the server that the page comes from, or, on a page of `ponder site`, the browser itself.
const IN_BROWSER = document.documentElement.dataset.solver === "browser";
const api = IN_BROWSER ? new (await import("./local.js")).Local() : new (await import("./api.js")).Api(askToken);
let models = [];
let model = null;
let view = null;
let params = {}; // the model's, or, of one that takes any size, those of the board shown
let answer = null; // the last word on the puzzle shown, once it is there
let running = null; // aborts the solution under way
let shown = 0; // hard puzzles of this model that were put on the board
let turn = 0; // counts what the user did: a random puzzle that comes after the next deed comes too late
let remembering = null; // the timer after which the address names the puzzle
const player = new Player(render);

// What the page says ---------------------------------------------------------------------------------------------------

function say(kind, headline, detail = "") {
  $("verdict").className = `verdict ${kind}`;
  $("headline").textContent = headline;
  $("detail").textContent = detail;
  $("view").dataset.verdict = kind;
}

function sayError(error) {
  say("error", sentence(error.message));
}

function invite() {
  say("idle", "Ready when you are", view.complaint || "Enter a puzzle or take a random one, then press Solve or the Enter key.");
  explain();
}

// What the colours mean that are on the board now.
const LOOKS = {
  given: "given",
  filled: "filled in by the model",
  path: "the model's path",
  changed: "changed in this step",
  spoilt: "a given that the model changed",
  wrong: "against the rules",
};

function explain() {
  const seen = Object.keys(LOOKS).filter((look) => $("view").querySelector(`.${look}:not(.swatch)`));
  const told = seen.length === 1 && seen[0] === "given" ? [] : seen;
  $("colours").replaceChildren(...told.map((look) => h("li", {}, h("i", { class: `sample ${look}`, "aria-hidden": "true" }), LOOKS[look])));
}

// A step's verdict is its own: a board that the checker refuses never stands beside the word "correct".
function render(frame, before, playing) {
  const last = frame === player.frames.at(-1) && answer !== null;
  const changes = view.show(view instanceof Plain && last ? answer.text : frame.answer, before, frame.svg, frame.valid === false);
  explain();
  $("verdict").setAttribute("aria-busy", String(playing));
  if (frame.kind === "puzzle") say("idle", "The puzzle, before the first step");
  else if (last) conclude();
  else if (answer === null || playing) say("busy", `Thinking: step ${frame.step}`, judged(frame));
  else say(frame.valid ? "good" : "busy", `After step ${frame.step}`, judged(frame));
  return changes;
}

function judged(frame) {
  return { true: "The checker accepts this.", false: "The checker does not accept this yet." }[String(frame.valid)] ?? "";
}

function conclude() {
  const { verified, by, steps, confidence } = answer;
  const note = words(answer.note);
  const sure = confidence === null ? "" : ` at ${percent(confidence, 1)} confidence`;
  if (by === "exact") say("exact", "Answered by exact solver", sentence(note));
  else if (verified && answer.tries) say("good", "Checked: correct", [`The first answer, after ${count(steps, "step")}, was refused.`, sentence(note)].join(" "));
  else if (verified) say("good", "Checked: correct", [`The model answered in ${count(steps, "step")}${sure}.`, sentence(note)].join(" "));
  else if (verified === false) say("bad", "Not correct", [sentence(note), `${count(steps, "step")}${sure}.`].join(" "));
  else say("idle", "Not checked", `This domain has no checker. The model answered in ${count(steps, "step")}${sure}.`);
}

function sentence(note) {
  return note ? `${note[0].toUpperCase()}${note.slice(1)}${/[.?!)]$/.test(note) ? "" : "."}` : "";
}

// Why thinking ended, and where the model alone would have ended it.
function sayHalting() {
  const thoughts = player.frames.filter(({ kind }) => kind === "step");
  const last = thoughts.at(-1);
  const spent = last.step === (Number($("steps").value) || model.budget);
  const why = model.halting === "asked" && !spent ? "as many as the puzzle asks for" : last.valid ? "the checker accepted" : answer.tries ? "the checker refused them all, and others were tried" : "the step budget was spent";
  const own = thoughts.find(({ confidence }) => confidence > 0.5);
  const alone = last.confidence === null ? "" : own ? ` On its own the model would have stopped after step ${own.step}.` : " On its own the model would not have stopped yet.";
  $("halting").textContent = `Halted after ${count(last.step, "step")}: ${why}.${alone}`;
}

// What the bars are, and when thinking halts.
function sayBars() {
  const sure = model.halting.startsWith("halt");
  const height = sure ? ", as high as the model's confidence that its answer is right" : "";
  const end = model.halting === "asked" ? "This model takes as many steps as the puzzle asks for." : "Thinking halts at the first accepted answer, or when its budget of steps is spent.";
  $("legend").textContent = `A bar for each step${height}: green where the checker accepts it, grey where not. ${end}`;
  $("strip").classList.toggle("even", !sure);
}

// Choosing -------------------------------------------------------------------------------------------------------------

function listDomains() {
  const domains = [...new Set(models.map(({ domain }) => domain))].sort((a, b) => order(a) - order(b));
  $("domains").replaceChildren(
    ...domains.map((domain) =>
      h("label", {}, h("input", { type: "radio", name: "domain", value: domain, onchange: () => start(favourite(domain)) }), h("span", {}, titleOf(domain))),
    ),
  );
}

// Put a model's empty board on the page.
function choose(chosen, at = chosen.params ?? {}) {
  stop();
  model = chosen;
  params = at;
  document.querySelector(`input[name=domain][value="${CSS.escape(model.domain)}"]`).checked = true;
  const peers = models.filter(({ domain }) => domain === model.domain);
  $("model").replaceChildren(...peers.map(({ name }) => h("option", { value: name, selected: name === model.name }, name)));
  const facts = [model.parameters && `${model.parameters.toLocaleString("en")} parameters`, model.max_steps && `trained to think ${count(model.max_steps, "step")}`];
  $("about").textContent = facts.filter(Boolean).join(" · ");
  $("rules").textContent = words(model.rules);
  $("fallback").disabled = !model.exact;
  $("fallback").checked &&= model.exact;
  $("steps").max = model.budget;
  $("steps").value = "";
  $("steps").placeholder = model.budget;
  sayBars();
  $("paste-hint").textContent = viewOf(model).hint;
  $("sides").hidden = !model.any_size;
  if (model.any_size) [$("rows").value, $("columns").value] = viewOf(model).sides(params);
  view = new (viewOf(model))(params, edited, model.board, model.card?.accuracy);
  $("view").replaceChildren(view.element);
  draw($("chart"), model, null, words);
  for (const id of ["solve", "random", "clear", "paste", "share"]) $(id).disabled = false;
  $("hard").disabled = !hardOnes(model).length;
  shown = 0;
  forget();
}

// Test puzzles that took this model the most steps, as its card lists them.
function hardOnes({ card }) {
  return card?.hard ?? [];
}

// Of a domain the model with the most to show: whose hard puzzles take the most steps.
function favourite(domain) {
  const most = (m) => hardOnes(m)[0]?.steps ?? 0;
  return models.filter((m) => m.domain === domain).reduce((best, m) => (most(m) > most(best) ? m : best));
}

// A model with a puzzle to begin with: one that is worth watching, where the card has some.
async function start(chosen) {
  choose(chosen);
  if (hardOnes(model).length) nextHard();
  else await randomise();
}

function nextHard() {
  const ones = hardOnes(model);
  put(ones[shown++ % ones.length].puzzle);
}

// Puzzles --------------------------------------------------------------------------------------------------------------

function forget() {
  answer = null;
  player.reset();
  $("halting").textContent = "";
  invite();
}

// The user changed the puzzle: what was said of the old one is void.
function edited() {
  stop();
  forget();
  draw($("chart"), model, null, words);
  clearTimeout(remembering);
  remembering = setTimeout(remember, 200); // browsers refuse a new address for every cell of a stroke
}

function remember() {
  clearTimeout(remembering);
  history.replaceState(null, "", `#${new URLSearchParams({ model: model.name, puzzle: view.text })}`);
}

// Show a puzzle given as text, with the first model of the domain that can read it.
function put(text) {
  const peers = [model, ...models.filter((m) => m.domain === model.domain)];
  const errors = [];
  const able = peers.find((m) => {
    try {
      viewOf(m).read(text, m.params ?? {}, m.board);
      return true;
    } catch (error) {
      errors.push(error);
      return false;
    }
  });
  if (!able && putAtItsSize(text, peers)) return;
  if (!able) {
    const sizes = [...new Set(peers.map((m) => viewOf(m).takes(m.params ?? {}, m.board)))];
    const odd = errors.find((error) => !(error instanceof Misfit)) ?? errors[0];
    throw odd instanceof Misfit && sizes.length > 1 ? new Error(`${odd.message} No model here takes that; there are models for ${sizes.join(", ")}.`) : odd;
  }
  if (able !== model || params !== (model.params ?? params)) choose(able);
  view.load(text);
  edited();
}

// The same with the nearest model of those that take any size, as the server would choose it: whether there is one.
function putAtItsSize(text, peers) {
  const sides = viewOf(model).measure?.(text);
  const area = ([rows, columns]) => rows * columns;
  const far = (m) => Math.abs(Math.log(area(viewOf(m).sides(m.params)) / area(sides)));
  const able = sides && peers.filter((m) => m.any_size).sort((a, b) => far(a) - far(b))[0];
  if (!able) return false;
  if (sides.some((side) => side < 3 || side > 32) || (viewOf(able).square && sides[0] !== sides[1])) return false;
  const at = viewOf(able).resized(able.params, ...sides);
  viewOf(able).read(text, at, able.board);
  choose(able, at);
  view.load(text);
  edited();
  return true;
}

// The user asked for another size: an empty board, on which to draw.
function resize(input) {
  const side = Math.min(Math.max(Math.round(Number(input.value)) || 3, 3), 32);
  const other = input.id === "rows" ? $("columns") : $("rows");
  input.value = side;
  if (viewOf(model).square) other.value = side;
  choose(model, viewOf(model).resized(model.params, Number($("rows").value), Number($("columns").value)));
  edited();
}

async function randomise() {
  stop();
  forget();
  view.show(null, null);
  say("busy", "Drawing a puzzle…");
  const mine = turn;
  try {
    const puzzle = await api.random(model.name);
    if (turn === mine) put(puzzle);
  } catch (error) {
    if (turn === mine) sayError(error);
  }
}

function stop() {
  turn += 1;
  running?.abort();
  running = null;
  $("solve").textContent = "Solve";
}

async function solve() {
  stop();
  view.show(null, null);
  forget();
  remember();
  const mine = (running = new AbortController());
  $("solve").textContent = "Stop";
  say("busy", api.loading ? "Loading the network…" : "Thinking…");
  $("verdict").scrollIntoView({ block: "nearest", behavior: calm() ? "auto" : "smooth" });
  const body = { model: model.name, puzzle: view.text, fallback: $("fallback").checked ? "exact" : null, steps: Number($("steps").value) || null, picture: view instanceof Plain };
  try {
    const got = await api.solve(body, (step) => running === mine && player.add({ kind: "step", ...step }), mine.signal);
    if (running !== mine) return;
    answer = got;
    if (got.by === "exact") player.add({ kind: "exact", answer: got.answer, svg: got.svg, confidence: null, valid: got.verified });
    else if (got.tries) player.add({ kind: "searched", answer: got.answer, svg: got.svg, confidence: got.confidence, valid: got.verified });
    player.finish();
    sayHalting();
    draw($("chart"), model, got.steps, words);
  } catch (error) {
    if (error.name === "AbortError" || running !== mine) return;
    player.reset();
    view.show(null, null);
    sayError(error);
  }
  stop();
}

// Tokens and links -----------------------------------------------------------------------------------------------------

function askToken() {
  const dialog = $("token-dialog");
  $("token").value = "";
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => resolve($("token").value), { once: true }),
  );
}

async function share() {
  remember();
  try {
    await navigator.clipboard.writeText(location.href);
    $("share").textContent = "Link copied";
  } catch {
    $("share").textContent = "Link is in the address bar";
  }
  setTimeout(() => ($("share").textContent = "Share"), 2500);
}

// The model and puzzle of a link, or the first model and a random puzzle.
async function follow() {
  const link = new URLSearchParams(location.hash.slice(1));
  const [name, puzzle] = [link.get("model"), link.get("puzzle")];
  const wanted = models.find((m) => m.name === name);
  if (wanted === undefined || puzzle === null) await start(wanted ?? favourite($("domains").querySelector("input").value));
  else {
    choose(wanted);
    try {
      put(puzzle);
    } catch (error) {
      sayError(error);
    }
  }
  if (name !== null && wanted === undefined) say("error", `There is no model “${name}” here, which the link names.`);
}

function listen() {
  $("choose").addEventListener("submit", (event) => event.preventDefault());
  $("model").addEventListener("change", () => start(models.find(({ name }) => name === $("model").value)));
  for (const id of ["rows", "columns"]) $(id).addEventListener("change", () => resize($(id)));
  $("solve").addEventListener("click", () => {
    if (running === null) return solve();
    stop();
    forget();
    view.show(null, null);
  });
  $("random").addEventListener("click", randomise);
  $("hard").addEventListener("click", nextHard);
  $("clear").addEventListener("click", () => {
    view.clear();
    edited();
  });
  $("share").addEventListener("click", share);
  $("paste").addEventListener("click", () => {
    $("paste-box").hidden = !$("paste-box").hidden;
    $("paste").setAttribute("aria-expanded", String(!$("paste-box").hidden));
    if (!$("paste-box").hidden) $("paste-text").focus();
  });
  $("paste-box").addEventListener("submit", (event) => {
    event.preventDefault();
    paste($("paste-text").value);
  });
  // Enter solves, from the board, a field of the puzzle or where nothing has the focus.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.repeat || event.isComposing || view === null || running !== null) return;
    const plain = !(event.shiftKey || event.ctrlKey || event.metaKey || event.altKey);
    const long = event.target.matches("textarea#plain") && (event.ctrlKey || event.metaKey);
    if (!long && !(plain && event.target.matches("body, .puzzle .cell, .puzzle input:not([type=checkbox])"))) return;
    event.preventDefault();
    solve();
  });
  // Ctrl+V anywhere but in a text field.
  document.addEventListener("paste", (event) => {
    if (event.target.matches?.("input, textarea") || view === null) return;
    paste(event.clipboardData.getData("text"));
  });
  addEventListener("hashchange", follow);
}

function paste(text) {
  try {
    put(text);
  } catch (error) {
    stop();
    forget();
    view.show(null, null);
    sayError(error);
  }
}

try {
  models = await api.models();
  listDomains();
  listen();
  await follow();
} catch (error) {
  sayError(error);
}
