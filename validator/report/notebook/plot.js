// Draws a plotly figure, and draws it anew in its place whenever it changes.

// The page keeps one plotly of a version, which comes in a widget of its own: with each plot it would be 5 MB
// each time. One that did not load is not kept, so that the next plot tries again.
const loaded = async (model) => {
  const holder = await model.widget_manager.get_model(model.get("library").replace("IPY_MODEL_", ""));
  const kept = Symbol.for(`plotly ${holder.get("version")} of validator`);
  globalThis[kept] ??= imported(holder.get("source")).catch((error) => {
    delete globalThis[kept];
    throw error;
  });
  return globalThis[kept];
};

// Leaves the page the plotly that it may have of its own.
const imported = async (library) => {
  const source = `const others = globalThis.Plotly, module = { exports: {} };
${library}
globalThis.Plotly = others;
export default module.exports;`;
  globalThis.PlotlyConfig ??= { MathJaxConfig: "local" }; // else plotly.js 3 sets up the page's MathJax anew
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  try {
    return (await import(address)).default;
  } finally {
    URL.revokeObjectURL(address);
  }
};

const FAINT = "rgba(127, 127, 127, 0.25)";
const axis = (given) => ({ gridcolor: FAINT, zerolinecolor: FAINT, linecolor: FAINT, automargin: true, ...given });

// The colour that is seen behind a place; clear where nothing around it has one.
const groundOf = (place) => {
  for (let holder = place; holder !== null; holder = holder.parentElement) {
    const { backgroundColor } = getComputedStyle(holder);
    if (backgroundColor.startsWith("rgb(")) return backgroundColor;
  }
  return CLEAR;
};

// Takes the notebook's own ground and ink.
const themed = (layout, ink, ground) => ({
  ...layout,
  autosize: true,
  margin: { l: 60, r: 20, t: layout.title ? 60 : 40, b: 45 },
  paper_bgcolor: ground,
  plot_bgcolor: CLEAR,
  font: { color: ink, size: 12 },
  modebar: modebarOf(ink, ground),
  hoverlabel: { namelength: -1, align: "left" },
  legend: { bgcolor: CLEAR, ...layout.legend },
  xaxis: axis(layout.xaxis),
  yaxis: axis(layout.yaxis),
});

const render = async ({ model, el }) => {
  const trouble = el.appendChild(document.createElement("div"));
  trouble.setAttribute("role", "status");
  const tell = (error) => {
    const said = String(error?.message ?? error).replace(/\.$/, "");
    trouble.textContent = `This plot can't be drawn: ${said}. Running its cell again may help.`;
  };
  const Plotly = await loaded(model).catch(tell);
  if (!Plotly) return undefined;

  const place = el.appendChild(document.createElement("div"));
  place.style.height = "360px";
  let drawn = null; // the figure, while there is one

  const draw = async () => {
    if (!place.clientWidth) {
      // It is not in the page yet, or hidden. One that is seen again before the next frame has not been resized:
      // observed anew, its size is told in any case.
      resized.unobserve(place);
      resized.observe(place);
      return;
    }
    const isFirst = !drawn;
    drawn = model.get("figure");
    try {
      const { data, layout } = drawn;
      const looks = themed(layout, getComputedStyle(el).color, groundOf(el));
      const done = Plotly.react(place, data, looks, plotConfig);
      if (isFirst) place.on("plotly_click", (event) => model.send({ clicked: event.points[0].customdata ?? null }));
      await done;
      passOverButtons(place);
      trouble.textContent = "";
    } catch (error) {
      Plotly.purge(place); // what it showed is of another figure
      drawn = null;
      tell(error);
    }
  };

  // What changes while it is hidden is drawn when it is seen again.
  const resized = new ResizeObserver(() => {
    if (!place.clientWidth) return; // to observe anew from here would never end: it is told without a size too
    if (drawn !== model.get("figure")) draw();
    else Plotly.Plots.resize(place);
  });
  resized.observe(place);
  model.on("change:figure", draw);
  // JupyterLab and VS Code tell there of another theme, and with it another ink.
  const dyed = new MutationObserver(draw);
  dyed.observe(document.body, { attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
  return () => {
    resized.disconnect();
    dyed.disconnect();
    model.off("change:figure", draw);
    Plotly.purge(place);
  };
};

export default { render };
