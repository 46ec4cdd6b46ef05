"use strict";

/* The page around the timelines: what was read, the findings, and a panel for each
   partition, of which only those that are open are built. */

const OPEN_AT_FIRST = 6;
const PAGE = 100; // findings and partitions that are listed before one asks for more
const LANES = 12; // lanes that a panel shows before one asks for more

const report = JSON.parse(document.getElementById("report").textContent);
const byId = (id) => document.getElementById(id);

function make(name, properties, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {}))
    if (key in element) element[key] = value; else element.setAttribute(key, value);
  element.append(...children.filter((one) => one !== null && one !== undefined));
  return element;
}

/** A text that others wrote: kept from turning around what stands beside it. */
function value(text, most = 200) {
  return make("bdi", { className: "value", title: clip(String(text), 1000) }, clip(String(text), most));
}

function duration(milliseconds) {
  if (milliseconds === null) return "-";
  const size = Math.abs(milliseconds), sign = milliseconds < 0 ? "-" : "";
  if (size < 1000) return `${sign}${size} ms`;
  if (size < 120000) return `${sign}${(size / 1000).toFixed(1)} s`;
  if (size < 7200000) return `${sign}${(size / 60000).toFixed(1)} min`;
  return `${sign}${(size / 3600000).toFixed(1)} h`;
}

const sum = (partition, kind) => partition.verdicts.filter(([name]) => name.split(":")[0] === kind).reduce((all, [, number]) => all + number, 0);

// What all timelines share.

const tip = byId("tip");
const shared = {
  mode: "offset",
  fills: report.fills,
  wholeTime: [0, 1],
  timeView: [0, 1],
  waiting: new Set(),
  lanesShown: (timeline) => timeline.panel.lanes,
  moved(timeline) {
    const those = this.mode === "time" ? panels.filter((one) => one.isOpen).map((one) => one.timeline) : [timeline];
    if (!this.waiting.size) requestAnimationFrame(() => { const all = [...this.waiting]; this.waiting.clear(); all.forEach((one) => one.draw()); });
    those.forEach((one) => this.waiting.add(one));
  },
  tell(lines, x, y) {
    tip.hidden = lines === null;
    if (lines === null) return;
    tip.replaceChildren(make("b", null, make("bdi", null, lines[0])), ...lines.slice(1).map((line) => make("div", null, make("bdi", null, line))));
    const room = document.documentElement.clientWidth + window.scrollX;
    tip.style.left = `${Math.max(8, Math.min(x + 14, room - tip.offsetWidth - 12))}px`;
    tip.style.top = `${y + 16}px`;
  },
};

// A panel for each partition.

class Panel {
  constructor(data, number) {
    this.data = data;
    data.number = number;
    this.isOpen = false;
    this.lanes = Math.min(data.lanes.length, LANES);
    this.timeline = null;
    this.element = make("section", { className: "partition", id: `partition-${number}` });
    const stale = sum(data, "stale"), quarantined = sum(data, "quarantined");
    this.rejected = stale + quarantined;
    this.button = make("button", { type: "button", "aria-expanded": "false", onclick: () => this.toggle(!this.isOpen) },
      make("span", { className: "name" }, value(`${data.topic}[${data.partition}]`)),
      data.worst && make("span", { className: `badge ${data.worst}` }, data.worst),
      make("span", { className: "counts" }, `${count(data.records)} records, ${count(sum(data, "barrier"))} barriers`,
        ...(stale ? [", ", make("b", null, `${count(stale)} stale`)] : []),
        ...(quarantined ? [", ", make("b", null, `${count(quarantined)} quarantined`)] : []),
        `, ${count(data.epochsTotal)} epochs`));
    this.body = make("div", { className: "body", hidden: true });
    this.element.append(make("h3", null, this.button), this.body);
  }

  /** What a filter looks at. */
  get words() {
    this.searched ||= [`${this.data.topic}[${this.data.partition}]`, ...this.data.lanes.map((lane) => lane.scope || ""),
      ...this.data.epochs.map((one) => one.holder || "")].join("\n").toLowerCase();
    return this.searched;
  }

  toggle(isOpen) {
    this.isOpen = isOpen;
    this.button.setAttribute("aria-expanded", String(isOpen));
    this.body.hidden = !isOpen;
    if (!isOpen) return;
    if (!this.timeline) this.build();
    this.timeline.reset();
    this.timeline.draw();
  }

