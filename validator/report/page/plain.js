// The plots of a page that is otherwise as it was written.
begin((figures) => figures.forEach((figure, n) => show(element(`plot-${n}`), figure)));
