// The digits of digits.csv.gz and batches of them as tensors, in Node.js and in browsers.

/** Those to train with, and each fifth, to test with. */
export function split(digits) {
  return [digits.filter((_, i) => i % 5 !== 4), digits.filter((_, i) => i % 5 === 4)];
}

/** [{pixels: Float32Array(64) of 0 to 1, digit}] from the bytes of digits.csv.gz. */
export async function parseDigits(buffer) {
  const stream = new Blob([buffer]).stream().pipeThrough(new DecompressionStream("gzip"));
  const text = await new Response(stream).text();
  return text.trim().split("\n").map((line) => {
    const numbers = line.split(",").map(Number);
    return { pixels: Float32Array.from(numbers.slice(0, 64), (n) => n / 16), digit: numbers[64] };
  });
}

/** {image [n, 1, 8, 8], labels [n]} of some digits. */
export function toBatch(ort, digits) {
  const pixels = new Float32Array(digits.length * 64);
  digits.forEach((one, i) => pixels.set(one.pixels, i * 64));
  return {
    image: new ort.Tensor("float32", pixels, [digits.length, 1, 8, 8]),
    labels: new ort.Tensor("int64", BigInt64Array.from(digits, (one) => BigInt(one.digit)), [digits.length]),
  };
}

/** The digit of the highest logit for each of n samples. */
export function guesses(logits) {
  const found = [];
  for (let at = 0; at < logits.length; at += 10) {
    const row = logits.slice(at, at + 10);
    found.push(row.indexOf(Math.max(...row)));
  }
  return found;
}

/** The share of digits that a trainer recognises. */
export async function accuracy(ort, trainer, digits) {
  const { logits } = await trainer.evaluate(toBatch(ort, digits));
  const right = guesses(logits).filter((guess, i) => guess === digits[i].digit).length;
  return right / digits.length;
}
