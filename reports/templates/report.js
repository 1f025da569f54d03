"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);

  function sortBy(header) {
    const table = header.closest("table");
    const index = Array.from(header.parentNode.children).indexOf(header);
    const up = header.getAttribute("aria-sort") !== "ascending";
    const rows = Array.from(table.tBodies[0].rows);
    const key = (row) => {
      const cell = row.cells[index];
      if (cell.dataset.v === undefined) return cell.textContent;
      return cell.dataset.v === "" ? null : Number(cell.dataset.v);
    };
    rows.sort((a, b) => {
      const x = key(a), y = key(b);
      if (x === null || y === null) return (x === null) - (y === null);
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return up ? order : -order;
    });
    for (const other of header.parentNode.children) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", up ? "ascending" : "descending");
    table.tBodies[0].append(...rows);
  }

  for (const header of document.querySelectorAll("th")) {
    header.addEventListener("click", () => sortBy(header));
    header.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sortBy(header); }
    });
  }
  for (const input of document.querySelectorAll("input[type=search]")) {
    const body = document.getElementById(input.dataset.table).tBodies[0];
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
  }

  async function loadPlotly() {
    const packed = document.getElementById("plotly").textContent;
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const code = await new Response(stream).blob();
    const script = document.createElement("script");
    script.src = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    const loaded = new Promise((done, failed) => { script.onload = done; script.onerror = failed; });
    document.head.append(script);
    await loaded;
  }

  async function draw() {
    const names = Object.keys(figures);
    if (names.length) {
      await loadPlotly();
      // The default mode bar has a button that uploads the figure; cluster data stays here.
      const config = { displaylogo: false, responsive: true, showSendToCloud: false, plotlyServerURL: "" };
      for (const name of names) {
        await Plotly.newPlot(name, figures[name].data, figures[name].layout, config);
      }
    }
    document.documentElement.dataset.ready = "yes";
  }
  draw();
})();
