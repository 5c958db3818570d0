// The list of test inputs: a search, and columns that sort. Its filter needs no script (style.css),
// and without one the list is complete, in its own order.
"use strict";

const tables = (() => {
  const cells = (row, at) => row.cells[at]?.textContent.trim() ?? "";

  function seek(box) {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of box.closest(".answers").querySelectorAll("tbody tr")) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  }

  // By the numbers of a column, or its words; what is no number comes last.
  function sort(table, at, up) {
    const body = table.tBodies[0], sign = up ? 1 : -1;
    const rows = [...body.rows].map((row) => [row, cells(row, at), Number(cells(row, at).replace("−", "-"))]);
    const numbers = table.tHead.rows[0].cells[at].classList.contains("num");
    rows.sort(([, a, x], [, b, y]) => {
      if (!numbers) return sign * a.localeCompare(b, "en", { numeric: true });
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return sign * (x - y);
    });
    body.append(...rows.map(([row]) => row));
    [...table.tHead.rows[0].cells].forEach((head, i) => {
      if (i === at) head.setAttribute("aria-sort", up ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    table.dataset.sorted = `${at} ${up}`;
  }

  function draw() {
    for (const box of document.querySelectorAll(".seek")) box.hidden = false;
    for (const table of document.querySelectorAll("table.sortable")) {
      [...table.tHead.rows[0].cells].forEach((head, at) => {
        if (head.querySelector("button")) return;
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = head.textContent;
        button.addEventListener("click", () => sort(table, at, head.getAttribute("aria-sort") !== "ascending"));
        head.replaceChildren(button);
      });
    }
  }

  // What the reader chose, to be chosen again in the page that takes the place of this one.
  const state = () => ({
    sought: [...document.querySelectorAll(".seek")].map((each) => each.value),
    only: [...document.querySelectorAll(".only input:checked")].map((each) => each.value),
    sorted: [...document.querySelectorAll("table.sortable")].map((each) => each.dataset.sorted),
  });

  function restore({ sought, only, sorted }) {
    draw();
    document.querySelectorAll(".seek").forEach((box, i) => {
      box.value = sought[i] ?? "";
      seek(box);
    });
    for (const each of document.querySelectorAll(".only input")) each.checked ||= only.includes(each.value);
    document.querySelectorAll("table.sortable").forEach((table, i) => {
      const [at, up] = (sorted[i] ?? "").split(" ");
      if (up) sort(table, Number(at), up === "true");
    });
  }

  document.addEventListener("input", (event) => {
    if (event.target.matches(".seek")) seek(event.target);
  });
  draw();
  return { draw, state, restore };
})();
