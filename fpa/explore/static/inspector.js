"use strict";
// What is known at the selected token: the curve on both sides of it, what else could have been said, and examples.
(() => {
  const { h, put, count, percent, plural, visible, disc, bar, stateOf } = window.fpa;
  const STRIP = 200; // states of a rollout that are shown

  /** A state as tokens show it, by its name or in other words. */
  function mark(letter, rules, text) {
    const state = stateOf(letter, rules);
    if (!state) return text ?? "unknown";
    return h(
      "span",
      { class: "state-mark", "data-state": state.look, style: `--c:${state.colour}`, title: text ? `${state.name}: ${state.means}` : state.means },
      text ?? state.name,
    );
  }

  class Inspector {
    /** @param page the Question it belongs to */
    constructor(page) {
      this.page = page;
      const step = (by, title, sign) =>
        h("button", { type: "button", class: "quiet", "aria-label": title, title, onclick: () => this.step(by) }, sign);
      // Kept from token to token, so that the keyboard's focus stays on them.
      this.before = step(-1, "Token before", "‹");
      this.after = step(1, "Token after", "›");
      this.sheet = h(
        "button",
        { type: "button", class: "quiet sheet", "aria-expanded": "false", onclick: () => this.open() },
        "More",
      );
      this.title = h("h2", {}, "Pick a token");
      this.body = h("div", { class: "inspected" });
      this.nexts = h("div", {});
      this.node = h(
        "aside",
        { class: "inspector", "aria-label": "At the selected token" },
        h(
          "div",
          { class: "token-head" },
          this.title,
          h("span", { class: "pair" }, this.sheet, this.before, this.after),
        ),
        this.body,
      );
    }

    /** On narrow pages this is a sheet at the bottom of the page, opened and closed. */
    open() {
      const open = this.node.classList.toggle("open");
      this.sheet.setAttribute("aria-expanded", String(open));
      this.sheet.textContent = open ? "Less" : "More";
    }

    step(by) {
      this.page.select((this.page.state.t ?? -1) + by);
    }

    show() {
      const { core, state, forks, length, focus, change } = this.page;
      const { t } = state;
      this.before.disabled = t === null || t === 0;
      this.after.disabled = t === length - 1;
      if (t === null) {
        this.at = null;
        put(
          this.body,
          h(
            "p",
            { class: "soft" },
            "Click a token or the plot, or press the arrow keys there: what else could have been said, and how the answer would have changed.",
          ),
          h(
            "button",
            { type: "button", class: "quiet", onclick: () => this.page.select(this.page.start()) },
            forks.length ? "Largest fork" : "First token",
          ),
        );
        return;
      }
      const fact = (title, value) => h("div", {}, h("dt", {}, title), h("dd", {}, value));
      put(
        this.title,
        h("span", { class: "soft" }, `Token ${t} `),
        h("bdi", { class: "mono" }, visible(core.tokens[t])),
      );
      put(
        this.body,
        h(
          "dl",
          { class: "facts" },
          fact("probability", core.p[t] === null ? "–" : percent(core.p[t], 1)),
          fact(
            core.entropyWhole ? "entropy" : "entropy ≥",
            core.entropy[t] === null ? "–" : `${core.entropy[t].toFixed(2)} nats`,
          ),
          fact(
            focus && !focus.change ? "size of change" : "P(change)",
            focus ? percent(change[t], change[t] < 0.1 ? 1 : 0) : "–",
          ),
        ),
        this.states(t),
        this.steps(t),
        h("h3", {}, "Next tokens here"),
        this.nexts,
      );
      // They are the same by any method: what was opened stays open until another token is chosen.
      if (t !== this.at || [...state.open].join() !== this.opened().join()) put(this.nexts, this.nextTokens(t));
      this.at = t;
    }

    /** What Entropix' rules would do at the token, by either rule set, and whether EAGER would split. */
    states(t) {
      const { core } = this.page;
      if (!core.states || !core.states.four || core.states.four[t] === "-") return null;
      const named = (rules, title) => [
        mark(core.states[rules][t], rules),
        ` (${title}${core.own === rules ? ", as collected" : ""})`,
      ];
      return h(
        "p",
        { class: "states small soft" },
        "Entropix’ state: ",
        named("four", "four states"),
        ", ",
        named("threshold", "thresholds"),
        core.states.eager ? ["; EAGER: ", named("eager", `θ = ${core.theta}`)] : null,
      );
    }

    /** The curve before and after the token; at the end of the path, its own answer. */
    steps(t) {
      const { core, grid, focus } = this.page;
      const i = window.fpa.cell(grid, t);
      if (!focus || i < 0) return null;
      const row = (title, shares) =>
        h("div", { class: "step-row" }, h("span", {}, title), bar(core.categories, shares, title));
      const share = (n) => focus.p.map((c) => c[n]);
      const answered = ["parsed", "readout"].includes(core.base.status) && core.base.finish !== "length";
      const own = core.categories.map((name) => Number(name === core.base.outcome));
      return [
        row(`at ${grid[i]}`, share(i)),
        i + 1 < grid.length ? row(`at ${grid[i + 1]}`, share(i + 1)) : answered ? row("at the end", own) : null,
      ];
    }

    /** The numbers of the next tokens whose answers are shown, as the address has them. */
    opened() {
      return [...this.nexts.querySelectorAll("details")].filter((d) => d.open).map((d) => d.dataset.i);
    }

    nextTokens(t) {
      const { core, state } = this.page;
      const here = core.next[t];
      if (!here) {
        const near = this.page.positions
          .filter((x) => core.next[x])
          .reduce((a, b) => (a === null || Math.abs(b - t) < Math.abs(a - t) ? b : a), null);
        return h(
          "p",
          { class: "soft" },
          "Nothing was recorded at this token. ",
          near === null
            ? null
            : h(
                "button",
                { type: "button", class: "quiet", onclick: () => this.page.select(near) },
                `Nearest: ${near}`,
              ),
        );
      }
      // Where the run kept no tokens of rollouts, those that leave the path are counted as one, whatever they say next.
      const asOne = here.some(([, id]) => id === -1);
      const total = here.reduce((n, a) => n + a[4].reduce((x, y) => x + y, 0), 0);
      const list = h(
        "ul",
        { class: "next" },
        here.map(([text, id, p, base, counts, begins], i) => {
          const n = counts.reduce((x, y) => x + y, 0);
          const name =
            id === -1
              ? h("i", {}, "another token")
              : text !== null
                ? h("bdi", { class: "mono" }, visible(text))
                : begins
                  ? h(
                      "bdi",
                      { class: "mono", title: `token ${id}: its text was not stored; a rollout goes on so` },
                      h("i", {}, `${begins}…`),
                    )
                  : h("i", {}, `token ${id}`);
          const line = [
            h("span", { class: "word" }, name, base ? h("span", { class: "tag" }, "base") : null),
            h(
              "span",
              { class: "chance", style: `--p:${p ?? 0}`, title: "probability of this token" },
              p === null ? "–" : percent(p, p < 0.1 ? 1 : 0),
            ),
            n
              ? bar(
                  core.categories,
                  counts.map((c) => c / n),
                  "answers after it",
                )
              : asOne && !base
                ? h(
                    "span",
                    {
                      class: "dist none",
                      title:
                        "This run did not keep the tokens of its rollouts: those that leave the base path here are counted together, as another token",
                    },
                    "not told apart",
                  )
                : h("span", { class: "dist none" }, "not sampled"),
            h("span", { class: "n soft", title: plural(n, "rollout") }, n ? count(n) : ""),
          ];
          if (!n) return h("li", {}, h("div", { class: "next-row" }, line));
          const detail = h("div", { class: "detail" });
          return h(
            "li",
            {},
            h(
              "details",
              {
                "data-i": i,
                open: state.open.has(String(i)),
                ontoggle: (e) => {
                  if (e.target.open && !detail.childNodes.length) this.detail(detail, t, i, counts, n);
                  // It is told late: by then another token may be shown.
                  if (this.nexts.contains(e.target)) window.fpa.replace({ open: this.opened().join(".") || null });
                },
              },
              h("summary", { class: "next-row" }, line),
              detail,
            ),
          );
        }),
      );
      return [
        list,
        h(
          "p",
          { class: "soft small" },
          total
            ? `${plural(total, "rollout")} of the whole run ${total === 1 ? "comes" : "come"} this way; each line is what they say next, how likely that is, and the answers it leads to. Open one for its answers${core.texts ? " and examples" : ""}.`
            : "No rollout comes this way.",
        ),
      ];
    }

    /** The states in which a rollout's tokens were chosen, a letter each. */
    strip(states) {
      const { own } = this.page.core;
      const shown = [...states].slice(0, STRIP);
      const names = [...new Set(shown)].map((letter) => (stateOf(letter, own) || {}).name).filter(Boolean);
      return h(
        "p",
        { class: "strip mono small", "aria-label": `States of its tokens, among them ${names.join(", ")}` },
        shown.map((letter) => mark(letter, own, letter)),
        states.length > STRIP ? h("span", { class: "soft" }, ` … ${count(states.length - STRIP)} more`) : null,
      );
    }

    async detail(node, t, i, counts, n) {
      const { core } = this.page;
      node.append(
        h(
          "ul",
          { class: "counts" },
          core.categories.map((name, k) =>
            counts[k]
              ? h(
                  "li",
                  {},
                  disc(core.categories, name),
                  ` ${percent(counts[k] / n)} `,
                  h("span", { class: "soft" }, `(${count(counts[k])})`),
                )
              : null,
          ),
        ),
      );
      if (!core.texts) {
        node.append(h("p", { class: "soft small" }, "This run kept no texts of its rollouts."));
        return;
      }
      const texts = await window.fpa.load(`${this.page.row.key}.texts`);
      const examples = texts[`${t}/${i}`] || [];
      if (!examples.length) node.append(h("p", { class: "soft small" }, "No text of these was kept."));
      for (const [outcome, status, text, cut, whole, states] of examples)
        node.append(
          h(
            "figure",
            { class: "example" },
            h(
              "figcaption",
              {},
              disc(core.categories, outcome),
              status && status !== "parsed" ? h("span", { class: "tag" }, status) : null,
              whole ? h("span", { class: "tag" }, "whole response") : null,
            ),
            h("blockquote", { dir: "auto" }, text, cut ? h("span", { class: "soft" }, " … (cut)") : null),
            states ? this.strip(states) : null,
          ),
        );
    }
  }

  Object.assign(window.fpa, { Inspector });
})();
