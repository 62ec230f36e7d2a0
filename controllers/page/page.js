"use strict";
// Asks for this page again and shows what is new in it. Without scripts the browser reloads it.
const root = document.documentElement;
const away = document.getElementById("away");
let shown = "";

async function ask() {
  const answer = await fetch(location.origin + location.pathname + location.search, {
    cache: "no-cache",
    credentials: "same-origin",
    signal: AbortSignal.timeout(10000),
  });
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  const main = next.querySelector("main");
  if (!main) throw new Error(`status ${answer.status}`);
  const tag = answer.headers.get("etag");
  if (tag && tag === shown) return;
  shown = tag;
  document.querySelector("main").replaceWith(main);
  root.dataset.refresh = next.documentElement.dataset.refresh;
}

async function again() {
  if (!document.hidden) {
    try {
      await ask();
      away.hidden = true;
    } catch (error) {
      if (away.hidden) away.textContent = `No answer since ${new Date().toISOString()}: ${error.message}`;
      away.hidden = false;
    }
  }
  later();
}

function later() {
  setTimeout(again, 1000 * (Number(root.dataset.refresh) || 5)); // a proxy's own page has none
}

later();
