"use strict";
// One question: its curves, its text, and what else could have been said at each token.
(() => {
  const { h, put, count, percent, short, plural, visible, disc, colour, at, stateOf, RULES } = window.fpa;
  const KINDS = ["dashes", "dashdot", "dots"];
  const NAMES = { full: "Full Model", auto: "auto", raw: "raw" };
  const SHADES = {
    change: "change",
    entropy: "entropy",
    surprise: "surprise",
    four: "four states",
    threshold: "threshold states",
    eager: "EAGER’s splits",
  };

  const ZOOMS = { "+": 0.5, "=": 0.5, "-": 2, "−": 2, 0: Infinity };
  const NARROWEST = 4; // tokens that the plot may be enlarged to

  class Question {
    constructor(main, index, row, core, go) {
      Object.assign(this, { main, index, row, core, go });
      this.length = (core.tokens || []).length;
      this.grid = core.grid ? window.fpa.sums(core.grid) : [];
      this.positions = core.positions ? window.fpa.sums(core.positions) : [];
      this.reference = core.reference && {
        places: window.fpa.sums(core.reference.positions),
        p: core.reference.p.map(window.fpa.probabilities),
        draws: core.reference.draws,
      };
      this.cells = core.full ? { "all/1": core.full } : {};
      this.build();
    }

    // ---- what is asked for

    get methods() {
      return this.index.methods.filter((name) => this.core.full && name in this.core.full.curves);
    }

    usable(name) {
      return !this.cell.curves[name].missing;
    }

    /** The state, with everything that does not fit this question replaced by what does. */
    read(state) {
      const sizes = this.core.sizes || ["all"];
      const strides = this.core.strides || [1];
      const size = sizes.map(String).includes(state.S) ? state.S : "all";
      const stride = strides.map(String).includes(state.N) ? state.N : "1";
      const t = state.t === undefined || !/^\d+$/.test(state.t) ? null : Math.min(Number(state.t), this.length - 1);
      const zoomed = /^(\d+)-(\d+)$/.exec(state.x || "");
      let range = this.whole;
      if (zoomed && Number(zoomed[2]) - Number(zoomed[1]) >= NARROWEST && Number(zoomed[1]) < this.length - 1)
        range = [Number(zoomed[1]), Math.min(Number(zoomed[2]), range[1])];
      const others = (state.with ?? (this.reference ? "reference" : "raw")).split(".");
      return {
        cell: `${size}/${stride}`,
        size,
        stride,
        t: this.length && t !== null && t >= 0 ? t : null,
        range,
        method: this.methods.includes(state.m) ? state.m : this.methods[0],
        with: new Set(others),
        hidden: new Set(
          (state.hide || "")
            .split(".")
            .map((name) => this.core.categories.indexOf(name))
            .filter((k) => k >= 0),
        ),
        stacked: state.show === "stacked",
        shade: this.shadeable(state.shade) ? state.shade : "change",
        open: new Set((state.open || "").split(".").filter(Boolean)),
      };
    }

    get whole() {
      return [0, Math.max(1, this.length)];
    }

    shadeable(shade) {
      return shade in SHADES && (!(shade in RULES) || Boolean(this.core.states && this.core.states[shade]));
    }

    /** The state of a token by the rules that tokens are shaded by; null for other shades. */
    stateAt(t) {
      const { shade } = this.state;
      return shade in RULES ? stateOf(this.core.states[shade][t], shade) : null;
    }

    // ---- what is built once

    build() {
      const { core, main } = this;
      const choice = (letter, text) =>
        h(
          "li",
          {},
          disc(core.categories, letter),
          h("span", { class: "choice", dir: "auto" }, text),
          core.answer === letter ? h("span", { class: "tag right" }, "✓ correct") : null,
          core.base && core.base.outcome === letter ? h("span", { class: "tag" }, "base path") : null,
        );
      const step = (title, sign) => h("a", { class: "step", "aria-label": title, title }, sign);
      this.back = h("a", { href: "#", id: "back" }, "All questions");
      this.steps = [step("Question before ([)", "‹"), h("span", {}), step("Question after (])", "›")];
      this.notices = h("div", { class: "notices" });
      put(
        main,
        h(
          "article",
          { class: "question" },
          h(
            "header",
            { class: "asked" },
            h(
              "p",
              { class: "crumbs" },
              this.back,
              h("span", { "aria-hidden": "true" }, "/"),
              h("bdi", {}, core.id),
              core.subject ? h("span", { class: "tag", dir: "auto" }, core.subject) : null,
              h("span", { class: "steps" }, this.steps),
            ),
            h("h1", { dir: "auto" }, core.question),
            h(
              "ol",
              { class: "choices" },
              core.choices.map((text, i) => choice(core.categories[i], text)),
            ),
          ),
          this.notices,
        ),
      );
      const notes = this.notes();
      put(this.notices, ...notes.map((text) => h("p", { class: "note" }, text)));
      if (!this.length) return;
      this.left = h("div", { class: "left" });
      this.inspector = new window.fpa.Inspector(this);
      main.firstChild.append(h("div", { class: "columns" }, this.left, this.inspector.node));
      if (this.methods.length) this.buildPlot();
      this.buildText();
    }

    notes() {
      const { core, row } = this;
      const notes = [];
      if (row.failure) notes.push(`Collecting this question failed: ${row.failure}`);
      if (!this.length)
        notes.push("This question has no base path yet: resume the collection, then build the pages again.");
      else if (core.rollouts && !core.full)
        notes.push(
          `All ${count(core.rollouts)} rollouts begin at the prompt: they make no curve over positions. fpa pass says how often they are right.`,
        );
      else if (!core.full)
        notes.push("No rollouts of this question yet: resume the collection, then build the pages again.");
      if (core.base && core.base.finish === "length")
        notes.push("The base path was cut off at its token limit, before it ended.");
      // The overview shows both; a reader should not have to guess why they differ.
      if (row.base && row.final && row.base !== row.final)
        notes.push(
          `The base path answers ${row.base}, but the curve ends in ${row.final} (${percent(row.confidence)}). ${
            this.index.run.track
              ? "The outcomes of released rollouts are the labels that they were released with; the answer of the base path was read from its text on import, by other rules."
              : "The base path was said once, greedily; the curve is of answers drawn from its last position on."
          }`,
        );
      if (core.forced)
        notes.push(
          `${plural(core.forced, "rollout")} had the base token excluded at first; they belong to no sample of a position, so the run is shown as it was collected.`,
        );
      return notes;
    }

    buildPlot() {
      const { core } = this;
      const toggle = (name, title) =>
        h(
          "button",
          { type: "button", "data-with": name, "aria-pressed": "false", onclick: () => this.toggle(name) },
          h("svg-key", { "data-key": name, "aria-hidden": "true" }),
          title,
        );
      this.methodPills = h(
        "span",
        { class: "pills", role: "group", "aria-label": "Method in front, with its band" },
        this.methods.map((name) =>
          h(
            "button",
            {
              type: "button",
              "data-method": name,
              onclick: () => this.go({ m: name === this.methods[0] ? null : name }),
            },
            NAMES[name] || name,
          ),
        ),
      );
      this.withPills = h(
        "span",
        { class: "toggles", role: "group", "aria-label": "Compare with" },
        [...this.methods, ...(this.reference ? ["reference"] : [])].map((name) => toggle(name, NAMES[name] || name)),
      );
      this.showPills = h(
        "span",
        { class: "pills", role: "group", "aria-label": "Drawing" },
        h("button", { type: "button", "data-show": "lines", onclick: () => this.go({ show: null }) }, "Lines"),
        h("button", { type: "button", "data-show": "stacked", onclick: () => this.go({ show: "stacked" }) }, "Stacked"),
      );
      const slider = (id, name, title, values) => {
        const output = h("output", { for: id });
        const input = h("input", {
          type: "range",
          id,
          min: 0,
          max: values.length - 1,
          step: 1,
          disabled: values.length < 2,
          oninput: () =>
            this.go({
              [name]: String(values[input.value]) === (name === "S" ? "all" : "1") ? null : String(values[input.value]),
            }),
        });
        return {
          node: h("label", { class: "slider", for: id }, h("span", {}, title), input, output),
          input,
          output,
          values,
        };
      };
      this.sizeSlider = slider("size", "S", h("abbr", { title: "Rollouts drawn at each position" }, "S"), core.sizes);
      this.strideSlider = slider(
        "stride",
        "N",
        h("abbr", { title: "Use every so many-th of the sampled positions" }, "N"),
        core.strides,
      );
      this.cost = h("p", { class: "cost", role: "status" });
      this.legend = h("div", { class: "legend", role: "group", "aria-label": "Outcomes; press to hide or show" });
      this.plotHost = h("div", {
        class: "plot-host",
        tabindex: 0,
        role: "slider",
        id: "plot",
        "aria-label": "Outcome curves by token position",
        "aria-valuemin": 0,
        "aria-valuemax": this.length - 1,
        onkeydown: (event) => this.keys(event),
      });
      // Never disabled outright: a button that is loses the keyboard's focus.
      const zoom = (by, title, sign) =>
        h(
          "button",
          { type: "button", class: "quiet", title, "aria-label": title, onclick: () => this.zoom(by) },
          sign,
        );
      this.closer = zoom(0.5, "Enlarge the plot at the selected token (+)", "+");
      this.wider = zoom(2, "Show more of the path (−)", "−");
      this.unzoom = h("button", { type: "button", class: "quiet", onclick: () => this.unzoomed() }, "Whole path");
      this.save = h(
        "button",
        {
          type: "button",
          class: "quiet save",
          title: "Save the plot as an SVG file",
          onclick: () => this.saveFigure(),
        },
        "Save SVG",
      );
      this.left.append(
        h(
          "section",
          { class: "panel", "aria-label": "Outcome curves" },
          h(
            "div",
            { class: "controls" },
            h("span", { class: "field" }, h("span", {}, "Curve"), this.methodPills),
            h("span", { class: "field" }, h("span", {}, "with"), this.withPills),
            h("span", { class: "spring" }),
            this.showPills,
          ),
          h("div", { class: "controls" }, this.sizeSlider.node, this.strideSlider.node, this.cost),
          h("div", { class: "controls legend-row" }, this.legend, this.unzoom, h("span", { class: "pair" }, this.wider, this.closer), this.save),
          this.plotHost,
          (this.missing = h("p", { class: "note", hidden: true })),
        ),
      );
      this.chart = new window.fpa.Chart(this.plotHost, {
        hover: (t) => this.hover(t),
        select: (t) => this.select(t),
        zoom: (range) => this.show(range || this.whole),
      });
    }

    buildText() {
      const { core } = this;
      this.tokens = core.tokens.map((text, t) => {
        const node = h("span", { class: "tok", "data-t": t });
        if (text === "") node.append(h("span", { class: "sign", "aria-hidden": "true" }, "·"));
        else
          text.split(/(\n)/).forEach((part) => {
            if (part === "\n") node.append(h("span", { class: "sign", "aria-hidden": "true" }, "↵"), "\n");
            else if (part) node.append(part);
          });
        return node;
      });
      this.text = h(
        "div",
        {
          class: "text",
          id: "text",
          tabindex: 0,
          dir: "auto",
          role: "group",
          "aria-label": `Base path, ${plural(this.length, "token")}; arrow keys move from token to token`,
          onkeydown: (event) => this.keys(event),
          onpointermove: (event) => this.hover(this.under(event)),
          onpointerleave: () => this.hover(null),
          onclick: (event) => {
            const t = this.under(event);
            if (t !== null) this.select(t);
          },
        },
        this.tokens,
      );
      this.forkList = h("p", { class: "fork-list" });
      this.shades = h(
        "span",
        { class: "pills", role: "group", "aria-label": "Shade of the tokens" },
        Object.entries(SHADES).map(([name, title]) =>
          h(
            "button",
            {
              type: "button",
              "data-shade": name,
              disabled: !this.shadeable(name),
              title: !this.shadeable(name)
                ? "The run did not record the entropies of its tokens"
                : name === core.own
                  ? "The rules that this run was collected by, with its own numbers"
                  : null,
              onclick: () => this.go({ shade: name === "change" ? null : name }),
            },
            title,
          ),
        ),
      );
      this.shadeKey = h("span", { class: "shade-key", "aria-hidden": "true" });
      this.left.append(
        h(
          "section",
          { class: "panel", "aria-labelledby": "path-title" },
          h(
            "div",
            { class: "controls" },
            h("h2", { id: "path-title" }, "Base path"),
            this.shadeKey,
            h("span", { class: "spring" }),
            h("span", { class: "field" }, h("span", {}, "shade"), this.shades),
          ),
          (this.stateKey = h("ul", { class: "state-key", "aria-label": "States of the tokens", hidden: true })),
          this.methods.length ? this.forkList : null,
          this.text,
        ),
      );
    }

    // ---- what follows the state

    /** Its place among the rows of the overview, and the addresses of the questions on both sides and of all. */
    place(rows, state, overview) {
      const at = rows.findIndex((r) => r.key === this.row.key);
      const [before, number, after] = this.steps;
      number.textContent = `${at + 1} / ${rows.length}`;
      const all = this.index.columns.key.length;
      number.title = rows.length < all ? `Of the ${rows.length} that fit, of all ${all}` : "";
      for (const [link, other] of [
        [before, rows[at - 1]],
        [after, rows[at + 1]],
      ]) {
        link.toggleAttribute("href", Boolean(other));
        if (other) link.href = window.fpa.addressOf(other.key, state);
        if (other) link.removeAttribute("aria-disabled");
        else link.setAttribute("aria-disabled", "true");
      }
      this.back.href = overview;
    }

    async update(state, current) {
      const wanted = this.read(state);
      if (this.length && this.methods.length && !this.cells[wanted.cell]) {
        const cells = await window.fpa.load(`${this.row.key}.cells`);
        if (!current()) return;
        Object.assign(this.cells, cells);
      }
      const before = this.drawn;
      this.drawn = JSON.stringify([
        wanted.cell,
        wanted.range,
        wanted.method,
        [...wanted.with],
        [...wanted.hidden],
        wanted.stacked,
        wanted.shade,
      ]);
      this.state = wanted;
      if (!this.length) return;
      if (this.drawn === before) {
        // Another token of the same picture: nothing is drawn again.
        if (this.chart) this.readLegend(wanted.t);
      } else if (this.methods.length) {
        this.cell = this.cells[wanted.cell];
        this.curves = window.fpa.curves(this.cell);
        this.focus = this.curves[wanted.method].missing ? null : this.curves[wanted.method];
        this.change = this.changes();
        this.forks = this.findForks();
        if (before === undefined && wanted.t === null) {
          wanted.t = this.start();
          window.fpa.replace({ t: String(wanted.t) });
        }
        this.updatePlot();
      } else {
        this.change = this.core.tokens.map(() => 0);
        this.forks = [];
      }
      if (this.drawn !== before) this.updateShades();
      if (this.methods.length) {
        this.updateForks();
        this.speakPlace();
      }
      this.mark();
      this.inspector.show();
    }

    /** (T,) probability that the curve changed across each token; the size of the change where unknown. */
    changes() {
      const shares = new Array(this.length).fill(0);
      if (!this.focus) return shares;
      const values = this.focus.change || window.fpa.variation(this.focus.p);
      for (let i = 1; i < this.grid.length; i++) shares.fill(values[i], this.grid[i - 1], this.grid[i]);
      return shares;
    }

    /** Where the scale of changes ends: at 1 for probabilities, at the largest for sizes. */
    changeEnd() {
      if (!this.focus || this.focus.change) return 1;
      return Math.max(0.3, Math.ceil(10 * this.change.reduce((a, b) => Math.max(a, b), 0)) / 10);
    }

    findForks() {
      if (!this.focus) return [];
      const moved = window.fpa.variation(this.focus.p);
      const found = [];
      moved.forEach((size, i) => {
        // Rounding of the stored thousandths must not decide at the threshold.
        if (i && size > this.index.threshold + 1e-9) {
          const [from, to] = [this.grid[i - 1], this.grid[i]];
          found.push({ x: to, from, to, size, text: this.core.tokens.slice(from, to).join("") });
        }
      });
      return found;
    }

    updatePlot() {
      const { core, state, index } = this;
      const press = (group, name, chosen) =>
        group
          .querySelectorAll("button")
          .forEach((b) => b.setAttribute("aria-pressed", String(chosen(b.dataset[name]))));
      press(this.methodPills, "method", (name) => name === state.method);
      press(this.showPills, "show", (name) => (name === "stacked") === state.stacked);
      press(this.withPills, "with", (name) => state.with.has(name) && name !== state.method);
      this.withPills.querySelectorAll("button").forEach((b) => {
        b.hidden = b.dataset.with === state.method;
        b.disabled = state.stacked;
        b.querySelector("svg-key").className = `key-${this.kind(b.dataset.with)}`;
      });
      const unit = index.run.unit === "sentence" ? "sentences" : "tokens";
      const every = index.run.every || 1;
      const most = core.draws[1];
      // Continuations drawn token by token become draws of a position only by a choice among them: then no number
      // of draws is all that the run has.
      const mixed = core.full.rollouts < core.rollouts;
      this.slide(
        this.sizeSlider,
        state.size,
        state.size === "all" ? `${this.span(core.draws)} (${mixed ? "mixed" : "all"})` : `${state.size} of ${most}`,
      );
      this.sizeSlider.output.title = mixed
        ? "The run drew so many continuations after each likely next token. A draw of a position is one of them, its token chosen by its probability: a mixture, which leaves some continuations out."
        : "";
      const n = Number(state.stride) * every;
      this.slide(this.strideSlider, state.stride, n === 1 ? `every ${unit.slice(0, -1)}` : `every ${n} ${unit}`);
      const share = core.spent ? this.cell.tokens / core.spent : 0;
      put(
        this.cost,
        h("b", {}, short(this.cell.tokens)),
        " tokens",
        h(
          "span",
          { class: "soft" },
          ` in ${plural(this.cell.rollouts, "rollout")}${share && share < 0.9995 ? `: ${share < 0.01 ? (share * 100 < 0.1 ? "under 0.1" : (100 * share).toFixed(1)) : (100 * share).toFixed(0)} % of the run` : ""}`,
        ),
        this.distances(),
      );
      this.missing.hidden = Boolean(this.focus);
      this.missing.textContent = this.focus
        ? ""
        : `${NAMES[state.method] || state.method}: ${this.cell.curves[state.method].missing}`;
      const [from, to] = state.range;
      this.unzoom.hidden = to - from === this.length;
      this.wider.setAttribute("aria-disabled", String(to - from >= this.length));
      this.closer.setAttribute("aria-disabled", String(to - from <= NARROWEST));

      const overlays = [];
      for (const name of this.methods)
        if (state.with.has(name) && name !== state.method && !this.curves[name].missing) {
          // A raw curve is only known where something was sampled.
          const places = name === "raw" ? this.sampled() : this.grid;
          const p =
            name === "raw" ? this.curves.raw.p.map((c) => places.map((x) => at(this.grid, c, x))) : this.curves[name].p;
          overlays.push({
            places,
            p,
            kind: name === "raw" ? "dots" : this.kind(name),
            name: name === "raw" ? "raw frequencies" : NAMES[name] || name,
            density: places.length / Math.max(1, this.length),
          });
        }
      if (this.reference && state.with.has("reference")) 
        overlays.push({ ...this.reference, kind: "reference", name: this.referenceName() });
      const spans = [];
      if (this.focus)
        for (let i = 1; i < this.grid.length; i++)
          spans.push({ from: this.grid[i - 1], to: this.grid[i], value: this.change[this.grid[i - 1]] });
      this.chart.pinned = state.t;
      this.chart.render({
        length: this.length,
        range: state.range,
        categories: core.categories,
        hidden: state.hidden,
        focus: this.focus && { places: this.grid, ...this.focus },
        overlays: state.stacked ? [] : overlays,
        sampled: this.sampled(),
        forks: this.forks,
        change: spans,
        changeEnd: this.changeEnd(),
        changeName:
          this.focus && !this.focus.change
            ? "Size of the change (total variation)"
            : `Probability of a change above ${index.threshold}`,
        entropy: core.entropy,
        entropyStates: state.shade in RULES ? core.entropy.map((_, t) => this.stateAt(t)) : null,
        entropyName: core.entropyWhole
          ? "Entropy of the next token (nats)"
          : "Entropy of the kept next tokens (nats, a lower bound)",
        stacked: state.stacked,
        height: Math.round(Math.min(300, Math.max(200, window.innerHeight * 0.36))),
      });
      this.readLegend(state.t);
    }

    speakPlace() {
      const t = this.state.t ?? 0;
      this.plotHost.setAttribute("aria-valuenow", t);
      this.plotHost.setAttribute("aria-valuetext", this.spoken(t));
    }

    kind(name) {
      if (name === "reference") return "reference";
      if (name === "raw") return "raw";
      return KINDS[this.methods.filter((m) => m !== "raw" && m !== this.state.method).indexOf(name) % KINDS.length];
    }

    sampled() {
      return this.positions.filter((_, i) => i % Number(this.state.stride) === 0);
    }

    slide(slider, value, words) {
      slider.input.value = slider.values.map(String).indexOf(String(value));
      slider.input.setAttribute("aria-valuetext", words);
      slider.output.textContent = words;
    }

    /** How far the curves are from the reference, or from all draws where there is none. */
    distances() {
      const target = this.reference || (this.state.cell !== "all/1" && { places: this.positions, p: this.rawOfAll() });
      if (!target || !target.p) return null;
      const shown = [
        this.state.method,
        ...this.methods.filter((m) => m !== this.state.method && this.state.with.has(m)),
      ].filter((m) => !this.curves[m].missing);
      if (!shown.length) return null;
      const title = this.reference
        ? "Mean total variation from the reference"
        : "Mean total variation from the raw curve of all draws, these included";
      return h(
        "span",
        { class: "distance", title },
        ` · ${this.reference ? "off the reference" : "off all draws"}: `,
        shown.map((m, i) => [
          i ? ", " : "",
          h("b", {}, window.fpa.distance(this.grid, this.curves[m].p, target.places, target.p).toFixed(3)),
          h("span", { class: "soft" }, ` ${NAMES[m] || m}`),
        ]),
      );
    }

    rawOfAll() {
      const raw = window.fpa.curves(this.core.full).raw;
      return raw.missing ? null : raw.p.map((c) => this.positions.map((x) => at(this.grid, c, x)));
    }

    readLegend(t) {
      const { core, state } = this;
      const place = t ?? 0;
      // Rebuilding would take the keyboard's focus away.
      if (!this.legend.children.length)
        this.legend.append(
          ...core.categories.map((name, k) =>
            h(
              "button",
              { type: "button", "data-k": k, title: "Hide or show", onclick: () => this.hide(k) },
              disc(core.categories, name),
              h("span", { class: "name" }, name === "Other" ? "other" : ""),
              h("span", { class: "value" }),
            ),
          ),
        );
      [...this.legend.children].forEach((b, k) => {
        b.setAttribute("aria-pressed", String(!state.hidden.has(k)));
        b.querySelector(".value").textContent = this.focus ? percent(at(this.grid, this.focus.p[k], place)) : "";
        b.querySelector(".disc").style.setProperty("--c", colour(core.categories, k));
      });
    }

    updateForks() {
      const many = this.forks.length > 12;
      const shown = many
        ? [...this.forks]
            .sort((a, b) => b.size - a.size)
            .slice(0, 12)
            .sort((a, b) => a.x - b.x)
        : this.forks;
      // Rebuilding would take the keyboard's focus away: only where there are other forks than before.
      const those = JSON.stringify(this.forks);
      if (those !== this.listed) this.listForks(shown, many);
      this.listed = those;
      this.forkList.querySelectorAll("button").forEach((b, i) => {
        const { from, to } = shown[i];
        b.setAttribute("aria-pressed", String(this.state.t !== null && this.state.t >= from && this.state.t < to));
      });
    }

    listForks(shown, many) {
      put(
        this.forkList,
        this.forks.length
          ? `${plural(this.forks.length, "fork")}${many ? ", the largest" : ""}: `
          : `No fork: no step of the curve is larger than ${this.index.threshold} in total variation.`,
        ...shown.map((f) =>
          h(
            "button",
            {
              type: "button",
              class: "fork-chip",
              title: `Fork at position ${f.x}, total variation ${f.size.toFixed(2)}`,
              onclick: () => this.select(f.from),
            },
            h("bdi", {}, window.fpa.label(f.text, 24)),
            h("span", { class: "soft" }, ` ${f.x}`),
            h("b", {}, ` ${f.size.toFixed(2)}`),
          ),
        ),
      );
    }

    updateShades() {
      const { core, state } = this;
      this.shades
        .querySelectorAll("button")
        .forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.shade === state.shade)));
      const most = Math.max(1, ...core.entropy.filter((v) => v !== null));
      const value = {
        change: (t) => this.change[t] / this.changeEnd(),
        entropy: (t) => (core.entropy[t] ?? 0) / most,
        surprise: (t) => (core.p[t] === null ? 0 : 1 - core.p[t]),
      }[state.shade];
      const states = state.shade in RULES;
      this.text.classList.toggle("states", states);
      this.shadeKey.hidden = states;
      this.stateKey.hidden = !states;
      this.tokens.forEach((node, t) => {
        const here = this.stateAt(t);
        node.dataset.state = here ? here.look : "";
        node.style.setProperty("--c", here ? here.colour : "transparent");
      });
      if (states) this.nameStates();
      this.tokens.forEach((node, t) => {
        if (states) return node.style.setProperty("--s", "0");
        const share = Math.max(0, Math.min(1, value(t)));
        return node.style.setProperty("--s", share < 0.01 ? "0" : (0.1 + 0.9 * share).toFixed(3));
      });
      const forked = new Set(this.forks.flatMap((f) => Array.from({ length: f.to - f.from }, (_, i) => f.from + i)));
      this.tokens.forEach((node, t) => node.classList.toggle("forked", forked.has(t)));
      const name = {
        change: this.focus && !this.focus.change ? "size of the change" : "probability of a change",
        entropy: "entropy",
        surprise: "1 − p(token)",
      }[state.shade];
      if (states) return;
      put(
        this.shadeKey,
        "0",
        h("i", {}),
        state.shade === "entropy"
          ? `${most.toFixed(1)} nats`
          : state.shade === "change"
            ? String(this.changeEnd())
            : "1",
        h("span", { class: "soft" }, ` ${name}`),
      );
    }

    /** The legend of the states: each as tokens show it, its name, and how many tokens are in it. */
    nameStates() {
      const { shade } = this.state;
      const { core } = this;
      const letters = core.states[shade];
      const drawn = shade === core.own ? core.drawn : {};
      const all = Object.values(drawn).reduce((a, b) => a + b, 0);
      put(
        this.stateKey,
        shade === "eager" ? h("li", { class: "soft" }, `θ = ${core.theta} nats`) : null,
        [...RULES[shade]].map((letter) => {
          const { name, look, colour: c, means } = stateOf(letter, shade);
          const n = letters.split(letter).length - 1;
          return h(
            "li",
            { class: n ? null : "soft", title: means },
            h("span", { class: "state-mark", "data-state": look, style: `--c:${c}` }, name),
            h("span", { class: "soft" }, ` ${count(n)}`),
            all ? h("span", { class: "soft" }, ` · ${percent((drawn[letter] || 0) / all, 1)} of the rollouts’`) : null,
          );
        }),
        letters.includes("-") ? h("li", { class: "soft" }, `not known ${count(letters.split("-").length - 1)}`) : null,
      );
    }

    // ---- hovering and choosing tokens

    under(event) {
      const node = event.target.closest(".tok");
      return node ? Number(node.dataset.t) : null;
    }

    hover(t) {
      if (t === this.hovered) return;
      if (this.hovered !== null && this.hovered !== undefined) this.tokens[this.hovered].classList.remove("hover");
      this.hovered = t;
      if (t !== null) this.tokens[t].classList.add("hover");
      if (this.chart && this.state) {
        this.chart.cursor(t, this.state.t);
        this.readLegend(t ?? this.state.t);
      }
    }

    select(t) {
      if (!this.length) return;
      const chosen = Math.max(0, Math.min(this.length - 1, t));
      const [from, to] = this.state.range;
      const seen = chosen >= from && chosen < to;
      const other = chosen === this.state.t ? {} : { open: null };
      this.go({ t: String(chosen), ...other, ...(seen ? {} : { x: this.around(chosen, to - from).join("-") }) });
    }

    /** So many tokens of the path, with the token in their middle where the path's ends allow it. */
    around(t, width) {
      const from = Math.max(0, Math.min(this.length - width, t - Math.floor(width / 2)));
      return [from, from + width];
    }

    /** Show more or fewer tokens, about the selected one; about the middle where that is out of sight. */
    zoom(by) {
      const { range, t } = this.state;
      const [from, to] = range;
      const width = Math.min(this.length, Math.max(NARROWEST, Math.ceil((to - from) * by)));
      if (width === to - from) return;
      this.show(this.around(t !== null && t >= from && t < to ? t : Math.floor((from + to) / 2), width));
    }

    show([from, to]) {
      this.go({ x: to - from >= this.length ? null : `${from}-${to}` });
    }

    /** The whole path again; the button that said so hides, and hands its focus to the plot. */
    unzoomed() {
      this.show(this.whole);
      this.plotHost.focus({ preventScroll: true });
    }

    mark() {
      const { t } = this.state;
      if (this.marked !== undefined && this.marked !== null) this.tokens[this.marked].classList.remove("pin");
      if (t !== null) {
        const node = this.tokens[t];
        node.classList.add("pin");
        if (t !== this.marked) {
          // Within its own box: the page itself must not jump.
          const box = this.text.getBoundingClientRect();
          const spot = node.getBoundingClientRect();
          if (spot.top < box.top || spot.bottom > box.bottom) {
            const line = parseFloat(getComputedStyle(this.text).lineHeight);
            this.text.scrollTop +=
              spot.top - box.top - Math.round(box.height / line / 3) * line - (line - spot.height) / 2;
          }
          if (this.marked !== undefined) window.fpa.say(this.spoken(t));
        }
      }
      this.marked = t;
      if (this.chart) this.chart.cursor(this.hovered ?? null, t);
    }

    spoken(t) {
      const text = this.core.tokens[t];
      const parts = [`Token ${t}, ${text.trim() || visible(text)}`];
      if (this.focus) {
        const shares = this.core.categories
          .map((name, k) => [name, at(this.grid, this.focus.p[k], t)])
          .filter(([, p]) => p >= 0.005)
          .sort((a, b) => b[1] - a[1])
          .map(([name, p]) => `${name} ${percent(p)}`);
        parts.push(shares.join(", "));
        if (this.change[t] >= 0.01)
          parts.push(`${this.focus.change ? "probability of a change" : "change"} ${percent(this.change[t])}`);
      }
      const here = this.stateAt(t);
      if (here) parts.push(`state ${here.name}`);
      return parts.join("; ");
    }

    keys(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const t = this.state.t ?? -1;
      const forks = this.forks.map((f) => f.from);
      const rtl = event.currentTarget === this.text && getComputedStyle(this.text).direction === "rtl";
      const by = { ArrowRight: rtl ? -1 : 1, ArrowDown: 1, ArrowLeft: rtl ? 1 : -1, ArrowUp: -1 }[event.key];
      let next;
      if (by && event.shiftKey) next = by > 0 ? forks.find((f) => f > t) : forks.findLast((f) => f < t);
      else if (by) next = t + by;
      else if (event.key === "PageDown" || event.key === "PageUp") next = t + (event.key === "PageDown" ? 10 : -10);
      else if (event.key === "Home") next = 0;
      else if (event.key === "End") next = this.length - 1;
      else if (this.chart && event.key in ZOOMS) this.zoom(ZOOMS[event.key]);
      else return;
      event.preventDefault();
      event.stopPropagation();
      if (next !== undefined) this.select(next);
    }

    toggle(name) {
      const chosen = new Set(this.state.with);
      if (!chosen.delete(name)) chosen.add(name);
      chosen.delete("");
      this.go({ with: [...chosen].join(".") });
    }

    hide(k) {
      const hidden = new Set(this.state.hidden);
      if (!hidden.delete(k)) hidden.add(k);
      this.go({ hide: [...hidden].map((i) => this.core.categories[i]).join(".") || null });
    }

    /** "5", or "5–7" where positions have different numbers of draws. */
    span([least, most]) {
      return least === most ? count(most) : `${count(least)}–${count(most)}`;
    }

    referenceName() {
      const { name, places, draws } = { name: this.index.reference, ...this.reference };
      const gaps = places.slice(1).map((x, i) => x - places[i]);
      const every = gaps.length && gaps.every((g) => g === gaps[0]) ? `, N = ${plural(gaps[0], "token")}` : "";
      return `reference ${name} (S = ${this.span(draws)}${every})`;
    }

    /** What a saved figure says of itself. */
    caption() {
      const { core, state, index } = this;
      const { run } = index;
      const name = NAMES[state.method] || state.method;
      const size = state.size === "all" ? this.span(core.draws) : state.size;
      const unit = run.unit === "sentence" ? "sentence" : "token";
      const asked = core.question.replace(/\s+/g, " ").trim();
      const band = this.focus && this.focus.lo && !state.stacked ? `, ${Math.round(100 * index.level)} % band` : "";
      const answers = core.categories.map((c, k) => {
        const text = (core.choices[k] ?? "").replace(/\s+/g, " ").trim();
        return text ? `${c}: ${text.length > 36 ? `${text.slice(0, 35)}…` : text}` : c;
      });
      return {
        front: `${name}${band}`,
        answers,
        lines: [
          `${core.id}: ${asked.length > 300 ? `${asked.slice(0, 299)}…` : asked}`,
          `Run ${[run.name, run.model].filter(Boolean).join(", ")}. ${name} with S = ${size}, N = ${plural(Number(state.stride) * (run.every || 1), unit)}: ${this.cost.textContent.trim()}. A fork is a step above ${index.threshold} in total variation.`,
        ],
      };
    }

    saveFigure() {
      const url = URL.createObjectURL(new Blob([this.chart.file(this.caption())], { type: "image/svg+xml" }));
      const link = h("a", { href: url, download: `${this.row.key}.svg` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(url), 1000);
    }

    /** The token to begin with: that of the largest fork. */
    start() {
      return this.forks.length ? this.forks.reduce((a, b) => (b.size > a.size ? b : a)).from : 0;
    }

    close() {
      if (this.chart) this.chart.close();
    }
  }

  Object.assign(window.fpa, { Question });
})();
