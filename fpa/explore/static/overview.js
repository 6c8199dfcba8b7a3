"use strict";
// All questions: a table or small multiples, sorted, filtered and searched; a stretch of them drawn at a time.
(() => {
  const { h, put, count, percent, short, plural, disc, miniature } = window.fpa;
  const STEP = 60;

  const COLUMNS = [
    { name: "id", title: "Question", text: true },
    { name: "subject", title: "Subject", text: true, hint: "subject" },
    { name: "right", title: "Answer", hint: "the base path's answer, and whether it is right" },
    { name: "accuracy", title: "Accuracy", number: true, hint: "probability of the right answer at the start" },
    { name: "confidence", title: "Final", number: true, hint: "likeliest answer at the last position, and its probability" },
    { name: "forks", title: "Forks", number: true, hint: "positions where the curve jumps" },
    { name: "largest", title: "Largest", number: true, hint: "largest jump in total variation" },
    { name: "tokens", title: "Length", number: true, hint: "tokens of the base path" },
    { name: "spent", title: "Cost", number: true, hint: "tokens generated for all rollouts" },
  ];

  /** The index's columns as rows, each with its number. */
  function rows(index) {
    const { columns } = index;
    return (columns.key || []).map((_, i) => {
      const row = { i };
      for (const name of Object.keys(columns)) row[name] = columns[name][i];
      row.right = !row.base || !row.answer ? null : Number(row.base === row.answer);
      return row;
    });
  }

  const natural = new Intl.Collator("en", { numeric: true });

  function compare(name, down) {
    const sign = down ? -1 : 1;
    return (a, b) => {
      const [x, y] = [a[name], b[name]];
      if (x === null || x === undefined || y === null || y === undefined)
        return (x === null || x === undefined) - (y === null || y === undefined) || a.i - b.i;
      const order = typeof x === "string" ? natural.compare(x, y) : x - y;
      return sign * order || a.i - b.i;
    };
  }

  async function cards(index) {
    const total = (index.columns.key || []).length;
    const parts = Array.from({ length: Math.ceil(total / index.cards) }, (_, n) => window.fpa.load(`cards-${n}`));
    return (await Promise.all(parts)).flat();
  }

  async function select(index, state) {
    let chosen = rows(index);
    if (state.subject) chosen = chosen.filter((r) => r.subject === state.subject);
    if (state.forks === "some") chosen = chosen.filter((r) => r.forks > 0);
    if (state.forks === "none") chosen = chosen.filter((r) => r.forks === 0);
    if (state.answer === "right") chosen = chosen.filter((r) => r.right === 1);
    if (state.answer === "wrong") chosen = chosen.filter((r) => r.right === 0);
    if (state.least) chosen = chosen.filter((r) => (r.largest ?? 0) >= Number(state.least));
    if (state.find) {
      const wanted = state.find.toLowerCase();
      const texts = await cards(index);
      chosen = chosen.filter((r) => `${r.id} ${texts[r.i].text}`.toLowerCase().includes(wanted));
    }
    const column = COLUMNS.some((c) => c.name === state.sort) ? state.sort : "id";
    if (column !== "id" || state.down) chosen.sort(compare(column, Boolean(state.down)));
    return chosen;
  }

  function verdict(row, categories) {
    if (!row.base) return h("span", { class: "soft" }, row.failure ? "failed" : "not collected");
    const told = row.right === null ? "" : row.right ? "right" : "wrong";
    return h(
      "span",
      { class: "verdict" },
      disc(categories, row.base),
      told ? h("span", { class: told }, row.right ? "✓" : "✗", h("span", { class: "sr" }, ` ${told}`)) : null,
    );
  }

  function tableRow(row, card, columns, state) {
    const cells = {
      id: () =>
        h(
          "th",
          { scope: "row" },
          h("a", { href: window.fpa.addressOf(row.key, state), dir: "auto" }, row.id),
          h("span", { class: "excerpt", dir: "auto" }, card.text),
        ),
      subject: () => h("td", { class: "c-subject" }, h("span", { class: "excerpt", dir: "auto" }, row.subject ?? "–")),
      right: () => h("td", { class: "c-right" }, verdict(row, card.categories)),
      accuracy: () => h("td", { class: "num c-accuracy" }, percent(row.accuracy)),
      confidence: () => h(
          "td",
          { class: "num c-confidence" },
          row.final ? h("span", { class: "soft" }, `${row.final === "Other" ? "–" : row.final} `) : null,
          percent(row.confidence),
        ),
      forks: () => h("td", { class: "num c-forks" }, count(row.forks)),
      largest: () => h("td", { class: "num c-largest" }, row.largest?.toFixed(2) ?? "–"),
      tokens: () => h("td", { class: "num c-tokens" }, count(row.tokens)),
      spent: () => h("td", { class: "num c-spent", title: count(row.spent) }, short(row.spent)),
    };
    const [first, ...rest] = columns.map((c) => cells[c.name]());
    // On a narrow page, where the first cell stays in sight, its link does not reach over the others.
    const open = (e) => e.target.closest("a") || e.currentTarget.querySelector("a").click();
    return h(
      "tr",
      { onclick: open },
      first,
      h("td", { class: "c-spark" }, miniature(card.categories, card.spark, card.forks || [], 140, 30)),
      rest,
    );
  }

  function table(columns, state, go) {
    const head = (c) =>
      h(
        "th",
        {
          scope: "col",
          class: `${c.number ? "num " : ""}c-${c.name}`,
          "aria-sort": state.sort === c.name ? (state.down ? "descending" : "ascending") : "none",
        },
        h(
          "button",
          {
            type: "button",
            id: `by-${c.name}`, // by which the focus finds it again
            title: c.hint,
            onclick: () =>
              go({ sort: c.name, down: state.sort === c.name ? (state.down ? null : "1") : c.text ? null : "1" }),
          },
          c.title,
          h("span", { class: "arrow", "aria-hidden": "true" }, state.sort === c.name ? (state.down ? "▾" : "▴") : ""),
        ),
      );
    const [first, ...rest] = columns.map(head);
    const body = h("tbody");
    const node = h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "All questions, to be scrolled sideways" },
      h(
        "table",
        { class: "all" },
        h("caption", { class: "sr" }, "All questions"),
        h("thead", {}, h("tr", {}, first, h("th", { scope: "col", class: "c-spark" }, "Answer over the path"), rest)),
        body,
      ),
    );
    return { node, body };
  }

  function multiple(row, card, state) {
    return h(
      "a",
      { class: "card", href: window.fpa.addressOf(row.key, state) },
      h("span", { class: "card-head" }, h("b", { dir: "auto" }, row.id), verdict(row, card.categories)),
      miniature(card.categories, card.spark, card.forks || [], 240, 76),
      h("span", { class: "excerpt", dir: "auto" }, card.text),
      h(
        "span",
        { class: "card-foot" },
        row.forks === null || row.forks === undefined
          ? row.failure || (row.rollouts ? "no curve" : "no rollouts yet")
          : `${plural(row.forks, "fork")}${row.forks ? `, largest ${row.largest.toFixed(2)}` : ""} · final ${percent(row.confidence)}`,
      ),
    );
  }

  const option = (value, title, chosen) => h("option", { value, selected: value === (chosen || "") }, title);

  function controls(index, state, go) {
    const subjects = [...new Set(index.columns.subject || [])].filter((v) => v !== null).sort(natural.compare);
    const pick = (name, title, options) =>
      h(
        "label",
        {},
        h("span", {}, title),
        h("select", { name, onchange: (e) => go({ [name]: e.target.value || null }) }, options),
      );
    let wait;
    const search = h("input", {
      type: "search",
      id: "find",
      value: state.find || "",
      placeholder: "id or words",
      oninput: (e) => {
        clearTimeout(wait);
        wait = setTimeout(() => go({ find: e.target.value || null }), 150);
      },
    });
    const view = (name, title) =>
      h(
        "button",
        {
          type: "button",
          id: `as-${name}`,
          "aria-pressed": String((state.view || "table") === name),
          onclick: () => go({ view: name === "table" ? null : name }),
        },
        title,
      );
    return h(
      "form",
      { class: "filters", onsubmit: (e) => e.preventDefault() },
      h("label", {}, h("span", {}, "Search"), search),
      subjects.length
        ? pick("subject", "Subject", [
            option("", "all", state.subject),
            subjects.map((v) => option(v, v, state.subject)),
          ])
        : null,
      pick("forks", "Forks", [
        option("", "any", state.forks),
        option("some", "some", state.forks),
        option("none", "none", state.forks),
      ]),
      pick("least", "Largest", [
        option("", "any", state.least),
        ["0.2", "0.3", "0.5", "0.7"].map((v) => option(v, `≥ ${v}`, state.least)),
      ]),
      pick("answer", "Answer", [
        option("", "any", state.answer),
        option("right", "right", state.answer),
        option("wrong", "wrong", state.answer),
      ]),
      pick(
        "sort",
        "Sort",
        COLUMNS.filter((c) => c.name !== "subject" || subjects.length).map((c) =>
          option(c.name === "id" ? "" : c.name, c.title.toLowerCase(), state.sort),
        ),
      ),
      h(
        "button",
        {
          type: "button",
          id: "order",
          class: "order",
          title: "Turn the order round",
          "aria-label": state.down ? "Descending" : "Ascending",
          onclick: () => go({ down: state.down ? null : "1" }),
        },
        state.down ? "▾" : "▴",
      ),
      h(
        "span",
        { class: "pills", role: "group", "aria-label": "View" },
        view("table", "Table"),
        view("cards", "Small multiples"),
      ),
    );
  }

  /** Draw the page into main; go(changes) changes the state, and so the address. */
  async function overview(main, index, state, go, current) {
    const all = rows(index);
    const chosen = await select(index, state);
    if (!current()) return;
    const focused = document.activeElement;
    const again = focused && main.contains(focused) ? focused.name || focused.id || null : null;
    const caret = focused && focused.id === "find" ? focused.selectionStart : null;
    const tally = h("p", { class: "tally", role: "status" });
    put(
      main,
      h("h1", { class: "sr" }, "All questions"),
      figures(index, all),
      controls(index, { sort: "id", ...state }, go),
      tally,
    );
    tally.textContent = all.length
      ? chosen.length === all.length
        ? plural(all.length, "question")
        : `${count(chosen.length)} of ${plural(all.length, "question")}`
      : "This run holds no questions yet: collect some, then build the pages again.";
    if (all.length && !chosen.length)
      main.append(h("p", { class: "state" }, "No question fits. ", h("a", { href: "#" }, "Show all")));
    if (chosen.length) {
      const columns = COLUMNS.filter(
        (c) => c.name !== "subject" || (index.columns.subject || []).some((v) => v !== null),
      );
      const asCards = state.view === "cards";
      const parts = asCards ? null : table(columns, { sort: "id", ...state }, go);
      const body = asCards ? h("div", { class: "cards" }) : parts.body;
      main.append(asCards ? body : parts.node);
      const more = h("button", { type: "button", class: "more" }, "Show more");
      main.append(more);
      let shown = 0;
      const extend = async () => {
        const next = chosen.slice(shown, shown + STEP);
        shown += next.length;
        more.hidden = shown >= chosen.length;
        const texts = await Promise.all(next.map((r) => window.fpa.load(`cards-${Math.floor(r.i / index.cards)}`)));
        if (!current()) return;
        body.append(
          ...next.map((r, n) => {
            const card = texts[n][r.i % index.cards];
            return asCards ? multiple(r, card, state) : tableRow(r, card, columns, state);
          }),
        );
      };
      more.addEventListener("click", async () => {
        const last = body.lastElementChild;
        await extend();
        // The button may have hidden; what it brought comes next.
        const next = last.nextElementSibling;
        if (next) (next.querySelector("a") || next).focus({ preventScroll: true });
      });
      new IntersectionObserver((seen) => seen.some((e) => e.isIntersecting) && !more.hidden && extend(), {
        rootMargin: "600px",
      }).observe(more);
      await extend();
    }
    if (again) {
      const node = main.querySelector(`[name="${CSS.escape(again)}"], #${CSS.escape(again)}`);
      if (node) {
        node.focus();
        if (caret !== null) node.setSelectionRange(caret, caret);
      }
    }
  }

  /** What the run is, in a few large figures. */
  function figures(index, all) {
    const done = all.filter((r) => r.forks !== null && r.forks !== undefined);
    const judged = all.filter((r) => r.right !== null);
    const sum = (name) => all.reduce((total, r) => total + (r[name] || 0), 0);
    const tile = (value, title) => h("div", {}, h("dt", {}, title), h("dd", {}, value));
    if (!all.length) return null;
    return h(
      "dl",
      { class: "figures" },
      tile(count(all.length), all.length === 1 ? "question" : "questions"),
      tile(judged.length ? percent(judged.filter((r) => r.right).length / judged.length) : "–", "base paths right"),
      tile(done.length ? percent(done.filter((r) => r.forks > 0).length / done.length) : "–", "with a fork"),
      tile(short(sum("rollouts")), "rollouts"),
      tile(short(sum("spent")), "tokens generated"),
    );
  }

  Object.assign(window.fpa, { overview, rows, select });
})();
