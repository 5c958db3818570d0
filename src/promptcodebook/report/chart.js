// Curves that answer: a cursor with the values at its step, shared by the charts of a page; zoom;
// series that can be put away; all of it by keyboard too. The numbers are those of the chart's CSV
// file, the drawing is uPlot's. Where no script runs, and on paper, the SVG stands in its place.
// Texts become text nodes: nothing here makes markup.
"use strict";

const curves = (() => {
  const COLOURS = { main: "--main", second: "--second", third: "--third", soft: "--soft", dots: "--soft", limit: "--bad" };
  const FEW = 15;
  const FONT = "12px system-ui, sans-serif";
  const HOW = "Arrow keys move along it, plus and minus zoom, 0 shows all.";
  const drawn = new Map();

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const ink = (look) => colour(COLOURS[look.replace("area.", "").replace("area", "main")] ?? "--main");

  function make(name, classes, text = "") {
    const made = document.createElement(name);
    made.className = classes;
    made.textContent = text;
    return made;
  }

  function show(value) {
    if (value == null) return "—";
    return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(4)));
  }

  // The rows of a CSV file.
  function cells(text) {
    const rows = [[]];
    for (const [, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\n]*))(,|\n)/g)) {
      rows.at(-1).push(quoted === undefined ? plain : quoted.replaceAll('""', '"'));
      if (end === "\n") rows.push([]);
    }
    return rows.slice(0, -1);
  }

  // What a chart's file says of each series: (x, value, low, high), by name.
  function filed(box) {
    const link = box.parentElement.querySelector("a[download$='.csv']");
    const raw = atob(link.href.slice(link.href.indexOf(",") + 1));
    const bytes = new Uint8Array(raw.length); // filled by hand: Uint8Array.from takes ten times as long
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    const series = new Map();
    for (const [name, x, value, low, high] of cells(new TextDecoder().decode(bytes)).slice(1)) {
      if (!series.has(name)) series.set(name, []);
      series.get(name).push([x, value, low, high].map((each) => (each === "" ? null : Number(each))));
    }
    return series;
  }

  // Columns as uPlot has them: all x in order, then a value or null at each x for every series.
  function aligned(spec, series) {
    const of = (name) => series.get(name) ?? series.get(`'${name}`) ?? [];
    const xs = [...new Set([...series.values()].flat().map(([x]) => x))].sort((a, b) => a - b);
    const places = new Map(xs.map((x, i) => [x, i]));
    const column = (name, which) => {
      const values = xs.map(() => null);
      for (const row of of(name)) values[places.get(row[0])] = row[which];
      return values;
    };
    const bands = spec.areas.flatMap(([name]) => [column(name, 2), column(name, 3)]);
    return [xs, ...bands, ...spec.lines.map(([name]) => column(name, 1))];
  }

  // One chart of the page; `box` is its place, which changes when the page is renewed.
  class Curve {
    constructor(box) {
      if (!document.createElement("canvas").getContext("2d")) throw new Error("nothing can be drawn on here");
      this.plot = make("div", "plot");
      this.plot.tabIndex = 0;
      this.plot.setAttribute("role", "application");
      this.plot.setAttribute("aria-roledescription", "chart");
      this.plot.addEventListener("keydown", (event) => this.typed(event));
      this.told = make("p", "told");
      this.told.setAttribute("aria-live", "polite");
      this.legend = make("p", "legend values");
      this.observer = new ResizeObserver(() => this.fit());
      this.place = null; // the x that the keyboard chose
      this.take(box);
      this.entries = this.named();
      this.draw();
    }

    // The chart's place, what it shows and how.
    take(box) {
      this.observer.disconnect();
      this.box = box;
      this.source = box.dataset.curves;
      this.spec = JSON.parse(this.source);
      this.data = aligned(this.spec, filed(box));
      const words = box.querySelector("svg").getAttribute("aria-label");
      this.plot.setAttribute("aria-label", `${words} ${HOW}`);
      box.querySelector("h4").after(this.legend);
      box.append(this.plot, this.told);
      box.classList.add("answers");
      this.observer.observe(box);
    }

    // The series by the names that stand in the legend, each with its columns.
    named() {
      const { areas, lines } = this.spec;
      const all = [
        ...lines.map(([name, look], i) => ({ name, look, columns: [1 + 2 * areas.length + i] })),
        ...areas.map(([name, look], i) => ({ name, look, columns: [1 + 2 * i, 2 + 2 * i] })),
      ];
      this.at = make("span", "at");
      this.legend.replaceChildren(this.at);
      for (const entry of all) {
        const item = make(all.length > 1 ? "button" : "span", "entry");
        item.append(make("i", entry.look.replace(".", " ")), entry.name, (entry.value = make("b", entry.columns.length > 1 ? "range" : "")));
        if (all.length > 1) {
          item.type = "button";
          item.setAttribute("aria-pressed", "true");
          item.addEventListener("click", () => this.toggle(entry, item));
        }
        this.legend.append(item);
      }
      return all;
    }

    toggle(entry, item) {
      const shown = item.getAttribute("aria-pressed") !== "true";
      item.setAttribute("aria-pressed", String(shown));
      for (const column of entry.columns) this.u.setSeries(column, { show: shown });
    }

    size() {
      const width = Math.max(120, this.plot.clientWidth || this.box.clientWidth);
      return { width, height: Math.round(width / 2) };
    }

    fit() {
      const size = this.size();
      if (this.u && this.box.clientWidth && size.width !== this.u.width) this.u.setSize(size);
    }

    draw() {
      const { areas, lines, y } = this.spec;
      const edges = areas.flatMap(() => [this.edge(), this.edge()]);
      const full = (u, low, high) => (low == null ? [0, 1] : [Math.min(0, low), high > Math.min(0, low) ? high : low + 1]);
      this.u = new uPlot({
        ...this.size(),
        padding: [this.box.dataset.mark ? 18 : 10, 14, 0, 0],
        legend: { show: false },
        cursor: {
          y: false,
          sync: { key: this.axis, scales: ["x", null] },
          drag: { x: true, y: false, setScale: true },
          points: { size: 8, width: 0, fill: (u, i) => ink(this.look(i)) },
        },
        scales: { x: { time: false }, y: { range: y ? () => y : full } },
        axes: this.axes(),
        series: [{}, ...edges, ...lines.map(([, look]) => this.line(look))],
        bands: areas.map(([, look], i) => ({ series: [2 + 2 * i, 1 + 2 * i], fill: () => `${ink(look)}1f` })),
        hooks: { setCursor: [() => this.tell()], draw: [() => this.mark()] },
      }, this.data, this.plot);
      this.u.over.addEventListener("pointerdown", () => { this.place = null; });
      this.u.over.addEventListener("pointermove", () => { this.place = null; });
      this.tell();
    }

    look(column) {
      return this.entries.find((entry) => entry.columns.includes(column)).look;
    }

    axes() {
      const values = (u, splits) => splits.map((v) => (v >= 1e4 ? `${Number((v / 1e3).toPrecision(4))}k` : show(v)));
      const common = { font: FONT, labelFont: FONT, stroke: () => colour("--quiet"), ticks: { show: false }, values };
      const rule = { show: true, stroke: () => colour("--rule"), width: 1 };
      return [
        { ...common, grid: { show: false }, label: this.spec.x, size: 24, labelSize: 16, labelGap: -2, gap: 4, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6] },
        { ...common, grid: rule, size: 46, gap: 7 },
      ];
    }

    edge() {
      return { stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
    }

    line(look) {
      const stroke = () => ink(look);
      if (look === "dots") {
        return { stroke, paths: () => null, points: { show: true, size: 4, width: 0, fill: stroke } };
      }
      const few = (u, i) => this.data[i].filter((value) => value != null).length <= FEW;
      const points = { show: look === "limit" ? false : few, size: 6, width: 0, fill: stroke };
      return { stroke, width: look === "limit" ? 1.5 : 2, dash: look === "limit" ? [5, 4] : [], spanGaps: true, points };
    }

    // Marked points, intervals of a single point, and whether the numbers are simulated: a canvas
    // is saved and copied without its caption.
    mark() {
      const { ctx, bbox } = this.u;
      const scale = devicePixelRatio;
      ctx.save();
      ctx.font = `${12 * scale}px system-ui, sans-serif`;
      for (const entry of this.entries.filter((each) => each.columns.length === 2)) this.whisker(entry, scale);
      for (const [x, y, label, look] of this.spec.spots) this.spot(x, y, label, ink(look), scale);
      ctx.textAlign = "right";
      ctx.fillStyle = colour("--quiet");
      ctx.fillText(this.box.dataset.mark, bbox.left + bbox.width, bbox.top - 7 * scale);
      ctx.restore();
    }

    whisker(entry, scale) {
      const [low, high] = entry.columns.map((column) => this.data[column]);
      const only = low.flatMap((value, i) => (value == null ? [] : [i]));
      if (only.length !== 1 || !this.u.series[entry.columns[0]].show) return;
      const { ctx } = this.u;
      const x = this.u.valToPos(this.data[0][only[0]], "x", true);
      ctx.strokeStyle = `${ink(entry.look)}4d`;
      ctx.lineWidth = 3 * scale;
      ctx.beginPath();
      ctx.moveTo(x, this.u.valToPos(low[only[0]], "y", true));
      ctx.lineTo(x, this.u.valToPos(high[only[0]], "y", true));
      ctx.stroke();
    }

    spot(x, y, label, shade, scale) {
      const { ctx, bbox, scales } = this.u;
      if (x < scales.x.min || x > scales.x.max) return;
      const left = this.u.valToPos(x, "x", true), top = this.u.valToPos(y, "y", true);
      const share = (left - bbox.left) / bbox.width;
      ctx.beginPath();
      ctx.arc(left, top, 4.5 * scale, 0, 2 * Math.PI);
      ctx.fillStyle = colour("--paper");
      ctx.fill();
      ctx.strokeStyle = shade;
      ctx.lineWidth = 2.5 * scale;
      ctx.stroke();
      ctx.textAlign = share > 0.7 ? "right" : share < 0.3 ? "left" : "center";
      const height = top > bbox.top + 26 * scale ? top - 10 * scale : top + 20 * scale;
      ctx.lineWidth = 4 * scale;
      ctx.strokeStyle = colour("--paper");
      ctx.strokeText(label, left, height);
      ctx.fillStyle = colour("--ink");
      ctx.fillText(label, left, height);
    }

    // The values of all series at the cursor's step, in the legend; the last ones without a cursor.
    tell() {
      if (!this.u) return "";
      const i = this.u.cursor.idx ?? this.data[0].length - 1;
      this.at.textContent = `${this.axis} ${show(this.data[0][i])}`;
      for (const entry of this.entries) {
        const values = entry.columns.map((column) => this.data[column][i]);
        const known = values.every((value) => value != null);
        entry.value.textContent = known ? values.map(show).join(" to ") : "—";
      }
      const said = this.entries.map((entry) => `${entry.name} ${entry.value.textContent}`);
      return `${this.at.textContent}: ${said.join(", ")}`;
    }

    typed(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const steps = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
      if (event.key in steps) this.move(steps[event.key] * (event.shiftKey ? 10 : 1));
      else if (event.key === "+" || event.key === "=") this.zoom(0.5);
      else if (event.key === "-") this.zoom(2);
      else if (event.key === "0" || event.key === "Escape") this.zoom(Infinity);
      else return;
      event.preventDefault();
      event.stopPropagation();
    }

    move(by) {
      const [xs] = this.data;
      const { min, max } = this.u.scales.x;
      const inside = xs.flatMap((x, i) => (x >= min && x <= max ? [i] : []));
      if (!inside.length) return;
      const next = (this.u.cursor.idx ?? (by > 0 ? inside[0] - 1 : inside.at(-1) + 1)) + by;
      this.point(xs[Math.min(inside.at(-1), Math.max(inside[0], next))]);
      this.told.textContent = this.tell();
    }

    // Puts the cursor where the keyboard wants it, on all charts.
    point(x) {
      this.place = x;
      this.u.setCursor({ left: this.u.valToPos(x, "x"), top: this.u.over.clientHeight / 2 }, true, true);
    }

    zoom(by) {
      const [xs] = this.data;
      const first = xs[0], last = xs.at(-1);
      const { min, max } = this.u.scales.x;
      const middle = this.u.cursor.idx == null ? (min + max) / 2 : xs[this.u.cursor.idx];
      const half = ((max - min) * by) / 2;
      const all = !(half < (last - first) / 2);
      const low = Math.min(Math.max(first, middle - half), last - 2 * half);
      if (!all && 2 * half < 1) return;
      for (const curve of drawn.values()) {
        if (curve.axis !== this.axis) continue;
        const own = curve.data[0];
        curve.u.setScale("x", all ? { min: own[0], max: own.at(-1) } : { min: low, max: low + 2 * half });
      }
      this.stay();
    }

    // The cursor stays at the step that the keyboard chose, once uPlot has the new scale.
    stay() {
      queueMicrotask(() => (this.place != null ? this.point(this.place) : this.tell()));
    }

    // What it has along x: charts of one such thing share cursor and zoom.
    get axis() {
      return this.spec.x.split(" (")[0];
    }

    get zoomed() {
      const [xs] = this.data;
      const { min, max } = this.u.scales.x;
      return min > xs[0] || max < xs.at(-1);
    }

    // The same chart with newer numbers, in its new place: zoom, cursor and what is put away stay.
    renew(box) {
      const zoomed = this.zoomed;
      this.take(box);
      this.u.setData(this.data, !zoomed);
      if (zoomed) this.u.redraw();
      this.fit();
      this.stay();
    }

    fits(box) {
      const { x, y, lines, areas } = JSON.parse(box.dataset.curves);
      const own = this.spec;
      return JSON.stringify([x, y, lines, areas]) === JSON.stringify([own.x, own.y, own.lines, own.areas]);
    }

    end() {
      this.observer.disconnect();
      this.u.destroy();
      this.plot.remove();
    }
  }

  // A chart anew, zoomed as the one before it; where that fails the drawing stays.
  function replace(key, before, box) {
    const range = before?.zoomed ? { ...before.u.scales.x } : null;
    before?.end();
    drawn.delete(key);
    try {
      const curve = new Curve(box);
      drawn.set(key, curve);
      if (range) curve.u.setScale("x", { min: range.min, max: range.max });
    } catch (error) {
      box.classList.remove("answers");
      console.error(error);
    }
  }

  // Every chart of the page that is there now; those that were there before go on.
  function draw() {
    const seen = new Map();
    for (const box of document.querySelectorAll(".chart[data-curves]")) {
      const title = box.querySelector("h4").textContent;
      const count = (seen.get(title) ?? 0) + 1;
      seen.set(title, count);
      const key = `${title} ${count}`;
      const before = drawn.get(key);
      if (before?.box === box) continue;
      if (before?.fits(box)) before.renew(box);
      else replace(key, before, box);
    }
    for (const [key, curve] of drawn) {
      if (!curve.box.isConnected) {
        curve.end();
        drawn.delete(key);
      }
    }
  }

  const again = () => drawn.forEach((curve) => curve.u.redraw(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  draw();
  return { draw };
})();
