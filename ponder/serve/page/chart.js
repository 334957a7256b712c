// How accuracy and compute trade: the share of test puzzles that are right after each step, from the model's card.

import { count, h, percent, svg } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [420, 210, 44, 14, 22, 40];

// `taken` is the number of steps of the present puzzle, or null; `words` puts the domain's sentences into the page's words.
export function draw(figure, model, taken, words) {
  const points = model.card?.by_step ?? [];
  const caption = document.createElement("figcaption");
  if (!points.length) {
    caption.textContent = "This model comes without a card, so its accuracy after each step is not known here.";
    figure.replaceChildren(caption);
    return;
  }
  const [first, last] = [points[0], points.at(-1)];
  const low = Math.floor(Math.min(...points.map(({ valid }) => valid)) * 10 - 0.01) / 10;
  const floor = Math.max(0, Math.min(low, 0.9));
  const x = (step) => LEFT + ((WIDTH - LEFT - RIGHT) * (step - first.step)) / Math.max(1, last.step - first.step);
  const y = (share) => TOP + ((HEIGHT - TOP - BOTTOM) * (1 - share)) / (1 - floor);
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", "aria-hidden": "true" });

  const ticks = [0, 0.5, 1].map((part) => floor + part * (1 - floor));
  for (const share of ticks) {
    picture.append(svg("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: y(share), y2: y(share) }));
    picture.append(svg("text", { class: "tick", x: LEFT - 8, y: y(share) + 4, "text-anchor": "end" }, percent(share)));
  }
  for (const step of marks(first.step, last.step)) {
    picture.append(svg("text", { class: "tick", x: x(step), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, String(step)));
  }
  picture.append(svg("text", { class: "tick", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, "steps of thought"));
  if (taken !== null && taken >= first.step && taken <= last.step) {
    const anchor = x(taken) < WIDTH / 3 ? "start" : x(taken) > (2 * WIDTH) / 3 ? "end" : "middle";
    picture.append(svg("line", { class: "taken", x1: x(taken), x2: x(taken), y1: TOP, y2: HEIGHT - BOTTOM }));
    picture.append(svg("text", { class: "taken", x: x(taken), y: TOP - 8, "text-anchor": anchor }, `this puzzle: ${count(taken, "step")}`));
  }
  picture.append(svg("polyline", { class: "curve", points: points.map((p) => `${x(p.step)},${y(p.valid)}`).join(" ") }));
  for (const { step, valid } of points) {
    const dot = svg("circle", { class: step === taken ? "dot now" : "dot", cx: x(step), cy: y(valid), r: step === taken ? 5 : 3 });
    dot.append(svg("title", {}, `${count(step, "step")}: ${percent(valid, 1)}`));
    picture.append(dot);
  }

  const best = points.reduce((a, b) => (b.valid > a.valid ? b : a));
  const present = points.find(({ step }) => step === taken);
  const { card } = model;
  const split = card.by_step_split;
  const { n, about } = card.accuracy?.[split] ?? {};
  const which = about && split !== "test" ? ` (${split}: ${words(about)})` : "";
  caption.textContent =
    "Each dot is the share of test puzzles whose answer is right after so many steps of thought. " +
    `${n ? `Of ${n.toLocaleString("en")} test puzzles` : "Test puzzles"}${which} answered right: ${percent(first.valid, 1)} after ${count(first.step, "step")}` +
    (best.step > first.step ? `, ${percent(best.valid, 1)} after ${count(best.step, "step")}.` : ".") +
    (present ? ` This one took ${count(taken, "step")}; by then ${percent(present.valid, 1)} are right.` : "") +
    (card.limits ? ` Limits: ${words(card.limits)}` : "");
  figure.replaceChildren(picture, caption, ...splits(card, words));
}

// What the names of the splits mean, and how the model does on each.
function splits({ accuracy, max_steps: steps }, words) {
  const rows = Object.entries(accuracy ?? {}).filter(([, { valid }]) => valid);
  if (!rows.length) return [];
  const lines = rows.map(([name, { about, n, valid }]) =>
    h("li", {}, h("b", {}, name), ` ${words(about)}: `, h("b", {}, percent(valid.value, 1)), ` of ${n.toLocaleString("en")}`),
  );
  return [h("details", {}, h("summary", {}, "How it does on which puzzles"), h("p", { class: "hint" }, `Right after ${count(steps, "step")}, as many as it was trained with:`), h("ul", { class: "splits" }, ...lines))];
}

function marks(first, last) {
  const every = Math.max(1, Math.ceil((last - first + 1) / 8));
  const steps = [];
  for (let step = first; step <= last; step += every) steps.push(step);
  return steps;
}
