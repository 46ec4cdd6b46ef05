"use strict";

/* The timeline of one partition, as SVG: only what can be told apart is drawn, so that it
   takes the same few hundred elements whatever the report holds. Texts of records are put
   in as text, never as markup. */

const LANE = { name: 20, flag: 7, band: 26, stale: 13, quarantined: 29, marks: 38, gap: 8 };
const AXIS = 26;
const SIDE = 12;
const LEAST = 4; // offsets, or milliseconds, that a view shows at least
const NEAR = 11; // marks closer than this many pixels become one
const KINDS = { barrier: "barrier", stale: "stale", conflict: "conflict", other: "quarantined" };
// A row of a span or a mark, as html_report.py writes it.
const LIFE = 0, FROM = 1, TO = 2, FROM_TIME = 3, TO_TIME = 4, RECORDS = 5, EPOCH = 6, LAST_EPOCH = 7;
const COLOUR = 8, KIND = 8, REASON = 9;

function svg(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function count(number) { return typeof number === "number" ? number.toLocaleString("en") : String(number); }

function timeText(milliseconds) {
  const moment = new Date(Number(milliseconds));
  if (milliseconds === null) return "-";
  if (isNaN(moment)) return String(milliseconds); // anybody's clock: no time at all
  return moment.toISOString().replace("T", " ").replace("Z", "");
}

function clip(text, most) { return text.length > most ? text.slice(0, most - 1) + "…" : text; }

function epochText(row) {
  if (row[EPOCH] === null) return "no epoch";
  return row[EPOCH] === row[LAST_EPOCH] ? `epoch ${row[EPOCH]}` : `epochs ${row[EPOCH]} to ${row[LAST_EPOCH]}`;
}

function shapeOf(row) {
  if (row[KIND] === "quarantined") return row[REASON] === "conflict" ? KINDS.conflict : KINDS.other;
  return row[KIND];
}

/** The sign of a kind of mark, around (0, 0): each has a shape of its own. */
function glyph(shape) {
  if (shape === KINDS.barrier) {
    const group = svg("g", { class: "barrier" });
    group.append(svg("path", { d: "M-1.3,-20 h2.6 l8,4 l-8,4 V13 h-2.6 Z" }));
    return group;
  }
  const group = svg("g", { class: `rejected ${shape}` });
  if (shape === KINDS.stale) group.append(svg("path", { d: "M-5,-5 L5,5 M-5,5 L5,-5" }));
  else if (shape === KINDS.conflict) {
    group.append(svg("path", { d: "M0,-7 L7,6 H-7 Z" }), svg("path", { class: "bang", d: "M0,-3 V1.5 M0,4 V4.1" }));
  } else group.append(svg("path", { d: "M0,-7 L6,0 L0,7 L-6,0 Z" }));
  return group;
}

/** Round steps for the axis: 1, 2 or 5 times a power of ten; of times, what clocks show. */
function stepOf(length, mode, most) {
  if (mode === "time") {
    const units = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5,
      18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5, 1728e5, 6048e5];
    for (const unit of units) if (length / unit <= most) return unit;
  }
  for (let power = 1; ; power *= 10)
    for (const one of [1, 2, 5]) if (length / (one * power) <= most) return one * power;
}

class Timeline {
  /**
   * @param data the partition
   * @param shared what all timelines share: mode, fills, the view by time, tips
   */
  constructor(data, shared) {
    this.data = data;
    this.shared = shared;
    this.bases = this.lifeBases();
    this.whole = this.extent();
    this.view = [...this.whole];
    this.chosen = -1; // index in this.stops, of the mark that the keyboard is at
    this.stops = [];
    this.finding = null;
    this.element = svg("svg", {
      class: "timeline", tabindex: "0", role: "group",
      "aria-label": `Timeline of ${data.topic}[${data.partition}]. Arrow keys move, + and - zoom, 0 shows all, n and p go from mark to mark.`,
    });
    this.listen();
  }

  // Where things are on the axis.

