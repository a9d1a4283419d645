// Comfort only: beside the pointer, the row of the table that a chart draws there. Everything is readable without it.
(() => {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const numbers = (text) => (text ? text.split(" ").map(Number) : null);
  const nearest = (places, at) => {
    let best = 0;
    for (let i = 1; i < places.length; i++) {
      if (Math.abs(places[i] - at) < Math.abs(places[best] - at)) best = i;
    }
    return best;
  };
  const words = (node) => (node ? node.textContent : "");
  const line = (name, value) => {
    const row = document.createElement("div");
    const bold = document.createElement("b");
    bold.textContent = value;
    row.append(name ? name + ": " : "", bold);
    return row;
  };
  for (const svg of document.querySelectorAll("svg.chart[data-x], svg.chart[data-y], svg.chart[data-grid]")) {
    const table = svg.closest("figure").querySelector("table");
    const heads = [...table.tHead.rows[0].cells].map(words);
    const rows = table.tBodies[0].rows;
    const xs = numbers(svg.dataset.x), ys = numbers(svg.dataset.y), grid = numbers(svg.dataset.grid);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const scale = svg.viewBox.baseVal.width / box.width;
      const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
      let shown = [];
      if (grid) {
        const column = Math.floor((x - grid[0]) / grid[2]) + 1, row = rows[Math.floor((y - grid[1]) / grid[3])];
        if (row && column > 0 && row.cells[column]) {
          shown = [line("", words(row.cells[0]) + " → " + heads[column]), line("", words(row.cells[column]) || "nothing")];
        }
      } else {
        const row = rows[xs ? nearest(xs, x) : nearest(ys, y)];
        if (row) shown = heads.map((head, i) => [head, words(row.cells[i])]).filter((pair) => pair[1]).slice(0, 9).map((pair) => line(...pair));
      }
      tip.hidden = !shown.length;
      tip.replaceChildren(...shown);
      const right = event.pageX + 16 + tip.offsetWidth > document.documentElement.clientWidth;
      tip.style.left = (right ? Math.max(4, event.pageX - 16 - tip.offsetWidth) : event.pageX + 16) + "px";
      tip.style.top = event.pageY + 14 + "px";
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
})();
