// Train the digit classifier in Node.js with stock onnxruntime-web:
//
//     $ python recipes/on_device/make_artifacts.py
//     $ cd recipes/on_device && npm install && node train_digits.mjs
//
// Options: --artifacts FOLDER (artifacts/scratch), --steps N (225, five epochs), --rate R (0.002),
// --save FILE writes the checkpoint after training, which ontrain's CheckpointState.load_checkpoint reads.

import { readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import * as ort from "onnxruntime-web";

import { accuracy, parseDigits, split, toBatch } from "./digits.mjs";
import { Trainer } from "./ondevice.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const { values } = parseArgs({
  options: {
    artifacts: { type: "string", default: join(here, "artifacts", "scratch") },
    steps: { type: "string", default: "225" },
    rate: { type: "string", default: "0.002" },
    save: { type: "string" },
  },
});
ort.env.wasm.numThreads = 1;

const bytes = async (path) => new Uint8Array(await readFile(path)).buffer;
const [step, evaluation, checkpoint] = await Promise.all(
  ["step_model.onnx", "eval_model.onnx", "checkpoint"].map((name) => bytes(join(values.artifacts, name))),
);
const [train, test] = split(await parseDigits(await bytes(join(here, "digits.csv.gz"))));
const trainer = await Trainer.create(ort, { step, evaluation, checkpoint });

const size = 32;
const perEpoch = Math.ceil(train.length / size);
for (let i = 0, sum = 0; i < Number(values.steps); i++) {
  const at = (i % perEpoch) * size;
  const { loss } = await trainer.step(toBatch(ort, train.slice(at, at + size)), Number(values.rate));
  sum += loss[0];
  if ((i + 1) % perEpoch === 0 || i + 1 === Number(values.steps)) {
    const mean = sum / ((i % perEpoch) + 1);
    const right = await accuracy(ort, trainer, test);
    console.log(`step ${i + 1}  loss ${mean.toFixed(4)}  right ${right.toFixed(3)}`);
    sum = 0;
  }
}
if (values.save) await writeFile(values.save, trainer.checkpoint(Number(values.rate)));
