// Every table: sorting by a click on a heading, and a file of it. A filter for the cases. The page can be read without.
(() => {
  const factor = {
    "µs": 1e-3, ms: 1, s: 1e3, "%": 1, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, PiB: 2 ** 50,
    EiB: 2 ** 60, M: 2 ** 20,
  };
  const number = (text) => {
    const match = /^([-−+]?[\d.]+(?:e[-+]?\d+)?)(k?)\s?([^\s,]*)/.exec(text);
    if (!match) return Infinity;
    return parseFloat(match[1].replace("−", "-")) * (match[2] ? 1024 : 1) * (factor[match[3]] ?? 1);
  };
  const text = (cell) => (cell?.textContent ?? "").trim();

  const makeSortable = (table) => {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      const button = document.createElement("button");
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        const numeric = heading.classList.contains("n");
        const keyed = [...table.tBodies[0].rows].map((row) => {
          const said = text(row.cells[column]);
          return [numeric ? number(said) : said, row];
        });
        const missing = (key) => key === Infinity || key === "" || key === "–";
        keyed.sort(([a], [b]) =>
          missing(a) || missing(b) ? missing(a) - missing(b) : direction * (numeric ? a - b : a.localeCompare(b)));
        for (const other of headings) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
        table.tBodies[0].append(...keyed.map(([, row]) => row));
      });
    });
  };

  const offerFile = (table, name) => {
    const button = document.createElement("button");
    button.className = "file";
    button.textContent = "CSV";
    button.title = "Keep this table as a file";
    button.addEventListener("click", () => {
      // A spreadsheet would run what starts like a formula.
      const plain = (said) => `"${(/^[=+@\t\r]|^-(?![\d.])/.test(said) ? "'" + said : said).replaceAll('"', '""')}"`;
      const lines = [...table.rows].map((row) => [...row.cells].map((cell) => plain(text(cell))).join(","));
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob(["\ufeff" + lines.join("\r\n") + "\r\n"], { type: "text/csv" }));
      link.download = `${name}.csv`;
      link.click();
      URL.revokeObjectURL(link.href);
    });
    table.closest(".scroll").after(button);
  };

  document.querySelectorAll("main .scroll > table").forEach((table, place) => {
    if (!table.tHead) return;
    makeSortable(table);
    offerFile(table, table.id || `${table.closest("section").id}-${place + 1}`);
  });

  const filter = document.getElementById("filter");
  if (!filter) return;
  filter.closest("p").hidden = false;
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const row of document.getElementById("cases").tBodies[0].rows) {
      const said = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => said.includes(word));
    }
  });
})();
