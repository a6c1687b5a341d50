"use strict";
// The value of the mark nearest to the pointer or the finger, at once. The title of a mark becomes its label, because a
// browser would show a title as well, later.
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const marks = new Map();
  for (const svg of document.querySelectorAll("figure svg")) {
    const own = [...svg.querySelectorAll("use > title")].map((title) => {
      const use = title.parentNode;
      use.setAttribute("role", "img");
      use.setAttribute("aria-label", title.textContent);
      title.remove();
      return use;
    });
    if (own.length) marks.set(svg, own);
  }
  const NEAR = 24;
  const show = (event) => {
    let nearest = null, least = NEAR;
    for (const use of marks.get(event.currentTarget)) {
      const box = use.getBoundingClientRect();
      const distance = Math.hypot(
        event.clientX - (box.left + box.right) / 2, event.clientY - (box.top + box.bottom) / 2);
      if (distance < least) [nearest, least] = [box, distance, tip.textContent = use.getAttribute("aria-label")];
    }
    tip.hidden = !nearest;
    if (!nearest) return;
    const { width, height } = tip.getBoundingClientRect();
    const left = Math.max(4, Math.min(nearest.left - width / 2, document.documentElement.clientWidth - width - 4));
    const above = nearest.top - height - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 4 ? above : nearest.bottom + 8}px`;
  };
  for (const svg of marks.keys()) {
    for (const name of ["pointermove", "pointerdown"]) svg.addEventListener(name, show);
    svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") tip.hidden = true; });
  }
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
})();
// The field "my size": the best depth at a size and what the others cost, from the numbers of the first figure.
(() => {
  const form = document.getElementById("my-size");
  if (!form) return;
  const { sizes, depths, missing, step, count, start } = JSON.parse(document.getElementById("my-size-numbers").textContent);
  const [text, slider, answer] = ["text", "slider", "answer"].map((name) => document.getElementById(`my-size-${name}`));
  const [low, high] = [sizes[0], sizes[sizes.length - 1]];
  const UNITS = { k: 1e3, m: 1e6, b: 1e9, t: 1e12, thousand: 1e3, million: 1e6, billion: 1e9, trillion: 1e12 };
  const read = (value) => {
    // A comma stands between thousands only: 1,5M is refused.
    const plain = value.trim().replace(/(\d)[,_\s](?=\d{3}(?!\d))/g, "$1");
    const found = /^(\d+(?:\.\d*)?(?:e\+?\d+)?)\s*([a-z]*)$/i.exec(plain);
    const unit = found && (found[2] ? UNITS[found[2].toLowerCase()] : 1);
    return found && unit ? Number(found[1]) * unit : NaN;
  };
  const digits = (value, significant = 2) => {
    if (value === 0) return "0";
    const rounded = Number(value.toPrecision(significant));
    return value.toFixed(Math.max(0, significant - 1 - Math.floor(Math.log10(Math.abs(rounded)))));
  };
  const human = (value) => {
    for (const unit of ["trillion", "billion", "million", "thousand"]) {
      if (value >= 0.995 * UNITS[unit]) return `${digits(value / UNITS[unit])} ${unit}`;
    }
    return digits(value);
  };
  const between = (values, at, share) => {
    const [one, two] = [values[at], values[at + 1]];
    if (share < 1e-9) return one;
    if (share > 1 - 1e-9) return two;
    return one === null || two === null ? null : one + share * (two - one);
  };
  const built = (exact) => {
    return Math.max(1, step * Math.round(exact / step));
  };
  // The depths at ln N = x, the best first; empty where fewer than two can be compared.
  const compare = (x) => {
    if (!(x >= low - 1e-6 && x <= high + 1e-6)) return [];
    let at = 0;
    while (at < sizes.length - 2 && sizes[at + 1] < x) at += 1;
    const share = (x - sizes[at]) / (sizes[at + 1] - sizes[at]);
    const [left, right] = [share > 1 - 1e-9 ? at + 1 : at, share < 1e-9 ? at : at + 1];
    const found = depths.map(({ depth, loss, near }) => (
      { depth, loss: between(loss, at, share), near: near[left] || near[right] }));
    const known = found.filter((item) => item.loss !== null).sort((one, two) => one.loss - two.loss);
    if (known.length < 2) return [];
    const absent = [...new Set([...missing[left], ...missing[right]])].filter(
      (depth) => !known.some((item) => item.depth === depth)).sort((one, two) => one - two);
    return known.map((item) => ({
      ...item, absent, cost: 100 * (item.loss / known[0].loss - 1), width: Math.sqrt(Math.exp(x) / (12 * item.depth)) }));
  };
  const mark = (x, found) => {
    for (const svg of form.parentNode.querySelectorAll("svg")) {
      svg.querySelector(".marker")?.remove();
      const frame = svg.querySelector("[data-frame]");
      if (!found.length || !frame || !svg.getClientRects().length) continue;
      const [left, right, bottom, top] = frame.dataset.frame.split(" ").map(Number);
      const box = frame.getBBox();
      const group = document.createElementNS(svg.namespaceURI, "g");
      const add = (name, values) => {
        const element = document.createElementNS(svg.namespaceURI, name);
        for (const key of Object.keys(values)) element.setAttribute(key, values[key]);
        group.append(element);
      };
      const place = box.x + box.width * (x - left) / (right - left);
      group.setAttribute("class", "marker");
      add("line", { x1: place, x2: place, y1: box.y, y2: box.y + box.height });
      for (const { cost } of found) {
        if (cost <= top) add("circle", { cx: place, cy: box.y + box.height * (top - cost) / (top - bottom), r: 3.5 });
      }
      svg.append(group);
    }
  };
  let shown = NaN;
  const show = (params) => {
    shown = params;
    const x = Math.log(params), found = compare(x);
    mark(x, found);
    answer.title = "";
    if (Number.isNaN(params) || params <= 0) {
      answer.textContent = "Write the size as 30M, 3e7 or 30,000,000.";
    } else if (!found.length) {
      answer.textContent = `No depth is stated at ${human(params)}: depths are compared from ${human(Math.exp(low))} to `
        + `${human(Math.exp(high))} parameters.`;
    } else {
      const [best, ...others] = found;
      const costs = others.map(({ depth, width, cost }, at) => (
        `${depth}\u00a0×\u00a0${built(width)}${at ? "" : " costs"} +${digits(cost)}\u00a0%`));
      const tied = others.filter(({ near }) => near).map(({ depth }) => depth);
      const absent = best.absent.length ? `; not measured there: ${best.absent.join(", ")}` : "";
      answer.textContent = `${human(params)}: ${best.depth} layer${best.depth === 1 ? "" : "s"} ×\u00a0${built(best.width)} wide; `
        + `${costs.join(", ")}${tied.length ? `; not significantly worse: ${tied.join(", ")}` : ""}${absent}.`;
      const exact = found.map(({ depth, width }) => `${depth} × ${width.toFixed(1)}`).join(", ");
      answer.title = `exact widths for ${count === "table" ? "12·L·d² = N" : "this N"}: ${exact}`;
    }
  };
  const choose = (x) => {
    text.value = human(Math.exp(x));
    slider.value = x;
    show(Math.exp(x));
  };
  [slider.min, slider.max] = [low, high];
  text.addEventListener("input", () => {
    const params = read(text.value);
    if (params > 0) slider.value = Math.log(params);
    show(params);
  });
  slider.addEventListener("input", () => choose(Number(slider.value)));
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const svg of form.parentNode.querySelectorAll("svg")) {
    const pick = (event) => {
      const frame = svg.querySelector("[data-frame]");
      if (event.type === "pointermove" && !event.buttons) return;
      const [left, right] = frame.dataset.frame.split(" ").map(Number);
      const box = frame.getBoundingClientRect();
      const x = left + (right - left) * (event.clientX - box.left) / box.width;
      choose(Math.min(Math.max(x, low), high));
    };
    for (const name of ["pointerdown", "pointermove"]) svg.addEventListener(name, pick);
  }
  addEventListener("resize", () => show(shown));
  form.hidden = false;
  choose(Math.min(Math.max(start, low), high));
})();
