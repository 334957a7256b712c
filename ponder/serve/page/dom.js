// Elements without markup strings: what comes from a server or a link is text, never HTML.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export function h(tag, attributes = {}, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), attributes, children);
}

function dress(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

// A puzzle of a size that this model does not take; another may.
export class Misfit extends Error {}

export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)}%`;
export const count = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;
export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