  /** Lives of a topic lie behind one another: where each begins on the axis of offsets. */
  lifeBases() {
    const last = new Map();
    for (const lane of this.data.lanes)
      for (const row of [...lane.spans, ...lane.marks])
        last.set(row[LIFE], Math.max(last.get(row[LIFE]) || 0, Number(row[TO]) + 1));
    const bases = [0];
    for (let life = 0; life < Math.max(1, this.data.topicIds.length); life += 1)
      bases.push(bases[life] + (last.get(life) || 0));
    return bases;
  }

  get isByTime() { return this.shared.mode === "time"; }

  x0(row) {
    if (this.isByTime) return row[FROM_TIME] === null ? null : Math.min(Number(row[FROM_TIME]), Number(row[TO_TIME] ?? row[FROM_TIME]));
    return this.bases[row[LIFE]] + Number(row[FROM]);
  }

  x1(row) {
    if (this.isByTime) return row[FROM_TIME] === null ? null : Math.max(Number(row[FROM_TIME]), Number(row[TO_TIME] ?? row[FROM_TIME]));
    return this.bases[row[LIFE]] + Number(row[TO]) + 1;
  }

  /** Where a single record is: in the middle of its place. */
  at(life, offset, time) {
    if (this.isByTime) return time === null ? null : Number(time);
    return this.bases[life] + Number(offset) + 0.5;
  }

  extent() {
    let low = Infinity, high = -Infinity;
    for (const lane of this.data.lanes)
      for (const row of [...lane.spans, ...lane.marks]) {
        const from = this.x0(row);
        if (from === null) continue;
        low = Math.min(low, from);
        high = Math.max(high, this.x1(row));
      }
    if (low > high) return [0, 1];
    const pad = Math.max((high - low) * 0.012, this.isByTime ? 1 : 0.5);
    return [low - pad, high + pad];
  }

  reset() {
    this.whole = this.isByTime ? [...this.shared.wholeTime] : this.extent();
    this.view = this.isByTime ? this.shared.timeView : [...this.whole];
  }

  /** Show a stretch; by time, all timelines show the same. */
  show(low, high) {
    const [first, last] = this.whole;
    const length = Math.min(Math.max(high - low, LEAST), Math.max(last - first, LEAST));
    const middle = (low + high) / 2;
    low = Math.max(Math.min(middle - length / 2, last - length), first);
    this.view[0] = low;
    this.view[1] = low + length;
    this.shared.moved(this);
  }

  zoom(factor, around) {
    const [low, high] = this.view;
    const middle = around ?? (low + high) / 2;
    this.show(middle - (middle - low) * factor, middle + (high - middle) * factor);
  }

  pan(part) {
    const length = this.view[1] - this.view[0];
    this.show(this.view[0] + part * length, this.view[1] + part * length);
  }

  px(value) {
    return SIDE + (value - this.view[0]) / (this.view[1] - this.view[0]) * (this.width - 2 * SIDE);
  }

  value(px) {
    return this.view[0] + (px - SIDE) / (this.width - 2 * SIDE) * (this.view[1] - this.view[0]);
  }

  isSeen(low, high) { return low !== null && high >= this.view[0] && low <= this.view[1]; }

  // Drawing.

  draw() {
    this.width = Math.max(this.element.parentElement.clientWidth, 200);
    const lanes = this.data.lanes.slice(0, this.shared.lanesShown(this));
    const laneHeight = LANE.name + LANE.flag + LANE.band + LANE.marks + LANE.gap;
    const height = lanes.length * laneHeight + AXIS;
    this.element.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.element.setAttribute("height", height);
    this.element.replaceChildren(this.definitions());
    this.stops = [];
    this.pointed = null; // where the mark of the finding is
    this.drawAxis(height - AXIS);
    this.content = svg("g", { "clip-path": `url(#${this.clipId})` });
    this.element.append(this.content);
    this.tops = new Map();
    lanes.forEach((lane, number) => {
      const top = number * laneHeight;
      this.tops.set(lane.scope, top);
      this.drawLane(lane, top);
    });
    this.stops.sort((a, b) => a.x - b.x);
    this.drawLives(height - AXIS);
    this.drawFinding(height - AXIS);
    this.drawChosen();
  }