  build() {
    const timeline = this.timeline = new Timeline(this.data, shared);
    timeline.panel = this;
    const tool = (text, label, action) => make("button", { type: "button", title: label, "aria-label": label, onclick: action }, text);
    const tools = make("div", { className: "tools" },
      tool("+", "Zoom in", () => timeline.zoom(0.5)), tool("−", "Zoom out", () => timeline.zoom(2)),
      tool("←", "Move left", () => timeline.pan(-0.3)), tool("→", "Move right", () => timeline.pan(0.3)),
      tool("All", "Show all", () => timeline.show(...timeline.whole)),
      tool("‹ mark", "Previous mark", () => timeline.choose(-1)), tool("mark ›", "Next mark", () => timeline.choose(1)),
      make("span", { className: "hint" }, "Drag to zoom, Shift-drag to move. Click it first for wheel and keys: + − ← → 0 n p"));
    const more = this.data.lanes.length - this.lanes;
    const lanes = more > 0 && make("button", { type: "button", onclick: (event) => { this.lanes = this.data.lanes.length; event.target.remove(); timeline.draw(); } }, `${more} more scopes`);
    this.body.append(tools, timeline.element, ...(lanes ? [lanes] : []), ...this.epochs());
  }

  epochs() {
    const all = this.data.epochs;
    if (!all.length) return [];
    const isOne = new Set(all.map((one) => one.scope)).size === 1;
    const rows = all.slice(0, 500).map((one) => this.epoch(one, isOne));
    const heads = [...(isOne ? [] : ["Scope"]), "Epoch", "Holder", "Began at", "First write (UTC)", "Gap", "Admitted", "Stale", "Quarantined", "Wrote on", ""];
    const numbers = new Set(["Epoch", "Began at", "Gap", "Admitted", "Stale", "Quarantined", "Wrote on"]);
    const table = make("table", null, make("thead", null, make("tr", null, ...heads.map((head) => make("th", { className: numbers.has(head) ? "number" : "" }, head)))), make("tbody", null, ...rows));
    const left = this.data.epochsTotal - rows.length;
    return [make("details", { className: "epochs", open: all.length <= 20 }, make("summary", null, `Epochs (${count(this.data.epochsTotal)})`), table,
      left > 0 ? make("p", { className: "note" }, `${count(left)} more are in the report as JSON.`) : null)];
  }

  epoch(one, isOnlyScope) {
    const quarantined = Object.entries(one.quarantined);
    const cell = (text, name = "") => make("td", { className: name }, text);
    const swatch = make("span", { className: "swatch" });
    const colour = this.colour(one);
    swatch.style.background = colour;
    const shown = one.start || one.firstWrite;
    return make("tr", null, isOnlyScope ? null : cell(value(one.scope, 60)), make("td", { className: "number" }, colour ? swatch : null, String(one.epoch)),
      make("td", { title: one.grant ? `grant ${one.grant}` : "" }, one.holder === null ? "-" : value(one.holder, 60)),
      cell(one.start ? count(one.start[1]) : "-", "number"),
      cell(one.firstWrite ? timeText(one.firstWrite[2]) : "-"), cell(duration(one.gapMs), "number"), cell(count(one.admitted), "number"),
      cell(count(one.stale), one.stale ? "number bad" : "number"),
      cell(quarantined.length ? quarantined.map(([reason, number]) => `${count(number)} ${reason}`).join(", ") : "0", quarantined.length ? "number bad" : "number"),
      cell(one.overlap ? duration(one.overlap.wroteOnMs) : "-", "number"),
      make("td", null, shown ? make("button", { type: "button", onclick: () => this.zoomTo(one) }, "Show") : null));
  }

  colour(one) {
    const lane = this.data.lanes.find((lane) => lane.scope === one.scope);
    const row = lane && one.start && lane.spans.find((row) => row[EPOCH] === one.epoch && row[LAST_EPOCH] === one.epoch);
    return row ? report.fills[row[COLOUR]] : "";
  }

  zoomTo(one) {
    const places = [one.start, one.barrier, one.firstWrite, one.lastWrite, one.overlap && one.overlap.last].filter(Boolean)
      .map((place) => this.timeline.at(...place)).filter((at) => at !== null);
    if (!places.length) return;
    const low = Math.min(...places), high = Math.max(...places), pad = Math.max((high - low) * 0.1, 3);
    this.timeline.show(low - pad, high + pad);
    this.timeline.element.scrollIntoView({ block: "nearest" });
  }
}

const panels = report.partitions.map((data, number) => new Panel(data, number));

// The list of panels, filtered.

let partitionsShown = PAGE;

function listPartitions() {
  const words = byId("filter").value.toLowerCase().trim();
  const fits = panels.filter((one) => (!words || one.words.includes(words)) && (!byId("only-rejected").checked || one.rejected));
  byId("partition-list").replaceChildren(...fits.slice(0, partitionsShown).map((one) => one.element));
  const left = fits.length - partitionsShown;
  byId("more-partitions").hidden = left <= 0;
  byId("more-partitions").textContent = `${count(Math.max(0, Math.min(left, PAGE)))} more`;
  byId("partitions-head").textContent = `Partitions (${fits.length === panels.length ? "" : `${count(fits.length)} of `}${count(panels.length)})`;
  byId("partitions-note").textContent = panels.length ? fits.length ? "" : "None of that kind." : "No records.";
}

