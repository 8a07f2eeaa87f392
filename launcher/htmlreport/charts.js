"use strict";
// Draws the charts of a report from the JSON in #data. All text is set with textContent: names are data.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const MARGIN = { left: 58, right: 14, top: 10, bottom: 38 };
  const HEIGHT = 230, ROW = 26, DIGIT = 7.5, COLOURS = 8;
  const TIMES = [["s", 1, 120], ["min", 60, 7200], ["h", 3600, 172800], ["days", 86400, Infinity]];
  const SIZES = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
  const isComparison = data.runs.length > 1;
  let axis = "steps";
  const charts = [];

  const svg = (name, attributes, parent) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (parent) parent.append(node);
    return node;
  };
  const html = (name, className, parent, text) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const trim = text => text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  const showPower = (value, digits) => value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
  const show = (value, digits = 4) => {
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size < 1e-3 || size >= 1e15) return showPower(value, digits - 1);
    for (const [unit, letter] of SIZES) if (size >= unit) return trim((value / unit).toPrecision(digits)) + letter;
    return trim(value.toPrecision(digits));
  };
  const percent = value => inRange(100 * value);
  const withUnit = (value, unit) => unit === "%" ? show(percent(value)) + " %" : show(value) + (unit ? " " + unit : "");
  // Sums and differences of numbers within this range are finite, and quotients of differences are defined.
  const inRange = value => Math.abs(value) < 1e-290 ? 0 : Math.max(-1e290, Math.min(1e290, value));
  // Ticks of one axis share a form, with as many digits as tell them apart.
  const showTicks = (ticks, unit) => {
    const values = unit === "%" ? ticks.map(percent) : ticks;
    const largest = values.reduce((a, b) => Math.max(a, Math.abs(b)), 0), size = values[1] - values[0];
    const digits = largest && size > 0 ? Math.ceil(Math.log10(largest / size) + 1.3) : 1;
    return values.map(value => value && largest < 1e-2 ? showPower(value, digits) : show(value, Math.max(4, digits)));
  };

  // Index of the last entry that is not above the value; -1 before the first.
  const place = (sorted, value) => {
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= value) low = middle + 1; else high = middle;
    }
    return low - 1;
  };
  // Tokens or seconds at a step: interpolated between the rows of metrics that were kept.
  const position = (run, step) => {
    if (axis === "steps") return step;
    const steps = run.clock.steps, values = run.clock[axis], index = place(steps, step);
    if (index >= steps.length - 1) return values[steps.length - 1] || 0;
    const before = index < 0 ? [0, 0] : [steps[index], values[index]];
    const gap = steps[index + 1] - before[0];
    return gap > 0 ? before[1] + (values[index + 1] - before[1]) * (step - before[0]) / gap : values[index + 1];
  };
  const nice = (low, high, count, least = 0) => {
    const raw = Math.max(least, (high - low) / count) || 1, power = 10 ** Math.floor(Math.log10(raw));
    const size = power * [1, 2, 5, 10].find(each => each * power >= raw * 0.75);
    const ticks = [];
    for (let index = Math.ceil(low / size - 1e-9); index * size <= high + size * 1e-9; index++) ticks.push(index * size);
    return ticks;
  };
  const range = () => {
    const ends = data.runs.map(run => position(run, run.last));
    return [0, Math.max(...ends) || 1];
  };
  const unitOf = high => {
    if (axis === "steps") return ["step", 1];
    if (axis === "tokens") return ["tokens", 1];
    const [name, seconds] = TIMES.find(each => high < each[2]);
    return ["training time (" + name + ")", seconds];
  };

  const frame = (box, height, left, title) => {
    box.replaceChildren();
    const width = Math.max(260, box.clientWidth), [low, high] = range(), [label, unit] = unitOf(high);
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title }, box);
    const right = width - MARGIN.right, bottom = height - MARGIN.bottom;
    const x = value => left + (value - low) / (high - low) * (right - left);
    for (const tick of nice(low / unit, high / unit, Math.max(2, (right - left) / 80), axis === "time" ? 0 : 1)) {
      svg("line", { class: "grid", x1: x(tick * unit), x2: x(tick * unit), y1: MARGIN.top, y2: bottom }, root);
      svg("text", { class: "tick", x: x(tick * unit), y: bottom + 15, "text-anchor": "middle" }, root).textContent = show(tick);
    }
    svg("text", { class: "label", x: (left + right) / 2, y: height - 5, "text-anchor": "middle" }, root).textContent = label;
    return { root, x, left, right, bottom, top: MARGIN.top };
  };

  // For screen readers, which cannot follow the curve.
  const described = (chart, lines) => chart.title + lines.filter(line => line.values.length).map(line => {
    const last = line.values.length - 1, value = at => withUnit(line.values[at], chart.unit);
    const extreme = choose => withUnit(line.values.reduce((a, b) => choose(a, b)), chart.unit);
    const ends = `${value(0)} at step ${line.steps[0]} to ${value(last)} at step ${line.steps[last]}`;
    const name = line.name === chart.title ? "" : line.name + " ";
    return `; ${name}${ends}, lowest ${extreme(Math.min)}, highest ${extreme(Math.max)}`;
  }).join("");

  const drawChart = chart => {
    const lines = chart.lines.filter(line => !line.hidden);
    const values = lines.flatMap(line => line.values).map(inRange);
    let low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), -Infinity);
    if (!values.length) [low, high] = [0, 1];
    if (low >= 0 && low < 0.35 * high) low = 0;
    const spread = high - low || Math.abs(high) || 1;
    if (low !== 0) low -= 0.05 * spread;
    high += 0.05 * spread;
    const ticks = nice(low, high, 5), texts = showTicks(ticks, chart.unit);
    const left = Math.max(MARGIN.left, 14 + DIGIT * texts.reduce((a, b) => Math.max(a, b.length), 0));
    const area = frame(chart.box, HEIGHT, left, described(chart, lines));
    const y = value => area.bottom - (inRange(value) - low) / (high - low) * (area.bottom - area.top);
    ticks.forEach((tick, index) => {
      svg("line", { class: "grid", x1: area.left, x2: area.right, y1: y(tick), y2: y(tick) }, area.root);
      svg("text", { class: "tick", x: area.left - 6, y: y(tick) + 4, "text-anchor": "end" }, area.root).textContent = texts[index];
    });
    for (const run of data.runs) for (const event of run.events) {
      if (event.kind !== "failure" && event.kind !== "resume") continue;
      const at = area.x(position(run, event.step));
      svg("line", { class: "event " + event.kind, x1: at, x2: at, y1: area.top, y2: area.bottom }, area.root);
    }
    for (const line of lines) {
      line.pixels = line.steps.map(step => area.x(position(line.run, step)));
      const points = line.values.map((value, index) => line.pixels[index].toFixed(1) + "," + y(value).toFixed(1));
      const dense = points.length > 600 ? " dense" : "";
      svg("polyline", { class: `line c${line.colour} d${line.dash}${dense}`, points: points.join(" ") }, area.root);
      if (line.values.length > 40) continue;
      for (const point of points) {
        const [cx, cy] = point.split(",");
        svg("circle", { class: `dot c${line.colour}`, cx, cy, r: 2.4 }, area.root);
      }
    }
    const cursor = svg("line", { class: "cursor", y1: area.top, y2: area.bottom, visibility: "hidden" }, area.root);
    area.root.addEventListener("pointermove", event => {
      const at = event.clientX - area.root.getBoundingClientRect().left;
      const hits = lines.map(line => {
        const index = place(line.pixels, at), next = Math.min(index + 1, line.pixels.length - 1);
        const nearest = index < 0 || Math.abs(line.pixels[next] - at) < Math.abs(line.pixels[index] - at) ? next : index;
        return { line, index: nearest, at: line.pixels[nearest] };
      });
      if (!hits.length) return;
      const nearest = hits.reduce((a, b) => Math.abs(b.at - at) < Math.abs(a.at - at) ? b : a);
      cursor.setAttribute("x1", nearest.at); cursor.setAttribute("x2", nearest.at); cursor.setAttribute("visibility", "visible");
      chart.tip.replaceChildren();
      for (const hit of hits) {
        const row = html("div", "", chart.tip);
        swatch(hit.line, row);
        html("span", "", row, hit.line.name);
        html("b", "", row, withUnit(hit.line.values[hit.index], chart.unit));
        html("span", "muted", row, "step " + hit.line.steps[hit.index].toLocaleString("en"));
      }
      chart.tip.hidden = false;
      const room = chart.box.clientWidth - chart.tip.offsetWidth, after = nearest.at + 14;
      chart.tip.style.left = Math.max(0, after <= room ? after : nearest.at - 14 - chart.tip.offsetWidth) + "px";
    });
    area.root.addEventListener("pointerleave", () => { chart.tip.hidden = true; cursor.setAttribute("visibility", "hidden"); });
  };

  const swatch = (line, parent) => {
    const root = svg("svg", { width: 18, height: 8, class: "swatch", "aria-hidden": "true" }, parent);
    svg("line", { class: `line c${line.colour} d${line.dash}`, x1: 0, x2: 18, y1: 4, y2: 4 }, root);
  };

  const addChart = (panel, parent) => {
    const lines = [];
    data.runs.forEach((run, index) => panel.lines.forEach(([label, name], number) => {
      if (!Object.hasOwn(run.series, name)) return;
      const style = isComparison ? styleOf(index) : { colour: number % COLOURS, dash: 0 };
      lines.push({ ...run.series[name], ...style, run, name: isComparison ? run.name : label || panel.title, hidden: false });
    }));
    const card = html("section", "card", parent), head = html("h3", "", card, panel.title);
    if (panel.unit) html("span", "muted", head, " " + panel.unit);
    const legend = html("div", "legend", card), box = html("div", "plot", card);
    const tip = html("div", "tip", card);
    tip.hidden = true;
    const chart = { box, tip, lines, title: panel.title, unit: panel.unit, draw: () => drawChart(chart) };
    if (!isComparison && lines.some(line => line.name !== panel.title)) for (const line of lines) {
      addToggle(line, line.name, legend, hidden => { line.hidden = hidden; chart.draw(); });
    }
    charts.push(chart);
  };

  const styleOf = index => ({ colour: index % COLOURS, dash: Math.floor(index / COLOURS) });
  // A button of a legend, which shows or hides a line.
  const addToggle = (style, name, parent, act) => {
    const button = html("button", "", parent);
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    swatch(style, button);
    html("span", "", button, name);
    button.addEventListener("click", () => {
      const hidden = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!hidden));
      act(hidden);
    });
  };
  // One legend for all charts of a comparison, as each run has the same colour in all of them.
  const addLegend = parent => {
    const legend = html("div", "legend", html("section", "card wide", parent));
    data.runs.forEach((run, index) => addToggle(styleOf(index), run.name, legend, hidden => {
      for (const chart of charts) for (const line of chart.lines) if (line.run === run) line.hidden = hidden;
      drawAll();
    }));
  };

  const SHAPES = {
    checkpoint: (x, y) => `M${x} ${y - 7}V${y + 7}`,
    evaluation: (x, y) => `M${x - 3} ${y}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0`,
    failure: (x, y) => `M${x - 5} ${y - 5}L${x + 5} ${y + 5}M${x + 5} ${y - 5}L${x - 5} ${y + 5}`,
    resume: (x, y) => `M${x} ${y - 6}L${x + 6} ${y + 5}H${x - 6}Z`,
  };
  const KINDS = [["evaluations", ["evaluation"]], ["checkpoints", ["checkpoint"]], ["sessions", ["failure", "resume"]]];
  const addTimeline = parent => {
    const card = html("section", "card wide", parent);
    html("h3", "", card, "Time line");
    const box = html("div", "plot", card), note = html("p", "muted note", card);
    const run = data.runs[0];
    const help = "Crosses and solid red lines in the charts: failures. Triangles and dashed grey lines: the step from which a session resumed. Hover or tap a mark for its text.";
    note.textContent = help;
    const draw = () => {
      const area = frame(box, MARGIN.top + MARGIN.bottom + ROW * KINDS.length, 100, "Time line");
      KINDS.forEach(([name, kinds], index) => {
        const y = MARGIN.top + ROW * (index + 0.5);
        svg("line", { class: "grid", x1: area.left, x2: area.right, y1: y, y2: y }, area.root);
        svg("text", { class: "tick", x: area.left - 8, y: y + 4, "text-anchor": "end" }, area.root).textContent = name;
        for (const event of run.events.filter(each => kinds.includes(each.kind))) {
          const mark = svg("path", { class: "mark " + event.kind, d: SHAPES[event.kind](area.x(position(run, event.step)), y) }, area.root);
          svg("title", {}, mark).textContent = event.text;
          mark.addEventListener("pointerenter", () => { note.textContent = event.text; });
          mark.addEventListener("pointerleave", () => { note.textContent = help; });
        }
      });
    };
    charts.push({ draw });
  };

  const choose = (name, act) => {
    const buttons = document.querySelectorAll(`[data-${name}]`);
    for (const button of buttons) button.addEventListener("click", () => {
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === button));
      act(button.dataset[name]);
    });
  };
  const drawAll = () => { for (const chart of charts) chart.draw(); };
  choose("axis", value => { axis = value; drawAll(); });
  choose("theme", value => { document.documentElement.dataset.theme = value; });

  const parent = document.getElementById("charts");
  if (isComparison) addLegend(parent);
  else if (data.runs[0].events.length) addTimeline(parent);
  for (const panel of data.panels) addChart(panel, parent);
  drawAll();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) { width = window.innerWidth; drawAll(); }
  });
})();
