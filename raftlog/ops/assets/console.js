"use strict";
// Everything from the cluster is inserted into the page as text, never as markup.

const at = (id) => document.getElementById(id);
let token = ""; // Kept in memory only, as long as the page is open.
let last = 0; // Time of the last survey, by the node's clock: the browser's may differ.
let heard = 0; // By the page's own monotonic clock.
let connection = null;
const SILENT_MS = 15000; // A paused node sends nothing, but its connection stays open.

function make(tag, className, ...inside) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...inside.map((one) => (one instanceof Node ? one : String(one))));
  return made;
}

const shown = (value) => (value === null || value === undefined || value === "" ? "–" : value);
const time = (ms) => new Date(ms).toISOString().slice(0, 19).replace("T", " ") + "Z";
const LEVEL = { healthy: "good", degraded: "warn", down: "bad", notice: "", active: "good",
  leader: "good", follower: "", trouble: "bad", change: "warn", note: "" };
const badge = (text, level) => make("span", "badge " + (level ?? LEVEL[text] ?? "warn"), text);

function table(caption, columns, rows) {
  if (!rows.length) return make("p", "quiet", "None.");
  const head = make("tr", "", ...columns.map(([name, kind]) => {
    const cell = make("th", kind || "", name);
    cell.scope = "col";
    return cell;
  }));
  const body = rows.map((row) => make("tr", "", ...row.map((value, index) => {
    const text = shown(value);
    const cell = make("td", (columns[index][1] || "") + (text === "–" ? " empty" : ""),
      make("span", "", text));
    cell.dataset.name = columns[index][0];
    return cell;
  })));
  const made = make("table", "", make("thead", "", head), make("tbody", "", ...body));
  made.setAttribute("aria-label", caption);
  const around = make("div", "wide", made);
  around.tabIndex = 0;
  around.setAttribute("role", "region");
  around.setAttribute("aria-label", caption);
  return around;
}

// A section is rebuilt only if its content changes, so that focus, selection and scrolling stay.
const before = {};
function fill(id, value, ...inside) {
  const text = JSON.stringify(value);
  if (before[id] === text) return;
  before[id] = text;
  const box = at(id).querySelector("div");
  const old = box.querySelector(".wide");
  const [top, left] = old ? [old.scrollTop, old.scrollLeft] : [0, 0];
  box.replaceChildren(...inside.flatMap((one) => one()));
  const fresh = box.querySelector(".wide");
  if (fresh) fresh.scrollTo(left, top);
}

function finding(one) {
  const made = make("article", "",
    make("p", "", badge(one.severity), " ", make("strong", "", one.cause)),
    make("p", "", "So: " + one.consequence), make("p", "", "Do: " + one.remedy));
  if (one.command) made.append(make("pre", "", one.command));
  return made;
}

function figure(name, value, note, calm) {
  const dd = make("dd", "", shown(value));
  if (note) dd.append(make("small", calm ? "calm" : "", note));
  return make("div", "", make("dt", "", name), dd);
}

const some = (list, total, command) => (total > list.length
  ? [make("p", "quiet", list.length + " of " + total + " are shown: ", make("code", "", command))]
  : []);

// A bounded list of entities that clients have stored; of very many, only the first are examined.
function listed(id, caption, of, columns, row, command) {
  fill(id, of, () => [table(caption, columns, of.shown.map(row)),
    ...some(of.shown, of.total, command),
    ...(of.partial ? [make("p", "quiet", "There are too many to examine all of them here.")] : [])]);
}

const size = (bytes) => (bytes < 1024 ? bytes + " B" : (bytes / 1024).toFixed(1) + " KiB");
const PARTITION = { "in sync": "good", "under-replicated": "warn", offline: "bad" };

