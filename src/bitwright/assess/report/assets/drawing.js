// Numbers in words, elements, and scales of axes: what the parts of the page share.
// Text from the model only ever becomes a text node or an attribute's value, never markup.

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/** Returns the numbers of a packed list (see histograms.py). */
function unpack(text, peak) {
  const values = [];
  for (let at = 0; at < text.length; at += 2) {
    const level = 64 * LETTERS.indexOf(text[at]) + LETTERS.indexOf(text[at + 1]);
    values.push(Math.expm1((level / 4095) * Math.log1p(peak)));
  }
  return values;
}

/** Returns a measured number, or null: infinities come as words. */
function numeric(value) {
  return value === null || value === undefined ? null : Number(value);
}

const MINUS = "\u2212";
const signed = (text) => text.replace("-", MINUS);

function decibels(value) {
  if (value === null) return "–";
  if (value === Infinity) return "exact";
  if (value === -Infinity) return `${MINUS}∞`;
  return signed(value.toFixed(1));
}

function significant(value, digits = 3) {
  if (value === null) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) {
    const [mantissa, power] = value.toExponential(digits - 1).split("e");
    return signed(`${Number(mantissa)}e${Number(power)}`);
  }
  return signed(String(Number(value.toPrecision(digits))));
}

function percent(share) {
  if (share === null) return "–";
  if (share === 0) return "0 %";
  if (share < 0.0001) return "<0.01 %";
  return `${(100 * share).toFixed(share < 0.1 ? 2 : 1)} %`;
}

const whole = (count) => count.toLocaleString("en-US");

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const html = (tag, properties = {}, ...children) =>
  fill(document.createElement(tag), properties, children);

const svg = (tag, properties = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);

/** Returns a function from [from, to] to [start, end]. */
function scaleOf(from, to, start, end) {
  const factor = to === from ? 0 : (end - start) / (to - from);
  return (value) => start + (value - from) * factor;
}

/** Returns about `count` round numbers between two numbers. */
function ticksBetween(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) ticks.push(n * step);
  return ticks;
}

/** Writes text to the clipboard, also from a page that was opened from disk. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = html("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** Lets a button copy what `text()` returns, and say so. */
function copies(button, text) {
  const label = button.textContent;
  button.addEventListener("click", async () => {
    const done = await copyText(text());
    button.textContent = done ? "Copied" : "Not allowed";
    announce(done ? "Copied" : "The browser does not allow copying");
    setTimeout(() => { button.textContent = label; }, 1500);
  });
  return button;
}

function announce(text) {
  document.getElementById("said").textContent = text;
}

function saveFile(name, text) {
  const link = html("a", { download: name });
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
