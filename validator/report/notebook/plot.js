// Draws a plotly figure, and draws it anew in its place whenever it changes.

// The page keeps one plotly, which comes in a widget of its own: with each plot it would be 5 MB each time.
const KEPT = Symbol.for("plotly of validator");

const loaded = async (model) => {
  const holder = await model.widget_manager.get_model(model.get("library").replace("IPY_MODEL_", ""));
  const source = `const module = { exports: {} };\n${holder.get("source")}\nexport default module.exports;`;
  const others = globalThis.Plotly;
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  globalThis.PlotlyConfig ??= { MathJaxConfig: "local" };
  const { default: Plotly } = await import(address);
  URL.revokeObjectURL(address);
  globalThis.Plotly = others;
  return Plotly;
};

const FAINT = "rgba(127, 127, 127, 0.25)";
const CLEAR = "rgba(0, 0, 0, 0)";
const axis = (given) => ({ gridcolor: FAINT, zerolinecolor: FAINT, linecolor: FAINT, automargin: true, ...given });

// Takes the notebook's own ground and ink.
const themed = (layout, color) => ({
  ...layout,
  autosize: true,
  margin: { l: 60, r: 20, t: layout.title ? 60 : 40, b: 45 },
  paper_bgcolor: CLEAR,
  plot_bgcolor: CLEAR,
  font: { color, size: 12 },
  hoverlabel: { namelength: -1, align: "left" },
  legend: { bgcolor: CLEAR, ...layout.legend },
  xaxis: axis(layout.xaxis),
  yaxis: axis(layout.yaxis),
});

const render = async ({ model, el }) => {
  const Plotly = await (globalThis[KEPT] ??= loaded(model));
  const place = el.appendChild(document.createElement("div"));
  place.style.height = "360px";
  let isDrawn = false;

  const draw = () => {
    if (!place.clientWidth) return; // it is not in the page yet, or hidden
    const { data, layout } = model.get("figure");
    Plotly.react(place, data, themed(layout, getComputedStyle(el).color), { displaylogo: false });
    if (!isDrawn) place.on("plotly_click", (event) => model.send({ clicked: event.points[0].customdata ?? null }));
    isDrawn = true;
  };

  const resized = new ResizeObserver(() => {
    if (!isDrawn) draw();
    else if (place.clientWidth) Plotly.Plots.resize(place);
  });
  resized.observe(place);
  model.on("change:figure", draw);
  return () => {
    resized.disconnect();
    model.off("change:figure", draw);
    Plotly.purge(place);
  };
};

export default { render };
