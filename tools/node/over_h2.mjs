// Set-up for a run over HTTP/2: every fetch goes through undici with ALPN, and afterwards each
// connection that was made must have agreed on h2. Node's own fetch cannot be told to do so.
import { readFileSync } from "node:fs"
import diagnostics from "node:diagnostics_channel"
import { afterAll, expect } from "vitest"
import * as undici from "undici"

const ca = readFileSync(process.env.CONFORMANCE_CA, "utf8")
undici.setGlobalDispatcher(new undici.Agent({ allowH2: true, connect: { ca } }))
for (const name of ["Request", "Response", "Headers", "FormData"]) {
  globalThis[name] = undici[name]
}
globalThis.fetch = undici.fetch

const agreed = new Map()
diagnostics.subscribe("undici:client:connected", ({ socket }) => {
  const protocol = socket.alpnProtocol || "none"
  agreed.set(protocol, (agreed.get(protocol) ?? 0) + 1)
})

afterAll(() => {
  console.log("connections by ALPN:", Object.fromEntries(agreed))
  expect([...agreed.keys()], "protocols the connections agreed on").toEqual(["h2"])
})