byId("filter").addEventListener("input", () => { partitionsShown = PAGE; listPartitions(); redraw(); });
byId("only-rejected").addEventListener("change", () => { partitionsShown = PAGE; listPartitions(); redraw(); });
byId("more-partitions").addEventListener("click", () => { partitionsShown += PAGE; listPartitions(); });

function redraw() { panels.filter((one) => one.isOpen && one.element.isConnected).forEach((one) => one.timeline.draw()); }

// Findings.

let findingsShown = PAGE, severity = null;

function listFindings() {
  const fits = report.findings.map((one, number) => [one, number]).filter(([one]) => severity === null || one.severity === severity);
  byId("finding-list").replaceChildren(...fits.slice(0, findingsShown).map(([one, number]) => findingItem(one, number)));
  const left = fits.length - findingsShown;
  byId("more-findings").hidden = left <= 0;
  byId("more-findings").textContent = `${count(Math.max(0, Math.min(left, PAGE)))} more`;
  const missing = report.findingsTotal - report.findings.length;
  byId("findings-note").textContent = !report.findingsTotal ? "None: every record was in order."
    : missing > 0 ? `${count(missing)} more, no worse than these, are in the report as JSON.` : "";
}

function findingItem(one, number) {
  const panel = one.partition === null ? null : panels[one.partition];
  const link = make("a", { href: `#finding-${number + 1}`, onclick: (event) => followFinding(event, number) },
    make("span", { className: `badge ${one.severity}` }, one.severity), make("span", { className: "code" }, one.code),
    panel ? make("span", { className: "note" }, " ", value(`${panel.data.topic}[${panel.data.partition}]`)) : null,
    make("span", { className: "text" }, make("bdi", null, clip(one.text, 1200))));
  const heads = ["Record", "Offset", "Leader epoch", "Time (UTC)", "Scope", "Epoch", "Grant", "Holder"];
  const text = (part) => part === null ? "-" : String(part);
  const details = one.remedy || one.evidence.length ? make("details", null, make("summary", null, "What to do, evidence"), one.remedy ? make("p", null, one.remedy) : null,
    one.evidence.length ? make("table", null, make("thead", null, make("tr", null, ...heads.map((head) => make("th", null, head)))),
      make("tbody", null, ...one.evidence.map((record) => make("tr", null,
        make("td", null, record.what, make("br"), value(record.where)), make("td", { className: "number" }, record.offset === null ? "-" : count(record.offset)),
        make("td", { className: "number" }, text(record.leaderEpoch)), make("td", null, timeText(record.time)), make("td", null, value(text(record.scope), 60)),
        make("td", { className: "number" }, text(record.epoch)), make("td", null, text(record.grant)), make("td", null, value(text(record.holder), 60)))))) : null) : null;
  const item = make("li", { className: "finding", id: `finding-${number + 1}` }, link, details);
  if (number === currentFinding) item.classList.add("is-current");
  return item;
}

let currentFinding = -1;

/** Open its partition, zoom to its records, and point at them. */
function showFinding(number) {
  const finding = report.findings[number];
  if (!finding) return;
  currentFinding = number;
  document.querySelectorAll(".finding").forEach((one) => {
    const isIt = one.id === `finding-${number + 1}`;
    one.classList.toggle("is-current", isIt);
    one.querySelector("a").toggleAttribute("aria-current", isIt);
  });
  panels.forEach((one) => { if (one.timeline && one.timeline.finding) { one.timeline.finding = null; if (one.isOpen) one.timeline.draw(); } });
  const panel = finding.partition === null ? null : panels[finding.partition];
  if (!panel) return;
  if (!panel.element.isConnected) {
    byId("filter").value = "";
    byId("only-rejected").checked = false;
    partitionsShown = Math.max(partitionsShown, finding.partition + 1);
    listPartitions();
    redraw();
  }
  if (!panel.isOpen) panel.toggle(true);
  const scope = finding.evidence.length ? finding.evidence[finding.evidence.length - 1].scope : null;
  if (panel.data.lanes.findIndex((lane) => lane.scope === scope) >= panel.lanes) panel.lanes = panel.data.lanes.length;
  panel.timeline.point(finding);
  panel.timeline.draw();
  scrollToMark(panel);
}

function scrollToMark(panel) {
  const mark = panel.timeline.element.querySelector(".highlight .ring");
  (mark || panel.element).scrollIntoView({ block: mark ? "center" : "start" });
}

/** By a click: the browser would scroll to the finding, away from its mark. */
function followFinding(event, number) {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  history.replaceState(null, "", `#finding-${number + 1}`);
  showFinding(number);
}

