// The buttons of a plot, the same on a page and in a notebook.

// Plotly offers to send a plot to a server of its maker, unless it is told otherwise: nothing leaves the reader.
const plotConfig = {
  displaylogo: false,
  modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]],
  plotlyServerURL: "",
  showSendToCloud: false,
};

const CLEAR = "rgba(0, 0, 0, 0)";

// Plotly's own colours for buttons can't be read on a ground that it takes for clear.
const modebarOf = (ink, ground) => ({
  bgcolor: ground,
  color: ink.replace(/^rgba?\((\d+), (\d+), (\d+).*$/, "rgba($1, $2, $3, 0.65)"),
  activecolor: ink,
});

// Whoever comes by keyboard has the tables, which else would stand behind the buttons of every plot.
const passOverButtons = (place) => {
  for (const button of place.querySelectorAll(".modebar-btn")) button.tabIndex = -1;
};
