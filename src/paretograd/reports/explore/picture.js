"use strict";

// The picture: gradients with handles, directions, and the areas that the server sent. It only projects and draws.
const Picture = (() => {
  const NAMESPACE = "http://www.w3.org/2000/svg";
  const SPHERE = 0.43; // radius of the view in the picture's width
  const FAR = 4; // in the plane, cones end this many radii from the origin: outside the picture
  const SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉";
  const subscript = (k) => [...String(k)].map((digit) => SUBSCRIPTS[digit]).join("");
  const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
  const add = (a, b, factor) => a.map((value, i) => value + factor * b[i]);

  function make(tag, attributes = {}, text = "") {
    const made = document.createElementNS(NAMESPACE, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return made;
  }

  // The unit vectors of the screen, to the right and up, and towards the eye, which looks from these degrees.
  function screen(n, view) {
    if (n === 2) return { right: [1, 0], up: [0, 1], eye: [0, 0] };
    const a = (view.azimuth * Math.PI) / 180, e = (view.elevation * Math.PI) / 180;
    return {
      right: [-Math.sin(a), Math.cos(a), 0],
      up: [-Math.sin(e) * Math.cos(a), -Math.sin(e) * Math.sin(a), Math.cos(e)],
      eye: [Math.cos(e) * Math.cos(a), Math.cos(e) * Math.sin(a), Math.sin(e)],
    };
  }

  // Coordinates are rounded to this; keys move by five of it, with Shift by fifty.
  const grain = (radius) => 10 ** (Math.floor(Math.log10(radius)) - 2);
  const rounded = (vector, radius) => vector.map((value) => Number((Math.round(value / grain(radius)) * grain(radius)).toPrecision(12)));

  const trace = (points, close) => `M${points.map((point) => `${point[0].toFixed(1)} ${point[1].toFixed(1)}`).join("L")}${close ? "Z" : ""}`;
  // Polygons that turn one way only: with the rule "nonzero", one path then fills their union, without seams.
  function turned(points) {
    let area = 0;
    points.forEach((point, i) => {
      const next = points[(i + 1) % points.length];
      area += point[0] * next[1] - next[0] * point[1];
    });
    return area < 0 ? [...points].reverse() : points;
  }

  // events: move(k, vector), turn(azimuth, elevation), settle().
  function build(svg, events) {
    const [behind, handles] = [make("g"), make("g")];
    svg.append(behind, handles);
    const drags = new Map(); // by pointer: two fingers drag two gradients
    let now = null, size = 0;

    function project(vector) {
      const { right, up } = now.basis;
      return [size / 2 + now.scale * dot(vector, right), size / 2 - now.scale * dot(vector, up)];
    }

    function axes() {
      const n = now.gradients[0].length, radius = now.view.radius, made = [];
      for (let i = 0; i < n; i += 1) {
        const end = Array.from({ length: n }, (_, k) => (k === i ? radius * (n === 2 ? 2 : 1.08) : 0));
        made.push(make("path", { class: "axis", d: trace([project(end.map((value) => -value)), project(end)]) }));
        const [x, y] = n === 3 ? project(end) : i ? [size / 2 + 16, 16] : [size - 16, size / 2 + 18];
        made.push(make("text", { x, y, "text-anchor": "middle" }, `θ${subscript(i)}`));
      }
      if (n === 3) made.push(make("circle", { class: "axis", cx: size / 2, cy: size / 2, r: SPHERE * size }));
      if (n === 2) made.push(...ticks(radius));
      return made;
    }

    function ticks(radius) {
      const power = 10 ** Math.floor(Math.log10(radius)), step = power * (radius / power < 2 ? 0.5 : radius / power < 5 ? 1 : 2);
      const made = [];
      for (let k = -3; k <= 3; k += 1) {
        const value = Number((k * step).toPrecision(3));
        if (k === 0 || Math.abs(value) > 1.05 * radius) continue;
        const [x, y] = project([value, 0]);
        made.push(make("path", { class: "axis", d: trace([[x, y - 4], [x, y + 4]]) }), make("text", { x, y: y + 18, "text-anchor": "middle", opacity: 0.8 }, value));
      }
      return made;
    }

    function region(found, name) {
      const far = now.view.radius * (now.gradients[0].length === 2 ? FAR : 1), made = [];
      const placed = (points) => points.map((point) => project(point.map((value) => far * value)));
      if (found.whole) {
        made.push(now.gradients[0].length === 2
          ? make("rect", { class: name, width: size, height: size })
          : make("circle", { class: name, cx: size / 2, cy: size / 2, r: SPHERE * size }));
      }
      const d = found.polygons.map((polygon) => trace(turned(placed(polygon)), true)).join("");
      if (d) made.push(make("path", { class: name, d }));
      const lines = found.lines.map((line) => trace(placed(line))).join("");
      if (lines) made.push(make("path", { class: `${name}-edge`, d: lines }));
      return made;
    }

    function hull(found) {
      const tips = now.gradients.map(project);
      if (found.edges.flat().some((k) => k >= tips.length)) return []; // an answer from before a gradient was removed
      const faces = found.faces.map((face) => trace(turned(face.map((k) => tips[k])), true)).join("");
      const edges = found.edges.map(([i, j]) => trace([tips[i], tips[j]])).join("");
      return [make("path", { class: "hull", d: faces }), make("path", { class: "hull-edge", d: edges })];
    }

    function directions() {
      const made = [], tips = [], origin = [size / 2, size / 2];
      now.rules.forEach((rule, i) => {
        const vector = rule.error ? null : now.equal ? rule.unit?.map((value) => 0.6 * now.view.radius * value) : rule.direction;
        if (!vector || vector.length !== now.gradients[0].length) return;
        const tip = project(vector), colour = now.colour(i), hurts = rule.conflicts.length > 0;
        made.push(make("path", { class: "direction", d: trace([origin, tip]), stroke: colour, ...(hurts ? { "stroke-dasharray": "8 6" } : {}) }));
        made.push(make("circle", { class: hurts ? "hollow" : "full", cx: tip[0], cy: tip[1], r: 5.5, stroke: colour, "stroke-width": 2.4, ...(hurts ? {} : { fill: colour }) }));
        const same = tips.find((other) => Math.hypot(other.tip[0] - tip[0], other.tip[1] - tip[1]) < 8);
        if (same) same.labels.push(rule.label);
        else tips.push({ tip, colour, labels: [rule.label], zero: !rule.unit });
      });
      return [...made, ...names(tips)];
    }

    // A name stands beyond its tip; if another name or tip is there, beside it, above, below, or further away.
    function names(tips) {
      const taken = [...now.gradients.map((gradient) => [...beyond(project(gradient), 20), 24, 17]), ...tips.map(({ tip }) => [...tip, 12, 14])];
      return tips.map(({ tip, colour, labels, zero }) => {
        const listed = labels.length > 3 ? `${labels.slice(0, 2).join(", ")} and ${labels.length - 2} more` : labels.join(", ");
        const text = zero ? `d = 0: ${listed}` : listed, width = 9.4 * text.length, aside = width / 2 + 10;
        const [x, y] = beyond(tip, 16), outward = [x + (Math.sign(x - tip[0]) * width) / 2, y];
        const beside = [17, -17, 34, -34].flatMap((down) => [[tip[0] + aside, tip[1] + down], [tip[0] - aside, tip[1] + down]]);
        const spots = [outward, [tip[0] + aside, tip[1]], [tip[0] - aside, tip[1]], [tip[0], tip[1] - 18], [tip[0], tip[1] + 18], ...beside];
        const inside = ([a, b]) => a > width / 2 && a < size - width / 2 && b > 8 && b < size - 8;
        const free = ([a, b]) => inside([a, b]) && !taken.some(([c, d, w, h]) => Math.abs(c - a) < (w + width) / 2 && Math.abs(d - b) < h);
        const spot = spots.find(free) ?? spots.find(inside) ?? outward;
        taken.push([...spot, width, 17]);
        return make("text", { class: "name", x: spot[0], y: spot[1] + 5, "text-anchor": "middle", style: `fill: ${colour}` }, text);
      });
    }

    function beyond(tip, distance) {
      const x = tip[0] - size / 2, y = tip[1] - size / 2, length = Math.hypot(x, y);
      return length < 1 ? [tip[0] + distance, tip[1] + distance] : [tip[0] + (distance * x) / length, tip[1] + (distance * y) / length];
    }

    function handle(k) {
      const made = make("g", { class: "handle", tabindex: 0, role: "slider", "aria-roledescription": "gradient that can be moved", "aria-label": `gradient ${k}` });
      made.append(make("path", { class: "shaft" }), make("circle", { class: "grip", r: 20 }), make("circle", { class: "tip", r: 8 }), make("text", { class: "name", "text-anchor": "middle" }, `g${subscript(k)}`));
      made.addEventListener("keydown", (event) => onKey(event, k));
      made.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false }); // or the page may scroll
      made.addEventListener("pointerdown", (event) => start(event, made, { k, from: now.gradients[k] }));
      return made;
    }

    function placeHandles() {
      while (handles.children.length > now.gradients.length) handles.lastChild.remove();
      while (handles.children.length < now.gradients.length) handles.append(handle(handles.children.length));
      now.gradients.forEach((gradient, k) => {
        const made = handles.children[k], tip = project(gradient), [x, y] = beyond(tip, 20);
        made.setAttribute("aria-valuetext", gradient.join(", "));
        made.setAttribute("aria-valuenow", gradient[0]);
        const [shaft, grip, dotted, name] = made.children;
        shaft.setAttribute("d", trace([[size / 2, size / 2], tip]));
        for (const circle of [grip, dotted]) {
          circle.setAttribute("cx", tip[0]);
          circle.setAttribute("cy", tip[1]);
        }
        name.setAttribute("x", x);
        name.setAttribute("y", y + 5);
      });
    }

    function onKey(event, k) {
      const { right, up, eye } = now.basis, step = grain(now.view.radius) * (event.shiftKey ? 50 : 5);
      const ways = { ArrowRight: [right, 1], ArrowLeft: [right, -1], ArrowUp: [up, 1], ArrowDown: [up, -1], PageUp: [eye, 1], PageDown: [eye, -1] };
      if (!(event.key in ways) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      const [way, sign] = ways[event.key];
      events.move(k, rounded(add(now.gradients[k], way, sign * step), now.view.radius));
      events.settle();
    }

    function start(event, target, drag) {
      if (event.button !== 0) return;
      event.stopPropagation();
      try {
        target.setPointerCapture(event.pointerId);
      } catch {
        // A pointer that a script made up cannot be captured; its moves reach the picture all the same.
      }
      if (target.focus) target.focus({ preventScroll: true });
      drags.set(event.pointerId, { ...drag, x: event.clientX, y: event.clientY, view: { ...now.view }, basis: now.basis });
    }

    svg.addEventListener("pointerdown", (event) => {
      if (now.gradients[0].length === 3) start(event, svg, {});
    });
    svg.addEventListener("pointermove", (event) => {
      const drag = drags.get(event.pointerId);
      if (!drag) return;
      const across = event.clientX - drag.x, down = event.clientY - drag.y;
      if (drag.k === undefined) events.turn(drag.view.azimuth - 0.5 * across, drag.view.elevation + 0.5 * down);
      else {
        const moved = add(add(drag.from, drag.basis.right, across / now.scale), drag.basis.up, -down / now.scale);
        events.move(drag.k, rounded(moved, now.view.radius));
      }
    });
    for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) {
      svg.addEventListener(name, (event) => {
        if (drags.delete(event.pointerId)) events.settle();
      });
    }
    svg.addEventListener("keydown", (event) => {
      const ways = { ArrowRight: [5, 0], ArrowLeft: [-5, 0], ArrowUp: [0, 5], ArrowDown: [0, -5] };
      if (event.target !== svg || !(event.key in ways) || now.gradients[0].length === 2) return;
      event.preventDefault();
      events.turn(now.view.azimuth + ways[event.key][0], now.view.elevation + ways[event.key][1]);
    });

    // given: gradients, view, equal, rules, cone, dual, hull (all that the server sent may be missing), colour(i).
    function draw(given) {
      size = svg.clientWidth;
      const n = given.gradients[0].length;
      now = { ...given, basis: screen(n, given.view), scale: (SPHERE * size) / given.view.radius };
      svg.setAttribute("viewBox", `0 0 ${size} ${size}`);
      svg.classList.toggle("space", n === 3);
      svg.setAttribute("tabindex", n === 3 ? 0 : -1);
      behind.replaceChildren(
        ...(given.cone ? region(given.cone, "cone") : []),
        ...(given.dual ? region(given.dual, "dual") : []),
        ...axes(),
        ...(given.hull ? hull(given.hull) : []),
        ...directions(),
      );
      placeHandles();
    }

    return { draw };
  }

  return { build, make };
})();
