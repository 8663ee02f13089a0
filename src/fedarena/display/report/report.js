// Draws the figures in the reader's colour scheme. The figures' JSON carries the light colours; the settings say which
// dark colour stands for each. Buttons above a figure hide and show its methods.
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const settings = read("settings-of-plots");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paper = matchMedia("print");

  // Words of another colour; text that runs bring along is escaped, so that it cannot look like this.
  const colourOfWords = /(?<=<span style='color:)#[0-9A-F]{6}(?='>)/g;
  const inDark = (colour) => settings.dark[colour] ?? colour;

  function recoloured(value) {
    if (typeof value === "string") return settings.dark[value] ?? value.replace(colourOfWords, inDark);
    if (Array.isArray(value)) return value.map(recoloured);
    if (value === null || typeof value !== "object" || "bdata" in value) return value;
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, recoloured(inner)]));
  }

  const inScheme = (value) => (dark.matches && !paper.matches ? recoloured(value) : value);

  function draw(figure) {
    const plot = figure.querySelector(".plot");
    // Parsed anew each time, since Plotly adds to what it is given.
    const { data, layout } = inScheme(read(plot.dataset.figure));
    const off = [...figure.querySelectorAll("[aria-pressed=false]")].map((button) => button.dataset.group);
    for (const trace of data) trace.visible = !off.includes(trace.legendgroup);
    Plotly.react(plot, data, layout, settings.plot);
  }

  function drawAll() {
    for (const swatch of document.querySelectorAll("[data-colour]")) {
      swatch.style.color = inScheme(swatch.dataset.colour);
    }
    document.querySelectorAll("figure").forEach(draw);
  }

  drawAll();
  dark.addEventListener("change", drawAll);
  paper.addEventListener("change", drawAll);
  for (const button of document.querySelectorAll("[aria-pressed]")) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
      draw(button.closest("figure"));
    });
  }
})();
