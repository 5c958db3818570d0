// Interactive charts: a cursor with the values at its step, shared by the charts of a page; zoom;
// series that can be hidden; all of it by keyboard too. The drawing is the page's own SVG, whose
// shapes are moved; the numbers are those of the chart's CSV file. Texts become text nodes.
"use strict";

const curves = (() => {
  const HOW = "Arrow keys move along the chart, plus and minus zoom, and 0 shows all of it.";
  const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6];
  const MOVES = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
  const drawn = new Map();

  function make(name, classes, text = "") {
    const made = document.createElement(name);
    made.className = classes;
    made.textContent = text;
    return made;
  }

  function shape(name, attributes) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  function show(value) {
    if (value == null) return "—";
    return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(4)));
  }

  // What a chart's CSV file says: by series and x, the value, or both ends of the band.
  function filed(box) {
    const link = box.parentElement.querySelector("a[download$='.csv']");
    const raw = atob(link.href.slice(link.href.indexOf(",") + 1));
    const bytes = new Uint8Array(raw.length); // filled by hand: Uint8Array.from takes ten times as long
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    const series = new Map();
    for (const line of new TextDecoder().decode(bytes).matchAll(/("(?:[^"]|"")*"|[^",\n]*),([^,\n]*),([^,\n]*),([^,\n]*),([^,\n]*),.*\n/g)) {
      const [name, x, ...values] = line.slice(1).map((each) => each.replace(/^"|"$/g, "").replaceAll('""', '"'));
      if (!series.has(name)) series.set(name, new Map());
      series.get(name).set(Number(x), values.filter((each) => each !== "").map(Number));
    }
    return series;
  }

  class Curve {
    // `before` is the same chart of the page that this one replaces: zoom, cursor and hidden series stay.
    constructor(box, before) {
      this.box = box;
      this.plot = box.querySelector(".plot");
      this.field = box.querySelector(".field");
      this.columns = box.querySelector(".columns");
      this.ticks = [...this.columns.children];
      this.axis = box.dataset.x.split(" (")[0]; // charts of one such thing share cursor and zoom
      [this.first, this.last, this.low, this.high] = box.dataset.range.split(" ").map(Number);
      [this.left, this.width, this.height] = ["x", "width", "height"].map((name) => Number(this.field.getAttribute(name)));
      const file = filed(box);
      this.series = [...this.field.querySelectorAll(".series")].map((group) => {
        const { name, look } = group.dataset;
        const hidden = before?.series.find((each) => each.name === name)?.hidden ?? false;
        return { group, name, look, hidden, rows: file.get(name) ?? file.get(`'${name}`) };
      }).sort((a, b) => a.look.startsWith("area") - b.look.startsWith("area"));
      this.xs = [...new Set(this.series.flatMap((each) => [...each.rows.keys()]))].sort((a, b) => a - b);
      this.places = [["path", "d"], ["circle", "cx"], ["text", "x"]].flatMap(([kind, name]) =>
        [...this.field.querySelectorAll(kind)].map((each) => [each, name, each.getAttribute(name)]));
      this.zoom = before?.zoom ?? null;
      this.place = before?.place ?? null;
      this.furnish();
      this.lay();
    }

    furnish() {
      const words = this.plot.querySelector("svg").getAttribute("aria-label");
      const named = { tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-label": `${words} ${HOW}` };
      for (const [name, value] of Object.entries(named)) this.plot.setAttribute(name, value);
      this.plot.addEventListener("keydown", (event) => this.typed(event));
      this.told = make("p", "told");
      this.told.setAttribute("aria-live", "polite");
      this.legend = make("p", "legend values");
      this.legend.append((this.at = make("span", "at")), ...this.series.map((each) => this.entry(each)));
      this.box.querySelector("h4").after(this.legend);
      this.box.append(this.told);
      this.box.classList.add("answers");
      this.cursor = shape("line", { class: "cursor", y1: 0, y2: this.height });
      this.picked = shape("rect", { class: "picked", y: 0, height: this.height });
      this.over = shape("rect", { class: "over", width: this.width, height: this.height });
      for (const each of this.series) each.dot = shape("circle", { class: `marker ${each.look}`, r: 4 });
      this.field.append(this.picked, this.cursor, ...this.series.map((each) => each.dot), this.over);
      this.over.addEventListener("pointermove", (event) => this.pointed(event));
      this.over.addEventListener("pointerleave", () => this.all((curve) => curve.point(null)));
      this.over.addEventListener("pointerdown", (event) => { this.from = this.under(event); });
      this.over.addEventListener("pointerup", (event) => this.dropped(event));
      this.over.addEventListener("dblclick", () => this.all((curve) => curve.zoomTo(null)));
    }

    // One series in the legend, with its value; a button where there are several.
    entry(series) {
      const item = make(this.series.length > 1 ? "button" : "span", "entry");
      series.value = make("b", series.look.startsWith("area") ? "range" : "");
      item.append(make("i", series.look), series.name, series.value);
      if (this.series.length > 1) {
        item.type = "button";
        item.setAttribute("aria-pressed", String(!series.hidden));
        item.addEventListener("click", () => {
          series.hidden = !series.hidden;
          item.setAttribute("aria-pressed", String(!series.hidden));
          this.lay();
        });
      }
      return item;
    }

    all(act) {
      for (const curve of drawn.values()) if (curve.axis === this.axis) act(curve);
    }

    range() {
      return this.zoom ?? [this.first, this.last];
    }

    // Places every shape in the range that is shown; `whole` shows all of it, for paper.
    lay(whole = false) {
      const [min, max] = whole ? [this.first, this.last] : this.range();
      const stretch = (this.last - this.first || 1) / (max - min || 1);
      const start = ((min - this.first) / (this.last - this.first || 1)) * this.width;
      const moved = (x) => (x - start) * stretch;
      for (const [each, name, was] of this.places) {
        each.setAttribute(name, name === "d" ? was.replace(/([-\d.]+) ([-\d.]+)/g, (_, x, y) => `${moved(x)} ${y}`) : moved(was));
      }
      for (const each of this.series) each.group.setAttribute("display", each.hidden && !whole ? "none" : "inline");
      const zoomed = !whole && this.zoom !== null;
      this.field.classList.toggle("zoomed", zoomed);
      this.columns.replaceChildren(...(zoomed ? this.newTicks(min, max) : this.ticks));
      this.tell();
    }

    newTicks(min, max) {
      const width = STEPS.find((each) => (max - min) / each <= 6) ?? max - min;
      const found = [];
      for (let x = Math.ceil(min / width) * width; x <= max; x += width) {
        const tick = this.ticks[0].cloneNode();
        tick.textContent = show(x);
        tick.setAttribute("x", this.left + this.across(x));
        found.push(tick);
      }
      return found;
    }

    across(x) {
      const [min, max] = this.range();
      return max > min ? ((x - min) / (max - min)) * this.width : this.width / 2;
    }

    // The x under a pointer.
    under(event) {
      const { left, width } = this.over.getBoundingClientRect();
      const [min, max] = this.range();
      return min + Math.min(1, Math.max(0, (event.clientX - left) / width)) * (max - min);
    }

    pointed(event) {
      const x = this.under(event);
      this.all((curve) => curve.point(x));
      if (!event.buttons || this.from == null) return;
      const [a, b] = [this.across(this.from), this.across(x)];
      this.picked.setAttribute("x", Math.min(a, b));
      this.picked.setAttribute("width", Math.abs(a - b));
    }

    dropped(event) {
      const ends = [this.from ?? NaN, this.under(event)].sort((a, b) => a - b);
      this.from = null;
      this.picked.setAttribute("width", 0);
      if (Math.abs(this.across(ends[1]) - this.across(ends[0])) > 5) this.all((curve) => curve.zoomTo(ends));
    }

    inside() {
      const [min, max] = this.range();
      return this.xs.filter((x) => x >= min && x <= max);
    }

    // Puts the cursor at the step next to x; null takes it away.
    point(x) {
      this.place = x;
      this.tell();
    }

    // The step that the cursor is at; undefined without one.
    step() {
      if (this.place == null) return undefined;
      const far = (x) => Math.abs(x - this.place);
      return this.inside().reduce((best, x) => (best === undefined || far(x) < far(best) ? x : best), undefined);
    }

    zoomTo(range) {
      this.zoom = range && (range[0] > this.first || range[1] < this.last) ? range : null;
      this.lay();
    }

    // The values of all series at the cursor's step, in the legend; the last ones without a cursor.
    tell() {
      const step = this.step();
      const x = step ?? this.xs.at(-1);
      this.at.textContent = `${this.axis} ${show(x)}`;
      this.cursor.setAttribute("display", step === undefined ? "none" : "inline");
      this.cursor.setAttribute("x1", this.across(x));
      this.cursor.setAttribute("x2", this.across(x));
      for (const each of this.series) {
        const values = each.rows.get(x) ?? [];
        each.value.textContent = values.map(show).join(" to ") || "—";
        const seen = step !== undefined && values.length === 1 && !each.hidden;
        each.dot.setAttribute("display", seen ? "inline" : "none");
        each.dot.setAttribute("cx", this.across(x));
        each.dot.setAttribute("cy", (1 - ((values[0] ?? 0) - this.low) / (this.high - this.low)) * this.height);
      }
      return `${this.at.textContent}: ${this.series.map((each) => `${each.name} ${each.value.textContent}`).join(", ")}`;
    }

    typed(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in MOVES) this.move(MOVES[event.key] * (event.shiftKey ? 10 : 1));
      else if (event.key === "+" || event.key === "=") this.scale(0.5);
      else if (event.key === "-") this.scale(2);
      else if (event.key === "0" || event.key === "Escape") this.all((curve) => curve.zoomTo(null));
      else return;
      event.preventDefault();
      event.stopPropagation();
    }

    move(by) {
      const inside = this.inside();
      if (!inside.length) return;
      const step = this.step();
      const next = (step === undefined ? (by > 0 ? -1 : inside.length) : inside.indexOf(step)) + by;
      const x = inside[Math.min(inside.length - 1, Math.max(0, next))];
      this.all((curve) => curve.point(x));
      this.told.textContent = this.tell();
    }

    // Shows `by` times as much, around the cursor.
    scale(by) {
      const [min, max] = this.range();
      const half = ((max - min) * by) / 2;
      if (2 * half < 1) return;
      const middle = this.step() ?? (min + max) / 2;
      const low = Math.min(Math.max(this.first, middle - half), Math.max(this.first, this.last - 2 * half));
      this.all((curve) => curve.zoomTo([low, low + 2 * half]));
    }
  }

  // Every chart of the page that is there now; one that cannot be made interactive stays a drawing.
  function draw() {
    const before = new Map(drawn), seen = new Map();
    drawn.clear();
    for (const box of document.querySelectorAll(".chart[data-range]")) {
      const title = box.querySelector("h4").textContent;
      seen.set(title, (seen.get(title) ?? 0) + 1);
      const key = `${title} ${seen.get(title)}`;
      const old = before.get(key);
      try {
        drawn.set(key, old?.box === box ? old : new Curve(box, old));
      } catch (error) {
        console.error(error);
      }
    }
  }

  matchMedia("print").addEventListener("change", (event) => drawn.forEach((curve) => curve.lay(event.matches)));
  draw();
  return { draw };
})();
