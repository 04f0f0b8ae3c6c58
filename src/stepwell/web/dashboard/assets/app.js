// Keys, copying, relative times, the live chip, and forms that send themselves. Pages work without any of it.
(() => {
  const doc = document, root = doc.documentElement, $ = (s, at = doc) => at.querySelector(s), all = (s, at = doc) => [...at.querySelectorAll(s)];
  root.classList.add("has-js");

  // Times: relative ones go on, and all are in the browser's zone if that is preferred.
  const two = n => String(n).padStart(2, "0");
  const local = d => `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  const ago = d => {
    const s = (Date.now() - d) / 1000, n = Math.abs(s);
    const [span, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([size]) => n >= size) || [];
    if (!span) return "now";
    const words = `${Math.floor(n / span)} ${unit}`;
    return s > 0 ? `${words} ago` : `in ${words}`;
  };
  const times = () => {
    const isLocal = root.dataset.zone === "local";
    for (const t of all("time[data-ago]")) { t.textContent = ago(new Date(t.dateTime)); if (isLocal) t.title = local(new Date(t.dateTime)); }
    if (isLocal) for (const t of all("time[data-stamp]")) t.textContent = local(new Date(t.dateTime));
  };
  times();
  setInterval(times, 10000);
  doc.addEventListener("htmx:after:swap", e => {
    times(); mark();
    if (chip?.dataset.state === "off" && (e.detail?.ctx?.response?.status ?? 500) < 400) say("live", "Live");
  });
  // A part that cannot be fetched keeps what it shows; the chip says since when.
  for (const what of ["htmx:response:error", "htmx:error"]) doc.addEventListener(what, e => { if (e.target !== live) say("off", `Stale: showing ${clock()}`); });

  // The chip that says whether what is shown is live.
  const chip = $("#live-chip"), live = $("#live");
  let last = new Date(), isPaused = false, isOver = false;
  const say = (state, words) => { if (chip) { chip.dataset.state = state; chip.textContent = words; } };
  const clock = () => local(last).slice(11);
  if (live) {
    live.addEventListener("htmx:sse:after:connection", () => { last = new Date(); say("live", "Live"); });
    live.addEventListener("htmx:sse:after:message", () => { last = new Date(); });
    live.addEventListener("htmx:sse:before:connection", e => { if (e.detail.connection.attempt) say("off", `Reconnecting: showing ${clock()}`); });
    live.addEventListener("htmx:sse:error", () => say("off", `Offline: showing ${clock()}`));
    live.addEventListener("end", () => { isOver = true; });
    live.addEventListener("htmx:sse:close", () => { if (!isPaused) say("still", isOver ? "Ended" : `Not live: showing ${clock()}`); });
    chip.addEventListener("click", () => {
      if (isOver) return;
      isPaused = !isPaused;
      if (isPaused) { live.remove(); say("still", `Paused: showing ${clock()}`); } else location.reload();
    });
  }

  // Small things that pages mark with data attributes.
  doc.addEventListener("change", e => {
    if (e.target.matches("[data-submit]")) e.target.form.requestSubmit();
    if (e.target.matches("[data-column]")) $("[data-columns]", e.target.form).value = all("[data-column]:checked", e.target.form).map(b => b.value).join();
    if (e.target.matches("[data-all]")) for (const box of all("[data-row] input[type=checkbox]")) box.checked = e.target.checked;
  });
  doc.addEventListener("click", async e => {
    const copy = e.target.closest("[data-copy]"), dialog = e.target.closest("[data-dialog]");
    if (copy) { await navigator.clipboard?.writeText(copy.dataset.copy); copy.title = "Copied"; copy.classList.add("done"); }
    if (dialog) { const d = doc.getElementById(dialog.dataset.dialog); if (d && !d.open) d.showModal(); }
  });

  // Keys: a row is chosen with j and k; every other key clicks or focuses what carries it.
  let at = -1, going = false, from = -1;
  const rows = () => all("[data-row]");
  const mark = () => rows().forEach((r, i) => r.toggleAttribute("data-at", i === at));
  const step = n => {
    const list = rows();
    if (!list.length) return;
    at = Math.max(0, Math.min(list.length - 1, at + n));
    mark();
    const link = $("a", list[at]);
    list[at].scrollIntoView({ block: "nearest" });
    link?.focus();
  };
  const select = isRange => {
    const list = rows(), box = list[at] && $("input[type=checkbox]", list[at]);
    if (!box) return;
    if (isRange && from >= 0) for (let i = Math.min(from, at); i <= Math.max(from, at); i++) { const b = $("input[type=checkbox]", list[i]); if (b) b.checked = true; }
    else { box.checked = !box.checked; from = at; }
  };
  doc.addEventListener("keydown", e => {
    if (root.dataset.keys === "off" || e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented) return;
    if (e.key === "Escape") {
      if (e.target.matches("input,textarea,select")) e.target.blur();
      else if (!$("dialog[open]")) $("[data-back]")?.click();
      return;
    }
    if (e.target.matches("input:not([type=checkbox]),textarea,select,[contenteditable]") || $("dialog[open]")) return;
    let used = true;
    if (going) { going = false; $(`[data-go="${CSS.escape(e.key)}"]`)?.click(); }
    else if (e.key === "g") going = true;
    else if (e.key === "j") step(1);
    else if (e.key === "k") step(-1);
    else if (e.key === "x" || e.key === "X") select(e.key === "X");
    else if (e.key === ".") $(".actions summary,.actions a,.actions button,.bulk button")?.focus();
    else if (e.key === "/") ($("#filter") || $("#search")).focus();
    else {
      const found = all(`[data-key="${CSS.escape(e.key)}"]`).find(each => !each.disabled && each.getClientRects().length);
      if (found) found.matches("input:not([type=checkbox]),select,textarea") ? found.focus() : found.click(); else used = false;
    }
    if (used) e.preventDefault();
  });
})();
