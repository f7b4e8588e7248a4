// Ask a TLS server for HTTP/2 by ALPN, make one request over it and print the protocol agreed on.
import { readFileSync } from "node:fs"
import http2 from "node:http2"

const [url, authority] = process.argv.slice(2)
const session = http2.connect(url, { ca: readFileSync(authority) })
session.on("error", (error) => {
  console.error(String(error))
  process.exit(1)
})
const request = session.request({ ":path": "/v1/stream/never-made", ":method": "HEAD" })
request.on("response", () => {
  console.log(session.alpnProtocol)
  session.close()
})
request.end()