  definitions() {
    const definitions = svg("defs");
    this.clipId ||= `clip-${this.data.number}`;
    const clipping = svg("clipPath", { id: this.clipId });
    clipping.append(svg("rect", { x: SIDE - 10, y: 0, width: this.width - 2 * SIDE + 20, height: 1e6 }));
    definitions.append(clipping);
    return definitions;
  }

  drawAxis(y) {
    const [low, high] = this.view;
    const step = stepOf(high - low, this.shared.mode, Math.max(2, Math.floor(this.width / 130)));
    for (let at = Math.ceil(low / step) * step; at <= high; at += step) {
      const label = this.tickText(at, step);
      if (label === null) continue;
      const tick = svg("g", { class: "tick" });
      const x = this.px(this.isByTime ? at : at + 0.5);
      if (x > this.width - SIDE) continue;
      tick.append(svg("line", { x1: x, x2: x, y1: LANE.name, y2: y + 4 }));
      tick.append(svg("text", { x, y: y + 19, "text-anchor": x < 60 ? "start" : x > this.width - 60 ? "end" : "middle" }, label));
      this.element.append(tick);
    }
  }

  tickText(at, step) {
    if (this.isByTime) {
      const text = timeText(at);
      if (step >= 864e5) return text.slice(0, 10);
      const isFirst = at - step < this.view[0];
      const clock = text.slice(11, step >= 6e4 ? 16 : step >= 1e3 ? 19 : 23);
      return isFirst ? `${text.slice(0, 10)} ${clock}` : clock;
    }
    at += 0; // never -0
    if (at < 0 || at >= this.bases[this.bases.length - 1]) return null;
    let life = 0;
    while (life + 2 < this.bases.length && this.bases[life + 1] <= at) life += 1;
    return count(at - this.bases[life]);
  }

  drawLives(height) {
    if (this.isByTime) return;
    for (let life = 1; life < this.data.topicIds.length; life += 1) {
      const x = this.px(this.bases[life]);
      if (x < 0 || x > this.width) continue;
      this.content.append(svg("line", { class: "life", x1: x, x2: x, y1: 4, y2: height }));
      this.content.append(svg("text", { x: x + 4, y: 12, class: "lane-name" }, "topic made anew"));
    }
  }

  drawLane(lane, top) {
    const band = top + LANE.name + LANE.flag;
    const name = lane.scope === null ? "(no scope read)" : lane.scope;
    this.element.append(svg("text", { class: "lane-name", x: SIDE, y: top + 14 }, clip(name, 80)));
    this.content.append(svg("rect", { class: "track", x: SIDE, y: band, width: this.width - 2 * SIDE, height: LANE.band, rx: 3 }));
    this.drawSpans(lane, band);
    this.drawMarks(lane, band);
  }

  drawSpans(lane, y) {
    let few = null; // what is too narrow to be told apart, next to one another
    const flush = () => {
      if (few === null) return;
      const rect = svg("rect", { class: "span many", x: few.x, y, width: Math.max(few.end - few.x, 2), height: LANE.band });
      this.told(rect, () => [few.told > 1 ? `${few.told} runs of epochs: zoom in` : few.text, `${count(few.records)} records`]);
      this.content.append(rect);
      few = null;
    };
    for (const row of lane.spans) {
      const low = this.x0(row), high = this.x1(row);
      if (!this.isSeen(low, high)) continue;
      const x = Math.max(this.px(low), -10), end = Math.min(this.px(high), this.width + 10);
      if (end - x < 3) {
        if (few !== null && x - few.end > 1.5) flush();
        few ||= { x, end, told: 0, records: 0, text: epochText(row) };
        few.end = Math.max(few.end, end, few.x + 2);
        few.told += 1;
        few.records += row[RECORDS];
        continue;
      }
      flush();
      this.drawSpan(lane, row, x, end, y);
    }
    flush();
  }