function followHash() {
  const found = /^#finding-(\d+)$/.exec(location.hash);
  if (found && Number(found[1]) - 1 !== currentFinding) showFinding(Number(found[1]) - 1);
}

byId("more-findings").addEventListener("click", () => { findingsShown += PAGE; listFindings(); });
window.addEventListener("hashchange", followHash);

// Offset or time.

function setMode(mode) {
  shared.mode = mode;
  for (const [id, name] of [["by-offset", "offset"], ["by-time", "time"]]) byId(id).setAttribute("aria-checked", String(mode === name));
  shared.tell(null);
  for (const panel of panels) if (panel.timeline) panel.timeline.reset();
  const pointed = panels.find((one) => one.isOpen && one.timeline.finding);
  if (pointed) pointed.timeline.point(report.findings[currentFinding]);
  redraw();
  if (pointed) scrollToMark(pointed);
}

function measureTime() {
  let low = Infinity, high = -Infinity;
  for (const { lanes } of report.partitions)
    for (const lane of lanes)
      for (const row of [...lane.spans, ...lane.marks])
        for (const time of [row[FROM_TIME], row[TO_TIME]])
          if (time !== null) { low = Math.min(low, Number(time)); high = Math.max(high, Number(time)); }
  if (low > high) {
    byId("by-time").disabled = true;
    byId("by-time").title = "The records have no timestamps.";
    return;
  }
  const pad = Math.max((high - low) * 0.012, 1);
  shared.wholeTime = [low - pad, high + pad];
  shared.timeView = [...shared.wholeTime];
}

byId("by-offset").addEventListener("click", () => setMode("offset"));
byId("by-time").addEventListener("click", () => setMode("time"));

// The head, the legend, light and dark.

function drawHead() {
  byId("source").textContent = report.source;
  const { stamp, authority, scopes, unstamped, max_jump: jump } = report.settings;
  byId("judged").textContent = `${report.judgedBy.join(" ")} Stamp ${stamp}, authority ${authority}, ${scopes.length ? `scopes ${scopes.join(", ")}` : "any scope"}, unstamped: ${unstamped}${jump === null ? "" : `, at most ${count(jump)} epochs at once`}.`;
  const { counts } = report;
  const numbers = [["records", report.records], ["admitted", counts.admitted], ["barriers", counts.barrier], ["stale", counts.stale, true], ["quarantined", counts.quarantined, true], ["findings", report.findingsTotal]];
  byId("numbers").append(...numbers.map(([name, number, isBad]) => make("div", { className: isBad && number ? "bad" : "" }, make("dt", null, name), make("dd", null, count(number)))));
  byId("remarks").append(...report.remarks.map((text) => make("p", { className: "warned" }, text)));
  const found = ["critical", "warning", "notice"].map((name) => [name, report.findings.filter((one) => one.severity === name).length]);
  byId("severities").append(...found.filter(([, number]) => number).map(([name, number]) => make("button", { type: "button", "aria-pressed": "false",
    onclick: (event) => {
      severity = severity === name ? null : name;
      findingsShown = PAGE;
      byId("severities").childNodes.forEach((one) => one.setAttribute("aria-pressed", String(one === event.target && severity !== null)));
      listFindings();
    } }, `${count(number)} ${name}`)));
}

function drawLegend() {
  const entry = (text, shape) => {
    const sign = svg("svg", { width: 20, height: 20, viewBox: "-10 -10 20 20", "aria-hidden": "true" });
    if (shape === null) sign.append(svg("rect", { class: "span", x: -9, y: -7, width: 18, height: 14, rx: 2, fill: report.fills[0] }));
    else if (shape === "many") sign.append(svg("rect", { class: "span many", x: -9, y: -7, width: 18, height: 14, rx: 2 }));
    else {
      const mark = glyph(shape);
      if (shape === KINDS.barrier) mark.setAttribute("transform", "translate(-2,2) scale(.6)");
      sign.append(mark);
    }
    return make("span", null, sign, text);
  };
  byId("legend").append(entry("admitted records of an epoch", null), entry("several epochs, too short to show", "many"), entry("barrier", KINDS.barrier),
    entry("stale", KINDS.stale), entry("quarantined", KINDS.other), entry("two grants of one epoch", KINDS.conflict));
}

byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  byId("theme").textContent = isDark ? "Dark" : "Light";
});
if (matchMedia("(prefers-color-scheme: dark)").matches) byId("theme").textContent = "Light";

new ResizeObserver(redraw).observe(byId("partition-list"));
measureTime();
drawHead();
drawLegend();
listFindings();
listPartitions();
panels.slice(0, panels.length <= OPEN_AT_FIRST ? panels.length : Math.min(OPEN_AT_FIRST, Math.max(1, panels.filter((one) => one.data.worst).length))).forEach((one) => one.toggle(true));
followHash();