function showStored(d) {
  listed("partitions", "Partitions", d.partitions, [["Topic", "text"], ["Number", "number"],
    ["State"], ["Leader", "number"], ["Replicas", "short"], ["In sync", "short"]],
    (one) => [one.topic, one.index, badge(one.state, PARTITION[one.state]), one.leader,
      one.replicas.join(", "), one.isr.join(", ")], "raftlog topics describe TOPIC");
  listed("keys", "Keys", d.keys, [["Key", "key"], ["Value", "text"], ["Size", "short"],
    ["Put at", "number"], ["Lease", "number"]], (one) => [one.key, one.value, size(one.bytes),
    one.offset, one.lease_id], "raftlog kv list");
  listed("locks", "Locks and elections", d.locks, [["Kind", "short"], ["Name", "text"],
    ["Holder", "text"], ["Lease", "number"], ["Waiting", "number"]],
    (one) => [one.kind, one.name, one.holder, one.lease_id, one.waiting], "raftlog kv list locks/");
  listed("leases", "Leases", d.leases, [["Lease", "number"], ["Name", "text"], ["Ends after", "short"],
    ["Principal", "text"]], (one) => [one.id, one.name, one.ttl_ms / 1000 + " s without a renewal",
    one.principal], "raftlog kv lease list");
}

function show(d) {
  last = d.at_ms;
  at("main").hidden = false;
  at("main").classList.remove("stale");
  at("signin").hidden = at("problem").hidden = true;
  at("cluster").textContent = d.cluster_id ? "cluster " + d.cluster_id : "";
  if (at("verdict").textContent !== d.verdict) {
    at("verdict").textContent = d.verdict;
    at("verdict").className = "badge " + (LEVEL[d.verdict] || "");
  }
  at("live").textContent = "live, as of " + time(d.at_ms);
  document.title = d.verdict + " · raftlog console";
  at("foot").textContent = "Seen by " + d.node.role + " " + d.node.node_id +
    ". Read-only. Times are UTC.";
  at("figures").replaceChildren(
    figure("Leader", d.leader_id === null ? "none" : "node " + d.leader_id,
      d.leader_id === null ? "writes are not possible" : ""),
    figure("Epoch", d.leader_epoch), figure("High watermark", d.high_watermark),
    figure("Lowest acknowledged offset", d.lao.offset, d.lao.why, d.brokers.total === 0),
    figure("Brokers", d.brokers.total),
    figure("Topics", d.topics.total),
    figure("Partitions", d.brokers.partitions,
      d.brokers.offline ? d.brokers.offline + " offline" : ""));
  remember(d);
  curves();
  showStored(d);
  fill("findings", d.findings, () => (d.findings.length ? d.findings.map(finding)
    : [make("p", "", "No problems.")]));
  fill("quorum", d.quorum, () => [table("Quorum", [["Node", "short"], ["Endpoint", "text"],
    ["State"], ["Epoch", "number"], ["Log end", "number"], ["Lag", "number"]],
    d.quorum.map((one) => [one.node_id, one.endpoint,
      badge(one.state, one.answers ? undefined : "bad"), one.epoch, one.log_end, one.lag]))]);
  fill("brokers", d.brokers, () => [table("Brokers", [["Broker", "short"], ["Endpoint", "text"],
    ["State"], ["Applied", "number"], ["Behind", "number"], ["Leads", "number"],
    ["Replicas", "number"], ["Rack", "text"], ["Why", "text"]],
    d.brokers.shown.map((one) => [one.id, one.endpoint, badge(one.state), one.applied, one.lag,
      one.leads, one.replicas, one.rack,
      one.holds_lao ? "holds back LAO. " + one.reason : one.reason])),
    ...some(d.brokers.shown, d.brokers.total, "raftlog brokers list")]);
  fill("topics", d.topics.shown, () => [table("Topics", [["Topic", "text"],
    ["Partitions", "number"]], d.topics.shown.map((one) => [one.name, one.partitions])),
    ...some(d.topics.shown, d.topics.total, "raftlog topics list")]);
  fill("configs", d.configs, () => [table("Configs", [["Of", "text"], ["Key", "text"],
    ["Value", "text"]], d.configs.shown.map((one) => [one.resource, one.key,
      one.value + (one.without_effect ? " (" + one.without_effect + ")" : "")])),
    ...(d.configs.more ? [make("p", "quiet", "There are more: ",
      make("code", "", "raftlog configs describe"))] : [])]);
  fill("changes", d.changes, () => [table("Last changes", [["Offset", "number"], ["Time", "short"],
    ["By", "name"], ["What", "text"]],
    d.changes.map((one) => [one.offset, time(one.at_ms), one.who,
      one.sentence + (!one.partitions ? "" : one.type === "TOPIC"
        ? " with " + one.partitions + (one.partitions === 1 ? " partition" : " partitions")
        : "; and " + one.partitions + " more changes to partitions") +
      (one.times > 1 ? ", " + one.times + " times" : "")]))]);
  fill("incidents", d.incidents, () => incidents(d.incidents));
}

