"use strict";
// What pages with plots have in common. They carry plotly and their data in themselves, packed.

const nonce = document.currentScript.nonce;
const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isNarrow = matchMedia("(max-width: 40rem)");
const element = (id) => document.getElementById(id);

// Names are text here as everywhere: textContent, never HTML.
const make = (tag, text, attributes = {}) => {
  const made = document.createElement(tag);
  if (text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};

// --- beginning -------------------------------------------------------------------------------------------------

const unpacked = async (id) => {
  const text = atob(element(id).textContent);
  const bytes = new Uint8Array(text.length); // `Uint8Array.from` takes 0.4 s more of a large page
  for (let n = 0; n < text.length; n += 1) bytes[n] = text.charCodeAt(n);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
};

// Makes Plotly known and returns the page's data.
const ready = async () => {
  if (typeof DecompressionStream === "undefined") throw new Error("they need a browser of 2023 or later");
  const carried = [unpacked("packed-plotly"), unpacked("packed-data").then(JSON.parse)];
  const [source, data] = await Promise.all(carried).catch(() => {
    throw new Error("this file is damaged");
  });
  const library = document.createElement("script");
  library.nonce = nonce;
  library.textContent = source;
  document.head.append(library);
  if (typeof Plotly === "undefined") throw new Error("plotly did not start");
  return data;
};

// Hands its data to the page. Where that fails the reader is told, and nothing is left that would do nothing.
const begin = async (run) => {
  const status = element("status");
  try {
    run(await ready());
    status.textContent = "";
    root.dataset.ready = "true";
  } catch (error) {
    status.textContent = `The plots can't be shown: ${said(error)}. Everything else on this page can be read.`;
    root.dataset.failed = "true";
  }
};

const said = (error) => String(error?.message ?? error).replace(/\.$/, "");

// --- plots -----------------------------------------------------------------------------------------------------

const figures = new Map(); // of each place

// What a plot is on this page, where it has so many pixels across.
const themed = ({ data, layout }, width) => {
  const { color: ink, backgroundColor: paper } = getComputedStyle(document.body);
  const line = getComputedStyle(document.querySelector("header")).borderBottomColor;
  const axis = (given) => ({
    gridcolor: line,
    linecolor: line,
    zerolinecolor: line,
    automargin: true,
    ...given,
    title: given?.title && { standoff: 12, ...given.title },
  });
  return {
    data: data.map((trace) =>
      width < 500 && trace.colorbar ? { ...trace, colorbar: { ...trace.colorbar, thickness: 12, title: {} } } : trace,
    ),
    layout: {
      ...layout,
      autosize: true,
      margin: { l: 60, r: 20, t: layout.title ? 58 : 30, b: 45 },
      paper_bgcolor: paper,
      plot_bgcolor: CLEAR,
      font: { color: ink, size: 12 },
      modebar: modebarOf(ink, paper),
      hoverlabel: { namelength: -1, align: "left" },
      legend: { bgcolor: CLEAR, orientation: "h", y: 1.02, yanchor: "bottom", ...layout.legend },
      // Above the legend, whose line may be as long.
      title: layout.title && {
        ...layout.title,
        font: { size: 13 },
        ...{ x: 0, xref: "paper", xanchor: "left", y: 1, yref: "container", yanchor: "top", pad: { t: 10 } },
      },
      xaxis: axis(layout.xaxis),
      yaxis: axis(layout.yaxis),
      // A note has half of the plot for its text. Where that is too little, the text above the plot has the name.
      annotations: layout.annotations?.map((note) => ({
        ...note,
        bgcolor: paper.replace("rgb(", "rgba(").replace(")", ", 0.75)"),
        text: note.text.length * 7 < width / 2 ? note.text : note.text.split(":")[0],
      })),
    },
  };
};

// Says in the place of a plot why there is none.
const giveUp = (place, error) => {
  figures.delete(place);
  place.className = "quiet";
  place.removeAttribute("style");
  place.setAttribute("role", "status");
  place.removeAttribute("aria-label");
  place.textContent = `This plot can't be drawn: ${said(error)}.`;
};

const draw = async (place) => {
  nearby.unobserve(place);
  const isFirst = !place.dataset.drawn;
  try {
    const { data, layout } = themed(figures.get(place), place.clientWidth);
    place.style.height = layout.height ? `${layout.height}px` : "";
    const drawn = Plotly.react(place, data, layout, { ...plotConfig, responsive: true });
    place.dataset.drawn = "true";
    if (isFirst) place.on("plotly_click", (event) => pick(place, event.points[0].customdata));
    await drawn;
  } catch (error) {
    giveUp(place, error);
  }
  // What is drawn says the same as the table beside it, and says it in no order.
  for (const drawing of place.querySelectorAll("svg.main-svg")) drawing.setAttribute("aria-hidden", "true");
  passOverButtons(place);
};

const pick = (place, detail) => place.dispatchEvent(new CustomEvent("pick", { bubbles: true, detail }));

// A figure is drawn when its place comes near what is seen: the page opens sooner.
const nearby = new IntersectionObserver(
  (seen) => seen.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
  { rootMargin: "300px" },
);

const show = (place, figure) => {
  figures.set(place, figure);
  if (place.dataset.drawn) draw(place);
  else nearby.observe(place);
};

const forget = (place) => {
  figures.delete(place);
  nearby.unobserve(place);
  Plotly.purge(place);
};

const redraw = () => [...figures.keys()].filter((place) => place.dataset.drawn).forEach(draw);

// --- the values of plots ---------------------------------------------------------------------------------------

const mostRows = 1000;

const tableOf = (title, head, rows) => {
  const table = make("table", null);
  const line = (cells, tags) => {
    const made = make("tr", null);
    cells.forEach((cell, n) => {
      const shown = make(n === 0 ? tags[0] : tags[1], null, tags[1] === "th" ? { scope: "col" } : n === 0 ? { scope: "row" } : {});
      shown.append(cell);
      made.append(shown);
    });
    return made;
  };
  table.append(make("thead", null), make("tbody", null));
  table.tHead.append(line(head, ["th", "th"]));
  table.tBodies[0].append(...rows.slice(0, mostRows).map((cells) => line(cells, ["th", "td"])));
  if (rows.length > mostRows) table.tBodies[0].append(line([`... and ${rows.length - mostRows} more`], ["th", "td"]));
  const scroll = make("div", null, { class: "scroll", tabindex: 0, role: "region", "aria-label": title });
  scroll.append(table);
  return scroll;
};

// A table that is made when it is opened; `values` returns its head and its rows, of texts and elements.
const folded = (title, values) => {
  const details = make("details", null, { class: "values" });
  const summary = make("summary", "As a table");
  summary.append(make("span", `: ${title}`, { class: "hidden" }));
  details.append(summary);
  details.addEventListener("toggle", () => details.append(tableOf(title, ...values())), { once: true });
  return details;
};

// The lines of a label of a figure, as text.
const linesOf = (label) =>
  label.split("<br>").map((line) => line.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&"));

// --- light, dark and paper -------------------------------------------------------------------------------------

element("theme").addEventListener("click", () => {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
  root.dataset.theme = isDark ? "light" : "dark";
  redraw();
});
prefersDark.addEventListener("change", redraw);
isNarrow.addEventListener("change", redraw);

// Paper is light and narrow, and shows what was never scrolled to.
let onScreen = "";
window.addEventListener("beforeprint", () => {
  onScreen = root.dataset.theme ?? "";
  root.dataset.theme = "light";
  root.classList.add("paper");
  [...figures.keys()].forEach(draw);
});
window.addEventListener("afterprint", () => {
  if (onScreen === "") delete root.dataset.theme;
  else root.dataset.theme = onScreen;
  root.classList.remove("paper");
  redraw();
});
