"use strict";
// Loading data files. A page opened from disk may load scripts but not fetch files, so every data file is a script
// that calls fpaData(name, gzipped JSON in base64).
(() => {
  const SCALE = 1000;
  const waiting = new Map();
  const loaded = new Map();

  async function unpack(encoded) {
    if (typeof DecompressionStream === "undefined")
      throw new Error("this browser is too old for these pages: use one from 2023 or later");
    const bytes = Uint8Array.from(atob(encoded), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  window.fpaData = (name, encoded) => {
    const wait = waiting.get(name);
    waiting.delete(name);
    if (wait) unpack(encoded).then(wait.resolve, wait.reject);
  };

  function load(name) {
    if (!loaded.has(name)) {
      const content = new Promise((resolve, reject) => {
        waiting.set(name, { resolve, reject });
        const script = document.createElement("script");
        script.src = `data/${encodeURIComponent(name)}.js`;
        script.onerror = () => reject(new Error(`data/${name}.js is missing: build the pages again`));
        script.onload = () => script.remove();
        document.head.append(script);
      });
      content.catch(() => loaded.delete(name));
      loaded.set(name, content);
    }
    return loaded.get(name);
  }

  function sums(differences) {
    const values = new Array(differences.length);
    let total = 0;
    for (let i = 0; i < values.length; i++) values[i] = total += differences[i];
    return values;
  }

  const probabilities = (differences) => sums(differences).map((v) => v / SCALE);

  /** The curves of one cell, decoded once: {method: {p, lo, hi: K lists, change, chosen} or {missing}}. */
  function curves(cell) {
    if (!cell.decoded) {
      cell.decoded = {};
      for (const [name, curve] of Object.entries(cell.curves)) {
        cell.decoded[name] = curve.missing
          ? curve
          : {
              p: curve.p.map(probabilities),
              lo: curve.lo.map(probabilities),
              hi: curve.hi.map(probabilities),
              change: curve.change ? probabilities(curve.change) : null,
              chosen: curve.chosen,
            };
      }
    }
    return cell.decoded;
  }

  /** The value at x of a list over increasing places, straight between them and level beyond. */
  function at(places, values, x) {
    let low = 0;
    let high = places.length - 1;
    if (x <= places[0]) return values[0];
    if (x >= places[high]) return values[high];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (places[middle] <= x) low = middle;
      else high = middle;
    }
    const share = (x - places[low]) / (places[high] - places[low]);
    return values[low] + share * (values[high] - values[low]);
  }

  /** Total variation of each place against the one before; 0 for the first. p holds K lists. */
  function variation(p) {
    return p[0].map((_, i) => (i ? p.reduce((sum, c) => sum + Math.abs(c[i] - c[i - 1]), 0) / 2 : 0));
  }

  /** Mean total variation of a curve from another one, at the other one's places. */
  function distance(places, p, otherPlaces, other) {
    let total = 0;
    otherPlaces.forEach((x, i) => {
      for (let k = 0; k < p.length; k++) total += Math.abs(at(places, p[k], x) - other[k][i]) / 2;
    });
    return total / otherPlaces.length;
  }

  /** Index of the last place at or before x; -1 before the first. */
  function cell(places, x) {
    let low = -1;
    let high = places.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (places[middle] <= x) low = middle;
      else high = middle;
    }
    return low;
  }

  Object.assign(window.fpa, { load, sums, probabilities, curves, at, variation, distance, cell });
})();
