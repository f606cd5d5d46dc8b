// Draws the panels of a recording from the data that the page holds, and draws them again whenever a choice changes.
"use strict";
(() => {
  const watch = JSON.parse(document.getElementById("watch").textContent);
  const form = document.getElementById("controls");
  const boxes = [...form.querySelectorAll("input[name=loss]")];
  const plots = [...document.querySelectorAll(".plot")];
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 600px)");
  const coarse = window.matchMedia("(pointer: coarse)").matches;
  let printing = false;

  const LIGHT = { ink: "#1d2430", grid: "#e9ecf0", axis: "#a8b0bc", ground: "#ffffff", low: "#f2f4f7", hot: "#D55E00", cold: "#0072B2" };
  const DARK = { ink: "#e6e9ee", grid: "#2a3038", axis: "#5b6572", ground: "#15181d", low: "#20252d", hot: "#FF8A3D", cold: "#4DA9E8" };
  const GENERAL = ["hot", "ink", "cold"]; // lines that are about no single loss
  const DASHES = ["solid", "dot", "dash"];

  const theme = () => (prefersDark.matches && !printing ? DARK : LIGHT);
  const shorter = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

  function lines(panel, now) {
    const hidden = new Set(boxes.filter((box) => !box.checked).map((box) => Number(box.value)));
    return panel.lines.map((line, i) => {
      const look = line.loss === null ? null : watch.losses[line.loss];
      const colour = look === null ? now[GENERAL[i]] : now === DARK ? look.onDark : look.colour;
      return {
        type: "scatter", mode: panel.steps.length > 1 ? "lines" : "markers", x: panel.steps, y: line.values, name: line.label,
        line: { color: colour, dash: look === null ? DASHES[i] : look.dash, width: 1.8 }, marker: { color: colour },
        visible: line.loss === null || !hidden.has(line.loss), showlegend: look === null && panel.lines.length > 1,
        hovertemplate: `<b>${line.label}</b><br>step %{x:,.0f}<br>%{y:.4g}<extra></extra>`, meta: { loss: line.loss },
      };
    });
  }

  function heat(panel, now) {
    const between = panel.signed ? [[0, now.hot], [0.5, now.low], [1, now.cold]] : [[0, now.low], [1, now.hot]];
    const shares = panel.columns.length > 0;
    const reach = Math.max(0.1, ...panel.values.flat().map(Math.abs));
    const range = panel.signed ? { zmin: -reach, zmax: reach } : shares ? { zmin: 0, zmax: 1 } : {};
    const across = panel.columns.length ? "%{x}" : "step %{x:,.0f}";
    const scale = { thickness: 10, outlinewidth: 0, tickfont: { color: now.ink, size: 11 }, len: 0.9, tickformat: shares ? ".0%" : "" };
    return [{
      type: "heatmap", z: panel.values, y: panel.rows.map((_, i) => i), x: panel.columns.length ? panel.columns.map((_, i) => i) : panel.steps,
      colorscale: between, colorbar: scale, ...range, hoverongaps: false, xgap: shares && panel.columns.length < 40 ? 1 : 0, ygap: panel.rows.length < 60 ? 1 : 0,
      customdata: panel.values.map((row, i) => row.map((_, j) => [panel.rows[i], shares ? panel.columns[j] : ""])),
      hovertemplate: `<b>%{customdata[0]}</b><br>${shares ? "%{customdata[1]}" : across}<br>${panel.axis} %{z:${shares ? ".1%" : ".3g"}}<extra></extra>`,
      meta: { heat: true },
    }];
  }

  function decades(panel) {
    const found = panel.lines.flatMap((line) => line.values).filter((value) => value > 0);
    return found.length ? Math.log10(Math.max(...found) / Math.min(...found)) : 0;
  }

  function named(labels, room) {
    const most = narrow.matches ? 17 : 24;
    const every = Math.ceil((17 * labels.length) / room);
    const places = labels.map((_, i) => i).filter((i) => i % every === 0);
    return { tickmode: "array", tickvals: places, ticktext: places.map((i) => shorter(labels[i], most)), showgrid: false, zeroline: false };
  }

  function layout(panel, now) {
    const look = { gridcolor: now.grid, linecolor: now.axis, automargin: true, tickcolor: now.axis, color: now.ink, zeroline: false, tickfont: { size: 12 } };
    const logarithmic = form.elements.logarithmic.checked && panel.steps !== null;
    const time = { ...look, title: { text: "step", standoff: 6 }, type: logarithmic ? "log" : "linear", nticks: 6, tickformat: ",d" };
    const shared = {
      autosize: !printing, ...(printing ? { width: 340, height: 270 } : { height: panel.height }),
      hovermode: "closest", paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 13, color: now.ink }, margin: { l: 50, r: 10, t: panel.lines.length > 1 && panel.lines[0].loss === null ? 52 : 28, b: 40 }, // room for a legend
      hoverlabel: { bgcolor: now.ground, bordercolor: now.axis, font: { color: now.ink, size: 13 }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: now.axis, activecolor: now.ink },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)" },
      uirevision: `${logarithmic}`, dragmode: coarse ? false : "zoom", // a finger scrolls the page
    };
    if (panel.values !== null) {
      const xaxis = panel.columns.length ? { ...look, ...named(panel.columns, narrow.matches ? 250 : 460), tickangle: narrow.matches || panel.columns.length > 5 ? -45 : 0 } : time;
      return { ...shared, xaxis, yaxis: { ...look, ...named(panel.rows, panel.height - 100), autorange: "reversed" } };
    }
    const upright = panel.logarithmic ? { type: "log", dtick: decades(panel) > 2 ? 1 : "D2" } : { rangemode: "tozero" };
    return { ...shared, xaxis: time, yaxis: { ...look, title: { text: panel.axis, standoff: 6 }, ...upright } };
  }

  function draw() {
    const now = theme();
    const config = {
      responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", // nothing leaves this page
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], toImageButtonOptions: { format: "svg" },
    };
    return Promise.all(plots.map((plot, i) => {
      const panel = watch.panels[i];
      return Plotly.react(plot, panel.values === null ? lines(panel, now) : heat(panel, now), layout(panel, now), config);
    }));
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", draw);
  prefersDark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
  const print = (on) => () => {
    printing = on;
    draw();
  };
  window.addEventListener("beforeprint", print(true));
  window.addEventListener("afterprint", print(false));
  draw().then(() => { document.documentElement.dataset.drawn = "yes"; });
})();
