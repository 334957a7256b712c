// Maze: a marked path is right where it is one of the shortest from start to goal, and nothing else is marked.

import { GridRules } from "./grid.js";

const [WALL, FREE, START, GOAL, PATH] = [1, 2, 3, 4, 5];
const NAMES = { [WALL]: "wall", [FREE]: "free cell", [START]: "start", [GOAL]: "goal", [PATH]: "path" };
const NOWHERE = -1;

export class MazeRules extends GridRules {
  read(text) {
    const tokens = super.read(text);
    for (const [token, end] of [[START, "start"], [GOAL, "goal"]]) {
      const places = tokens.flatMap((each, cell) => (each === token ? [this.place(cell)] : []));
      if (!places.length) throw new Error(`the maze has no ${end}; write ${this.symbol(token)} in one cell`);
      if (places.length > 1) throw new Error(`the maze has ${places.length} ${end}s (${this.symbol(token)}), the first two in ${places[0]} and ${places[1]}; keep one`);
    }
    return tokens;
  }

  conflicts(inputs) {
    return this.#length(inputs) > 0 ? "" : "no path leads from S to G";
  }

  check(inputs, answer) {
    const kept = inputs.every((token, i) => token === answer[i] || (token === FREE && answer[i] === PATH));
    if (!kept) return false;
    // As many cells as a shortest path has, and a way through them alone that is as short: nothing is left over.
    const shortest = this.#length(inputs);
    return this.#length(walked(answer)) === shortest && answer.filter((token) => token === PATH).length === shortest - 1;
  }

  explain(inputs, answer) {
    for (const [cell, before] of inputs.entries()) {
      const after = answer[cell];
      if (before !== after && !(before === FREE && after === PATH)) return `${this.place(cell)}: ${NAMES[before]} became ${NAMES[after] ?? "no symbol"}`;
    }
    const walk = walked(answer);
    const [shortest, taken] = [this.#length(inputs), this.#length(walk)];
    if (taken < 0) {
      const steps = this.#steps(walk, walk.indexOf(START));
      return `the path is broken: from S it ends at ${this.place(steps.indexOf(Math.max(...steps)))}`;
    }
    if (taken > shortest) return `not shortest: ${taken} steps where ${shortest} suffice`;
    const used = mark(inputs, this.#paths(walk, 1)[0]);
    const astray = answer.flatMap((token, cell) => (token === used[cell] ? [] : [cell]));
    return astray.length ? `marked cells off the path: ${astray.length}, the first in ${this.place(astray[0])}` : "";
  }

  solutions(inputs, limit) {
    return this.#paths(inputs, limit).map((path) => mark(inputs, path));
  }

  // Right, down, left, up: also the order of preference where several shortest paths exist.
  #around(cell) {
    const { rows, columns } = this.board;
    const [r, c] = [Math.floor(cell / columns), cell % columns];
    return [c + 1 < columns ? cell + 1 : null, r + 1 < rows ? cell + columns : null, c ? cell - 1 : null, r ? cell - columns : null].filter((near) => near !== null);
  }

  // From one cell to every other; NOWHERE for walls and where there is no way.
  #steps(tokens, origin) {
    const steps = tokens.map(() => NOWHERE);
    steps[origin] = 0;
    const queue = [origin];
    for (const cell of queue) {
      for (const near of this.#around(cell)) {
        if (steps[near] !== NOWHERE || tokens[near] < FREE) continue;
        steps[near] = steps[cell] + 1;
        queue.push(near);
      }
    }
    return steps;
  }

  #length(tokens) {
    return this.#steps(tokens, tokens.indexOf(START))[tokens.indexOf(GOAL)];
  }

  // Up to `limit` shortest paths, as cells from start to goal.
  #paths(tokens, limit) {
    const steps = this.#steps(tokens, tokens.indexOf(GOAL));
    const found = [];
    const stack = steps[tokens.indexOf(START)] < 0 ? [] : [[tokens.indexOf(START)]];
    while (stack.length && found.length < limit) {
      const path = stack.pop();
      const here = path.at(-1);
      if (steps[here] === 0) found.push(path);
      const onward = this.#around(here).filter((near) => steps[near] === steps[here] - 1 && steps[near] >= 0);
      for (const near of onward.reverse()) stack.push([...path, near]);
    }
    return found;
  }
}

// An answer with a wall wherever no path is marked.
function walked(answer) {
  return answer.map((token) => (token >= START ? token : WALL));
}

function mark(inputs, path) {
  return inputs.map((token, cell) => (token === FREE && path.includes(cell) ? PATH : token));
}
