// The public reference server, to develop the tests against: prints the same first line as ours.
import { DurableStreamTestServer } from "@durable-streams/server"

const port = Number(process.argv[2] ?? 0)
const server = new DurableStreamTestServer({ port, host: "127.0.0.1", longPollTimeout: 500 })
console.log(`reference listening on ${await server.start()}`)
for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, () => server.stop().then(() => process.exit(0)))
}
