// The page: draw, label, learn. Every third drawing of a digit is kept to test with.

import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs";

import { accuracy, guesses, parseDigits, split, toBatch } from "./digits.mjs";
import { Trainer } from "./ondevice.mjs";

const STEPS = 60, RATE = 0.001;
// As many digits of others in each batch as keep it from forgetting them.
const OTHERS = 40, MINE = 8;

const element = (id) => document.getElementById(id);
const pad = element("pad"), ink = pad.getContext("2d", { willReadFrequently: true });
let trainer, files, others, drawings = [];

async function load() {
  ort.env.wasm.numThreads = 1; // more need a server that sends cross-origin isolation headers
  const bytes = async (path) => {
    const answer = await fetch(path);
    if (!answer.ok) throw new Error(`${path}: ${answer.status}. Run make_artifacts.py first.`);
    return answer.arrayBuffer();
  };
  const names = ["step_model.onnx", "eval_model.onnx", "checkpoint"];
  const [step, evaluation, checkpoint] = await Promise.all(names.map((name) => bytes(`artifacts/personal/${name}`)));
  files = { step, evaluation, checkpoint };
  others = split(await parseDigits(await bytes("digits.csv.gz")));
  await forget();
}

async function forget() {
  trainer = await Trainer.create(ort, files);
  drawings = [];
  for (const id of ["mine-before", "mine-after", "others-before", "others-after"]) element(id).textContent = "";
  element("download").hidden = true;
  clear();
  await show();
  say("ready");
}

// Drawing.

let last = null;

function at(event) {
  const box = pad.getBoundingClientRect();
  return [((event.clientX - box.left) * pad.width) / box.width, ((event.clientY - box.top) * pad.height) / box.height];
}

function clear() {
  ink.fillStyle = "#fff";
  ink.fillRect(0, 0, pad.width, pad.height);
  element("guess").textContent = "";
}

pad.addEventListener("pointerdown", (event) => {
  pad.setPointerCapture(event.pointerId);
  last = at(event);
});
pad.addEventListener("pointermove", (event) => {
  if (!last) return;
  const here = at(event);
  Object.assign(ink, { lineWidth: 20, lineCap: "round", strokeStyle: "#000" });
  ink.beginPath();
  ink.moveTo(...last);
  ink.lineTo(...here);
  ink.stroke();
  last = here;
});
pad.addEventListener("pointerup", async () => {
  last = null;
  const pixels = picture();
  if (!pixels || !trainer) return;
  const { logits } = await trainer.evaluate(toBatch(ort, [{ pixels, digit: 0 }]));
  element("guess").textContent = `looks like a ${guesses(logits)[0]}`;
});

/** The drawing as the data set's digits are: cut out, 32 × 32 points, and how many of each 4 × 4 are dark. */
function picture() {
  const { data } = ink.getImageData(0, 0, pad.width, pad.height);
  let [left, top, right, bottom] = [pad.width, pad.height, -1, -1];
  for (let y = 0; y < pad.height; y++) {
    for (let x = 0; x < pad.width; x++) {
      if (data[4 * (y * pad.width + x)] > 127) continue;
      [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), Math.max(bottom, y)];
    }
  }
  if (right < left) return null;
  const side = Math.max(right - left, bottom - top) + 1;
  const x0 = (left + right + 1 - side) / 2, y0 = (top + bottom + 1 - side) / 2;
  const pixels = new Float32Array(64);
  for (let i = 0; i < 1024; i++) {
    const [column, row] = [i % 32, Math.floor(i / 32)];
    const x = Math.floor(x0 + ((column + 0.5) * side) / 32), y = Math.floor(y0 + ((row + 0.5) * side) / 32);
    const inside = x >= 0 && y >= 0 && x < pad.width && y < pad.height;
    if (inside && data[4 * (y * pad.width + x)] <= 127) pixels[8 * Math.floor(row / 4) + Math.floor(column / 4)] += 1 / 16;
  }
  return pixels;
}

// Labelling.

for (let digit = 0; digit < 10; digit++) {
  const button = document.createElement("button");
  button.textContent = digit;
  button.dataset.digit = digit;
  button.addEventListener("click", async () => {
    const pixels = picture();
    if (!pixels) return;
    const tested = drawings.filter((one) => one.digit === digit).length % 3 === 2;
    drawings.push({ pixels, digit, tested });
    clear();
    await show();
  });
  element("labels").append(button);
}

async function show() {
  element("train").disabled = !drawings.some((one) => !one.tested);
  const seen = drawings.length ? guesses((await trainer.evaluate(toBatch(ort, drawings))).logits) : [];
  element("drawings").replaceChildren(...drawings.map(({ pixels, digit, tested }, i) => {
    const figure = document.createElement("figure"), image = document.createElement("img");
    const small = Object.assign(document.createElement("canvas"), { width: 8, height: 8 });
    const context = small.getContext("2d"), shades = context.createImageData(8, 8);
    pixels.forEach((p, k) => shades.data.set([255 * (1 - p), 255 * (1 - p), 255 * (1 - p), 255], 4 * k));
    context.putImageData(shades, 0, 0);
    image.src = small.toDataURL();
    const text = document.createElement("figcaption");
    text.textContent = `${digit} → ${seen[i]}${tested ? " (test)" : ""}`;
    text.className = seen[i] === digit ? "" : "wrong";
    figure.append(image, text);
    return figure;
  }));
}

// Learning.

async function measure(column) {
  const mine = drawings.filter((one) => one.tested);
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const own = mine.length ? mine : drawings;
  element(`mine-${column}`).textContent = percent(await accuracy(ort, trainer, own));
  element(`others-${column}`).textContent = percent(await accuracy(ort, trainer, others[1]));
}

async function learn() {
  element("train").disabled = true;
  await measure("before");
  const mine = drawings.filter((one) => !one.tested);
  for (let i = 0; i < STEPS; i++) {
    const batch = Array.from({ length: MINE }, (_, k) => mine[(i * MINE + k) % mine.length]);
    for (let k = 0; k < OTHERS; k++) batch.push(others[0][(i * OTHERS + k) % others[0].length]);
    const { loss } = await trainer.step(toBatch(ort, batch), RATE);
    say(`step ${i + 1} of ${STEPS}, loss ${loss[0].toFixed(3)}`);
    if (i % 10 === 9) await new Promise((resume) => setTimeout(resume)); // let the page draw
  }
  await measure("after");
  await show();
  const link = element("download");
  URL.revokeObjectURL(link.href);
  link.href = URL.createObjectURL(new Blob([trainer.checkpoint(RATE)]));
  Object.assign(link, { download: "checkpoint", hidden: false });
  say("learned");
}

function say(text) {
  element("status").textContent = text;
}

const guarded = (action) => () => action().catch((error) => say(`failed: ${error.message}`));
element("clear").addEventListener("click", clear);
element("train").addEventListener("click", guarded(learn));
element("forget").addEventListener("click", guarded(forget));
guarded(load)();
