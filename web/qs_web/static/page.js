// Keeps the page up to date: fetches its own address every 2 s and changes what differs, in place, so that scroll,
// selection, focus, check boxes and what is typed stay. Without it, everything works by forms and links.
"use strict";
(() => {
  const LATE = 1500;
  const body = document.body;
  document.documentElement.classList.add("script");

  const source = location.href;
  const address = new URL(source);
  if (address.searchParams.has("done")) {
    // A reload does not show the notice of an action again. Updates keep it: if it went, what one is about to click
    // would move.
    for (const name of ["done", "n"]) address.searchParams.delete(name);
    history.replaceState(null, "", address);
  }

  body.addEventListener("change", ({ target }) => {
    if (!("all" in target.dataset)) return;
    for (const box of target.form.querySelectorAll("tbody input[type=checkbox]")) box.checked = target.checked;
  });

  if (!("live" in body.dataset)) return;

  const keyOf = (node) => (node.nodeType === 1 ? node.dataset.key : undefined);

  const isSelected = (node) => {
    const selection = getSelection();
    return !selection.isCollapsed && selection.containsNode(node, true);
  };

  function update(old, fresh) {
    if (old.nodeType !== 1) {
      if (old.data !== fresh.data && !isSelected(old)) old.data = fresh.data;
      return;
    }
    if ("keep" in old.dataset) return;
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    }
    updateChildren(old, fresh);
  }

  function updateChildren(old, fresh) {
    const wanted = new Set([...fresh.childNodes].map(keyOf));
    const byKey = new Map();
    for (const child of [...old.childNodes]) {
      const key = keyOf(child);
      if (key === undefined) continue;
      if (wanted.has(key)) byKey.set(key, child);
      else {
        if (child.nextSibling?.nodeType === 3) child.nextSibling.remove();
        child.remove();
      }
    }
    let at = old.firstChild;
    for (const child of fresh.childNodes) {
      const key = keyOf(child);
      const fits = at && keyOf(at) === undefined && at.nodeName === child.nodeName;
      const mine = key === undefined ? fits && at : byKey.get(key);
      if (!mine) {
        old.insertBefore(document.importNode(child, true), at);
        continue;
      }
      if (mine === at) at = at.nextSibling;
      else old.insertBefore(mine, at);
      update(mine, child);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function show(fresh) {
    const focused = document.activeElement;
    update(body, fresh.body);
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }

  function say(text) {
    body.classList.add("stale");
    document.getElementById("trouble").textContent = text;
  }

  const button = document.getElementById("live");
  const period = () => Number(body.dataset.live);
  let on = sessionStorage.getItem("live") !== "off";
  let timer = 0;
  let asking = false;

  async function refresh() {
    clearTimeout(timer);
    if (!on || document.hidden) return;
    timer = setTimeout(refresh, period());
    if (asking) return;
    asking = true;
    const late = setTimeout(say, LATE, "The page does not answer. Trying again.");
    try {
      const answer = await fetch(source, { cache: "no-store", signal: AbortSignal.timeout(10000) });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      clearTimeout(late);
      if (fresh.body.dataset.page === body.dataset.page) show(fresh);
      else if (answer.status === 503) say(fresh.getElementById("trouble").textContent);
      else location.reload();
    } catch {
      say("The page does not answer. Trying again.");
    } finally {
      clearTimeout(late);
      asking = false;
    }
  }

  function label() {
    button.textContent = on ? "Pause updates" : "Resume updates";
    document.documentElement.classList.toggle("paused", !on);
  }

  button.addEventListener("click", () => {
    on = !on;
    sessionStorage.setItem("live", on ? "on" : "off");
    label();
    refresh();
  });
  document.addEventListener("visibilitychange", refresh);
  label();
  timer = setTimeout(refresh, period());
})();
