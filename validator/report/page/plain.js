// The plots of a page that is otherwise as it was written, and their values: a row a place, a column a trace.
begin((figures) => {
  const valuesOf = ({ data, layout }) => {
    const traces = data.filter(({ text }) => text !== undefined); // others mark what has a text already
    const rows = new Map();
    traces.forEach((trace, column) =>
      trace.x.forEach((x, n) => {
        const [place, ...said] = linesOf(trace.text[n]);
        if (!rows.has(x)) rows.set(x, [place, ...traces.map(() => "not judged")]);
        const [name] = linesOf(trace.name);
        const text = said.join(", ");
        rows.get(x)[1 + column] = text.startsWith(`${name}: `) ? text.slice(name.length + 2) : text;
      }),
    );
    return [[layout.xaxis.title.text, ...traces.flatMap(({ name }) => linesOf(name))], [...rows.values()]];
  };

  figures.forEach((figure, n) => {
    const place = element(`plot-${n}`);
    show(place, figure);
    const caption = place.closest("figure").querySelector("figcaption").textContent;
    place.closest("figure").after(folded(caption, () => valuesOf(figure)));
  });
});
