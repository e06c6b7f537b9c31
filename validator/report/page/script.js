// What the page does besides being read.

begin((data) => {
  const showNamed = (id, name) => {
    const place = element(id);
    if (place !== null) show(place, data.figures[name]);
  };

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
    const heading = make("h3", `Around the worst element [${shown.worst.join(", ")}]`);
    const tables = ["candidate", "oracle", "allowed"].map((name) => {
      const table = make("table", null);
      const about = { candidate: "Candidate", oracle: "Oracle", allowed: "How far apart they may be" }[name];
      table.append(make("caption", about));
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
      const scroll = make("div", null, { class: "scroll", tabindex: 0, role: "region", "aria-label": about });
      scroll.append(table);
      return scroll;
    });
    return [heading, ...tables];
  };

  // What a line tells at each place. A template tells what the axis can't show.
  const valuesOfLines = ({ data: traces, layout }) => {
    const told = (trace, n) => {
      const template = Array.isArray(trace.hovertemplate) ? trace.hovertemplate[n] : trace.hovertemplate;
      return template.slice(template.lastIndexOf(": ") + 2).replace("%{y}", trace.y[n]);
    };
    const unit = layout.yaxis.title.text;
    const placed = ({ x, text }, n) => (text === undefined || text[n] === x[n] ? x[n] : `${x[n]} to ${text[n]}`);
    return [
      [layout.xaxis.title.text, ...traces.map(({ name }) => (name === undefined ? unit : `${name} ${unit}`))],
      traces[0].x.map((_, n) => [placed(traces[0], n), ...traces.map((trace) => told(trace, n))]),
    ];
  };

  // Bins and their elements. Those without a width are another trace's.
  const valuesOfBins = ({ data: traces, layout }) => {
    const bins = traces.flatMap(({ x, hovertext, customdata }) => x.map((at, n) => [at, hovertext[n], ...customdata[n]]));
    return [[layout.xaxis.title.text, "elements"], bins.sort(([a], [b]) => a - b).map(([, ...row]) => row)];
  };

  // Single elements, the worst first. What is not finite has no place in a plot.
  const valuesOfPoints = ({ data: traces, layout }) => {
    const points = traces.filter(({ type }) => type === "scatter").reverse();
    const unit = /<br>(.*) %\{text\}/.exec(points[0]?.hovertemplate ?? "")?.[1] ?? "error";
    const rows = points.flatMap(({ name, x, y, text }) =>
      x.map((oracle, n) => [name.replace(/ \(\d+\)$/, ""), oracle ?? "not finite", y[n] ?? "not finite", text[n]]).reverse(),
    );
    return [["", layout.xaxis.title.text, layout.yaxis.title.text, unit], rows];
  };

  const valuesOfModules = (metric) => {
    const [heat] = data.figures[metric].data;
    const rows = heat.customdata.flatMap((edges, m) =>
      edges.flatMap((edge, n) => {
        if (edge === null) return [];
        const [place, value] = linesOf(heat.text[m][n]);
        return [[place, value, make("a", data.edges[edge].name, { href: `#edge=${edge}` })]];
      }),
    );
    return [["layer, module", metric, "worst edge"], rows];
  };

  // The page has a table of all metrics, which stands back while one of them is shown.
  const showMetric = (name) => {
    showNamed("plot-layers", name);
    const written = document.querySelector("#layers > details.values");
    if (written === null) return;
    written.hidden = name !== "layers";
    element("metric-values").replaceChildren(
      ...(written.hidden ? [folded(`${name}, module by module`, () => valuesOfModules(name))] : []),
    );
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
    current = index;
    choice.value = index;
    element("edge-name").textContent = edge.name;
    element("edge-rows").replaceChildren(...rowsOf(edge.rows));
    element("edge-findings").replaceChildren(...findingsOf(edge));
    const grid = element("edge-figures");
    grid.querySelectorAll(".plot").forEach(forget);
    grid.replaceChildren();
    for (const [name, figure] of Object.entries(edge.figures)) {
      const place = make("div", null, { class: "plot", role: "group", "aria-label": `Plot: ${name}, ${edge.name}` });
      place.dataset.figure = name;
      const holder = make("figure", null);
      const values = { values: valuesOfPoints, ulp: valuesOfBins }[name] ?? valuesOfLines;
      holder.append(place, folded(figure.layout.title.text, () => values(figure)));
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

  // Which edge an address asks for, or null of one that there is not.
  const asked = (address) => {
    const found = /#edge=(\d+)$/.exec(address);
    return found !== null && Number(found[1]) < data.edges.length ? Number(found[1]) : null;
  };

  if (data.edges.length > 0) {
    choice.addEventListener("change", () => step(Number(choice.value)));
    element("previous").addEventListener("click", () => step(Math.max(0, current - 1)));
    element("next").addEventListener("click", () => step(Math.min(data.edges.length - 1, current + 1)));
    document.querySelector(".tree").addEventListener("click", (event) => {
      const button = event.target.closest("button.edge");
      if (button) choose(Number(button.dataset.edge));
    });
    document.addEventListener("pick", (event) => {
      if (typeof event.detail === "number") choose(event.detail);
    });
    // Not left to the browser: what is chosen already is sought out again.
    document.addEventListener("click", (event) => {
      const link = event.target.closest('a[href^="#edge="]');
      if (link === null) return;
      event.preventDefault();
      choose(asked(link.hash));
      element("edge-title").focus({ preventScroll: true });
    });
    window.addEventListener("hashchange", () => {
      if (asked(location.hash) !== null) choose(asked(location.hash));
    });
    const first = asked(location.hash);
    choose(first ?? data.shown, first !== null);
  }

  element("metric")?.addEventListener("change", (event) => showMetric(event.target.value));
  for (const name of ["edges", "layers", "kl", "positions"]) showNamed(`plot-${name}`, name);
});
