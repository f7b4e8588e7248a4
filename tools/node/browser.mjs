// Scenarios in headless Chromium: node browser.mjs SCENARIO STREAM_URL.
// The page comes from a server of its own, so every request to durastreamd is cross-origin.
// Prints lines of JSON that tests/clients/test_browser.py reads and judges.
import { readFile } from "node:fs/promises"
import { createServer } from "node:http"
import { createInterface } from "node:readline"
import { chromium } from "playwright-core"

const [scenario, url] = process.argv.slice(2)
const say = (value) => console.log(JSON.stringify(value))
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()

const MODULES = {
  "/client.js": "node_modules/@durable-streams/client/dist/index.js",
  "/fes/index.js": "node_modules/@microsoft/fetch-event-source/lib/esm/index.js",
  "/fes/fetch.js": "node_modules/@microsoft/fetch-event-source/lib/esm/fetch.js",
  "/fes/parse.js": "node_modules/@microsoft/fetch-event-source/lib/esm/parse.js",
}
const PAGE = `<!doctype html><meta charset="utf-8"><script type="importmap">
{"imports": {"client": "/client.js", "@microsoft/fetch-event-source": "/fes/index.js"}}
</script>`
const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--host-resolver-rules=MAP evil.example 127.0.0.1",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
]

// The module's own imports say "./fetch" where a file is called fetch.js.
async function answer(request, response) {
  const path = request.url.endsWith(".js") ? request.url : `${request.url}.js`
  if (request.url === "/") {
    response.writeHead(200, { "Content-Type": "text/html" }).end(PAGE)
  } else if (path in MODULES) {
    const text = await readFile(new URL(MODULES[path], import.meta.url))
    response.writeHead(200, { "Content-Type": "text/javascript" }).end(text)
  } else {
    response.writeHead(404).end()
  }
}

const scenarios = {
  // A native EventSource whose server is killed and started again while it listens.
  async resume(page) {
    await page.evaluate((url) => {
      window.seen = []
      window.opened = 0
      const source = new EventSource(`${url}?offset=-1&live=sse`)
      source.addEventListener("open", () => window.opened++)
      source.addEventListener("data", (event) => window.seen.push(event.data))
    }, url)
    await page.waitForFunction(() => window.seen.length === 1)
    say({ following: true })
    await page.waitForFunction(() => window.seen.length === 2)
    say({ live: true })
    await lines.next() // The server is up again, and something was appended.
    await page.waitForFunction(() => window.opened === 2 && window.seen.length >= 3)
    await page.waitForTimeout(300) // Time for what must not come: the first two again.
    say({ seen: await page.evaluate(() => window.seen) })
  },

  // More live readers than a browser gives connections to one HTTP/1.1 server.
  async many(page) {
    await page.evaluate((url) => {
      window.seen = []
      for (let n = 0; n < 12; n++) {
        const source = new EventSource(`${url}?offset=-1&live=sse`)
        source.addEventListener("data", (event) => window.seen.push(event.data))
      }
    }, url)
    await page.waitForFunction(() => window.seen.length === 12)
    say({ seen: await page.evaluate(() => window.seen) })
  },

  // The npm client: a streaming upload, which Chromium does over HTTP/2 only, and an SSE reader.
  async upload(page) {
    const text = await page.evaluate(async (url) => {
      const { DurableStream, stream } = await import("client")
      const handle = await DurableStream.create({ url, contentType: "text/plain" })
      const response = await stream({ url, offset: "-1", live: "sse" })
      const reading = (async () => {
        let text = ""
        for await (const part of response.textStream()) text += part
        return text
      })()
      async function* tokens() {
        for (const word of ["one ", "two ", "three"]) {
          yield word
          await new Promise((resolve) => setTimeout(resolve, 100))
        }
      }
      await handle.appendStream(tokens())
      await handle.close()
      return await reading
    }, url)
    say({ text })
  },

  // Bytes by SSE travel as base64; the page must be allowed to see the header that says so.
  async binary(page) {
    const seen = await page.evaluate(async (url) => {
      const { DurableStream, stream } = await import("client")
      const body = new Uint8Array([0, 255, 254])
      const contentType = "application/octet-stream"
      const handle = await DurableStream.create({ url, contentType })
      await handle.append(body)
      const response = await stream({ url, offset: "now", live: "sse" })
      const reading = (async () => {
        const seen = []
        for await (const chunk of response.bodyStream()) seen.push(...chunk)
        return seen
      })()
      await new Promise((resolve) => setTimeout(resolve, 300))
      await handle.append(body)
      await new Promise((resolve) => setTimeout(resolve, 300))
      await handle.close()
      return await reading
    }, url)
    say({ seen })
  },

  // A page of another site, and a name of its own that leads here: what it tries, what it learns.
  async foreign(page) {
    await page.goto(`http://evil.example:${server.address().port}/`)
    const tried = await page.evaluate(async (url) => {
      const text = { "Content-Type": "text/plain" }
      const rebound = url.replace(/\/\/[^:/]+/, "//evil.example")
      const ask = (target, options) =>
        fetch(target, options).then((r) => r.status || r.type, () => "failed")
      const embed = (tag, link) => new Promise((resolve) => {
        const made = document.createElement(tag)
        made.onload = () => resolve("loaded")
        made.onerror = () => resolve("failed")
        made[link] = url
        document.body.append(made)
      })
      const form = () => new Promise((resolve) => {
        document.body.insertAdjacentHTML("beforeend",
          `<iframe name="into"></iframe><form method="post" enctype="text/plain" target="into"
           action="${url}"><input name="a" value="b"></form>`)
        document.querySelector("iframe").onload = () => resolve("sent")
        document.querySelector("form").submit()
      })
      return {
        read: await ask(`${url}?offset=-1`),
        simple: await ask(url, { method: "POST", mode: "no-cors", headers: text, body: "evil" }),
        append: await ask(url, { method: "POST", headers: text, body: "evil" }),
        remove: await ask(url, { method: "DELETE" }),
        make: await ask(`${url}-new`, { method: "PUT", headers: text }),
        image: await embed("img", "src"),
        script: await embed("script", "src"),
        form: await form(),
        rebound: await ask(rebound, { method: "POST", mode: "no-cors", headers: text, body: "x" }),
      }
    }, url)
    say({ tried })
  },

  // Stored HTML, opened as a document: its script must not run.
  async stored(page) {
    await page.goto(`${url}?offset=-1`)
    await page.waitForTimeout(300)
    say({ title: await page.title() })
  },
}

const server = createServer(answer)
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve))
const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium"
const browser = await chromium.launch({ executablePath, args: FLAGS })
const context = await browser.newContext({ ignoreHTTPSErrors: true })
const page = await context.newPage()
page.on("console", (message) => console.error(`page: ${message.text()}`))
page.on("pageerror", (error) => console.error(`page: ${error}`))

// Which protocol each answer of durastreamd came over; the page itself may not see it.
const protocols = new Set()
const devtools = await context.newCDPSession(page)
await devtools.send("Network.enable")
devtools.on("Network.responseReceived", ({ response }) => {
  if (response.url.startsWith(url)) protocols.add(response.protocol)
})

await page.goto(`http://127.0.0.1:${server.address().port}/`)
await scenarios[scenario](page)
say({ protocols: [...protocols] })
await browser.close()
process.exit(0)
