"use strict";
// Elements, colours and words. Text from models and questions only ever becomes text nodes and attribute values.
(() => {
  const SVG = "http://www.w3.org/2000/svg";

  /** Put children at the end: nodes, text, lists of them; nothing for null and false. */
  function add(node, ...children) {
    for (const child of children.flat(Infinity))
      if (child !== null && child !== undefined && child !== false) node.append(child);
    return node;
  }

  function put(node, ...children) {
    node.replaceChildren();
    return add(node, ...children);
  }

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    return add(node, ...children);
  }

  const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  // Okabe and Ito's palette, then three of Tol's; lightened where it would sink into a dark page.
  const LIGHT = [
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#b8a900",
    "#332288",
    "#882255",
    "#117733",
  ];
  const DARK = [
    "#3f9fe0",
    "#f0b32e",
    "#1fbf90",
    "#e093bd",
    "#9ad7f7",
    "#f07c2c",
    "#f0e442",
    "#8f86e8",
    "#d0608f",
    "#5fb87a",
  ];
  const OTHER = { light: "#7c838c", dark: "#8d96a3" };

  function colour(categories, k) {
    const dark = window.fpa.theme.dark();
    if (k === categories.length - 1) return dark ? OTHER.dark : OTHER.light;
    return (dark ? DARK : LIGHT)[k % LIGHT.length];
  }

  // Entropix' states and EAGER's by their letters: a look of each (colours of the palette above, and a line of its own under the
  // token), its name in either rule set, and what it means. "Rest" is where no rule fits.
  const LOOKS = {
    sure: { light: "#56b4e9", dark: "#56b4e9", means: "nearly certain" },
    branch: { light: "#e69f00", dark: "#f0b32e", means: "a few clear ways to go on" },
    clarify: { light: "#009e73", dark: "#1fbf90", means: "evenly unsure" },
    resample: { light: "#cc79a7", dark: "#e093bd", means: "unsure in every way" },
    rest: { light: "#7c838c", dark: "#8d96a3", means: "no rule fits" },
  };
  const STATES = {
    k: ["keep", "sure"],
    a: ["argmax", "sure"],
    b: ["branch", "branch"],
    e: ["explore", "branch"],
    c: ["clarify", "clarify"],
    r: ["resample", "resample"],
    d: ["default", "rest"],
    v: ["adaptive", "rest"],
  };
  const EAGER = {
    b: ["splits", "branch", "above the limit: two sequences go on from here"],
    d: ["goes on", "rest", "below the limit: one sequence goes on"],
  };
  const RULES = { four: "kbcrd", threshold: "aecrv", eager: "bd" };

  /** A state by its letter in some rules: name, look, colour and meaning; null for a token whose state is not known. */
  function stateOf(letter, rules) {
    const [name, look, means] = (rules === "eager" ? EAGER : STATES)[letter] || [];
    if (!name) return null;
    const of = LOOKS[look];
    return { letter, name, look, colour: of[window.fpa.theme.dark() ? "dark" : "light"], means: means || of.means };
  }

  const number = new Intl.NumberFormat("en");
  const count = (n) => (n === null || n === undefined ? "–" : number.format(n));
  const percent = (p, digits = 0) => (p === null || p === undefined ? "–" : `${(100 * p).toFixed(digits)} %`);
  const short = (n) =>
    n === null || n === undefined
      ? "–"
      : n < 1e4
        ? number.format(n)
        : n < 1e6
          ? `${(n / 1e3).toFixed(n < 1e5 ? 1 : 0)} k`
          : `${(n / 1e6).toFixed(n < 1e7 ? 1 : 0)} M`;
  const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

  /** A token made visible: white space by signs, an empty piece (part of a character) by a dot. */
  function visible(text) {
    if (text === null || text === undefined) return null;
    if (text === "") return "·";
    return text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ | $/g, "␣");
  }

  /** A stretch of text as a short label: without the marks and spaces that end what came before. */
  function label(text, longest) {
    const words = (text.replace(/^[\s.,;:!?)\]]+/u, "").trim() || text.trim() || visible(text)).replace(/\s+/g, " ");
    return words.length > longest ? `${words.slice(0, longest - 1)}…` : words;
  }

  /** Black or white, whichever reads better on a colour. */
  function ink(hex) {
    const [r, g, b] = [1, 3, 5].map((i) => (parseInt(hex.slice(i, i + 2), 16) / 255) ** 2.2);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#10151a" : "#ffffff";
  }

  /** An answer as a coloured disc with its letter, so that colour is never the only sign. */
  function disc(categories, name) {
    const k = categories.indexOf(name);
    return h(
      "span",
      { class: "disc", style: `--c:${colour(categories, k < 0 ? categories.length - 1 : k)}` },
      name === "Other" ? "–" : name,
    );
  }

  /** A distribution as one bar; read out as text. */
  function bar(categories, shares, label) {
    const spoken = categories
      .map((name, k) => [name, shares[k]])
      .filter(([, share]) => share >= 0.005)
      .map(([name, share]) => `${name} ${percent(share)}`)
      .join(", ");
    return h(
      "span",
      { class: "dist", role: "img", "aria-label": `${label ? `${label}: ` : ""}${spoken}`, title: spoken },
      categories.map((name, k) =>
        shares[k] > 0.001
          ? h(
              "span",
              { style: `flex-grow:${shares[k]};--c:${colour(categories, k)};color:${ink(colour(categories, k))}` },
              shares[k] >= 0.12 ? (name === "Other" ? "–" : name) : "",
            )
          : null,
      ),
    );
  }

  Object.assign(window.fpa, { h, s, add, put, colour, count, percent, short, plural, visible, label, disc, bar, stateOf, RULES });
})();
