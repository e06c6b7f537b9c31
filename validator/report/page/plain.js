(async () => {
  const status = document.getElementById("status");
  const figures = await ready();
  if (figures === null) {
    status.textContent = "The plots need a browser of 2023 or later.";
    return;
  }
  const places = [...document.querySelectorAll(".plot")];
  const draw = () =>
    places.forEach((place, i) =>
      Plotly.react(place, figures[i].data, themed(figures[i].layout), { displaylogo: false, responsive: true }),
    );
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  status.hidden = true;
  document.documentElement.dataset.ready = "true";
})();
