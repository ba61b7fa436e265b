// SHA-256 (FIPS 180-4), for pages that are opened from a file or over plain HTTP: browsers offer
// crypto.subtle only on HTTPS and on the machine itself.

const PRIMES = Array.from({ length: 312 }, (_, number) => number)
  .filter((number) => number > 1 && !Array.from({ length: number }, (_, divisor) => divisor)
    .some((divisor) => divisor > 1 && number % divisor === 0));
const fractionBits = (number) => Math.floor((number - Math.floor(number)) * 2 ** 32);
const INITIAL_STATE = PRIMES.slice(0, 8).map((prime) => fractionBits(Math.sqrt(prime)));
const ROUND_CONSTANTS = PRIMES.map((prime) => fractionBits(Math.cbrt(prime)));
const BLOCK_BYTES = 64;

const rotate = (word, bits) => (word >>> bits) | (word << (32 - bits));

// Adds one block of a view, from offset on, to the state. words is scratch memory of 64 integers.
const addBlock = (state, view, offset, words) => {
  for (let i = 0; i < 16; i += 1) words[i] = view.getInt32(offset + 4 * i);
  for (let i = 16; i < 64; i += 1) {
    const early = words[i - 15];
    const late = words[i - 2];
    const small0 = rotate(early, 7) ^ rotate(early, 18) ^ (early >>> 3);
    const small1 = rotate(late, 17) ^ rotate(late, 19) ^ (late >>> 10);
    words[i] = (words[i - 16] + small0 + words[i - 7] + small1) | 0;
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < 64; i += 1) {
    const big1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const choice = (e & f) ^ (~e & g);
    const first = (h + big1 + choice + ROUND_CONSTANTS[i] + words[i]) | 0;
    const big0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const majority = (a & b) ^ (a & c) ^ (b & c);
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + big0 + majority) | 0];
  }
  [a, b, c, d, e, f, g, h].forEach((word, i) => { state[i] = (state[i] + word) | 0; });
};

// Returns the SHA-256 of an Uint8Array as 64 hexadecimal digits.
export const sha256 = (bytes) => {
  const state = [...INITIAL_STATE];
  const words = new Int32Array(64);
  const wholeBytes = bytes.length - (bytes.length % BLOCK_BYTES);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  for (let offset = 0; offset < wholeBytes; offset += BLOCK_BYTES) addBlock(state, view, offset, words);
  const rest = bytes.subarray(wholeBytes);
  const tail = new Uint8Array(rest.length + 9 > BLOCK_BYTES ? 2 * BLOCK_BYTES : BLOCK_BYTES);
  tail.set(rest);
  tail[rest.length] = 0x80;
  const tailView = new DataView(tail.buffer);
  tailView.setBigUint64(tail.length - 8, 8n * BigInt(bytes.length));
  for (let offset = 0; offset < tail.length; offset += BLOCK_BYTES) addBlock(state, tailView, offset, words);
  return state.map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
};

export const sha256OfText = (text) => sha256(new TextEncoder().encode(text));
