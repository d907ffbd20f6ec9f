// Training with the artifacts in JavaScript: a checkpoint reader and writer, and a trainer around step_model.onnx.
// Works with any build of onnxruntime (onnxruntime-web, -node, -react-native): it is handed in as `ort`.

const NEXT = ".next";

/** CRC-32 as zip files have it, of some bytes behind those that `before` is of. */
function crc32(bytes, before = 0) {
  let found = ~before;
  for (const byte of bytes) {
    found ^= byte;
    for (let bit = 0; bit < 8; bit++) found = (found >>> 1) ^ (found & 1 ? 0xedb88320 : 0);
  }
  return ~found >>> 0;
}

/** What a checkpoint's metadata has as `checksum`: of the state's JSON and of all numbers. */
function checksum(state, numbers) {
  return crc32(numbers, crc32(new TextEncoder().encode(state))).toString(16).padStart(8, "0");
}

/** Tensors of a checkpoint by name, and its state: {trained, optimizer, properties, …}. */
export function readCheckpoint(buffer) {
  const view = new DataView(buffer);
  const start = 8 + Number(view.getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
  const told = header.__metadata__;
  if (told.checksum !== checksum(told.state, new Uint8Array(buffer, start))) throw new Error("the checkpoint is damaged");
  const state = JSON.parse(told.state);
  const tensors = new Map();
  delete header.__metadata__;
  for (const [name, { dtype, shape, data_offsets: [begin, end] }] of Object.entries(header)) {
    if (dtype !== "F32") throw new Error(`${name} is ${dtype}; this reader knows F32`);
    tensors.set(name, { dims: shape, data: new Float32Array(buffer.slice(start + begin, start + end)) });
  }
  return { tensors, state };
}

/** The bytes of a checkpoint that `readCheckpoint` and ontrain's CheckpointState.load_checkpoint read. */
export function writeCheckpoint({ tensors, state }) {
  const numbers = new Uint8Array([...tensors.values()].reduce((sum, { data }) => sum + data.byteLength, 0));
  const header = {};
  let size = 0;
  for (const [name, { dims, data }] of tensors) {
    header[name] = { dtype: "F32", shape: dims, data_offsets: [size, size + data.byteLength] };
    numbers.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), size);
    size += data.byteLength;
  }
  const text = JSON.stringify(state);
  header.__metadata__ = { format: "ontrain.checkpoint/2", checksum: checksum(text, numbers), state: text };
  const head = new TextEncoder().encode(JSON.stringify(header));
  const padded = new Uint8Array(Math.ceil(head.length / 8) * 8).fill(32);
  padded.set(head);
  const content = new Uint8Array(8 + padded.length + size);
  new DataView(content.buffer).setBigUint64(0, BigInt(padded.length), true);
  content.set(padded, 8);
  content.set(numbers, 8 + padded.length);
  return content;
}

/** Holds parameters and moments, and feeds each step's results to the next. */
export class Trainer {
  /**
   * @param ort onnxruntime's module.
   * @param files {step, evaluation, checkpoint}: ArrayBuffers of step_model.onnx, eval_model.onnx and checkpoint.
   */
  static async create(ort, { step, evaluation, checkpoint }) {
    const options = { executionProviders: ["wasm"] };
    const sessions = [];
    for (const file of [step, evaluation]) {
      sessions.push(await ort.InferenceSession.create(new Uint8Array(file), options));
    }
    return new Trainer(ort, ...sessions, readCheckpoint(checkpoint));
  }

  constructor(ort, step, evaluation, { tensors, state }) {
    Object.assign(this, { ort, stepSession: step, evalSession: evaluation, state });
    this.updates = state.optimizer.updates;
    this.held = new Map();
    for (const [name, { dims, data }] of tensors) this.held.set(name, new ort.Tensor("float32", data, dims));
    for (const name of step.outputNames.filter((one) => one.endsWith(NEXT)).map((one) => one.slice(0, -NEXT.length))) {
      if (this.held.has(name)) continue;
      // A moment that the checkpoint has none of yet: zeros, of its parameter's shape.
      const { dims, size } = this.held.get(name.replace(/\.[^.]*$/, ""));
      this.held.set(name, new ort.Tensor("float32", new Float32Array(size), dims));
    }
  }

  /** One step on a batch {input: Tensor, …}; returns the outputs, the loss among them, as numbers and arrays. */
  async step(batch, learningRate) {
    this.updates += 1;
    const hyper = { learning_rate: this.#scalar(learningRate), step: this.#scalar(this.updates) };
    const made = await this.#run(this.stepSession, { ...batch, ...hyper });
    const outputs = {};
    for (const [name, tensor] of Object.entries(made)) {
      if (name.endsWith(NEXT)) this.held.set(name.slice(0, -NEXT.length), tensor);
      else outputs[name] = tensor.data;
    }
    return outputs;
  }

  /** The outputs for a batch with dropout off; nothing changes. */
  async evaluate(batch) {
    const made = await this.#run(this.evalSession, batch);
    return Object.fromEntries(Object.entries(made).map(([name, tensor]) => [name, tensor.data]));
  }

  /** The present state as the bytes of a checkpoint, with the moments, so that training can go on elsewhere. */
  checkpoint(learningRate = null) {
    const tensors = new Map([...this.held].map(([name, { dims, data }]) => [name, { dims: [...dims], data }]));
    const moments = {};
    for (const [name, { dims }] of tensors) {
      if (!(name in this.state.parameters)) moments[name] = ["float32", dims];
    }
    const optimizer = { updates: this.updates, learning_rate: learningRate };
    return writeCheckpoint({ tensors, state: { ...this.state, moments, optimizer } });
  }

  #scalar(value) {
    return new this.ort.Tensor("float32", new Float32Array([value]), []);
  }

  #run(session, given) {
    const feeds = {};
    for (const name of session.inputNames) {
      feeds[name] = given[name] ?? this.held.get(name);
      if (feeds[name] === undefined) throw new Error(`the graph needs an input ${name}`);
    }
    return session.run(feeds);
  }
}
