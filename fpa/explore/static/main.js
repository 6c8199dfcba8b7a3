"use strict";
// The address is the state: everything chosen is in the part after #, so that a view can be shared.
(() => {
  const { h, put, count } = window.fpa;
  const main = document.getElementById("main");
  const live = document.getElementById("live");
  let index;
  let page = null; // the question shown, or null for the overview
  let turn = 0;
  let searching = false; // the search is to be focused once it is there

  window.fpa.say = (text) => (live.textContent = text);

  const read = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

  function write(state) {
    const kept = Object.entries(state).filter(([, v]) => v !== null && v !== undefined);
    return `#${new URLSearchParams(Object.fromEntries(kept))}`;
  }

  /** Change the address in place: no step of history for every token that is looked at. */
  function replace(changes) {
    history.replaceState(null, "", write({ ...read(), ...changes }));
  }

  window.fpa.replace = replace;

  // What the address of a question keeps of the overview it was opened from, and what one question's view hands on to
  // the next: not the token, nor anything else that belongs to one path alone.
  const LISTING = ["subject", "forks", "least", "answer", "find", "sort", "down", "view"];
  const VIEW = ["m", "S", "N", "with", "show", "shade"];
  const part = (state, names) => Object.fromEntries(names.filter((n) => n in state).map((n) => [n, state[n]]));

  /** The address of a question: in the overview's selection and order, looked at as the one before. */
  const addressOf = (key, state) => write({ q: key, ...part(state, VIEW), ...part(state, LISTING) });

  window.fpa.addressOf = addressOf;

  const overviewOf = (state) => write(part(state, LISTING));

  let order = { of: null, rows: [] };

  /** The overview's rows in its order; those of the whole run where the question asked for is not among them. */
  async function ordered(state) {
    const of = overviewOf(state);
    if (order.of !== of) order = { of, rows: await window.fpa.select(index, state) };
    return state.q === undefined || order.rows.some((r) => r.key === state.q) ? order.rows : window.fpa.rows(index);
  }

  function go(changes) {
    replace(changes);
    show();
  }

  function closePage() {
    if (page) page.close();
    page = null;
  }

  async function show() {
    const mine = ++turn;
    const current = () => mine === turn;
    const state = read();
    try {
      if (state.q === undefined) {
        closePage();
        document.title = `${index.run.name} – forking paths`;
        await window.fpa.overview(main, index, state, go, current);
        if (searching) document.getElementById("find")?.focus();
        searching = false;
        return;
      }
      const row = window.fpa.rows(index).find((r) => r.key === state.q);
      if (!row) {
        closePage();
        put(
          main,
          h(
            "p",
            { class: "state" },
            "This run has no such question. ",
            h("a", { href: overviewOf(state) }, "All questions"),
          ),
        );
        return;
      }
      const rows = await ordered(state);
      if (!current()) return;
      if (!page || page.row.key !== row.key) {
        const core = await window.fpa.load(row.key);
        if (!current()) return;
        closePage();
        page = new window.fpa.Question(main, index, row, core, go);
        document.title = `${row.id} – ${index.run.name}`;
        window.scrollTo(0, 0);
      }
      page.place(rows, state, overviewOf(state));
      await page.update(state, current);
    } catch (error) {
      if (!current()) return;
      closePage(); // it is drawn anew when it is asked for again
      put(
        main,
        h("p", { class: "state error", role: "alert" }, error.message),
        state.q === undefined
          ? null
          : h("p", { class: "state" }, h("a", { href: overviewOf(state), id: "back" }, "All questions")),
      );
    }
  }

  function theme(next) {
    const names = ["system", "light", "dark"];
    const now = window.fpa.theme.get();
    if (next) window.fpa.theme.set(next);
    else window.fpa.theme.set(names[(names.indexOf(now) + 1) % 3]);
    const chosen = window.fpa.theme.get();
    document.getElementById("theme").textContent = {
      system: "Theme: system",
      light: "Theme: light",
      dark: "Theme: dark",
    }[chosen];
    redraw();
  }

  /** Where an element stands below main: the next drawing of the same address has its like there. */
  function trail(node) {
    const steps = [];
    for (; node !== main; node = node.parentNode) steps.unshift([...node.parentNode.children].indexOf(node));
    return steps;
  }

  /** Colours are attributes, so another theme means another drawing; the focus and the scroll stay where they were. */
  async function redraw() {
    if (!index) return;
    const focused = document.activeElement;
    const steps = main.contains(focused) ? trail(focused) : null;
    const { scrollX, scrollY } = window;
    closePage();
    const mine = turn + 1;
    await show();
    if (mine !== turn) return;
    window.scrollTo(scrollX, scrollY);
    if (steps) steps.reduce((node, i) => node?.children[i], main)?.focus({ preventScroll: true });
  }

  async function neighbour(by) {
    const state = read();
    const rows = await ordered(state);
    const at = state.q === undefined ? 0 : rows.findIndex((r) => r.key === state.q) + by;
    if (rows[at]) location.hash = addressOf(rows[at].key, state);
  }

  function keys(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog[open]"))
      return;
    const press = {
      "[": () => neighbour(-1),
      "]": () => neighbour(1),
      d: () => theme(window.fpa.theme.dark() ? "light" : "dark"),
      "?": () => document.getElementById("about-page").showModal(),
      "/": () => {
        searching = true;
        if (read().q === undefined) show();
        else location.hash = overviewOf(read());
      },
      Escape: () => {
        if (read().x) go({ x: null });
        else if (read().q !== undefined) location.hash = overviewOf(read());
      },
    }[event.key];
    if (press) {
      event.preventDefault();
      press();
    } else if (
      page &&
      page.tokens &&
      /^(Arrow(Left|Right)|Home|End|[-+=−0])$/.test(event.key) &&
      event.target === document.body
    ) {
      document.getElementById("text").focus({ preventScroll: true });
      page.keys(Object.defineProperty(event, "currentTarget", { value: page.text }));
    }
  }

  async function begin() {
    document.getElementById("theme").addEventListener("click", () => theme());
    document.getElementById("help").addEventListener("click", () => document.getElementById("about-page").showModal());
    theme(window.fpa.theme.get());
    try {
      index = await window.fpa.load("index");
    } catch (error) {
      put(main, h("p", { class: "state error", role: "alert" }, error.message));
      return;
    }
    const { run } = index;
    const words = [
      run.name,
      run.model,
      run.strategy,
      run.samples ? `S = ${count(run.samples)}` : null,
      index.reference ? `reference ${index.reference}` : null,
    ];
    document.getElementById("about").textContent = words.filter(Boolean).join(" · ");
    window.addEventListener("hashchange", show);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    document.addEventListener("keydown", keys);
    await show();
    document.documentElement.dataset.ready = "1";
    performance.mark("ready");
  }

  begin();
})();
