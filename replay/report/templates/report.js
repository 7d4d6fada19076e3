"use strict";
// What went wrong is said on the page, and kept where a test finds it.
window.addEventListener("error", (event) => {
  document.documentElement.dataset.fault = event.message;
});

(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const onTime = [];
  let following = false;

  function setTheme(theme) {
    root.dataset.theme = theme;
    const button = document.querySelector("button.theme");
    button.textContent = theme === "dark" ? "Light" : "Dark";
  }

  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));
  document.querySelector("button.theme").addEventListener("click", () => {
    setTheme(root.dataset.theme === "dark" ? "light" : "dark");
  });

  // All plots over time show the same stretch of it. A null range is all of it.
  function show(range, except) {
    if (following) return;
    following = true;
    root.dataset.shown = range ? range.map(String).join(" ") : "";
    const update = range ? { "xaxis.range": range, "xaxis.autorange": false } : null;
    const done = onTime.filter((plot) => plot !== except).map((plot) => {
      return Plotly.relayout(plot, update || { "xaxis.range": plot.whole.slice(), "xaxis.autorange": false });
    });
    for (const button of document.querySelectorAll("[data-whole]")) button.hidden = !range;
    Promise.all(done).then(() => { following = false; });
  }

  function zoomed(plot, change) {
    if (following) return;
    const range = change["xaxis.range"] || [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (change["xaxis.autorange"]) {
      show(null);
    } else if (range[0] !== undefined) {
      show(range, plot);
    }
  }

  function choose(incident) {
    for (const each of document.querySelectorAll(".incident.chosen")) each.classList.remove("chosen");
    if (!incident) return;
    incident.classList.add("chosen");
    const begins = Number(incident.dataset.begins);
    const ends = Number(incident.dataset.ends);
    const margin = Math.max(5000, (ends - begins) * 0.25);
    show([Math.round(begins - margin), Math.round(ends + margin)]);
  }

  // report.html#incident-2 is a link for a colleague.
  function chooseByAddress() {
    if (/^#incident-\d+$/.test(location.hash)) choose(document.querySelector(location.hash));
  }

  const coarse = window.matchMedia("(pointer: coarse)").matches;
  const drawn = Object.entries(figures).map(([name, figure]) => {
    const plot = document.getElementById(name);
    // A finger that scrolls the page must not zoom.
    if (coarse) figure.layout.dragmode = false;
    const config = { displayModeBar: false, responsive: true, doubleClick: "autosize" };
    return Plotly.newPlot(plot, figure.data, figure.layout, config).then(() => {
      if (!plot.hasAttribute("data-time")) return;
      plot.whole = figure.layout.xaxis.range.slice();
      onTime.push(plot);
      plot.on("plotly_clickannotation", (click) => { location.hash = click.annotation.name; });
      plot.on("plotly_relayout", (change) => zoomed(plot, change));
    });
  });

  Promise.all(drawn).then(() => {
    window.addEventListener("hashchange", chooseByAddress);
    for (const link of document.querySelectorAll("[data-incident]")) {
      link.addEventListener("click", () => choose(document.getElementById(link.dataset.incident)));
    }
    for (const button of document.querySelectorAll("[data-whole]")) {
      button.addEventListener("click", () => {
        history.replaceState(null, "", location.pathname + location.search);
        choose(null);
        show(null);
      });
    }
    chooseByAddress();
    root.dataset.drawn = String(drawn.length);
  });
})();
