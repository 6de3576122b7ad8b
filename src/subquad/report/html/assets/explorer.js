// The table of all cells: filters, search, order and page are in the address; only the rows of one page are elements.
(() => {
  "use strict";
  const {values, rows, signs, names} = JSON.parse(document.getElementById("data").textContent);
  const CODED = Object.keys(values), PLAIN = ["row", "anchor", "mean", "spread", "printed", "seeds"], PAGE = 100;
  const form = document.getElementById("explorer"), table = document.getElementById("cells"), body = table.tBodies[0];
  const cells = rows.map((row) => {
    const cell = {};
    CODED.forEach((key, i) => { cell[key] = values[key][row[i]]; });
    PLAIN.forEach((key, i) => { cell[key] = row[CODED.length + i]; });
    cell.measured = cell.mean || cell.scale ? "1" : "";
    cell.words = [cell.table, cell.row, cell.column, cell.mechanism, names[cell.mechanism], cell.task, cell.metric, cell.verdict].join(" ").toLowerCase();
    return cell;
  });
  const number = (text) => parseFloat(text.replace(/,(?=\d{3})/g, "")) || 0;
  const by = (key) => (a, b) => a[key].localeCompare(b[key], "en", {numeric: true});
  const COLUMNS = [
    ["cell", by("table")], ["ours", (a, b) => number(a.mean) - number(b.mean)], ["printed", (a, b) => number(a.printed) - number(b.printed)],
    ["verdict", by("verdict")], ["seeds", by("seeds")], ["metric", by("metric")], ["mechanism", by("mechanism")], ["data set", by("task")],
    ["scale", by("scale")], ["machine", by("machine")],
  ];
  const RIGHT = new Set(["ours", "printed", "seeds"]);
  const SELECTS = [...form.querySelectorAll("select")].map((select) => select.name);
  const element = (name, attributes = {}, ...children) => {
    const made = Object.assign(document.createElement(name), attributes);
    made.append(...children);
    return made;
  };
  const link = (href, text) => element("a", {href}, text);

  for (const key of SELECTS) {
    const found = [...new Set(cells.map((cell) => cell[key]))].filter(Boolean).sort((a, b) => a.localeCompare(b, "en", {numeric: true}));
    form.elements[key].append(...found.map((value) => element("option", {value}, key === "mechanism" ? names[value] : value)));
  }
  const heads = COLUMNS.map(([name]) => {
    const button = element("button", {type: "button"}, name);
    button.addEventListener("click", () => {
      state = {...state, sort: name, down: state.sort === name && !state.down ? "1" : "", page: ""};
      show();
    });
    return element("th", {scope: "col", className: RIGHT.has(name) ? "" : "left"}, button);
  });
  table.tHead.rows[0].replaceChildren(...heads);

  let state = {};
  function read() {
    state = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    for (const field of form.elements) {
      if (field.type === "checkbox") field.checked = state[field.name] === "1";
      else if (field.name) field.value = state[field.name] ?? "";
      if (field.selectedIndex < 0) field.value = "";
    }
  }

  function given() {
    for (const field of form.elements) {
      if (field.name) state[field.name] = field.type === "checkbox" ? (field.checked ? "1" : "") : field.value;
    }
    state.page = "";
    show();
  }

  function found() {
    const words = (state.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const asked = [...SELECTS, "measured"].filter((key) => state[key]);
    const kept = cells.filter((cell) => asked.every((key) => cell[key] === state[key]) && words.every((word) => cell.words.includes(word)));
    const order = COLUMNS.find(([name]) => name === state.sort);
    return order ? kept.sort((a, b) => (state.down ? -1 : 1) * order[1](a, b)) : kept;
  }

  function line(cell) {
    const [sign, colour] = signs[cell.verdict];
    const where = element("th", {scope: "row"}, link(`tables/${cell.table}.html#${cell.anchor}`, `${cell.table}: ${cell.row} / ${cell.column}`));
    const ours = element("td", {}, element("span", {className: "l"}, element("span", {className: "n"}, cell.mean || "—"), element("small", {}, cell.spread ? `±${cell.spread}` : "")));
    const sure = element("span", {className: `v c-${colour}`}, element("i", {ariaHidden: "true"}, sign), ` ${cell.verdict}`);
    const left = (...children) => element("td", {className: "left"}, ...children);
    const mechanism = left(cell.mechanism ? link(`mechanisms/${cell.mechanism}.html`, names[cell.mechanism]) : "");
    mechanism.classList.add("name");
    return element("tr", {}, where, ours, element("td", {}, cell.printed || "—"), left(sure), element("td", {}, cell.seeds), left(cell.metric),
      mechanism, left(cell.task ? link(`datasets/${cell.task}.html`, cell.task) : ""), left(cell.scale), left(cell.machine));
  }

  function show() {
    const kept = found(), pages = Math.max(1, Math.ceil(kept.length / PAGE)), page = Math.min(Math.max(1, Number(state.page) || 1), pages);
    body.replaceChildren(...kept.slice((page - 1) * PAGE, page * PAGE).map(line));
    heads.forEach((head, i) => {
      const sorted = COLUMNS[i][0] === state.sort;
      head.ariaSort = sorted ? (state.down ? "descending" : "ascending") : "none";
      head.firstChild.textContent = COLUMNS[i][0] + (sorted ? (state.down ? " ↓" : " ↑") : "");
    });
    const measured = kept.filter((cell) => cell.measured).length;
    document.getElementById("shown").textContent = `${kept.length.toLocaleString("en")} of ${cells.length.toLocaleString("en")} cells, ${measured.toLocaleString("en")} with a value`;
    document.querySelector(".pager").hidden = pages === 1;
    document.getElementById("place").textContent = `Page ${page} of ${pages}`;
    document.getElementById("earlier").disabled = page === 1;
    document.getElementById("later").disabled = page === pages;
    state.page = page > 1 ? String(page) : "";
    const address = new URLSearchParams(Object.entries(state).filter(([, value]) => value)).toString();
    history.replaceState(null, "", address ? `#${address}` : location.pathname + location.search);
  }

  function turn(step) {
    state.page = String((Number(state.page) || 1) + step);
    show();
    table.parentElement.scrollTop = 0;
  }
  form.hidden = false;
  form.addEventListener("input", given);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => { state = {}; setTimeout(given); });
  document.getElementById("earlier").addEventListener("click", () => turn(-1));
  document.getElementById("later").addEventListener("click", () => turn(1));
  addEventListener("hashchange", () => {
    if (location.hash && !location.hash.includes("=")) return;  // the link to the content
    read();
    show();
  });
  read();
  show();
})();
