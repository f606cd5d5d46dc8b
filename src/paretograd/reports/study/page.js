// Draws the panels of a study from the data that the page holds, and draws them again whenever a choice changes.
"use strict";
(() => {
  const study = JSON.parse(document.getElementById("study").textContent);
  const form = document.getElementById("controls");
  const boxes = [...form.querySelectorAll("input[name=method]")];
  const plots = [...document.querySelectorAll(".plot")];
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const coarse = window.matchMedia("(pointer: coarse)").matches;
  let printing = false;

  const LIGHT = { ink: "#1d2430", grid: "#e9ecf0", axis: "#a8b0bc", front: "#1a1a1a", bound: "#5c6572", ground: "#ffffff" };
  const DARK = { ink: "#e6e9ee", grid: "#2a3038", axis: "#5b6572", front: "#f2f2f2", bound: "#a3adba", ground: "#15181d" };

  const PAPER = { autosize: false, width: 340, height: 270 }; // two in a row of A4 or letter

  function choices() {
    const dark = prefersDark.matches && !printing;
    return {
      methods: new Set(boxes.filter((box) => box.checked).map((box) => Number(box.value))),
      seed: form.elements.seed.value,
      bounds: form.elements.bounds ? form.elements.bounds.checked : false,
      logarithmic: form.elements.logarithmic.checked,
      theme: dark ? DARK : LIGHT,
      colour: (method) => (dark ? study.methods[method].onDark : study.methods[method].colour),
    };
  }

  const seedChosen = (seed, now) => now.seed === "all" || Number(now.seed) === seed;
  const behind = (seed, now) => now.seed === "all" && seed !== 0; // seed 0 is the one that the figures show

  function hover(run, rows) {
    const names = study.objectives.map((name, k) => `${name} = %{customdata[${k + 1}]:.5g}<br>`).join("");
    return {
      customdata: rows.map((i) => [run.iterations[i], ...run.losses.map((loss) => loss[i]), run.gamma[i]]),
      hovertemplate:
        `<b>%{meta.label}</b>, ${study.one} %{meta.seedName}<br>iteration %{customdata[0]:,d}<br>${names}` +
        `γ = %{customdata[${run.losses.length + 1}]:.4g}<extra></extra>`,
    };
  }

  // The line of a run, and the marker of its end (in objective space also that of its start).
  function drawn(run, columns, now, type, start) {
    const method = study.methods[run.method];
    const last = run.iterations.length - 1;
    const pick = (rows) => Object.fromEntries(Object.entries(columns).map(([axis, values]) => [axis, rows.map((i) => values[i])]));
    const shared = {
      type,
      name: method.label,
      visible: now.methods.has(run.method) && seedChosen(run.seed, now),
      opacity: behind(run.seed, now) ? 0.4 : 1,
      showlegend: false,
    };
    const meta = { method: run.method, seed: run.seed, label: method.label, seedName: study.seeds[run.seed] };
    const rows = [...run.iterations.keys()];
    const colour = now.colour(run.method);
    const ends = start ? [0, last] : [last];
    const symbols = start ? ["circle-open", method.symbol] : [method.symbol];
    const flat = (symbol) => (type === "scatter3d" ? symbol.replace(/^(triangle\S*|pentagon|star)(-open)?$/, "diamond$2") : symbol);
    return [
      {
        ...shared, ...columns, ...hover(run, rows), mode: "lines", meta: { ...meta, kind: "run" },
        line: { color: colour, dash: method.dash, width: behind(run.seed, now) ? 0.9 : method.width * (type === "scatter3d" ? 2 : 1) },
      },
      {
        ...shared, ...pick(ends), ...hover(run, ends), mode: "markers", meta: { ...meta, kind: "end" },
        marker: { color: colour, symbol: symbols.map(flat), size: type === "scatter3d" ? 4 : behind(run.seed, now) ? 5 : 8.5, line: { color: colour, width: 1.4 } },
      },
    ];
  }

  const lastSeen = (now) => Math.max(1, ...study.runs.filter((run) => now.methods.has(run.method) && seedChosen(run.seed, now)).map((run) => run.iterations[run.iterations.length - 1]));

  const still = (trace, kind) => ({ type: "scatter", hoverinfo: "skip", showlegend: false, meta: { kind }, ...trace });

  function lossTraces(panel, now) {
    return study.runs.flatMap((run) => drawn(run, { x: run.iterations, y: run.losses[panel.objective] }, now, "scatter"));
  }

  function gammaTraces(panel, now) {
    const traces = study.bounds.map((bound) => ({
      type: "scatter", mode: "lines", x: bound.iterations, y: bound.values, showlegend: false,
      line: { color: now.theme.bound, dash: "dot", width: behind(bound.seed, now) ? 0.8 : 1.8 },
      visible: now.bounds && seedChosen(bound.seed, now) && bound.methods.some((method) => now.methods.has(method)),
      meta: { kind: "bound", seed: bound.seed, methods: bound.methods, label: bound.label, names: bound.names, seedName: study.seeds[bound.seed] },
      hovertemplate: `<b>%{meta.label}</b>, ${study.one} %{meta.seedName}<br>for %{meta.names}<br>least γ up to iteration %{x:,d}<br>is at most %{y:.4g}<extra></extra>`,
    }));
    if (study.stopGamma !== null) {
      const line = { color: now.theme.bound, width: 1, dash: "3px 3px" };
      traces.push(still({ mode: "lines", x: [now.logarithmic ? 1 : 0, lastSeen(now)], y: [study.stopGamma, study.stopGamma], line }, "stop"));
    }
    return [...traces, ...study.runs.flatMap((run) => drawn(run, { x: run.iterations, y: run.gamma }, now, "scatter"))];
  }

  function spaceTraces(panel, now) {
    const deep = study.m === 3;
    const axes = deep ? ["x", "y", "z"] : ["x", "y"];
    const place = (values) => Object.fromEntries(axes.map((axis, k) => [axis, values[k]]));
    const type = deep ? "scatter3d" : "scatter";
    const front = deep
      ? { type, mode: "markers", marker: { color: now.theme.bound, size: 1.8, opacity: 0.6 } }
      : { mode: "lines", line: { color: now.theme.front, width: 2.6, simplify: false } };
    const traces = study.front ? [still({ ...front, ...place(study.front) }, "front")] : [];
    return [...traces, ...study.runs.flatMap((run) => drawn(run, place(run.losses), now, type, true))];
  }

  function parallelTraces(panel, now) {
    const traces = study.front ? [still({ mode: "lines", x: study.front[0], y: study.front[1], line: { color: now.theme.axis, width: 0.6 } }, "front")] : [];
    study.parallel.starts.forEach((start, seed) => {
      const line = { color: now.theme.ink, width: 1 };
      traces.push(still({ mode: "lines+markers", x: study.parallel.names, y: start, line, marker: { symbol: "circle-open" }, visible: seedChosen(seed, now) }, "start"));
    });
    study.runs.forEach((run, number) => {
      const method = study.methods[run.method];
      const colour = now.colour(run.method);
      traces.push({
        type: "scatter", mode: "lines+markers", x: study.parallel.names, y: study.parallel.ends[number], showlegend: false,
        customdata: study.parallel.losses[number], opacity: behind(run.seed, now) ? 0.4 : 1,
        visible: now.methods.has(run.method) && seedChosen(run.seed, now),
        line: { color: colour, dash: method.dash, width: method.width }, marker: { color: colour, symbol: method.symbol, size: 8 },
        meta: { kind: "run", method: run.method, seed: run.seed, label: method.label, seedName: study.seeds[run.seed], last: run.iterations[run.iterations.length - 1] },
        hovertemplate: `<b>%{meta.label}</b>, ${study.one} %{meta.seedName}<br>%{x} = %{customdata:.5g} at its end, iteration %{meta.last:,d}<extra></extra>`,
      });
    });
    return traces;
  }

  const TRACES = { loss: lossTraces, gamma: gammaTraces, space: spaceTraces, parallel: parallelTraces };

  function layout(panel, now) {
    const { ink, grid, axis, ground } = now.theme;
    const look = { gridcolor: grid, linecolor: axis, zerolinecolor: grid, automargin: true, ticks: "outside", tickcolor: axis, color: ink };
    const made = (title, more) => ({ ...look, title: { text: title, standoff: 8 }, ...more });
    const made3 = (title) => ({ title: { text: title }, gridcolor: axis, zerolinecolor: axis, color: ink, backgroundcolor: ground });
    const shared = {
      ...(printing ? PAPER : { autosize: true }), showlegend: false, hovermode: "closest", paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 13, color: ink }, margin: { l: 56, r: 14, t: 28, b: 44 },
      hoverlabel: { bgcolor: ground, bordercolor: axis, font: { color: ink, size: 13 }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: axis, activecolor: ink },
      uirevision: `${now.logarithmic}`, dragmode: coarse ? false : "zoom", // a finger scrolls the page
    };
    const names = study.axes;
    if (panel.kind === "space" && study.m === 3) {
      const scene = { camera: { eye: { x: 1.6, y: 1.6, z: 1.0 } }, xaxis: made3(names[0]), yaxis: made3(names[1]), zaxis: made3(names[2]) };
      return { ...shared, dragmode: "turntable", margin: { l: 0, r: 0, t: 0, b: 0 }, scene };
    }
    if (panel.kind === "space") return { ...shared, xaxis: made(names[0]), yaxis: made(names[1]) };
    if (panel.kind === "parallel") {
      return { ...shared, xaxis: made("objective", { type: "category" }), yaxis: made("loss, from its least to its largest value here") };
    }
    const kind = now.logarithmic ? { type: "log", dtick: 1 } : { type: "linear", rangemode: "tozero", nticks: printing ? 4 : 6 };
    const xaxis = made("iteration", { ...kind, tickformat: ",d", zeroline: false });
    if (panel.kind === "loss") return { ...shared, xaxis, yaxis: made(names[panel.objective], { zeroline: false }) };
    const yaxis = made(printing ? "γ" : "γ, distance to Pareto stationarity", {
      type: "log", exponentformat: "power", dtick: 1, tickfont: { size: 10.5 }, // powers are drawn a quarter larger
    });
    const note = { xref: "paper", x: 1, yref: "y", y: Math.log10(study.stopGamma), xanchor: "right", yanchor: "top", yshift: -6, showarrow: false, font: { size: 12, color: now.theme.bound } };
    const annotations = study.stopGamma === null ? [] : [{ ...note, text: `stop at γ &lt; ${study.stopGamma}` }];
    return { ...shared, xaxis, yaxis, annotations };
  }

  function draw() {
    const now = choices();
    const config = {
      responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", // nothing leaves this page
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], toImageButtonOptions: { format: "svg" },
    };
    return Promise.all(plots.map((plot, i) => Plotly.react(plot, TRACES[study.panels[i].kind](study.panels[i], now), layout(study.panels[i], now), config)));
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", draw);
  for (const button of form.querySelectorAll("button[data-check]")) {
    button.addEventListener("click", () => {
      boxes.forEach((box) => { box.checked = button.dataset.check === "all"; });
      draw();
    });
  }
  prefersDark.addEventListener("change", draw);
  const print = (on) => () => {
    printing = on;
    draw();
  };
  window.addEventListener("beforeprint", print(true));
  window.addEventListener("afterprint", print(false));
  draw().then(() => { document.documentElement.dataset.drawn = "yes"; });
})();
