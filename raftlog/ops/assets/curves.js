"use strict";
// Curves of the last minutes, as inline SVG. The points are kept only in this page.

const POINTS = 150; // With one survey every 2 s: five minutes.
const WIDTH = 300, HEIGHT = 60;
const GAP_MS = 15000; // A longer interval between two surveys is shown as a gap.
const points = [];

// Adds a survey by the node. Only the node's clock counts, not the browser's.
function remember(d) {
  const end = d.high_watermark, lao = d.lao.offset;
  const before = points[points.length - 1];
  const ms = before ? d.at_ms - before.ms : 0;
  if (before && ms < 0) points.length = 0; // The node's clock was set back, or it is a different node.
  if (before && ms === 0) return;
  const known = Number.isInteger(end);
  // After a restore the log may end earlier, which is not a negative rate.
  const rate = before && known && before.end !== null && end >= before.end && ms > 0 && ms <= GAP_MS
    ? (end - before.end) * 1000 / ms : null;
  const lag = known && Number.isInteger(lao) && lao >= 0 ? Math.max(0, end - 1 - lao) : null;
  points.push({ ms: d.at_ms, end: known ? end : null, rate, lag });
  if (points.length > POINTS) points.shift();
}

const svg = (tag, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};

// Runs of neighbouring points whose value is known.
function runs(name) {
  const found = [];
  let run = null, last = null;
  for (const one of points) {
    if (one[name] === null) { run = null; continue; }
    if (!run || one.ms - last > GAP_MS) found.push(run = []);
    run.push(one);
    last = one.ms;
  }
  return found;
}

function curve(title, name, digits) {
  const values = points.map((one) => one[name]).filter((one) => one !== null);
  const now = points.length ? points[points.length - 1][name] : null;
  const most = Math.max(1, ...values);
  const first = points.length ? points[0].ms : 0;
  const span = Math.max(60000, points.length ? points[points.length - 1].ms - first : 0);
  const picture = svg("svg", { viewBox: "0 0 " + WIDTH + " " + HEIGHT, preserveAspectRatio: "none",
    role: "img", "aria-label": title });
  picture.append(svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1, class: "axis" }));
  for (const run of runs(name)) {
    const at = run.map((one) => ((one.ms - first) / span * WIDTH).toFixed(1) + "," +
      (HEIGHT - 2 - one[name] / most * (HEIGHT - 6)).toFixed(1));
    if (at.length === 1) at.push(at[0]);
    picture.append(svg("polyline", { points: at.join(" "), class: "curve" }));
  }
  const caption = make("figcaption", "", title + ": ",
    make("strong", "", now === null ? "–" : now.toFixed(digits)),
    values.length ? make("span", "quiet", " at most " + Math.max(...values).toFixed(digits)) : "");
  return make("figure", "", caption, picture);
}

function curves() {
  const minutes = points.length ? (points[points.length - 1].ms - points[0].ms) / 60000 : 0;
  const since = minutes < 1 ? "since this page was opened"
    : "over the last " + minutes.toFixed(0) + (minutes < 1.5 ? " minute" : " minutes");
  at("curves").replaceChildren(curve("Records written per second", "rate", 1),
    curve("Records between LAO and the high watermark", "lag", 0), make("p", "quiet", "Recorded by this page " + since + "."));
}
