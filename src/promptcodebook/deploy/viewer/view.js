// Keys, the search of a page, and staying up to date while a run goes on. Nothing here makes markup:
// a page that is out of date is asked for again, and its content is put in the place of the old.
"use strict";

const main = () => document.getElementById("main");
const stops = () => [...document.querySelectorAll("#main .stop, #main summary")].filter(
  (each) => each.offsetParent !== null);

const charts = () => [...document.querySelectorAll("#main .plot, #main .values button")];

function move(by) {
  const all = stops();
  if (!all.length) return;
  const at = all.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by));
  all[next].focus();
  all[next].scrollIntoView({ block: "nearest" });
}

function up() {
  const above = [...document.querySelectorAll(".crumbs a")].pop();
  location.assign(above ? above.href : "/");
}

function turn(by) {
  const tabs = [...document.querySelectorAll("nav.tabs a")];
  const at = tabs.findIndex((each) => each.getAttribute("aria-current") === "page");
  const next = tabs[at < 0 ? 0 : at + by];
  if (next) location.assign(next.href);
}

function search() {
  const box = document.querySelector("#filter, #main .seek");
  if (!box) return false;
  box.focus();
  box.select();
  return true;
}

function filter() {
  const box = document.getElementById("filter");
  if (!box) return;
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.querySelectorAll("#main tbody tr")) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("input:not([type=checkbox], [type=radio]), select");
  if (typing) {
    if (event.key === "Escape") {
      if (typing.matches("#filter, .seek")) {
        typing.value = "";
        typing.dispatchEvent(new Event("input", { bubbles: true }));
      }
      typing.blur();
    }
    return;
  }
  const moves = { j: 1, k: -1 };
  if (event.key in moves) move(moves[event.key]);
  else if (event.key === "h") turn(-1);
  else if (event.key === "l") turn(1);
  else if (event.key === "u") up();
  else if (event.key !== "/" || !search()) return;
  event.preventDefault();
});

document.addEventListener("input", (event) => {
  if (event.target.id === "filter") filter();
});

// A choice is shown at once; without a script the form has a button.
document.addEventListener("change", (event) => {
  if (event.target.matches("#main form select")) event.target.form.requestSubmit();
});

function say(words) {
  const status = document.getElementById("status");
  if (status) status.textContent = words;
}

// What the reader has done to the page, to be done to the one that takes its place.
function standing() {
  const open = [...document.querySelectorAll("#main details")].map((each) => each.open);
  const box = document.getElementById("filter");
  const focused = document.activeElement;
  const typing = focused === box && box !== null;
  const at = stops().indexOf(focused), chart = charts().indexOf(focused);
  return { open, typing, sought: box ? box.value : "", at, chart, listed: tables.state() };
}

function restore(before) {
  const details = [...document.querySelectorAll("#main details")];
  if (details.length === before.open.length) details.forEach((each, i) => { each.open = before.open[i]; });
  const box = document.getElementById("filter");
  if (box) {
    box.value = before.sought;
    filter();
    if (before.typing) box.focus();
  }
  tables.restore(before.listed);
  curves.draw();
  if (before.chart >= 0) charts()[before.chart]?.focus({ preventScroll: true });
  else if (!before.typing && before.at >= 0) stops()[before.at]?.focus({ preventScroll: true });
}

let busy = false;
let again = false;

async function renew() {
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("main");
    if (answer.status === 404 && fresh) {
      main().replaceWith(document.adoptNode(fresh));
      say("This run no longer exists.");
      news?.close();
    } else if (answer.ok && fresh) {
      const before = standing();
      main().replaceWith(document.adoptNode(fresh));
      restore(before);
      say(resting ? RESTING : `Up to date at ${new Date().toLocaleTimeString()}.`);
    }
  } catch {
    say(SILENT);
  }
  busy = false;
  if (again) {
    again = false;
    renew();
  }
}

const RESTING = "This run is not active.";
const SILENT = "Connection lost; retrying.";
let news = null;
let resting = false; // nothing is being written: the server ends its answer and is asked again later
let ended = false; // it said so just now

function follow() {
  const { live, mark } = main().dataset;
  if (!live || document.hidden) return;
  resting = ended = false;
  news = new EventSource(`${live}?mark=${encodeURIComponent(mark)}`);
  news.addEventListener("open", () => resting || say("Following."));
  news.addEventListener("changed", () => {
    resting = false;
    renew();
  });
  news.addEventListener("rest", () => {
    if (!resting) say(RESTING);
    resting = ended = true;
  });
  news.addEventListener("error", (event) => {
    if (ended) {
      ended = false;
      return;
    }
    resting = false;
    say(SILENT);
    if (event.target === news && news.readyState === EventSource.CLOSED) {
      news = null;
      setTimeout(() => news || follow(), 500);
    }
  });
}

// A browser keeps few connections to one server: a hidden page closes its own.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    news?.close();
    news = null;
  } else if (!news) {
    follow();
  }
});

filter();
follow();