  drawSpan(lane, row, x, end, y) {
    const isOne = row[EPOCH] === row[LAST_EPOCH];
    const rect = svg("rect", { class: isOne ? "span" : "span many", x, y, width: end - x, height: LANE.band, rx: 2 });
    if (isOne) rect.setAttribute("fill", this.shared.fills[row[COLOUR]]);
    const holder = isOne ? this.holder(lane.scope, row[EPOCH]) : "";
    this.told(rect, () => [`${epochText(row)}${holder && `, held by ${holder}`}`, ...this.whereLines(row)]);
    this.content.append(rect);
    const from = Math.max(x, SIDE) + 13, room = (Math.min(end, this.width - SIDE) - from - 2) / 6.9;
    const texts = [`${epochText(row)}${holder && ` · ${holder}`}`, epochText(row), isOne ? String(row[EPOCH]) : ""];
    const text = texts.find((one) => one.length <= room) ?? (room > 14 ? clip(texts[0], Math.floor(room)) : "");
    if (text) this.content.append(svg("text", { class: "span-text", x: from, y: y + 17 }, text));
  }

  /** Marks close together become one with a number, kind by kind. */
  drawMarks(lane, band) {
    const near = new Map();
    for (const row of lane.marks) {
      const low = this.x0(row), high = this.x1(row);
      if (!this.isSeen(low, high)) continue;
      const shape = shapeOf(row);
      const from = Math.max(this.px(low), SIDE), to = Math.min(this.px(high), this.width - SIDE);
      const x = shape === KINDS.barrier ? from : (from + to) / 2; // a barrier stands before its epoch
      const open = near.get(shape);
      if (open && x - open.x < NEAR) {
        open.rows.push(row);
        open.to = Math.max(open.to, to);
        continue;
      }
      if (open) this.drawMark(lane, open, band);
      near.set(shape, { x, from, to, shape, rows: [row] });
    }
    for (const open of near.values()) this.drawMark(lane, open, band);
  }

  drawMark(lane, mark, band) {
    const isBarrier = mark.shape === KINDS.barrier;
    const y = band + (isBarrier ? 13 : LANE.band + (mark.shape === KINDS.stale ? LANE.stale : LANE.quarantined));
    const x = isBarrier ? mark.x : (mark.from + mark.to) / 2;
    const element = glyph(mark.shape);
    element.setAttribute("transform", `translate(${x},${y})`);
    element.dataset.offset = mark.rows[0][FROM];
    element.classList.add("mark");
    if (this.isOfFinding(lane, mark.rows)) {
      element.classList.add("is-highlighted");
      if (!isBarrier || !this.pointed) this.pointed = { x, y };
    }
    const records = mark.rows.reduce((sum, row) => sum + row[RECORDS], 0);
    if (!isBarrier && mark.to - mark.from > 18)
      element.prepend(svg("line", { class: "extent", x1: mark.from - x, x2: mark.to - x, y1: 10, y2: 10 }));
    element.prepend(svg("rect", { x: -8, y: -12, width: 16, height: 24, fill: "transparent", stroke: "none" }));
    if (!isBarrier && records > 1) element.append(svg("text", { class: "count", x: 9, y: 4 }, count(records)));
    const lines = () => this.markLines(lane, mark, records);
    this.told(element, lines);
    this.content.append(element);
    this.stops.push({ x, y, lines, value: this.value(x) });
  }

