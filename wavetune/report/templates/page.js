"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const boxes = [...document.querySelectorAll(".plot")];
  const chosen = {};
  const drawn = new Map();
  const PRINT_WIDTH = 680;

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const wanted = new URLSearchParams(location.search).get("theme");
  root.dataset.theme = wanted || (dark.matches ? "dark" : "light");

  // A colour that begins with @ is the name of a colour of the page.
  const paint = (value, color) => {
    if (typeof value === "string") return value.startsWith("@") ? color(value.slice(1)) : value;
    if (Array.isArray(value)) return value.map((entry) => paint(entry, color));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, entry]) => [name, paint(entry, color)]));
    }
    return value;
  };

  const palette = () => {
    const style = getComputedStyle(root);
    return (name) => style.getPropertyValue("--" + name).trim();
  };

  const axis = (own, narrow) => ({
    gridcolor: "@line", zerolinecolor: "@muted", zerolinewidth: 1, linecolor: "@line", ticks: "", automargin: true,
    fixedrange: narrow, ...own, title: own && own.title ? { text: own.title, standoff: 8, font: { size: narrow ? 11 : 13, color: "@muted" } } : undefined,
  });

  const NARROW = 560;

  const layout = (variant, width, height) => {
    const narrow = width < NARROW;
    const own = { ...variant.layout };
    if (narrow) for (const [name, over] of Object.entries(variant.narrow)) own[name] = { ...own[name], ...over };
    return {
      ...own,
      width, height,
      font: { family: getComputedStyle(document.body).fontFamily, size: narrow ? 11 : 12.5, color: "@ink" },
      uniformtext: { mode: "hide", minsize: 9 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 8, r: 12, t: own.annotations ? 44 : 12, b: 8 },
      legend: { orientation: "h", x: 0, y: own.annotations ? 1.07 : 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)", itemsizing: "constant" },
      hoverlabel: { bgcolor: "@soft", bordercolor: "@line", font: { color: "@ink", size: 12 }, align: "left" },
      hovermode: "closest", dragmode: narrow ? false : "zoom",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: "@muted", activecolor: "@ink" },
      xaxis: axis(own.xaxis, narrow), yaxis: axis(own.yaxis, narrow),
    };
  };

  const config = {
    displaylogo: false, responsive: false,
    // Named one by one: none of these leaves the page.
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
  };

  const draw = (box, width) => {
    const name = box.dataset.figure;
    const figure = figures[name];
    const variant = figure.variants[chosen[name] || 0];
    const color = palette();
    const spec = paint({ data: variant.data, layout: layout(variant, width || box.clientWidth, figure.height) }, color);
    drawn.set(name, box.clientWidth);
    // Nothing to zoom or pan on a narrow screen, and the buttons would lie over the legend.
    const bar = box.clientWidth < NARROW ? { displayModeBar: false } : {};
    return Plotly.react(box, spec.data, spec.layout, { ...config, ...bar });
  };

  const redraw = (width) => Promise.all(boxes.filter((box) => drawn.has(box.dataset.figure)).map((box) => draw(box, width)));

  for (const select of document.querySelectorAll("select[data-for]")) {
    select.addEventListener("change", () => {
      chosen[select.dataset.for] = Number(select.value);
      draw(document.getElementById("plot-" + select.dataset.for));
    });
  }

  const button = document.getElementById("theme");
  const label = () => { button.textContent = root.dataset.theme === "dark" ? "Light" : "Dark"; };
  const setTheme = (theme) => { root.dataset.theme = theme; label(); return redraw(); };
  button.hidden = false;
  label();
  button.addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));

  let printing = false;
  let pending = 0;
  const refit = () => {
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(() => {
      for (const box of boxes) if (!printing && drawn.has(box.dataset.figure) && drawn.get(box.dataset.figure) !== box.clientWidth) draw(box);
    });
  };
  const resized = new ResizeObserver(refit);
  boxes.forEach((box) => resized.observe(box));

  // On paper: light, as wide as the paper, nothing folded away.
  let before = null;
  addEventListener("beforeprint", () => {
    printing = true;
    before = { theme: root.dataset.theme, open: [...document.querySelectorAll("details")].map((entry) => entry.open) };
    root.dataset.theme = "light";
    for (const entry of document.querySelectorAll("details")) entry.open = true;
    for (const box of boxes) draw(box, PRINT_WIDTH);
  });
  addEventListener("afterprint", () => {
    printing = false;
    if (!before) return;
    document.querySelectorAll("details").forEach((entry, index) => { entry.open = before.open[index]; });
    setTheme(before.theme);
  });

  // What is in sight first, the rest when the browser has time.
  const inSight = (box) => box.getBoundingClientRect().top < innerHeight;
  const first = boxes.filter(inSight);
  const rest = boxes.filter((box) => !first.includes(box));
  const later = window.requestIdleCallback || ((callback) => setTimeout(callback, 20));
  const finish = () => { root.dataset.plots = String(drawn.size); };
  const drawNext = () => {
    const box = rest.shift();
    if (!box) return finish();
    if (!drawn.has(box.dataset.figure)) draw(box);
    later(drawNext, { timeout: 500 });
  };
  for (const box of first) draw(box);
  root.dataset.interactive = String(Math.round(performance.now()));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting && !drawn.has(entry.target.dataset.figure)) draw(entry.target);
  }, { rootMargin: "300px" });
  rest.forEach((box) => seen.observe(box));
  later(drawNext, { timeout: 500 });
})();
