"use strict";
// The plot of one question: outcome curves with bands, where they change, and the model's entropy, on one axis.
// All colours are attributes, so that the drawing can be saved as it is.
(() => {
  const { s, colour } = window.fpa;
  const MARGIN = { left: 46, right: 26, top: 30 };
  const TRACK = 38;
  const GAP = 22;
  const AXIS = 36;
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";

  const inks = () =>
    window.fpa.theme.dark()
      ? { text: "#e8eaed", soft: "#a4acb8", line: "#2c333d", paper: "#14181d", fork: "#f07c2c", entropy: "#a4acb8" }
      : { text: "#1b1f24", soft: "#59626e", line: "#e3e6ea", paper: "#ffffff", fork: "#c24f00", entropy: "#6b7480" };

  function ticks(low, high, wanted) {
    const rough = Math.max(1, (high - low) / wanted);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((v) => v >= rough);
    const values = [];
    for (let v = Math.ceil(low / step) * step; v <= high + 1e-9; v += step) values.push(v);
    return values;
  }

  const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

  class Chart {
    /**
     * @param host element to draw into
     * @param on {hover(t or null), select(t), zoom([from, to] or null)}
     */
    constructor(host, on) {
      this.host = host;
      this.on = on;
      this.svg = s("svg", { class: "plot", xmlns: "http://www.w3.org/2000/svg", "font-family": FONT });
      host.append(this.svg);
      this.svg.addEventListener("pointermove", (event) => this.move(event));
      this.svg.addEventListener("pointerleave", () => this.on.hover(null));
      this.svg.addEventListener("pointerdown", (event) => this.press(event));
      this.svg.addEventListener("pointerup", (event) => this.release(event));
      this.svg.addEventListener("pointercancel", () => this.drop());
      this.svg.addEventListener("dblclick", () => this.on.zoom(null));
      this.watch = new ResizeObserver(() => this.model && this.render(this.model));
      this.watch.observe(host);
    }

    close() {
      this.watch.disconnect();
    }

    x(position) {
      const [from, to] = this.model.range;
      return MARGIN.left + ((position - from) / (to - from)) * this.inner;
    }

    token(event) {
      const [from, to] = this.model.range;
      const offset = event.clientX - this.svg.getBoundingClientRect().left - MARGIN.left;
      const t = Math.floor(from + (offset / this.inner) * (to - from));
      return Math.min(Math.max(t, from), Math.min(to, this.model.length) - 1);
    }

    move(event) {
      if (!this.model || !this.model.length) return;
      const t = this.token(event);
      if (this.pressed !== undefined && event.buttons) this.span(this.pressed, t);
      this.on.hover(t);
    }

    press(event) {
      if (event.button || !this.model.length || event.pointerType === "touch") return;
      this.pressed = this.token(event);
      this.pressedAt = event.clientX;
    }

    release(event) {
      const began = this.pressed;
      const dragged = began !== undefined && Math.abs(event.clientX - this.pressedAt) > 8;
      this.drop();
      if (!this.model.length) return;
      const t = this.token(event);
      if (dragged && Math.abs(t - began) >= 4) this.on.zoom([Math.min(t, began), Math.max(t, began) + 1]);
      else this.on.select(t);
    }

    drop() {
      this.pressed = undefined;
      if (this.brush) this.brush.setAttribute("visibility", "hidden");
    }

    span(a, b) {
      const [low, high] = [this.x(Math.min(a, b)), this.x(Math.max(a, b) + 1)];
      this.brush.setAttribute("x", low);
      this.brush.setAttribute("width", high - low);
      this.brush.setAttribute("visibility", "visible");
    }

    /**
     * @param model {length, range, categories, hidden (Set), focus {places, p, lo, hi} or null,
     *   overlays [{places, p, kind, name}], sampled, forks [{x, from, to, size, text}], change [{from, to, value}],
     *   changeEnd, changeName, entropy, entropyName, stacked, height, level}
     */
    render(model) {
      this.model = model;
      this.ink = inks();
      const width = Math.max(280, Math.floor(this.host.clientWidth));
      this.inner = width - MARGIN.left - MARGIN.right;
      this.tall = model.height;
      const tracks = 2 * (TRACK + GAP);
      this.height = MARGIN.top + this.tall + tracks + AXIS;
      this.svg.replaceChildren();
      this.svg.setAttribute("width", width);
      this.svg.setAttribute("height", this.height);
      this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
      this.svg.append(
        s(
          "clipPath",
          { id: "inside" },
          s("rect", { x: MARGIN.left - 1, y: 0, width: this.inner + 2, height: this.height }),
        ),
      );
      this.cursorAt = this.svg.appendChild(
        s("rect", {
          class: "mark",
          fill: this.ink.text,
          "fill-opacity": 0.1,
          y: MARGIN.top,
          height: this.height - MARGIN.top - AXIS,
          visibility: "hidden",
        }),
      );
      this.pinAt = this.svg.appendChild(
        s("rect", {
          class: "mark",
          fill: this.ink.text,
          "fill-opacity": 0.2,
          y: MARGIN.top,
          height: this.height - MARGIN.top - AXIS,
          visibility: "hidden",
        }),
      );
      this.axes(width);
      const inside = this.svg.appendChild(s("g", { "clip-path": "url(#inside)" }));
      if (model.focus) {
        if (model.stacked) this.areas(inside);
        else this.lines(inside);
      }
      this.rug(inside);
      this.changes(inside);
      this.entropies(inside);
      this.forks(inside);
      if (model.focus) this.ends();
      this.dots = this.svg.appendChild(s("g", { class: "mark" }));
      this.brush = this.svg.appendChild(
        s("rect", {
          fill: this.ink.fork,
          "fill-opacity": 0.15,
          y: MARGIN.top,
          height: this.height - MARGIN.top - AXIS,
          visibility: "hidden",
        }),
      );
      this.cursor(this.hovered ?? null, this.pinned ?? null);
    }

    y(p) {
      return MARGIN.top + (1 - p) * this.tall;
    }

    axes(width) {
      const { line, soft, text } = this.ink;
      const [from, to] = this.model.range;
      const right = MARGIN.left + this.inner;
      for (const p of [0, 0.25, 0.5, 0.75, 1]) {
        this.svg.append(
          s("line", { x1: MARGIN.left, x2: right, y1: this.y(p), y2: this.y(p), stroke: line }),
          s(
            "text",
            { x: MARGIN.left - 8, y: this.y(p) + 4, "text-anchor": "end", "font-size": 11, fill: soft },
            `${100 * p} %`,
          ),
        );
      }
      const bottom = this.height - AXIS;
      for (const v of ticks(from, to, this.inner / 90))
        this.svg.append(
          s("line", { x1: this.x(v), x2: this.x(v), y1: bottom, y2: bottom + 4, stroke: soft }),
          s("text", { x: this.x(v), y: bottom + 16, "text-anchor": "middle", "font-size": 11, fill: soft }, String(v)),
        );
      this.svg.append(
        s("line", { x1: MARGIN.left, x2: right, y1: bottom, y2: bottom, stroke: soft, "stroke-opacity": 0.5 }),
        s(
          "text",
          { x: MARGIN.left + this.inner / 2, y: this.height - 5, "text-anchor": "middle", "font-size": 11, fill: soft },
          "token position",
        ),
        s("text", { x: 4, y: 12, "font-size": 12, "font-weight": 600, fill: text }, "P(answer)"),
      );
    }

    visibleCategories() {
      return this.model.categories.map((_, k) => k).filter((k) => !this.model.hidden.has(k));
    }

    lines(group) {
      const { focus, overlays, categories } = this.model;
      for (const k of this.visibleCategories()) {
        const c = colour(categories, k);
        if (focus.lo) {
          const upper = focus.places.map((t, i) => [this.x(t), this.y(focus.hi[k][i])]);
          const lower = focus.places.map((t, i) => [this.x(t), this.y(focus.lo[k][i])]).reverse();
          group.append(
            s("path", { class: "band", d: `${path([...upper, ...lower])}Z`, fill: c, "fill-opacity": 0.16 }),
          );
        }
      }
      for (const overlay of overlays)
        for (const k of this.visibleCategories()) this.overlay(group, overlay, k, colour(categories, k));
      for (const k of this.visibleCategories()) {
        const points = focus.places.map((t, i) => [this.x(t), this.y(focus.p[k][i])]);
        group.append(
          s("path", {
            class: "curve",
            d: path(points),
            fill: "none",
            stroke: colour(categories, k),
            "stroke-width": 2.2,
            "stroke-linejoin": "round",
            "stroke-linecap": "round",
          }),
        );
        if (points.length === 1)
          group.append(s("circle", { cx: points[0][0], cy: points[0][1], r: 4, fill: colour(categories, k) }));
      }
    }

    overlay(group, overlay, k, c) {
      const points = overlay.places.map((t, i) => [this.x(t), this.y(overlay.p[k][i])]);
      if (overlay.kind === "dots") {
        const radius =
          this.inner / Math.max(1, (this.model.range[1] - this.model.range[0]) * (overlay.density || 1)) > 5 ? 2 : 1.3;
        // One path of round dots of no length: thousands of them stay light.
        const d = points.map(([x, y]) => `M${x.toFixed(1)} ${y.toFixed(1)}h0`).join("");
        group.append(
          s("path", {
            class: "overlay",
            d,
            stroke: c,
            "stroke-width": 2 * radius,
            "stroke-linecap": "round",
            "stroke-opacity": 0.55,
            fill: "none",
          }),
        );
        return;
      }
      group.append(s("path", { class: "overlay", d: path(points), fill: "none", stroke: c, ...this.stroke(overlay) }));
    }

    /** How an overlay's line is drawn: dots too close to be told apart become one pale line. */
    stroke({ kind, places }) {
      if (kind === "reference" && places.length > this.inner / 3) return { "stroke-width": 1, "stroke-opacity": 0.3 };
      return {
        "stroke-width": kind === "reference" ? 2 : 1.4,
        "stroke-dasharray": { dashes: "7 4", dots: "", reference: "1.5 3.5", dashdot: "9 3 2 3" }[kind],
        "stroke-linecap": "round",
        "stroke-opacity": kind === "reference" ? 0.9 : 0.8,
      };
    }

    areas(group) {
      const { focus, categories } = this.model;
      const shown = this.visibleCategories();
      const total = focus.places.map(() => 0);
      for (const k of shown) {
        const lower = focus.places.map((t, i) => [this.x(t), this.y(total[i])]);
        focus.places.forEach((_, i) => (total[i] = Math.min(1, total[i] + focus.p[k][i])));
        const upper = focus.places.map((t, i) => [this.x(t), this.y(total[i])]);
        group.append(
          s("path", {
            class: "curve",
            d: `${path([...upper, ...lower.reverse()])}Z`,
            fill: colour(categories, k),
            "fill-opacity": 0.78,
            stroke: this.ink.paper,
            "stroke-width": 0.8,
          }),
        );
      }
    }

    /** Ticks under the curves where continuations were started. */
    rug(group) {
      const [from, to] = this.model.range;
      const shown = this.model.sampled.filter((t) => t >= from && t <= to);
      const d = shown.map((t) => `M${this.x(t).toFixed(1)} ${this.y(0) + 2}v4`).join("");
      group.append(
        s("path", { d, stroke: this.ink.soft, "stroke-opacity": shown.length > 250 ? 0.35 : 0.8, fill: "none" }),
      );
    }

    track(row, title) {
      const top = MARGIN.top + this.tall + GAP + row * (TRACK + GAP);
      this.svg.append(
        s("line", {
          x1: MARGIN.left,
          x2: MARGIN.left + this.inner,
          y1: top + TRACK,
          y2: top + TRACK,
          stroke: this.ink.line,
        }),
        s("text", { x: MARGIN.left, y: top - 5, "font-size": 11, fill: this.ink.soft }, title),
      );
      return top;
    }

    scaleEnd(top, value) {
      this.svg.append(
        s(
          "text",
          { x: MARGIN.left - 8, y: top + 9, "text-anchor": "end", "font-size": 10, fill: this.ink.soft },
          value,
        ),
        s(
          "text",
          { x: MARGIN.left - 8, y: top + TRACK + 2, "text-anchor": "end", "font-size": 10, fill: this.ink.soft },
          "0",
        ),
      );
    }

    changes(group) {
      const top = this.track(0, this.model.changeName);
      if (this.model.change.length) this.scaleEnd(top, String(this.model.changeEnd));
      const [from, to] = this.model.range;
      const d = this.model.change
        .filter((c) => c.value > 0.004 * this.model.changeEnd && c.to > from && c.from < to)
        .map((c) => {
          const x = this.x(c.from);
          const wide = Math.max(1.5, this.x(c.to) - x - 0.5);
          return `M${x.toFixed(1)} ${top + TRACK}v${((-c.value / this.model.changeEnd) * TRACK).toFixed(1)}h${wide.toFixed(1)}V${top + TRACK}Z`;
        })
        .join("");
      group.append(s("path", { class: "change", d, fill: this.ink.fork }));
    }

    entropies(group) {
      const known = this.model.entropy.filter((v) => v !== null);
      const top = this.track(1, known.length ? this.model.entropyName : "Entropy: not recorded");
      if (!known.length) return;
      const most = Math.max(1, ...known);
      this.scaleEnd(top, most >= 10 ? most.toFixed(0) : most.toFixed(1));
      const [from, to] = this.model.range;
      const wide = this.inner / (to - from);
      const bars = new Map(); // colour -> path
      this.model.entropy.forEach((v, t) => {
        if (v === null || t < from || t >= to) return;
        const state = this.model.entropyStates?.[t];
        const c = state?.colour ?? this.ink.entropy;
        const bar = `M${this.x(t).toFixed(1)} ${top + TRACK}v${((-v / most) * TRACK).toFixed(1)}h${Math.max(1, wide - 0.4).toFixed(1)}V${top + TRACK}Z`;
        bars.set(c, (bars.get(c) ?? "") + bar);
      });
      for (const [c, d] of bars)
        group.append(s("path", { class: "entropy", d, fill: c, "fill-opacity": this.model.entropyStates ? 1 : 0.75 }));
      if (!this.model.entropyStates || wide < 9) return;
      this.model.entropyStates.forEach((state, t) => {
        if (!state || t < from || t >= to) return;
        const y = top + TRACK - ((this.model.entropy[t] ?? 0) / most) * TRACK - 3;
        group.append(
          s(
            "text",
            { x: this.x(t) + wide / 2, y: Math.max(y, top + 8), "text-anchor": "middle", "font-size": 10, fill: this.ink.text },
            state.letter,
          ),
        );
      });
    }

    forks(group) {
      const [from, to] = this.model.range;
      const shown = this.model.forks.filter((f) => f.x >= from && f.x <= to);
      for (const fork of shown) {
        const x = this.x(fork.x);
        group.append(
          s("line", {
            x1: x,
            x2: x,
            y1: MARGIN.top,
            y2: this.y(0),
            stroke: this.ink.fork,
            "stroke-width": 1,
            "stroke-dasharray": "2 3",
          }),
          s("path", { class: "fork", d: `M${x - 5} ${MARGIN.top - 8}h10l-5 8Z`, fill: this.ink.fork }),
        );
      }
      // Names of the largest forks, where there is room.
      const taken = [];
      for (const fork of [...shown].sort((a, b) => b.size - a.size)) {
        const label = window.fpa.label(fork.text, 22);
        const half = 3.4 * label.length + 6;
        const x = Math.min(Math.max(this.x(fork.x), 66 + half), MARGIN.left + this.inner + MARGIN.right - half);
        if (taken.some(([low, high]) => x + half > low && x - half < high)) continue;
        taken.push([x - half, x + half]);
        this.svg.append(
          s(
            "text",
            {
              x,
              y: MARGIN.top - 13,
              "text-anchor": "middle",
              "font-size": 12,
              "font-weight": 600,
              fill: this.ink.fork,
            },
            label,
          ),
        );
      }
    }

    /** The letters at the curves' right ends, moved apart where they would touch. */
    ends() {
      const { focus, categories, stacked, range } = this.model;
      let under = 0;
      const labels = [];
      for (const k of this.visibleCategories()) {
        const p = window.fpa.at(focus.places, focus.p[k], range[1]);
        if (p >= 0.04 || (!stacked && p >= 0.02)) labels.push({ k, y: this.y(stacked ? under + p / 2 : p) });
        under += p;
      }
      labels.sort((a, b) => a.y - b.y);
      for (let i = 1; i < labels.length; i++) labels[i].y = Math.max(labels[i].y, labels[i - 1].y + 13);
      const over = labels.length ? labels.at(-1).y - this.y(0) : 0;
      if (over > 0) {
        labels.at(-1).y -= over;
        for (let i = labels.length - 2; i >= 0; i--) labels[i].y = Math.min(labels[i].y, labels[i + 1].y - 13);
      }
      for (const { k, y } of labels)
        this.svg.append(
          s(
            "text",
            {
              x: MARGIN.left + this.inner + 6,
              y: y + 4,
              "font-size": 12,
              "font-weight": 700,
              fill: colour(categories, k),
            },
            categories[k] === "Other" ? "–" : categories[k],
          ),
        );
    }

    /** Mark the token under the pointer and the selected one. */
    cursor(hovered, pinned) {
      this.hovered = hovered;
      this.pinned = pinned;
      if (!this.model) return;
      const [from, to] = this.model.range;
      for (const [mark, t] of [
        [this.cursorAt, hovered],
        [this.pinAt, pinned],
      ]) {
        const seen = t !== null && t >= from && t < to;
        mark.setAttribute("visibility", seen ? "visible" : "hidden");
        if (!seen) continue;
        const wide = Math.max(2, this.x(t + 1) - this.x(t));
        mark.setAttribute("x", this.x(t) - (wide === 2 ? 1 : 0));
        mark.setAttribute("width", wide);
        // A wide stripe would drown what it marks.
        mark.setAttribute("fill-opacity", (mark === this.pinAt ? 0.22 : 0.12) * (wide > 8 ? 0.4 : 1));
      }
      const t = hovered ?? pinned;
      this.dots.replaceChildren();
      const { focus, stacked, categories } = this.model;
      if (t === null || t < from || t > to || !focus || stacked) return;
      for (const k of this.visibleCategories())
        this.dots.append(
          s("circle", {
            cx: this.x(t),
            cy: this.y(window.fpa.at(focus.places, focus.p[k], t)),
            r: 3.5,
            fill: colour(categories, k),
            stroke: this.ink.paper,
            "stroke-width": 1.5,
          }),
        );
    }

    /** What the lines, dots and colours are: a sample of each, to be put into a group at (0, 0), and its name. */
    key({ front, answers }) {
      const { focus, overlays, forks, hidden, categories, stacked } = this.model;
      const { soft, fork } = this.ink;
      const line = { x1: 0, x2: 24, y1: 0, y2: 0, stroke: soft };
      const found = [];
      for (const k of this.visibleCategories()) {
        const filled = { fill: colour(categories, k), stroke: "none" };
        found.push([[s("rect", { y: -5, width: 24, height: 10, ...filled })], answers[k]]);
      }
      if (focus && !stacked)
        found.push([
          [
            focus.lo ? s("rect", { y: -5, width: 24, height: 10, fill: soft, "fill-opacity": 0.2 }) : null,
            s("line", { ...line, "stroke-width": 2.2 }),
          ],
          front,
        ]);
      for (const overlay of overlays) {
        const sample =
          overlay.kind === "dots"
            ? [4, 12, 20].map((cx) => s("circle", { cx, cy: 0, r: 1.8, fill: soft }))
            : [s("line", { ...line, ...this.stroke(overlay) })];
        found.push([sample, overlay.name]);
      }
      if (forks.length) found.push([[s("path", { d: "M7 -4h10l-5 8Z", fill: fork })], "fork"]);
      found.push([[s("path", { d: "M4 -2v4m8 -4v4m8 -4v4", stroke: soft })], "sampled position"]);
      if (hidden.size) found.push([[], `not shown: ${[...hidden].map((k) => categories[k]).join(", ")}`]);
      return found;
    }

    /**
     * The drawing on paper of its own, as the text of a file: without the marks of the selected token, with a key
     * and a caption below, so that it can be read without the page.
     *
     * @param caption {lines, front: name of the curve, answers: name of each category}
     */
    file(caption) {
      const copy = this.svg.cloneNode(true);
      copy.querySelectorAll('[visibility="hidden"], .mark').forEach((node) => node.remove());
      const width = Number(copy.getAttribute("width"));
      const pen = document.createElement("canvas").getContext("2d");
      pen.font = `11px ${FONT}`;
      // Another machine's font may be wider.
      const measure = (text) => 1.08 * pen.measureText(text).width;
      const foot = s("g", { class: "caption", "font-size": 11, fill: this.ink.text });
      let [x, y] = [MARGIN.left, this.height + 16];
      for (const [sample, name] of this.key(caption)) {
        const wide = 30 + measure(name) + 18;
        if (x > MARGIN.left && x + wide > width) [x, y] = [MARGIN.left, y + 17];
        foot.append(s("g", { transform: `translate(${x.toFixed(1)} ${y})` }, sample, s("text", { x: 30, y: 4 }, name)));
        x += wide;
      }
      y += 9;
      for (const line of caption.lines)
        for (const part of wrapped(line, width - MARGIN.left - 8, measure))
          foot.append(s("text", { x: MARGIN.left, y: (y += 16) }, part));
      copy.append(foot);
      copy.setAttribute("height", y + 12);
      copy.setAttribute("viewBox", `0 0 ${width} ${y + 12}`);
      copy.prepend(s("rect", { width: "100%", height: "100%", fill: this.ink.paper }));
      return new XMLSerializer().serializeToString(copy);
    }
  }

  /** A text in lines that are not too wide; it may break after spaces, and after characters that need none. */
  function wrapped(text, width, measure) {
    const lines = [""];
    for (const word of text.split(/(?<=[\s\u2e80-\u9fff\uff00-\uffef])/u)) {
      if (lines.at(-1) && measure(lines.at(-1) + word.trimEnd()) > width) lines.push("");
      lines[lines.length - 1] += word;
    }
    return lines.map((line) => line.trimEnd());
  }

  /** A question's curve in miniature: areas over the path, ticks where it forks. Shares are hundredths. */
  function miniature(categories, spark, forks, width, height) {
    if (!spark) return s("svg", { class: "mini", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    const n = spark[0].length;
    const x = (i) => (i / (n - 1)) * width;
    const y = (p) => (1 - Math.min(100, p) / 100) * height;
    const total = spark[0].map(() => 0);
    const areas = spark.map((shares, k) => {
      const lower = total.map((p, i) => [x(i), y(p)]).reverse();
      shares.forEach((p, i) => (total[i] += p));
      return s("path", {
        d: `${path([...total.map((p, i) => [x(i), y(p)]), ...lower])}Z`,
        fill: colour(categories, k),
        "fill-opacity": 0.8,
      });
    });
    const ink = inks();
    return s(
      "svg",
      { class: "mini", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      areas,
      forks.map((share) =>
        s("path", {
          d: `M${(share * width).toFixed(1)} 0V${height}`,
          stroke: ink.text,
          "stroke-width": 1.4,
          "stroke-dasharray": "2 2",
          "vector-effect": "non-scaling-stroke",
        }),
      ),
    );
  }

  Object.assign(window.fpa, { Chart, miniature });
})();
