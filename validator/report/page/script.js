// What the page does besides being read. Names are text here as everywhere: textContent, never HTML.

(async () => {
  const element = (id) => document.getElementById(id);

  const make = (tag, text, attributes = {}) => {
    const made = document.createElement(tag);
    if (text !== null) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };

  const data = await ready();
  if (data === null) {
    element("status").textContent = "The plots need a browser of 2023 or later.";
    return;
  }

  // --- figures -----------------------------------------------------------------------------------------------

  const figures = new Map(); // of each place

  const draw = (place) => {
    const figure = figures.get(place);
    nearby.unobserve(place);
    Plotly.react(place, figure.data, themed(figure.layout), { displaylogo: false, responsive: true });
    if (place.dataset.drawn) return;
    place.dataset.drawn = "true";
    place.on("plotly_click", (event) => {
      const index = event.points[0].customdata;
      if (typeof index === "number") choose(index);
    });
  };

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

  const showNamed = (id, name) => {
    const place = element(id);
    if (place === null) return;
    if (data.figures[name] !== null) {
      show(place, data.figures[name]);
      return;
    }
    place.textContent = "No values were kept that tell.";
    place.className = "quiet";
  };

  const redraw = () => [...figures.keys()].filter((place) => place.dataset.drawn).forEach(draw);

  // --- one edge ----------------------------------------------------------------------------------------------

  const choice = element("choice");
  data.edges.forEach((edge, index) => choice.append(make("option", edge.name, { value: index })));

  const rowsOf = (rows) =>
    rows.map(([name, text]) => {
      const row = make("div", null);
      row.append(make("dt", name), make("dd", text));
      return row;
    });

  const findingsOf = (edge) =>
    edge.findings.map((finding) => {
      const said = make("div", null);
      const summary = make("p", null);
      summary.append(make("a", `Finding ${finding.number}`, { href: `#finding-${finding.number}` }), `: ${finding.summary}`);
      said.append(summary);
      if (finding.signature !== null) {
        said.append(make("p", `Looks like ${finding.signature}`));
        const evidence = make("dl", null);
        evidence.append(...rowsOf(Object.entries(finding.evidence)));
        said.append(evidence);
      }
      return said;
    });

  const windowOf = (shown) => {
    const fixed = shown.start.slice(0, -2);
    const [row0, column0] = [shown.start.at(-2) ?? 0, shown.start.at(-1) ?? 0];
    const [worstRow, worstColumn] = [(shown.worst.at(-2) ?? 0) - row0, (shown.worst.at(-1) ?? 0) - column0];
    return ["candidate", "oracle", "allowed"].map((name) => {
      const table = make("table", null);
      const about = { candidate: "Candidate", oracle: "Oracle", allowed: "How far apart they may be" }[name];
      table.append(make("caption", `${about}, around the worst element [${shown.worst.join(", ")}]`));
      const head = make("tr", null);
      head.append(make("th", fixed.length ? `[${fixed.join(", ")}, …]` : "", { scope: "col" }));
      shown[name][0].forEach((_, n) => head.append(make("th", column0 + n, { scope: "col" })));
      table.append(make("thead", null));
      table.tHead.append(head);
      const body = make("tbody", null);
      shown[name].forEach((values, m) => {
        const row = make("tr", null);
        row.append(make("th", row0 + m, { scope: "row" }));
        values.forEach((value, n) => {
          const cell = make("td", value);
          if (name === "candidate" && shown.outside[m][n]) cell.classList.add("outside");
          if (m === worstRow && n === worstColumn) cell.classList.add("worst");
          row.append(cell);
        });
        body.append(row);
      });
      table.append(body);
      const scroll = make("div", null, { class: "scroll" });
      scroll.append(table);
      return scroll;
    });
  };

  let current = null;

  // Opens the tree at the button of an edge, and scrolls the tree alone.
  const mark = (index) => {
    for (const marked of document.querySelectorAll("button.edge[aria-current]")) marked.removeAttribute("aria-current");
    const button = document.querySelector(`button.edge[data-edge="${index}"]`);
    button.setAttribute("aria-current", "true");
    for (let holder = button.parentElement; holder !== null; holder = holder.parentElement) {
      if (holder.tagName === "DETAILS") holder.open = true;
    }
    const tree = document.querySelector(".tree");
    tree.scrollTop += button.getBoundingClientRect().top - tree.getBoundingClientRect().top - tree.clientHeight / 2;
  };

  const choose = (index, isSoughtOut = true) => {
    const edge = data.edges[index];
    if (edge === undefined) return;
    current = index;
    choice.value = index;
    element("edge-name").textContent = edge.name;
    element("edge-rows").replaceChildren(...rowsOf(edge.rows));
    element("edge-findings").replaceChildren(...findingsOf(edge));
    const grid = element("edge-figures");
    for (const place of grid.querySelectorAll(".plot")) {
      figures.delete(place);
      nearby.unobserve(place);
      Plotly.purge(place);
    }
    grid.replaceChildren();
    for (const [name, figure] of Object.entries(edge.figures)) {
      const place = make("div", null, { class: "plot", role: "img", "aria-label": `${name}: ${edge.name}` });
      place.dataset.figure = name;
      const holder = make("figure", null);
      holder.append(place);
      grid.append(holder);
      show(place, figure);
    }
    element("edge-window").replaceChildren(...(edge.window === null ? [] : windowOf(edge.window)));
    mark(index);
    if (!isSoughtOut) return;
    history.replaceState(null, "", `#edge=${index}`);
    element("edge").scrollIntoView({ block: "start" });
  };

  const step = (index) => {
    choose(index, false);
    history.replaceState(null, "", `#edge=${current}`);
  };
  choice.addEventListener("change", () => step(Number(choice.value)));
  element("previous").addEventListener("click", () => step(Math.max(0, current - 1)));
  element("next").addEventListener("click", () => step(Math.min(data.edges.length - 1, current + 1)));
  document.querySelector(".tree").addEventListener("click", (event) => {
    const button = event.target.closest("button.edge");
    if (button) choose(Number(button.dataset.edge));
  });

  // --- the page ----------------------------------------------------------------------------------------------

  element("metric").addEventListener("change", (event) => showNamed("plot-layers", event.target.value));
  element("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);


  // Paper is light and narrow, and shows what was never scrolled to.
  let onScreen = "";
  window.addEventListener("beforeprint", () => {
    const root = document.documentElement;
    onScreen = root.dataset.theme ?? "";
    root.dataset.theme = "light";
    root.classList.add("paper");
    [...figures.keys()].forEach(draw);
  });
  window.addEventListener("afterprint", () => {
    const root = document.documentElement;
    if (onScreen === "") delete root.dataset.theme;
    else root.dataset.theme = onScreen;
    root.classList.remove("paper");
    redraw();
  });

  showNamed("plot-edges", "edges");
  showNamed("plot-layers", "layers");
  showNamed("plot-kl", "kl");
  showNamed("plot-positions", "positions");
  const asked = /^#edge=(\d+)$/.exec(location.hash);
  choose(asked ? Number(asked[1]) : (data.shown ?? 0), asked !== null);
  element("status").textContent = "";
  document.documentElement.dataset.ready = "true";
})();
