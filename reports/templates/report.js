// Sorting by a click on a heading, and a filter. Everything on the page can be read without this.
(() => {
  const table = document.getElementById("cases");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const factor = {
    "µs": 1e-3, ms: 1, s: 1e3, "%": 1, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, PiB: 2 ** 50,
    EiB: 2 ** 60,
  };
  const number = (text) => {
    const match = /^([\d.]+(?:e[-+]?\d+)?)(k?)\s?(\S*)$/.exec(text);
    return match ? parseFloat(match[1]) * (match[2] ? 1024 : 1) * (factor[match[3]] ?? 1) : Infinity;
  };
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      const numeric = heading.classList.contains("n");
      const keyed = rows.map((row) => {
        const text = (row.cells[column]?.textContent ?? "").trim();
        return [numeric ? number(text) : text, row];
      });
      const missing = (key) => key === Infinity || key === "";
      keyed.sort(([a], [b]) =>
        missing(a) || missing(b) ? missing(a) - missing(b) : direction * (numeric ? a - b : a.localeCompare(b)));
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
      body.append(...keyed.map(([, row]) => row));
    });
  });
  const filter = document.getElementById("filter");
  filter.closest("p").hidden = false;
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
})();