  markLines(lane, mark, records) {
    const first = mark.rows[0], last = mark.rows[mark.rows.length - 1];
    const reasons = [...new Set(mark.rows.map((row) => row[KIND] === "barrier" ? "barrier" : `${row[KIND]}: ${row[REASON]}`))];
    const row = [...first];
    row[TO] = last[TO];
    row[TO_TIME] = last[TO_TIME];
    row[RECORDS] = records;
    const epochs = [...new Set(mark.rows.map(epochText))];
    const holder = lane.scope !== null && epochs.length === 1 && first[EPOCH] === first[LAST_EPOCH]
      && first[REASON] !== "ungranted" && first[REASON] !== "conflict" ? this.holder(lane.scope, first[EPOCH]) : "";
    const scope = lane.scope === null ? "no scope read" : lane.scope;
    return [reasons.join(", "), `${scope}, ${epochs.slice(0, 3).join(", ")}${epochs.length > 3 ? ", …" : ""}${holder && ` of ${holder}`}`,
      ...this.whereLines(row)];
  }

  whereLines(row) {
    const offsets = row[FROM] === row[TO] ? `offset ${count(row[FROM])}` : `offsets ${count(row[FROM])} to ${count(row[TO])}`;
    const lines = [`${count(row[RECORDS])} ${row[RECORDS] === 1 ? "record" : "records"}, ${offsets}`];
    if (row[FROM_TIME] !== null)
      lines.push(timeText(row[FROM_TIME]) + (row[FROM_TIME] === row[TO_TIME] ? "" : ` to ${timeText(row[TO_TIME])}`) + " UTC");
    if (this.data.topicIds.length > 1) lines.push(`topic id ${this.data.topicIds[row[LIFE]]}`);
    return lines;
  }

  /** Who held an epoch that began here; several, where grants contradict each other. */
  holder(scope, epoch) {
    this.holders ||= this.data.epochs.reduce((all, one) => {
      const key = `${one.scope} ${one.epoch}`;
      if (one.holder !== null && one.start !== null) all.set(key, all.has(key) ? `${all.get(key)}, ${one.holder}` : one.holder);
      return all;
    }, new Map());
    return clip(this.holders.get(`${scope} ${epoch}`) || "", 60);
  }

  // A finding.

  isOfFinding(lane, rows) {
    const at = this.finding && this.finding.rejected;
    return Boolean(at) && (at.scope === lane.scope || !this.tops.has(at.scope)) && rows.some((row) =>
      row[LIFE] === at.life && Number(row[FROM]) <= Number(at.offset) && Number(at.offset) <= Number(row[TO]));
  }

  /** Show a finding's records: zoom to them, and point at them. */
  point(finding) {
    const there = finding.evidence.filter((one) => one.life !== null && one.offset !== null);
    const rejected = there[there.length - 1];
    this.finding = rejected ? { rejected, began: there.length > 1 ? there[0] : null } : null;
    if (!rejected) return;
    const overlap = this.data.epochs.map((one) => one.overlap).find((one) => one && one.first[0] === rejected.life && one.first[1] === rejected.offset);
    const places = there.map((one) => this.at(one.life, one.offset, one.time));
    if (overlap) places.push(this.at(...overlap.last));
    const known = places.filter((one) => one !== null);
    if (!known.length) return;
    const low = Math.min(...known), high = Math.max(...known);
    // Where marks were put together, the one that holds the record is to be seen whole.
    const rows = this.data.lanes.filter((lane) => lane.scope === rejected.scope).flatMap((lane) => lane.marks)
      .filter((row) => row[LIFE] === rejected.life && Number(row[FROM]) <= Number(rejected.offset) && Number(rejected.offset) <= Number(row[TO]));
    const widest = Math.max(0, ...rows.map((row) => this.x1(row) - this.x0(row)));
    const pad = Math.max((high - low) * 0.25, this.isByTime ? 50 : 4, widest);
    this.show(low - pad, high + pad);
  }

  drawFinding(height) {
    if (!this.finding) return;
    const { rejected, began } = this.finding;
    const group = svg("g", { class: "highlight" });
    const top = this.tops.get(rejected.scope) ?? this.tops.values().next().value;
    if (top === undefined) return;
    const band = top + LANE.name + LANE.flag;
    const { x, y } = this.pointed || { x: this.placeOf(rejected), y: band + 13 };
    if (x === null || x < 0 || x > this.width) return;
    group.append(svg("rect", { class: "beam", x: x - 9, y: LANE.name, width: 18, height: height - LANE.name }));
    group.append(svg("circle", { class: "ring", cx: x, cy: y, r: 13 }));
    const start = began && this.placeOf(began, this.isByTime ? 0 : 0.5);
    if (start !== null && start >= 0 && start <= this.width && Math.abs(start - x) > 20) {
      group.append(svg("path", { class: "began", d: `M${start},${band - 1} l-5,-7 h10 Z` }));
      group.append(svg("text", { x: start + 14, y: band - 10 }, clip(began.what, 30)));
    }
    this.content.append(group);
  }

