// Any other domain: text in, text and the domain's own picture out.

import { h } from "./dom.js";

export class Plain {
  static title = null;
  static hint = "The puzzle as this domain writes it; see the rules.";

  static takes() {
    return "its own puzzles";
  }

  static read(text) {
    return text;
  }

  constructor(params, edited) {
    this.input = h("textarea", { id: "plain", rows: 8, spellcheck: "false", oninput: edited });
    this.output = h("pre", { class: "plain", "aria-label": "The model's answer", tabindex: 0, hidden: true });
    this.picture = h("img", { class: "picture", alt: "The model's answer, drawn", hidden: true });
    this.element = h("div", {}, h("label", { for: "plain" }, "Puzzle"), this.input, this.picture, this.output);
  }

  get text() {
    return this.input.value;
  }

  load(text) {
    this.input.value = text;
    this.show(null, null);
  }

  clear() {
    this.load("");
  }

  show(answer, before, svg) {
    this.picture.hidden = !svg;
    if (svg) this.picture.src = `data:image/svg+xml,${encodeURIComponent(svg)}`; // as an image, no script in it runs
    this.output.hidden = answer === null;
    this.output.textContent = typeof answer === "string" ? answer : (JSON.stringify(answer) ?? "").replaceAll("],[", "],\n[");
    return 0;
  }
}