function incidents(of) {
  if (of.shown === null) return [make("p", "quiet", "Reading the nodes' journals …")];
  const parts = [make("p", "", of.summary.length ? of.summary.join("; ") + "."
    : "The nodes' journals show no trouble.")];
  parts.push(table("Incidents", [["Time", "short"], ["Weight"], ["What", "text"],
    ["Lasted", "short"], ["Because", "text"]],
    of.shown.map((one) => [time(one.at_ms), badge(one.weight), one.text, one.lasted,
      one.because.join("; ")])));
  for (const one of of.missing) parts.push(make("p", "quiet", "Missing: " + one));
  parts.push(make("p", "quiet", "From the nodes' journals and the last changes. The whole story: ",
    make("code", "", "raftlog explain --since 1h")));
  return parts;
}

function problem(text) {
  at("problem").textContent = text;
  at("problem").hidden = false;
  at("main").classList.add("stale");
  at("live").textContent = last ? "not live; as of " + time(last) : "";
  at("verdict").textContent = "unknown";
  at("verdict").className = "badge";
}

function ask(why) {
  token = "";
  at("main").hidden = true;
  for (const id of Object.keys(before)) {
    delete before[id];
    at(id).querySelector("div").replaceChildren();
  }
  at("why").textContent = why;
  at("verdict").textContent = "signed out";
  at("live").textContent = "";
  at("problem").hidden = true;
  at("signin").hidden = false;
  at("token").focus();
}

// Server-sent events by fetch: EventSource sends no Authorization header.
async function listen() {
  const headers = { Accept: "text/event-stream" };
  if (token) headers.Authorization = "Bearer " + token;
  connection = new AbortController();
  heard = performance.now();
  const answer = await fetch("/console/events",
    { headers, cache: "no-store", signal: connection.signal });
  if (answer.status === 401) {
    ask((await answer.text()).trim());
    return false;
  }
  if (!answer.ok) {
    problem((await answer.text()).trim());
    return true;
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    heard = performance.now();
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const data = text.slice(0, end).split("\n").filter((line) => line.startsWith("data: "));
      text = text.slice(end + 2);
      if (data.length) show(JSON.parse(data.map((line) => line.slice(6)).join("\n")));
    }
  }
  problem("The node has ended the stream. Retrying …");
  return true;
}

async function run() {
  for (;;) {
    let again = true;
    try {
      again = await listen();
    } catch (error) {
      problem(connection.signal.aborted
        ? "The node has sent nothing for " + SILENT_MS / 1000 + " s. Retrying …"
        : "The node does not answer. Retrying …");
    }
    if (!again) return;
    await new Promise((done) => setTimeout(done, 2000));
  }
}

setInterval(() => {
  if (connection && performance.now() - heard > SILENT_MS) connection.abort();
}, 1000);
at("signin").addEventListener("submit", (event) => {
  event.preventDefault();
  token = at("token").value.trim();
  at("token").value = "";
  run();
});
run();
