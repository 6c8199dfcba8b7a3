"use strict";
// Light or dark before anything is drawn; storage may be closed to pages opened from disk.
window.fpa = {
  theme: {
    get() {
      try {
        return localStorage.getItem("fpa-theme") || "system";
      } catch {
        return document.documentElement.dataset.theme || "system";
      }
    },
    set(name) {
      if (name === "system") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = name;
      try {
        localStorage.setItem("fpa-theme", name);
      } catch {
        // The choice then holds for this page only.
      }
    },
    dark() {
      const chosen = document.documentElement.dataset.theme;
      return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    },
  },
};
window.fpa.theme.set(window.fpa.theme.get());
