// The server from JavaScript, without a package: node speak.mjs [http://localhost:8080]
// In a browser start the server with --cors and hand the pieces to an AudioContext.
import { writeFile } from "node:fs/promises";

const base = process.argv[2] ?? "http://localhost:8080";

async function speak(fields) {
  const answer = await fetch(base + "/v1/audio/speech", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model: "drama-3", voice: "alloy", ...fields }),
  });
  if (!answer.ok) {
    const { error } = await answer.json();
    throw new Error(`${answer.status} ${error.param}: ${error.message}`);
  }
  return answer;
}

// A whole file.
await writeFile("morning.mp3", Buffer.from(await (await speak({ input: "Good morning." })).arrayBuffer()));

// 16-bit samples as they are made. A piece may end in the middle of a sample: the odd byte waits for the next.
const answer = await speak({ input: "As it is made.", response_format: "pcm", stream: true });
const rate = Number(answer.headers.get("x-sample-rate"));
let rest = new Uint8Array(0), samples = 0;
for await (const piece of answer.body) {
  const bytes = new Uint8Array(rest.length + piece.length);
  bytes.set(rest);
  bytes.set(piece, rest.length);
  const whole = bytes.length & ~1;
  samples += new Int16Array(bytes.buffer, 0, whole / 2).length; // play them here
  rest = bytes.slice(whole);
}
console.log(`${(samples / rate).toFixed(2)} s at ${rate} Hz, seed ${answer.headers.get("x-seed")}`);

// What is wrong is said, and where.
await speak({ input: "Hello.", voice: "nobody" }).catch((error) => console.log(error.message));
