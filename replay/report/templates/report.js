"use strict";
// Tests read the page's last error from here.
window.addEventListener("error", (event) => {
  document.documentElement.dataset.fault = event.message;
});

(() => {
  const root = document.documentElement;
  const chart = document.querySelector(".chart");
  const begins = Number(chart.dataset.begins);
  const length = Math.max(1, Number(chart.dataset.ends) - begins);
  const MAX_ZOOM = 2000;
  const STEPS_S = [1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 43200];
  const DAY_MS = 86400000;
  let from = 0;
  let zoom = 1;

  function ticks() {
    const track = chart.querySelector(".axis .track");
    const span = length / zoom;
    const most = Math.max(2, Math.floor(track.clientWidth / 95));
    let step = STEPS_S.map((each) => each * 1000).find((each) => span / each <= most);
    if (!step) step = Math.ceil(span / DAY_MS / most) * DAY_MS;
    const words = [];
    const start = begins + from * length;
    for (let at = Math.ceil(start / step) * step; at <= start + span; at += step) {
      const time = new Date(at).toISOString();
      const text = at % DAY_MS === 0 || step >= DAY_MS ? time.slice(0, 10) : time.slice(11, step < 60000 ? 19 : 16);
      words.push(`<span class="tick at" style="--b:${(at - begins) / length};--w:0">${text}</span>`);
    }
    // The text consists of digits, without text from the log.
    track.innerHTML = words.join("");
  }

  function show(begin, end) {
    zoom = Math.min(MAX_ZOOM, Math.max(1, 1 / Math.max(end - begin, 1e-9)));
    from = Math.min(Math.max(0, (begin + end) / 2 - 0.5 / zoom), 1 - 1 / zoom);
    chart.style.setProperty("--from", from);
    chart.style.setProperty("--zoom", zoom);
    for (const svg of chart.querySelectorAll("svg")) {
      const whole = svg.dataset.steps || (svg.dataset.steps = svg.viewBox.baseVal.width);
      svg.setAttribute("viewBox", `${from * whole} 0 ${whole / zoom} 100`);
    }
    ticks();
    root.dataset.shown = zoom > 1 ? `${Math.round(begins + from * length)} ${Math.round(begins + (from + 1 / zoom) * length)}` : "";
    chart.querySelector("[data-whole]").hidden = zoom === 1;
  }

  function place(event) {
    const box = chart.querySelector(".axis .track").getBoundingClientRect();
    return from + Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) / zoom;
  }

  // On touch screens, dragging scrolls the page; buttons zoom.
  let start = null;
  chart.addEventListener("pointerdown", (event) => {
    start = event.pointerType === "mouse" && !event.target.closest("a, button") ? [place(event), event.clientX] : null;
  });
  chart.addEventListener("pointerup", (event) => {
    if (start && Math.abs(event.clientX - start[1]) > 8) show(Math.min(start[0], place(event)), Math.max(start[0], place(event)));
    start = null;
  });
  for (const button of chart.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => {
      const half = 0.5 / (zoom * Number(button.dataset.zoom));
      const middle = from + 0.5 / zoom;
      show(middle - half, middle + half);
    });
  }
  chart.querySelector("[data-whole]").addEventListener("click", () => show(0, 1));
  addEventListener("resize", ticks);

  function choose(incident) {
    for (const each of document.querySelectorAll(".incident.chosen")) each.classList.remove("chosen");
    incident.classList.add("chosen");
    incident.open = true;
    const first = Number(incident.dataset.begins);
    const last = Number(incident.dataset.ends);
    const margin = Math.max(5000, (last - first) * 0.25);
    show((first - margin - begins) / length, (last + margin - begins) / length);
  }

  // Support links to an incident, such as report.html#incident-2.
  function chooseByAddress() {
    if (/^#incident-\d+$/.test(location.hash)) choose(document.querySelector(location.hash));
  }
  for (const link of document.querySelectorAll("[data-incident]")) {
    link.addEventListener("click", () => choose(document.getElementById(link.dataset.incident)));
  }
  addEventListener("hashchange", chooseByAddress);
  show(0, 1);
  chooseByAddress();
  root.dataset.drawn = "yes";
})();
