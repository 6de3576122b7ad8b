(() => {
  // Copying: a button beside each command, made here, so that a page without JavaScript has none that does nothing.
  for (const box of document.querySelectorAll(".command")) {
    const code = box.querySelector("code"), button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy: " + code.textContent);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    box.append(button);
  }

  // The notes of a cell: Escape closes them, and the keyboard goes on where it was.
  addEventListener("keydown", (event) => {
    const notes = document.querySelector("article:target");
    if (event.key !== "Escape" || !notes) return;
    location.hash = "#table";
    document.querySelector(`.grid a[href="#${notes.id}"]`)?.focus();
  });

  const form = document.getElementById("filters");
  if (!form) return;
  const keys = [...form.querySelectorAll("select")].map((select) => select.name);
  const filtered = document.querySelectorAll(keys.map((key) => `main [data-${key}]`).join());
  const items = document.querySelectorAll("main [data-item]");

  let state = new URLSearchParams();

  function read() {
    const hash = location.hash.slice(1);
    if (hash && !hash.includes("=")) return; // the place of a cell
    state = new URLSearchParams(hash);
    for (const key of keys) {
      form.elements[key].value = state.get(key) ?? "";
      if (form.elements[key].selectedIndex < 0) form.elements[key].value = "";
    }
  }

  function apply() {
    for (const key of keys) {
      if (form.elements[key].value) state.set(key, form.elements[key].value);
      else state.delete(key);
    }
    for (const element of filtered) {
      element.hidden = [...state].some(([key, value]) => key in element.dataset && !element.dataset[key].split(";").includes(value));
    }
    const counts = {};
    for (const item of items) {
      const count = counts[item.dataset.item] ??= {left: 0, all: 0};
      count.all += 1;
      count.left += item.closest("[hidden]") ? 0 : 1;
    }
    const told = Object.entries(counts).map(([kind, {left, all}]) => `${left} of ${all} ${kind}`);
    document.getElementById("shown").textContent = told.join(", ");
    return state.toString();
  }

  form.hidden = false;
  form.addEventListener("change", () => history.replaceState(null, "", "#" + apply()));
  form.addEventListener("reset", () => setTimeout(() => history.replaceState(null, "", "#" + apply())));
  addEventListener("hashchange", () => { read(); apply(); });
  read();
  apply();
})();
