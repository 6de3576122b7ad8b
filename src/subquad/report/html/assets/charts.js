// Draws every <figure class="chart"> from the numbers in it, with Observable Plot. Colours follow the page (light-dark);
// exports are light, as wide as a column of a paper, with their font.
(() => {
  "use strict";
  const SOFT = "var(--soft)", INK = "var(--ink)", LINE = "var(--line)", COLUMN = 317; // 3.3 inches
  const HALO = {"text-anchor": "start", stroke: "var(--paper)", "stroke-width": 3, "paint-order": "stroke"};
  const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 3"];
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const wide = (text) => 1.02 * ruler.measureText(text).width; // in pixels
  const raw = (colour) => (typeof colour === "string" ? colour : `light-dark(${colour[0]}, ${colour[1]})`);
  const unscaled = (value) => ({value, scale: null});
  const svg = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const short = (n) => Math.abs(n) >= 1e4 ? d3.format("~s")(n) : d3.format(",~g")(n);

  // Ticks of a logarithmic axis: 1, 2 and 5 times powers of ten, or powers alone where these are many.
  function logTicks(low, high) {
    const powers = d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1);
    const all = powers.flatMap((p) => [1, 2, 5].map((step) => step * 10 ** p)).filter((v) => v >= low && v <= high);
    return all.length > 9 ? all.filter((v) => Math.abs(Math.log10(v) % 1) < 1e-9) : all;
  }

  function padded(values, share = 0.06) {
    const [low, high] = d3.extent(values), room = share * (high - low) || 0.05 * Math.abs(high) || 1;
    return [low - room, high + room];
  }

  function logPadded(values, share) {
    return padded(values.map((v) => Math.log10(v)), share).map((v) => 10 ** v);
  }

  // Logarithmic axes have their ticks listed, and every one its text.
  const axes = (x, y) => [[Plot.gridY, Plot.axisY, y], [Plot.gridX, Plot.axisX, x]].flatMap(([grid, axis, {ticks, listed}]) => [
    listed ? grid(listed, {stroke: LINE, strokeOpacity: 1}) : grid({ticks, stroke: LINE, strokeOpacity: 1}),
    listed ? axis(listed, {tickSize: 0, label: null, color: SOFT, text: short}) : axis({ticks, tickSize: 0, label: null, color: SOFT, tickFormat: short}),
  ]);

  const KINDS = {
    lines(spec, width, hidden) {
      const lines = spec.lines.map((line, i) => ({...line, ink: line.colour ? raw(line.colour) : `var(--k${i % 5})`,
        dashes: line.colour ? (line.dash ? "5 4" : "") : DASHES[i % 5]}));
      const drawn = lines.filter((line) => !hidden.has(line.name));
      const points = (drawn.length ? drawn : lines).flatMap((line) => line.points);
      const levels = spec.levels.filter(([name]) => !hidden.has(name));
      const xs = points.map((p) => p[0]), ys = [...points.map((p) => p[1]), ...levels.map((l) => l[1])];
      const named = [...drawn.map((line) => [line.name, line.points.at(-1)[1], line.ink]), ...levels.map(([name, v]) => [name, v, INK])];
      const direct = width >= 400 && named.length < 9;
      const right = direct ? Math.min(0.42 * width, 14 + d3.max(named, ([name]) => wide(name))) : 14;
      const x = spec.log ? {listed: [...new Set(xs)].sort(d3.ascending).filter((_, i, all) => width > 480 || (all.length - 1 - i) % 2 === 0)} : {ticks: Math.max(2, width / 120)};
      const yDomain = spec.log ? logPadded(ys) : padded(ys);
      const y = spec.log ? {listed: logTicks(...yDomain)} : {ticks: 5};
      const made = Plot.plot({
        width, height: Math.round(Math.min(340, Math.max(190, 0.56 * width))), marginLeft: 46, marginRight: right, marginTop: 12, marginBottom: 24,
        x: {type: spec.log ? "log" : "linear", domain: d3.extent(xs), nice: false}, y: {type: spec.log ? "log" : "linear", domain: yDomain},
        marks: [
          ...axes(x, y),
          ...levels.map(([name, value], i) => Plot.ruleY([value], {stroke: INK, strokeOpacity: 0.7, strokeDasharray: DASHES[i % 5], ariaLabel: name})),
          ...drawn.map((line) => Plot.line(line.points, {x: "0", y: "1", stroke: unscaled(() => line.ink), strokeDasharray: line.dashes, strokeWidth: 2})),
          ...drawn.filter((line) => line.points.length < 12).map((line) => Plot.dot(line.points, {x: "0", y: "1", r: 3, fill: unscaled(() => line.ink)})),
          Plot.tip(drawn.flatMap((line) => line.points.map((p) => [...p, line.name])), Plot.pointer({x: "0", y: "1", title: (p) => `${p[2]}\n${short(p[1])} ${spec.y} at ${short(p[0])} ${spec.x}`})),
        ],
      });
      if (direct) endLabels(made, named, width - right);
      return [made, direct ? [] : [...lines.map((line) => ({name: line.name, ink: line.ink, dashes: line.dashes})),
        ...spec.levels.map(([name], i) => ({name, ink: INK, dashes: DASHES[i % 5]}))]];
    },

    scatter(spec, width) {
      const points = spec.points, dots = new Map(), yDomain = padded([...points.map((p) => p.y), ...spec.levels.map((l) => l[1])], 0.08);
      const xDomain = logPadded(points.map((p) => p.x), 0.05);
      const held = (v) => Math.min(Math.max(v, yDomain[0]), yDomain[1]);
      const height = Math.round(Math.min(spec.tall ? 620 : 480, Math.max(240, (spec.tall ? 1.1 : 0.62) * width)));
      const made = Plot.plot({
        width, height, marginLeft: 46, marginRight: 16, marginTop: 12, marginBottom: 24,
        x: {type: "log", domain: xDomain}, y: {domain: yDomain},
        marks: [
          ...axes({listed: logTicks(...xDomain)}, {ticks: 5}),
          ...spec.levels.map(([name, value], i) => Plot.ruleY([value], {stroke: SOFT, strokeDasharray: DASHES[(i + 1) % 5], ariaLabel: name})),
          Plot.ruleX(points.filter((p) => p.half), {x: "x", y1: (p) => held(p.y - p.half), y2: (p) => held(p.y + p.half), stroke: unscaled((p) => raw(p.colour)), strokeWidth: 1.5, strokeOpacity: 0.4}),
          ...[["circle", 4.5], ["square", 6]].map(([symbol, r]) => Plot.dot(points.filter((p) => Boolean(p.own) === (symbol === "square")),
            {x: "x", y: "y", r, symbol, fill: unscaled((p) => raw(p.colour)), stroke: "var(--paper)", strokeWidth: 1, href: "href", ariaLabel: (p) => `${p.name}: ${p.text}`})),
          Plot.tip(points, Plot.pointer({x: "x", y: "y", title: (p) => `${p.name}\n${p.text}`})),
        ],
      });
      pointLabels(made, points, spec.levels, width, height);
      return [made, []];
    },

    matrix({rows, pairs}, width) {
      const n = rows.length, names = rows.map(([name, mean], i) => `${name} ${mean} · ${i + 1}`);
      const left = Math.min(0.5 * width, 12 + d3.max(names, wide)), size = Math.min(18, (width - left - 6) / n), high = Math.max(14, size);
      const known = new Map(pairs.map(([i, j, p]) => [n * i + j, p])), all = d3.cross(d3.range(n), d3.range(n)).filter(([i, j]) => i < j);
      const ink = unscaled(([i, j]) => (known.has(n * i + j) ? "var(--better)" : LINE)), step = size < 11 ? 5 : 1;
      const said = ([i, j]) => known.has(n * i + j) ? `is better, p ${known.get(n * i + j)} corrected` : "is within chance of it";
      return [Plot.plot({
        width: left + size * n + 6, height: high * n + 22, marginLeft: left, marginRight: 6, marginTop: 20, marginBottom: 2,
        x: {type: "band", domain: d3.range(n), padding: 0.08}, y: {type: "band", domain: d3.range(n), padding: 0.08},
        marks: [
          Plot.cell(all, {x: "1", y: "0", fill: ink, fillOpacity: (pair) => (known.has(n * pair[0] + pair[1]) ? 1 : 0.5)}),
          Plot.axisX({anchor: "top", tickSize: 0, label: null, color: SOFT, ticks: d3.range(step - 1, n, step), tickFormat: (i) => i + 1}),
          Plot.axisY({tickSize: 0, label: null, color: INK, tickFormat: (i) => names[i]}),
          Plot.tip(all, Plot.pointer({x: "1", y: "0", title: ([i, j]) => `${rows[i][0]} ${said([i, j])}:\n${rows[i][0]} ${rows[i][1]}, ${rows[j][0]} ${rows[j][1]}`})),
        ],
      }), []];
    },

    comparison(spec, width) {
      const rows = spec.rows, names = rows.map((row, i) => i);
      const left = Math.min(0.42 * width, 12 + d3.max(rows, (row) => wide(row.name)));
      const letters = Math.floor((left - 10) / 6.3);
      const means = rows.flatMap((row) => [row.mean, ...(row.printed === null ? [] : [row.printed - row.spread, row.printed + row.spread])]);
      const span = d3.max(means) - d3.min(means);
      const domain = padded([...means, ...rows.flatMap((row) => row.half <= span ? [row.mean - row.half, row.mean + row.half] : [])]);
      const held = (v) => Math.min(Math.max(v, domain[0]), domain[1]);
      const ink = unscaled((row) => `var(--${row.verdict})`), at = (row) => rows.indexOf(row);
      const printed = rows.filter((row) => row.printed !== null);
      return [Plot.plot({
        width, height: 20 * rows.length + 40, marginLeft: left, marginRight: 26, marginTop: 6, marginBottom: 26,
        x: {domain}, y: {type: "band", domain: names, padding: 0.3},
        marks: [
          Plot.gridX({stroke: LINE, strokeOpacity: 1, ticks: width / 110}),
          Plot.axisX({tickSize: 0, label: null, color: SOFT, tickFormat: short, ticks: width / 110}),
          Plot.axisY({tickSize: 0, label: null, color: INK, tickFormat: (i) => {
            const name = rows[i].name;
            return wide(name) > left - 8 ? `${name.slice(0, letters / 3)}…${name.slice(1 + letters / 3 - letters)}` : name;
          }}),
          Plot.ruleY(printed.filter((row) => row.spread), {y: at, x1: (row) => held(row.printed - row.spread), x2: (row) => held(row.printed + row.spread), stroke: INK, strokeOpacity: 0.22, strokeWidth: 12}),
          Plot.tickX(printed, {y: at, x: "printed", stroke: INK, strokeWidth: 2}),
          Plot.ruleY(rows, {y: at, x1: (row) => held(row.mean - row.half), x2: (row) => held(row.mean + row.half), stroke: ink, strokeWidth: 2}),
          Plot.dot(rows, {y: at, x: "mean", r: 4.5, fill: ink, href: "href", ariaLabel: (row) => `${row.name}: ${row.text}`}),
          Plot.text(rows, {y: at, text: "sign", frameAnchor: "right", textAnchor: "middle", dx: 16, fill: ink, fontWeight: 600}),
          Plot.tip(rows, Plot.pointerY({y: at, x: "mean", title: (row) => `${row.name}\n${row.text}`})),
        ],
      }), []];
    },
  };

  // The chart of what is chosen: the matrix of a column, or two columns of the points against each other.
  function chosen(spec) {
    if (spec.matrix) return {kind: "matrix", x: "rows, in the same order", ...spec.matrix[spec.x]};
    if (spec.kind !== "choice") return spec;
    const {columns, x, y} = spec, points = spec.points.filter(({values}) => values[y] && values[x] && values[x][0] > 0).map(({values, ...p}) =>
      ({...p, x: values[x][0], y: values[y][0], half: values[y][1], href: values[y][2], text: `${y} ${values[y][3]}, ${x} ${values[x][3]}`}));
    const [low, high] = d3.extent(points, (p) => p.y); // a level that is far from all means would press them together
    return {kind: "scatter", x: columns[x], y: columns[y], points, levels: (spec.levels[y] ?? []).filter(([, v]) => v >= 2 * low - high && v <= 2 * high - low)};
  }

  function choices(figure, given) {
    const form = document.createElement("form");
    form.className = "filters";
    for (const [key, names] of Object.entries(given.choices)) {
      const label = document.createElement("label"), select = document.createElement("select");
      select.append(...names.map((name) => new Option(name, name, name === given[key], name === given[key])));
      select.addEventListener("change", () => {
        given[key] = select.value;
        figure.chart.spec = chosen(given);
        figure.chart.width = 0;
        draw(figure);
      });
      label.append(key === "y" || given.matrix ? "task" : "cost", select);
      form.append(label);
    }
    return form;
  }

  // Names at the right ends of lines, moved apart where they would cover each other.
  function endLabels(made, named, x) {
    const y = made.scale("y"), labels = named.map(([name, value, ink]) => ({name, ink, at: y.apply(value), y: y.apply(value)}));
    labels.sort((a, b) => a.y - b.y);
    const [bottom, top] = y.range;
    labels.forEach((label, i) => { label.y = Math.max(label.y, i ? labels[i - 1].y + 13 : top); });
    for (let i = labels.length - 1; i >= 0; i--) labels[i].y = Math.min(labels[i].y, i < labels.length - 1 ? labels[i + 1].y - 13 : bottom);
    for (const {name, ink, y, at} of labels) {
      made.append(svg("path", {d: `M${x + 1},${at}L${x + 8},${y}`, stroke: ink, fill: "none"}));
      const text = svg("text", {x: x + 10, y: y + 4, fill: INK, ...HALO});
      text.textContent = name;
      made.append(text);
    }
  }

  // The name of each point where it covers nothing, with a line to it where it stands apart; others wait for the pointer.
  function pointLabels(made, points, levels, width, height) {
    const x = made.scale("x"), y = made.scale("y"), taken = [], leaders = svg("g", {fill: "none", stroke: SOFT, "stroke-opacity": 0.5, "stroke-width": 0.8});
    made.append(leaders);
    const places = points.map((p) => [x.apply(p.x), y.apply(p.y)]);
    for (const [px, py] of places) taken.push([px - 5, py - 5, px + 5, py + 5]);
    const inside = (b) => b[0] >= 48 && b[2] <= width - 2 && b[1] >= 0 && b[3] <= height - 24;
    const free = (b) => inside(b) && !taken.some((t) => b[0] < t[2] && t[0] < b[2] && b[1] < t[3] && t[1] < b[3]);
    const put = (name, px, py, candidates, attributes) => {
      const size = wide(name) + 2;
      for (const [dx, dy] of candidates) {
        const cx = px + dx, cy = py + dy, left = dx < -6 ? cx - size : dx > 6 ? cx : cx - size / 2;
        const box = [left, cy - 7, left + size, cy + 6];
        if (!free(box)) continue;
        taken.push(box);
        if (Math.hypot(dx, dy) > 18) leaders.append(svg("path", {d: `M${px},${py}L${Math.min(Math.max(px, left), left + size)},${cy < py ? cy + 6 : cy - 7}`}));
        const text = svg("text", {x: left + 1, y: cy + 4, "pointer-events": "none", ...HALO, ...attributes});
        text.textContent = name;
        made.append(text);
        return;
      }
    };
    for (const [name, value] of levels) put(name, width - 16, y.apply(value), [[-7, -8], [-7, 9], [-160, -8], [-160, 9]], {fill: SOFT, "font-style": "italic"});
    const near = [[8, 0], [-8, 0], [0, -12], [0, 13], [7, -10], [-7, -10], [7, 11], [-7, 11]];
    const far = [24, 40, 58, 78, 100].flatMap((r) => [-90, -60, -120, -35, -145, 90, 60, 120, 35, 145].map((a) => [r * Math.cos(a * Math.PI / 180), r * Math.sin(a * Math.PI / 180)]));
    // Where points are rare, their names have room; those in a crowd come last and stand apart.
    const crowd = places.map(([px, py]) => places.filter(([qx, qy]) => Math.hypot(px - qx, (py - qy) * 3) < 60).length);
    d3.range(points.length).sort((a, b) => crowd[a] - crowd[b]).forEach((i) => put(points[i].name, ...places[i], [...near, ...far], {fill: INK}));
  }

  // Plot names its groups, which have no role that may have a name; here links have one.
  function named(made) {
    for (const group of made.querySelectorAll("g[aria-label]")) {
      group.dataset.mark = group.getAttribute("aria-label");
      group.removeAttribute("aria-label");
    }
    for (const link of made.querySelectorAll("a")) {
      link.setAttribute("aria-label", link.firstChild.getAttribute("aria-label"));
      link.firstChild.removeAttribute("aria-label");
    }
  }

  function draw(figure) {
    const {spec, hidden, stage} = figure.chart, width = Math.floor(stage.clientWidth);
    if (!width || figure.chart.width === width) return;
    figure.chart.width = width;
    figure.querySelector(".axes").textContent = spec.y ? `↑ ${spec.y}, → ${spec.x}` : `→ ${spec.x}`;
    const [made, entries] = KINDS[spec.kind](spec, width, hidden);
    named(made);
    made.setAttribute("role", "group");
    made.setAttribute("aria-label", figure.dataset.title);
    stage.replaceChildren(made);
    const key = figure.querySelector(".key");
    if (key) key.hidden = !entries.length;
    else if (entries.length > 1) figure.querySelector("figcaption").before(legend(figure, entries));
  }

  function legend(figure, entries) {
    const key = document.createElement("div");
    key.className = "key";
    for (const {name, ink, dashes} of entries) {
      const button = document.createElement("button"), swatch = svg("svg", {viewBox: "0 0 24 8", width: 24, height: 8, "aria-hidden": "true"});
      swatch.append(svg("line", {x1: 0, x2: 24, y1: 4, y2: 4, stroke: ink, "stroke-width": 2.5, "stroke-dasharray": dashes}));
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.append(swatch, name);
      button.addEventListener("click", () => {
        const {hidden} = figure.chart, shown = hidden.has(name);
        shown ? hidden.delete(name) : hidden.add(name);
        button.setAttribute("aria-pressed", String(shown));
        figure.chart.width = 0;
        draw(figure);
      });
      key.append(button);
    }
    return key;
  }

  // A copy as wide as a column, with every colour and size written out, in a font that comes with it.
  async function forPaper(figure) {
    const {spec, hidden} = figure.chart, box = document.createElement("div");
    box.style.cssText = "position: absolute; left: -9999px; color-scheme: light; font: 9px Inter, sans-serif";
    document.body.append(box);
    const [made] = KINDS[spec.kind](spec, 1.35 * COLUMN, hidden);
    box.append(made);
    for (const tip of made.querySelectorAll("[aria-label=tip]")) tip.remove();
    for (const element of made.querySelectorAll("*")) {
      const style = getComputedStyle(element);
      for (const name of ["fill", "stroke", "stroke-opacity", "stroke-dasharray", "stroke-width"]) element.setAttribute(name, style.getPropertyValue(name));
    }
    const [width, tall] = ["width", "height"].map((name) => Number(made.getAttribute(name))), height = tall + 34;
    box.remove();
    if (!globalThis.INTER) await new Promise((done, failed) => {
      const script = document.createElement("script");
      Object.assign(script, {src: document.querySelector("script[src$='charts.js']").src.replace("charts.js", "vendor/inter.js"), onload: done, onerror: failed});
      document.head.append(script);
    });
    made.querySelectorAll("style").forEach((style) => style.remove());
    const style = svg("style", {});
    style.textContent = `@font-face { font-family: Inter; src: url(data:font/woff2;base64,${INTER}) } text { white-space: pre; font: 11px Inter, sans-serif }`;
    made.prepend(style, svg("rect", {y: -18, width, height, fill: "#fff"}));
    for (const [text, at] of [[spec.y ? `↑ ${spec.y}` : "", {x: 4, y: -5, "text-anchor": "start"}], [`${spec.x} →`, {x: width - 4, y: tall + 11, "text-anchor": "end"}]]) {
      const label = svg("text", {fill: "rgb(87, 96, 106)", ...at});
      label.textContent = text;
      made.append(label);
    }
    made.removeAttribute("style");
    for (const [name, value] of Object.entries({xmlns: "http://www.w3.org/2000/svg", viewBox: `0 -18 ${width} ${height}`, width: `${COLUMN / 96}in`, height: `${height / 1.35 / 96}in`})) made.setAttribute(name, value);
    return new XMLSerializer().serializeToString(made);
  }

  function save(content, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(content);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  async function exported(figure, kind) {
    const text = await forPaper(figure), name = `${figure.dataset.title.replace(/[^\w]+/g, "_")}.${kind}`;
    if (kind === "svg") return save(new Blob([text], {type: "image/svg+xml"}), name);
    const image = new Image(), canvas = document.createElement("canvas");
    await new Promise((done, failed) => Object.assign(image, {onload: done, onerror: failed, src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`}));
    Object.assign(canvas, {width: 6.25 * image.width, height: 6.25 * image.height}); // 600 dots an inch
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(blob, name), "image/png");
  }

  const resized = new ResizeObserver((entries) => requestAnimationFrame(() => entries.forEach(({target}) => draw(target.closest("figure")))));
  for (const figure of document.querySelectorAll("figure.chart")) {
    const stage = document.createElement("div"), tools = document.createElement("span");
    stage.className = "stage";
    const given = JSON.parse(figure.querySelector("script").textContent), axes = document.createElement("p");
    figure.chart = {spec: chosen(given), hidden: new Set(), stage, width: 0};
    axes.className = "axes";
    if (given.rows) stage.style.minHeight = `${20 * given.rows.length + 40}px`;
    figure.prepend(...(given.choices ? [choices(figure, given)] : []), axes, stage);
    tools.className = "tools";
    for (const kind of ["svg", "png"]) {
      const button = document.createElement("button");
      Object.assign(button, {type: "button", textContent: kind.toUpperCase()});
      button.setAttribute("aria-label", `Save “${figure.dataset.title}” as ${kind.toUpperCase()}`);
      button.addEventListener("click", () => exported(figure, kind));
      tools.append(button);
    }
    figure.querySelector("figcaption").append(tools);
    resized.observe(stage);
  }
})();