  placeOf(evidence, before = 0) {
    const at = this.at(evidence.life, evidence.offset, evidence.time);
    return at === null ? null : this.px(at - before);
  }

  // Pointer and keyboard.

  told(element, lines) {
    element.addEventListener("pointermove", (event) => this.shared.tell(lines(), event.pageX, event.pageY));
    element.addEventListener("pointerleave", () => this.shared.tell(null));
  }

  listen() {
    const here = (event) => event.clientX - this.element.getBoundingClientRect().left;
    this.element.addEventListener("wheel", (event) => {
      const isAlong = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      const isActive = document.activeElement === this.element || event.ctrlKey || event.metaKey;
      if (!isActive && !isAlong) return; // the page scrolls
      event.preventDefault();
      if (isAlong) this.pan((event.deltaX || event.deltaY) / this.width);
      else this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 150), this.value(here(event)));
    }, { passive: false });
    let from = null, view = null, brush = null;
    this.element.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.element.focus({ preventScroll: true });
      from = here(event);
      view = event.shiftKey ? [...this.view] : null;
      this.element.setPointerCapture(event.pointerId);
    });
    this.element.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const to = here(event);
      if (view !== null) {
        const moved = (to - from) / (this.width - 2 * SIDE) * (view[1] - view[0]);
        this.show(view[0] - moved, view[1] - moved);
      } else if (Math.abs(to - from) > 3) {
        brush ||= svg("rect", { class: "brush", y: 0, height: "100%" });
        brush.setAttribute("x", Math.min(from, to));
        brush.setAttribute("width", Math.abs(to - from));
        this.element.append(brush);
      }
    });
    const end = (event) => {
      if (from === null) return;
      const to = here(event);
      const isDrawn = brush !== null && event.type === "pointerup" && Math.abs(to - from) > 6;
      const stretch = [this.value(Math.min(from, to)), this.value(Math.max(from, to))];
      if (brush) brush.remove();
      from = view = brush = null;
      if (isDrawn) this.show(...stretch);
    };
    this.element.addEventListener("pointerup", end);
    this.element.addEventListener("pointercancel", end);
    this.element.addEventListener("dblclick", (event) => this.zoom(0.4, this.value(here(event))));
    this.element.addEventListener("keydown", (event) => {
      const actions = {
        ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), "+": () => this.zoom(0.6), "=": () => this.zoom(0.6),
        "-": () => this.zoom(1 / 0.6), 0: () => this.show(...this.whole), n: () => this.choose(1), p: () => this.choose(-1),
        Escape: () => this.choose(0),
      };
      const action = actions[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      action();
    });
  }

  /** Go to the next mark, or to the one before. */
  choose(by) {
    this.shared.tell(null);
    if (by === 0 || !this.stops.length) this.chosen = -1;
    else this.chosen = this.chosen < 0 && by < 0 ? this.stops.length - 1 : Math.max(0, Math.min(this.stops.length - 1, this.chosen + by));
    this.element.querySelectorAll(".chosen").forEach((one) => one.remove());
    this.drawChosen();
  }

  drawChosen() {
    const stop = this.stops[this.chosen];
    if (!stop) return;
    this.content.append(svg("circle", { class: "chosen", cx: stop.x, cy: stop.y, r: 15 }));
    const box = this.element.getBoundingClientRect();
    this.shared.tell(stop.lines(), box.left + window.scrollX + stop.x, box.top + window.scrollY + stop.y + 10);
  }
}
