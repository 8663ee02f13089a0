// Follows runs over one event stream: a list of all of them, and plots of those that are chosen. Text that runs bring
// along only ever becomes text. Colours are those of the report; its settings say which dark colour stands for each.
(() => {
  const MOST_LISTED = 200;
  const MOST_CHOSEN = 12;
  const MOST_AUTOMATIC = 8;
  const MOST_BANDS = 4; // more would cover each other
  const MOST_BARS = 60;
  const at = (id) => document.getElementById(id);
  const settings = JSON.parse(at("settings").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");

  const runs = new Map(); // what the list shows, by key
  const rounds = new Map(); // rows of chosen runs, by key
  const origins = new Map(); // of which run they are: another one may begin in the same folder
  const phones = new Map(); // at work, over virtual hours, by key
  const simulated = new Map(); // whether the ε of a chosen run is only simulated, by key
  const problems = new Map();
  let suites = [];
  let complete = false;
  let chosen = location.hash.slice(1).split(",").filter((key) => /^[0-9a-f]{12}$/.test(key)).slice(0, MOST_CHOSEN);
  let automatic = chosen.length === 0; // until somebody chooses
  let stream = null;

  // --- small things ---------------------------------------------------------------------------------------------------

  function element(name, classes = "", text = null, ...children) {
    const made = document.createElement(name);
    if (classes) made.className = classes;
    if (text !== null) made.textContent = text;
    made.append(...children);
    return made;
  }

  function inScheme(value) {
    if (!dark.matches) return value;
    if (typeof value === "string") return settings.dark[value] ?? value;
    if (Array.isArray(value)) return value.map(inScheme);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, inScheme(inner)]));
  }

  // As Plotly shows it unchanged: no markup, no formula between dollars, no variable of a hover text.
  const plotText = (text) =>
    text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\$/g, "&#36;").replace(/%/g, "&#37;");

  function duration(seconds) {
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
      if (seconds >= size) return `${(seconds / size).toFixed(seconds / size < 10 ? 1 : 0)} ${unit}`;
    }
    return `${Math.max(0, Math.round(seconds))} s`;
  }

  const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  const fullName = (run) => (run.suite ? `${run.suite}/${run.name}` : run.name);
  const colourOf = (key) => settings.series[chosen.indexOf(key) % settings.series.length];
  const bandOf = (key) => settings.bands[chosen.indexOf(key) % settings.bands.length];
  const dashOf = (key) => ["solid", "dash"][Math.floor(chosen.indexOf(key) / settings.series.length) % 2];

  let waiting = false;
  function refresh() {
    if (waiting) return;
    waiting = true;
    setTimeout(() => {
      waiting = false;
      showHeader();
      showNotices();
      showList();
      showPlots();
    }, 150);
  }

  // --- header and notices ---------------------------------------------------------------------------------------------

  function connection(state, text) {
    at("connection").className = `connection ${state}`;
    at("connection").textContent = text;
  }

  function showHeader() {
    const tally = new Map();
    for (const run of runs.values()) tally.set(run.status, (tally.get(run.status) ?? 0) + 1);
    const order = ["running", "finished", "interrupted", "diverged", "failed", "damaged", "unreadable"];
    const parts = order.filter((status) => tally.has(status)).map((status) => `${tally.get(status)} ${status}`);
    if (!complete) parts.push("looking for runs …");
    else if (!runs.size) parts.push("No runs yet; they appear here as soon as one begins.");
    at("counts").textContent = parts.join(" · ");
  }

  function showNotices() {
    const notes = [];
    for (const key of chosen) {
      const run = runs.get(key);
      const sentence = problems.get(key) ?? (/^(damaged|unreadable|diverged|failed)$/.test(run?.status) ? run.message : null);
      if (!run || !sentence) continue;
      notes.push(element("p", "notice broken", null, element("strong", "", `${fullName(run)}: `), sentence));
    }
    at("notices").replaceChildren(...notes);
  }

  // --- the list -------------------------------------------------------------------------------------------------------

  const rank = (run) => (run.status === "running" ? 0 : 1);
  const byName = (a, b) => a.name.localeCompare(b.name, "en", { numeric: true });

  function bar(share, status = "") {
    const filled = element("i");
    filled.style.width = `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%`;
    return element("div", `bar ${status}`, null, filled);
  }

  function showList() {
    const words = at("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (run) => words.every((word) => `${fullName(run)} ${run.status}`.toLowerCase().includes(word));
    const found = [...runs.values()].filter(fits);
    const groups = new Map();
    for (const run of found) groups.set(run.suite ?? "", [...(groups.get(run.suite ?? "") ?? []), run]);
    const names = [...groups.keys()].sort((a, b) => {
      const [one, other] = [a, b].map((name) => Math.min(...groups.get(name).map(rank)));
      return one - other || (a === "") - (b === "") || a.localeCompare(b, "en", { numeric: true });
    });
    const lines = found.length ? [headLine(found)] : [];
    let left = MOST_LISTED;
    for (const name of names) {
      if (left <= 0) break;
      if (name) lines.push(suiteLine(name));
      else if (names.length > 1) lines.push(element("div", "group", null, element("h3", "", "Single runs")));
      const sorted = groups.get(name).sort((a, b) => rank(a) - rank(b) || byName(a, b));
      lines.push(...sorted.slice(0, left).map(runLine));
      left -= sorted.length;
    }
    const focused = document.activeElement?.dataset?.key;
    at("list").replaceChildren(...lines);
    if (focused) at("list").querySelector(`input[data-key="${focused}"]`)?.focus();
    const hidden = Math.max(0, found.length - MOST_LISTED);
    at("listed").textContent = hidden
      ? `${MOST_LISTED} of ${counted(found.length, "run")}; the filter finds the others`
      : words.length ? counted(found.length, "run") : "";
    at("filter").parentElement.hidden = runs.size < 8;
  }

  function headLine(found) {
    const metrics = new Set(found.filter((run) => run.metric).map((run) => run.metric.label));
    const score = metrics.size === 1 ? [...metrics][0] : "score";
    const cells = [["name", "run"], ["status", "status"], ["bar", "progress"], ["count", "rounds"], ["score", score], ["time", "time left"]];
    return element("div", "run head", null, ...cells.map(([classes, text]) => element("span", classes, text)));
  }

  function suiteLine(name) {
    const suite = suites.find((one) => one.name === name) ?? { runs: 0, ended: 0, share: 0, seconds_left: null };
    const left = suite.seconds_left === null ? "" : `, about ${duration(suite.seconds_left)} left`;
    const text = `${suite.ended} of ${counted(suite.runs, "run")} done${left}`;
    const running = [...runs.values()].some((run) => run.suite === name && run.status === "running");
    return element("div", "group", null, element("h3", "", name), bar(suite.share, running ? "running" : ""), element("span", "quiet", text));
  }

  function runLine(run) {
    const line = element("label", "run");
    const pick = element("input");
    Object.assign(pick, { type: "checkbox", checked: chosen.includes(run.key) });
    pick.dataset.key = run.key;
    if (pick.checked) line.style.setProperty("--chosen", inScheme(colourOf(run.key)));
    pick.addEventListener("change", () => choose(run.key, pick.checked));
    const share = run.share ?? (run.status === "finished" ? 1 : (run.round ?? 0) / (run.rounds || 1));
    const digits = run.metric?.decimals ?? 4;
    const score = element("span", "score", run.score == null ? "" : run.score.toFixed(digits));
    if (run.metric) score.title = run.metric.label;
    line.append(pick, element("span", "name", run.name), element("span", `status ${run.status}`, run.status), bar(share, run.status));
    line.append(element("span", "count", run.rounds == null ? "" : `${run.round ?? 0} / ${run.rounds}`), score);
    const left = run.status === "running" && run.seconds_left != null ? duration(run.seconds_left) : "";
    line.append(element("span", "time", left));
    const report = element("span", "report");
    if (run.report) {
      const link = element("a", "", "report");
      Object.assign(link, { href: `report/${run.key}`, target: "_blank", rel: "noopener" });
      report.append(link);
    }
    line.append(report);
    if (run.message && run.status !== "finished") line.append(element("span", "message", run.message));
    return line;
  }

  // --- what is chosen -------------------------------------------------------------------------------------------------

  function choose(key, wanted) {
    automatic = false;
    const others = chosen.filter((one) => one !== key);
    setChosen(wanted ? [...others, key].slice(-MOST_CHOSEN) : others);
    history.replaceState(null, "", `#${chosen.join(",")}`);
  }

  function setChosen(keys) {
    chosen = keys;
    for (const known of [rounds, origins, phones, simulated, problems]) {
      for (const key of known.keys()) if (!chosen.includes(key)) known.delete(key);
    }
    connect();
    refresh();
  }

  // What goes on, with the rest of its suite; where nothing does, what changed last.
  function chooseByItself() {
    if (!automatic || !complete) return;
    const all = [...runs.values()].filter((run) => run.metric);
    const newest = all.reduce((best, run) => ((run.changed ?? 0) > (best?.changed ?? -1) ? run : best), null);
    const leaders = all.filter((run) => run.status === "running");
    if (!leaders.length && newest) leaders.push(newest);
    const mates = all.filter((run) => run.suite && leaders.some((leader) => leader.suite === run.suite));
    const keys = [...new Set([...leaders, ...mates.sort(byName)].map((run) => run.key))].slice(0, MOST_AUTOMATIC);
    keys.sort((a, b) => byName(runs.get(a), runs.get(b)));
    if (keys.join() !== chosen.join()) setChosen(keys);
  }

  // --- plots ----------------------------------------------------------------------------------------------------------

  function draw(name, traces, changes = {}) {
    const plot = at(name);
    const has = traces.some((trace) => trace.x.length);
    plot.hidden = !has;
    if (!has) return false;
    const layout = JSON.parse(JSON.stringify(inScheme(settings.layouts[name])));
    layout.hovermode = "x unified";
    layout.uirevision = "kept"; // a zoom stays when a round comes
    for (const [axis, values] of Object.entries(changes)) {
      if (axis.endsWith("axis")) layout[axis] = { ...layout[axis], ...values };
      else layout[axis] = values;
    }
    Plotly.react(plot, inScheme(traces), layout, settings.plot);
    return true;
  }

  const title = (text, layout) => ({ title: { ...(layout.title ?? {}), text } });

  function curves(keys, x, factor) {
    const traces = [];
    for (const key of keys) {
      const rows = rounds.get(key).filter((row) => row.score !== null && row[x] !== null);
      const [xs, color, name] = [rows.map((row) => row[x] * factor), colourOf(key), plotText(fullName(runs.get(key)))];
      const common = { name, legendgroup: key, type: "scatter", mode: "lines" };
      const spread = rows.filter((row) => row.low !== null && row.high !== null);
      if (keys.length <= MOST_BANDS && spread.length > 1) {
        const around = [...spread, ...[...spread].reverse()];
        traces.push({
          ...common,
          x: around.map((row) => row[x] * factor),
          y: around.map((row, place) => (place < spread.length ? row.high : row.low)),
          fill: "toself",
          fillcolor: bandOf(key),
          line: { width: 0 },
          hoverinfo: "skip",
        });
      }
      const digits = Math.min(3, runs.get(key).metric.decimals ?? 3);
      const mode = rows.length < 60 ? "lines+markers" : "lines";
      const hovertemplate = `%{y:.${digits}f} ${name}<extra></extra>`;
      traces.push({ ...common, mode, x: xs, y: rows.map((row) => row.score), line: { color, width: 2, dash: dashOf(key) }, marker: { size: 5, color }, hovertemplate });
    }
    return traces;
  }

  function showPlots() {
    const shown = chosen.filter((key) => rounds.get(key)?.length && runs.get(key)?.metric);
    const metric = runs.get(shown[0])?.metric;
    const alike = shown.filter((key) => runs.get(key).metric.name === metric.name);
    at("keys").replaceChildren(
      ...shown.map((key) => {
        const swatch = element("span", `line ${dashOf(key)}`);
        swatch.style.color = inScheme(colourOf(key));
        return element("span", "key", null, swatch, fullName(runs.get(key)));
      })
    );
    const nothing = chosen.length ? "No round is done yet." : "Choose runs above to see them here.";
    at("score-rounds-empty").textContent = shown.length ? "" : nothing;
    if (metric) {
      const label = metric.label[0].toUpperCase() + metric.label.slice(1);
      at("score-rounds-title").textContent = `${label} over rounds`;
      at("score-hours-title").textContent = `${label} over virtual time`;
    }
    draw("score-rounds", curves(alike, "round", 1), {});
    showGuarded(shown);

    const hours = Math.max(0, ...shown.map((key) => rounds.get(key).at(-1).hours ?? 0));
    const clocked = hours > 0;
    at("score-hours-figure").hidden = !clocked;
    at("score-rounds-figure").parentElement.classList.toggle("alone", !clocked);
    at("phones-section").hidden = !clocked;
    if (!clocked) return;
    const [factor, unit] = hours < 1 ? [60, "minutes"] : [1, "hours"];
    const axis = settings.layouts["score-hours"].xaxis;
    draw("score-hours", curves(alike, "hours", factor), { xaxis: inScheme(title(`virtual ${unit}`, axis)) });

    const working = shown.map((key) => {
      const { hours: middles, phones: y } = phones.get(key) ?? { hours: [], phones: [] };
      const x = middles.map((middle) => middle * factor);
      const name = plotText(fullName(runs.get(key)));
      const line = { color: colourOf(key), width: 1.6, dash: dashOf(key) };
      return { x, y, type: "scatter", mode: "lines", name, line, hovertemplate: `%{y:.1f} ${name}<extra></extra>` };
    });
    draw("phones", working, { xaxis: inScheme(title(`virtual ${unit}`, axis)), yaxis: { rangemode: "tozero" } });
    showFailures(shown);
  }

  // What only some runs have; a figure without any of it is not there.
  function showGuarded(shown) {
    const told = [["epsilon", "epsilon", ".3~g"], ["attack-success", "attack_success", ".1%"]];
    const known = told.filter(([, column]) => shown.some((key) => rounds.get(key).some((row) => row[column] != null)));
    // What is hidden has no width to be drawn in, so this comes first.
    at("guarded-section").hidden = !known.length;
    for (const [name] of told) at(`${name}-figure`).hidden = !known.some((one) => one[0] === name);
    at("epsilon-figure").parentElement.classList.toggle("alone", known.length < 2);
    for (const [name, column, format] of known) {
      const traces = shown.map((key) => {
        const rows = rounds.get(key).filter((row) => row[column] != null);
        const label = plotText(fullName(runs.get(key)) + (column === "epsilon" && simulated.get(key) ? " (sim.)" : ""));
        const line = { color: colourOf(key), width: 2, dash: dashOf(key) };
        const hovertemplate = `%{y:${format}} ${label}<extra></extra>`;
        const mode = rows.length < 60 ? "lines+markers" : "lines";
        const marker = { size: 5, color: colourOf(key) };
        return { x: rows.map((row) => row.round), y: rows.map((row) => row[column]), type: "scatter", mode, marker, name: label, line, hovertemplate };
      });
      const range = column === "epsilon" ? { rangemode: "tozero" } : { range: [-0.02, 1.02], tickformat: ".0%" };
      draw(name, traces.filter((trace) => trace.x.length), { yaxis: range });
    }
  }

  function showFailures(shown) {
    const last = Math.max(1, ...shown.map((key) => rounds.get(key).at(-1).round));
    const size = Math.ceil(last / MOST_BARS);
    const bin = (row) => Math.floor((Math.max(1, row.round) - 1) / size);
    const reasons = new Map();
    const played = new Array(Math.ceil(last / size)).fill(0); // rounds of all chosen runs
    for (const key of shown) {
      let before = 0;
      for (const row of rounds.get(key)) {
        played[bin(row)] += row.round - before; // more than one where neighbours are told together
        before = row.round;
        for (const [reason, number] of Object.entries(row.failures)) {
          if (!reasons.has(reason)) reasons.set(reason, played.map(() => 0));
          reasons.get(reason)[bin(row)] += number;
        }
      }
    }
    const known = Object.keys(settings.reasons);
    const place = (reason) => (known.includes(reason) ? known.indexOf(reason) : known.length);
    const sorted = [...reasons.keys()].sort((a, b) => place(a) - place(b));
    const traces = sorted.map((reason) => ({
      type: "bar",
      name: plotText(reason),
      x: reasons.get(reason).map((_, number) => number * size + (size + 1) / 2),
      y: reasons.get(reason).map((number, place) => number / (played[place] || 1)),
      width: size * 0.82,
      marker: { color: settings.reasons[reason] ?? settings.other, line: { width: 0 } },
      hovertemplate: `%{y:.2f} ${plotText(reason)}<extra></extra>`,
    }));
    const drawn = draw("failures", traces, { barmode: "stack", yaxis: { rangemode: "tozero" } });
    at("failures-empty").textContent = drawn ? "" : "No job has failed.";
    at("failures-keys").replaceChildren(
      ...sorted.map((reason) => {
        const swatch = element("span", "block");
        swatch.style.color = inScheme(settings.reasons[reason] ?? settings.other);
        const total = reasons.get(reason).reduce((sum, number) => sum + number, 0);
        return element("span", "key", null, swatch, `${reason} ${total.toLocaleString("en")}`);
      })
    );
  }

  // --- the stream -----------------------------------------------------------------------------------------------------

  function connect() {
    stream?.close();
    const known = chosen.filter((key) => rounds.get(key)?.length).map((key) => `${key}/${origins.get(key)}/${rounds.get(key).at(-1).round}`);
    const query = new URLSearchParams({ runs: chosen.join(","), after: known.join(" ") });
    stream = new EventSource(`events?${query}`);
    stream.addEventListener("open", () => connection("live", "live"));
    stream.addEventListener("error", () => connection("lost", "connection lost, trying again"));
    stream.addEventListener("runs", (event) => takeRuns(JSON.parse(event.data)));
    stream.addEventListener("rounds", (event) => takeRounds(JSON.parse(event.data)));
    stream.addEventListener("problem", (event) => {
      const { key, message } = JSON.parse(event.data);
      problems.set(key, message);
      refresh();
    });
  }

  function takeRuns(news) {
    for (const key of news.gone) runs.delete(key);
    for (const run of news.runs) {
      runs.set(run.key, run);
      if (run.run !== undefined && run.run !== origins.get(run.key)) rounds.delete(run.key);
    }
    suites = news.suites;
    complete = news.complete;
    chooseByItself();
    refresh();
  }

  function takeRounds({ key, run, rows, phones: atWork, simulated: isSimulated }) {
    if (run !== origins.get(key)) rounds.delete(key);
    origins.set(key, run);
    phones.set(key, atWork);
    simulated.set(key, isSimulated);
    problems.delete(key);
    const before = rounds.get(key) ?? [];
    const last = before.length ? before.at(-1).round : -1;
    rounds.set(key, [...before, ...rows.filter((row) => row.round > last)]);
    refresh();
  }

  at("filter").addEventListener("input", refresh);
  dark.addEventListener("change", refresh);
  connect();
  refresh();
})();
