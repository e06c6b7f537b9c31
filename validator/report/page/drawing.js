"use strict";
// What pages with plots have in common: they carry plotly and their data in themselves, packed.

const nonce = document.currentScript.nonce;

const unpacked = async (id) => {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
};

// Makes Plotly known and returns the page's data; null in a browser that can't unpack them.
const ready = async () => {
  if (typeof DecompressionStream === "undefined") return null;
  const [source, data] = await Promise.all([unpacked("packed-plotly"), unpacked("packed-data").then(JSON.parse)]);
  const library = document.createElement("script");
  library.nonce = nonce;
  library.textContent = source;
  document.head.append(library);
  return data;
};

const themed = (layout) => {
  const ink = getComputedStyle(document.body).color;
  const line = getComputedStyle(document.querySelector("header") ?? document.body).borderBottomColor;
  const axis = (given) => ({ gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true, ...given });
  return {
    ...layout,
    autosize: true,
    margin: { l: 60, r: 20, t: layout.title ? 50 : 30, b: 45 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, size: 12 },
    hoverlabel: { namelength: -1, align: "left" },
    title: layout.title && { ...layout.title, font: { size: 13 }, x: 0, xref: "paper", xanchor: "left" },
    xaxis: axis(layout.xaxis),
    yaxis: axis(layout.yaxis),
  };
};
