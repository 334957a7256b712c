// The steps of a solution: a slider over them, play and pause, and each step's confidence as a bar.

import { $, calm, h, percent } from "./dom.js";

const DWELL = 550; // milliseconds a step is shown
const HURRY = 160; // where many wait

export class Player {
  // render(frame, previous, playing): show a frame; how many of its cells changed. The first frame is the puzzle itself.
  constructor(render) {
    this.render = render;
    this.timer = null;
    $("slider").addEventListener("input", () => {
      this.pause();
      this.go(Number($("slider").value));
    });
    $("play").addEventListener("click", () => (this.timer === null ? this.play() : this.pause()));
    this.reset();
  }

  reset() {
    clearTimeout(this.timer);
    this.timer = null;
    this.frames = [{ kind: "puzzle", answer: null, confidence: null, valid: null }];
    this.at = 0;
    this.complete = false;
    this.held = false; // the user looks at a step: what comes in does not move the slider
    $("player").hidden = true;
    this.#draw();
  }

  // A step came in. It is shown in its turn.
  add(frame) {
    this.frames.push(frame);
    $("player").hidden = false;
    this.#draw();
    if (this.held) return;
    if (calm()) this.go(this.last);
    else if (this.timer === null) this.#tick();
  }

  // No more steps will come.
  finish() {
    this.complete = true;
    this.#draw();
    if (this.timer === null) this.go(this.at);
  }

  play() {
    this.held = false;
    if (this.at === this.last) this.go(0);
    this.#tick(DWELL);
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
    this.held = true;
    this.#label();
  }

  go(at) {
    this.at = at;
    $("slider").value = at;
    // The first step fills, a search and the exact solver start afresh: only a step after a step changes its mind.
    const [frame, previous] = [this.frames[at], this.frames[at - 1]];
    const before = frame.kind === "step" && previous.kind === "step" ? previous.answer : null;
    const changes = this.render(frame, before, this.timer !== null || !this.complete);
    $("changes").hidden = before === null;
    $("changes").textContent = changes ? `${changes} changed` : "nothing changed";
    $("changes").classList.toggle("some", changes > 0);
    this.#label();
  }

  get last() {
    return this.frames.length - 1;
  }

  #tick(wait = 0) {
    this.timer = setTimeout(() => {
      const behind = this.last - this.at;
      if (behind === 0) {
        this.timer = null;
        this.go(this.at);
        return;
      }
      if (behind > 1 || !this.complete) this.#tick(behind > 6 ? HURRY : DWELL);
      else this.timer = null;
      this.go(this.at + 1);
    }, wait);
  }

  #label() {
    const frame = this.frames[this.at];
    const steps = this.frames.filter(({ kind }) => kind === "step").length;
    const where = { puzzle: "The puzzle", exact: "Exact solver", searched: "Found by a search", step: `Step ${frame.step} of ${steps}` }[frame.kind];
    $("where").textContent = where;
    $("slider").setAttribute("aria-valuetext", where);
    $("play").textContent = this.timer === null ? (this.at === this.last ? "Replay" : "Play") : "Pause";
    $("confidence").hidden = frame.confidence === null;
    $("meter").setAttribute("aria-valuenow", frame.confidence ?? 0);
    $("meter").style.setProperty("--value", frame.confidence ?? 0);
    $("confidence-text").textContent = frame.confidence === null ? "" : percent(frame.confidence, 1);
    $("strip").childNodes.forEach((bar, i) => bar.classList.toggle("here", i === this.at));
  }

  #draw() {
    $("slider").max = this.last;
    $("slider").value = this.at;
    const halted = this.frames.findLastIndex(({ kind }) => kind === "step");
    const bars = this.frames.map((frame, i) => {
      const valid = frame.kind === "exact" ? "exact" : frame.valid ? "valid" : frame.valid === false ? "refused" : "unjudged";
      const bar = h("span", { class: `bar ${frame.kind} ${valid}${this.complete && i === halted ? " halt" : ""}` });
      bar.style.setProperty("--at", this.last ? i / this.last : 0);
      bar.style.setProperty("--confidence", ["step", "searched"].includes(frame.kind) ? (frame.confidence ?? 0) : 0);
      return bar;
    });
    $("strip").replaceChildren(...bars);
    this.#label();
  }
}
