"use strict";

// The page: its state, its controls, and the questions to the server. The server computes every number that is shown.
(() => {
  const find = (id) => document.getElementById(id);
  const catalogue = JSON.parse(find("catalogue").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const STEPS = 200; // of a slider
  const AWAY = { azimuth: 35, elevation: 25 };
  const state = { gradients: [], rules: [], view: { ...AWAY, radius: 1 }, equal: false };
  let answer = { rules: [], cone: null, dual: null, hull: null }, cards = "", notice = "", saving = 0, speaking = 0;

  const colour = (i) => catalogue.colours[dark.matches ? 1 : 0][i % catalogue.colours[0].length];

  function element(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  // ---- questions: one at a time and at most one in a frame; each has the latest state

  let changed = false, busy = false, answers = 0;

  function ask() {
    changed = true;
    paint();
    save();
    if (busy) return;
    busy = true;
    requestAnimationFrame(send);
  }

  async function send() {
    changed = false;
    try {
      const body = JSON.stringify({ gradients: state.gradients, rules: state.rules });
      const response = await fetch("answer", { method: "POST", headers: { "Content-Type": "application/json" }, body });
      const found = await response.json();
      if (response.ok) answer = found;
      complain(response.ok ? notice : found.error);
      if (response.ok && !changed) show();
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // fetch and json have no other
      complain("There is no answer. Is `paretograd explore` still running? Start it again and open its new address.");
    } finally {
      busy = false;
      answers += 1;
      document.documentElement.dataset.answers = answers;
      paint();
      if (changed) ask();
    }
  }

  function complain(text) {
    find("error").hidden = !text;
    find("error").textContent = text;
  }

  // ---- the picture

  const picture = Picture.build(find("picture"), {
    move(k, vector) {
      state.gradients[k] = vector;
      ask();
    },
    turn(azimuth, elevation) {
      state.view.azimuth = ((azimuth % 360) + 360) % 360;
      state.view.elevation = Math.min(Math.max(elevation, -90), 90);
      paint();
      save();
    },
    settle: speak,
  });
  let painting = false;

  function paint() {
    if (painting) return;
    painting = true;
    requestAnimationFrame(() => {
      painting = false;
      // An answer from before the dimensions changed cannot be drawn.
      const { cone, dual, hull } = answer.dimensions === state.gradients[0].length ? answer : {};
      picture.draw({ ...state, rules: answer.rules, cone, dual, hull, colour });
      fillInputs();
    });
  }

  function fit() {
    const longest = Math.max(...state.gradients.map((gradient) => Math.hypot(...gradient)));
    state.view.radius = longest > 0 ? 1.15 * longest : 1;
  }

  function zoom(factor) {
    state.view.radius = Math.min(Math.max(state.view.radius * factor, 1e-4), 1e7);
    paint();
  }

  // ---- what the server said

  function show() {
    find("value").textContent = answer.gamma;
    find("findings").replaceChildren(...answer.findings.map((text) => element("p", {}, text)));
    find("cone").textContent = answer.cone.whole ? "cone (here everything)" : "cone";
    find("dual").textContent = answer.dual.zero ? "dual cone (here only zero)" : "dual cone: no objective goes up";
    find("program").textContent = answer.program;
    showRules();
    answer.norms.forEach((norm, k) => {
      const row = find("gradients").querySelector(`tr[data-k="${k}"]`);
      if (row) row.querySelector(".norm").textContent = norm;
      answer.cosines[k].forEach((cosine, j) => {
        const cell = row?.querySelector(`[data-cosine="${j}"]`);
        if (cell) cell.textContent = k === j ? "" : cosine;
      });
    });
  }

  // For screen readers, after a pause: a drag would be too much.
  function speak() {
    clearTimeout(speaking);
    speaking = setTimeout(() => { find("spoken").textContent = `gamma is ${answer.gamma}. ${answer.findings[1] ?? ""}`; }, 500);
  }

  // ---- rules

  const spell = (rule, parameters, starred) => {
    const inside = Object.entries(parameters).map(([key, value]) => `${key}=${value}`).join(", ");
    return `${rule.name}${inside ? `(${inside})` : ""}${starred ? "*" : ""}`;
  };

  function change(i, text) {
    state.rules[i] = text;
    ask();
  }

  function showRules() {
    const kinds = JSON.stringify(answer.rules.map((rule) => [rule.name, rule.starred, rule.label, rule.dials.map((dial) => dial.key)]));
    if (kinds !== cards) {
      const focused = document.activeElement?.dataset.focus;
      find("rules").replaceChildren(...answer.rules.map(card));
      cards = kinds;
      if (focused) document.querySelector(`[data-focus="${focused}"]`)?.focus();
    }
    answer.rules.forEach((rule, i) => {
      const made = find("rules").children[i];
      made.rule = rule;
      made.querySelector(".sample").replaceWith(sample(rule, i));
      made.querySelector("dl").replaceChildren(...facts(rule));
      rule.dials.forEach((dial, number) => setDial(made.querySelectorAll(".dial")[number], rule, dial, i));
    });
    find("add").disabled = state.rules.length >= 12;
  }

  function facts(rule) {
    const entries = rule.error ? [["error", rule.error]] : rule.facts;
    return entries.map(([name, text]) => {
      const hurts = name === "conflicts" && rule.conflicts.length > 0;
      return element("div", {}, element("dt", {}, name), element("dd", { className: hurts ? "bad strong" : rule.error ? "bad" : "" }, text));
    });
  }

  function sample(rule, i) {
    const hurts = rule.conflicts?.length > 0;
    const made = Picture.make("svg", { class: "sample", viewBox: "0 0 40 14", "aria-hidden": true });
    made.append(
      Picture.make("path", { d: "M2 7H30", stroke: colour(i), "stroke-width": 2.6, ...(hurts ? { "stroke-dasharray": "6 4" } : {}) }),
      Picture.make("circle", { cx: 33, cy: 7, r: 5, stroke: colour(i), "stroke-width": 2, fill: hurts ? "none" : colour(i) }),
    );
    return made;
  }

  function card(rule, i) {
    const star = element("input", { type: "checkbox", checked: rule.starred, onchange: () => change(i, spell(made.rule, made.rule.parameters, star.checked)) });
    star.dataset.focus = `star-${i}`;
    const remove = element("button", { type: "button", ariaLabel: `Remove ${rule.label}`, onclick: () => drop(i) }, "×");
    const named = rule.name ? [element("label", {}, star, "normalized")] : [];
    const head = element("div", { className: "head" }, sample(rule, i), element("span", { className: "label" }, rule.label), ...named, remove);
    const about = catalogue.rules.find((one) => one.name === rule.name)?.about ?? "";
    head.title = about;
    const made = element("li", {}, head, ...rule.dials.map((dial) => dialRow(rule.label, () => made.rule, dial, i)), element("dl"));
    made.rule = rule;
    return made;
  }

  function drop(i) {
    state.rules.splice(i, 1);
    ask();
    find("add").focus();
  }

  function dialRow(label, rule, dial, i) {
    const input = element("input", { type: "range", ariaLabel: `${dial.label} of ${label}` });
    input.dataset.focus = `dial-${i}-${dial.key}`;
    input.addEventListener("input", () => {
      const now = rule().dials.find((one) => one.key === dial.key); // its ends may depend on the number of gradients
      const value = String(valueAt(now, Number(input.value)));
      rule().parameters[dial.key] = value;
      input.nextElementSibling.textContent = value;
      change(i, spell(rule(), rule().parameters, rule().starred));
    });
    input.addEventListener("change", speak);
    return element("div", { className: "dial" }, element("span", {}, dial.label), input, element("output"));
  }

  function valueAt(dial, position) {
    if (dial.whole) return position;
    const part = position / STEPS;
    const value = dial.log ? dial.low * (dial.high / dial.low) ** part : dial.low + part * (dial.high - dial.low);
    const short = Number(value.toPrecision(3));
    return Math.abs(short) < 1e-9 ? 0 : Math.min(Math.max(short, dial.low), dial.high);
  }

  function positionOf(dial, value) {
    if (dial.whole) return value;
    const part = dial.log ? Math.log(value / dial.low) / Math.log(dial.high / dial.low) : (value - dial.low) / (dial.high - dial.low);
    return Math.round(STEPS * part);
  }

  function setDial(row, rule, dial, i) {
    const [, input, output] = row.children, value = Number(dial.value);
    // Fewer gradients may leave a value outside its range.
    if (rule.error && (value < dial.low || value > dial.high)) {
      const inside = { ...rule.parameters, [dial.key]: String(Math.min(Math.max(value, dial.low), dial.high)) };
      queueMicrotask(() => change(i, spell(rule, inside, rule.starred)));
    }
    input.min = dial.whole ? dial.low : 0;
    input.max = dial.whole ? dial.high : STEPS;
    if (Number.isFinite(value) && document.activeElement !== input) input.value = positionOf(dial, value);
    output.textContent = dial.value;
    input.setAttribute("aria-valuetext", dial.value);
  }

  // ---- gradients

  function gradientTable() {
    const n = state.gradients[0].length, m = state.gradients.length;
    const columns = ["", ...Array.from({ length: n }, (_, i) => `θ${"₀₁₂"[i]}`), "", "|g|", ...state.gradients.map((_, k) => `cos ${k}`)];
    const rows = state.gradients.map((gradient, k) => {
      const cells = gradient.map((value, i) => element("td", {}, coordinate(k, i)));
      const cosines = state.gradients.map((_, j) => element("td"));
      cosines.forEach((cell, j) => { cell.dataset.cosine = j; });
      const remove = element("button", { type: "button", ariaLabel: `Remove gradient ${k}`, disabled: m <= 2, onclick: () => removeGradient(k) }, "×");
      const row = element("tr", {}, element("th", { scope: "row" }, `gradient ${k}`), ...cells, element("td", {}, remove), element("td", { className: "norm" }), ...cosines);
      row.dataset.k = k;
      return row;
    });
    const head = element("tr", {}, ...columns.map((text) => element(text ? "th" : "td", text ? { scope: "col" } : {}, text)));
    find("gradients").replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
    find("more").disabled = m >= 12;
    find("dimensions").value = n;
    find("hint").textContent = n === 2
      ? "Keys: Tab to a gradient, then the arrow keys; with Shift, ten times as far."
      : "Drag beside the gradients to turn the picture; a tip moves in the plane of the screen. Keys: Tab to a gradient, then the arrow keys and Page Up or Page Down (with Shift, ten times as far); on the picture itself, the arrow keys turn it.";
  }

  function coordinate(k, i) {
    const input = element("input", { type: "number", step: "any", ariaLabel: `gradient ${k}, coordinate ${i}`, value: state.gradients[k][i] });
    input.addEventListener("input", () => {
      if (input.value === "" || !Number.isFinite(input.valueAsNumber)) return;
      state.gradients[k] = state.gradients[k].map((value, j) => (j === i ? input.valueAsNumber : value));
      ask();
      speak();
    });
    return input;
  }

  function fillInputs() {
    const inputs = find("gradients").querySelectorAll("input");
    state.gradients.flat().forEach((value, i) => {
      if (inputs[i] && inputs[i] !== document.activeElement) inputs[i].value = value;
    });
  }

  function removeGradient(k) {
    state.gradients.splice(k, 1);
    restart();
    find("more").focus();
  }

  // After the number of gradients or of dimensions changed.
  function restart() {
    gradientTable();
    markPreset();
    ask();
    speak();
  }

  find("more").addEventListener("click", () => {
    const n = state.gradients[0].length, turn = 2.4 * state.gradients.length; // not on another one
    const far = Number((0.6 * state.view.radius).toPrecision(2));
    state.gradients.push([far * Math.cos(turn), far * Math.sin(turn), 0].slice(0, n).map((value) => Number(value.toPrecision(2))));
    restart();
  });
  find("dimensions").addEventListener("change", () => {
    const n = Number(find("dimensions").value);
    state.gradients = state.gradients.map((gradient) => [...gradient, 0].slice(0, n));
    restart();
  });

  // ---- presets, and the link that restores the state

  function choose(preset) {
    notice = "";
    state.gradients = preset.gradients.map((row) => [...row]);
    state.rules = [...preset.rules];
    if (preset.view) [state.view.elevation, state.view.azimuth] = preset.view;
    fit();
    restart();
  }

  function markPreset() {
    const chosen = catalogue.presets.find((preset) => JSON.stringify(preset.gradients) === JSON.stringify(state.gradients));
    find("about").textContent = chosen?.about ?? "Your own gradients. The address of this page restores them.";
    [...find("presets").children].forEach((button, i) => button.setAttribute("aria-pressed", catalogue.presets[i] === chosen));
  }

  function written() {
    const { view } = state, entries = { g: state.gradients.map((row) => row.join(",")).join(";"), r: state.rules.join(";") };
    if (state.gradients[0].length === 3) entries.v = `${Math.round(view.azimuth)},${Math.round(view.elevation)}`;
    if (state.equal) entries.e = "1";
    const plain = { "%2C": ",", "%3B": ";", "%28": "(", "%29": ")", "%3D": "=" };
    return `#${new URLSearchParams(entries)}`.replace(/%2C|%3B|%28|%29|%3D/g, (code) => plain[code]);
  }

  function save() {
    markPreset();
    clearTimeout(saving);
    saving = setTimeout(saveNow, 200); // browsers limit how often an address changes
  }

  function saveNow() {
    clearTimeout(saving);
    if (written() !== location.hash) history.replaceState(null, "", written());
  }

  function restore() {
    const entries = new URLSearchParams(location.hash.slice(1));
    if (!entries.has("g")) {
      choose(catalogue.presets[0]);
      return;
    }
    const gradients = entries.get("g").split(";").map((row) => row.split(",").map((text) => (text.trim() ? Number(text) : NaN)));
    const n = gradients[0].length;
    if ((n !== 2 && n !== 3) || !gradients.every((row) => row.length === n && row.every(Number.isFinite))) {
      choose(catalogue.presets[0]);
      notice = "This link cannot be read: after g= it needs gradients of two or three numbers, such as #g=3,0;-1,1. Here is the first preset.";
      return;
    }
    notice = "";
    state.gradients = gradients;
    state.rules = (entries.get("r") ?? "").split(";").filter((text) => text.trim());
    const [azimuth, elevation] = (entries.get("v") ?? "").split(",").map(Number);
    if (Number.isFinite(azimuth) && Number.isFinite(elevation)) Object.assign(state.view, { azimuth, elevation });
    else Object.assign(state.view, AWAY);
    state.equal = find("equal").checked = entries.get("e") === "1";
    fit();
    restart();
  }

  async function copy(text, what) {
    try {
      await navigator.clipboard.writeText(text);
      find("said").textContent = `${what} copied`;
    } catch {
      find("said").textContent = `The browser does not let a page copy: take ${what === "Link" ? "the address of this page" : "the program below"}`;
      if (what !== "Link") document.querySelector("details").open = true;
    }
  }

  // ---- start

  find("presets").append(...catalogue.presets.map((preset) => element("button", { type: "button", title: preset.about, onclick: () => choose(preset) }, preset.name)));
  find("add").append(element("option", { value: "" }, "choose"), ...catalogue.rules.map((rule) => element("option", { value: rule.text }, rule.label)));
  find("add").addEventListener("change", () => {
    if (find("add").value) state.rules.push(find("add").value);
    find("add").value = "";
    ask();
  });
  find("in").addEventListener("click", () => zoom(0.8));
  find("out").addEventListener("click", () => zoom(1.25));
  find("fit").addEventListener("click", () => { fit(); paint(); });
  find("equal").addEventListener("change", () => { state.equal = find("equal").checked; paint(); save(); });
  find("link").addEventListener("click", () => { saveNow(); copy(location.href, "Link"); });
  find("python").addEventListener("click", () => copy(answer.program ?? "", "Program"));
  dark.addEventListener("change", () => { if (answer.norms) showRules(); paint(); });
  addEventListener("hashchange", restore);
  new ResizeObserver(paint).observe(find("picture"));
  restore();
})();
