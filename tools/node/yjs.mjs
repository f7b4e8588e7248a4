// Editors of one Yjs document: node yjs.mjs DURABLE_STREAMS_URL EDITS.
// The public YjsServer runs in front of the server under test. Lines of JSON go out, and a line on
// stdin lets the next act begin; tests/clients/test_yjs.py reads, restarts and judges.
import { createInterface } from "node:readline"
import { YjsProvider } from "@durable-streams/y-durable-streams"
import { YjsServer } from "@durable-streams/y-durable-streams/server"
import * as Y from "yjs"

const [dsServerUrl, edits] = process.argv.slice(2)
const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`)
console.log = console.error // stdout is ours; the compactor talks, too
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()

const server = new YjsServer({ port: 0, dsServerUrl, compactionThreshold: 2048 })
const baseUrl = `${await server.start()}/v1/yjs/tests`
const errors = []

async function until(what, condition, seconds = 30) {
  for (let waited = 0; waited < seconds * 50; waited++) {
    if (condition()) return
    await sleep(20)
  }
  throw new Error(`waited ${seconds} s for ${what}`)
}

async function join(name, liveMode) {
  const doc = new Y.Doc()
  const provider = new YjsProvider({ doc, baseUrl, docId: "book/chapter-1", liveMode })
  provider.on("error", (error) => errors.push(`${name}: ${error.message}`))
  await until(`${name} to be synced`, () => provider.synced)
  return { name, doc, provider }
}

// What a page does that is loaded again. The provider alone does not get over a dead server: it
// drops what is edited while YjsServer answers 500, its next producer begins again with the numbers
// of the one before (all taken for repeats), and YjsServer leaves SSE clients of a dead upstream
// hanging. A new document has a new producer, and is given all that the old one had.
async function rejoin({ name, doc, provider }) {
  provider.destroy()
  const again = await join(name, provider.liveMode)
  Y.applyUpdate(again.doc, Y.encodeStateAsUpdate(doc))
  await again.provider.flush()
  return again
}

// Each edit is a transaction of its own: text at changing places, a map entry, now and then a cut.
async function edit(editor, from, to) {
  const text = editor.doc.getText("text")
  for (let n = from; n < to; n++) {
    editor.doc.transact(() => {
      text.insert((n * 7) % (text.length + 1), `${editor.name}${n} `)
      editor.doc.getMap("map").set(`${editor.name}${n % 10}`, n)
      if (n % 5 === 4) text.delete(0, 3)
    })
    if (n % 20 === 0) await sleep(5)
  }
}

const entries = ({ doc }) => Object.entries(doc.getMap("map").toJSON()).sort()
const content = (editor) => JSON.stringify([editor.doc.getText("text").toString(), entries(editor)])
const equal = (...editors) => new Set(editors.map(content)).size === 1
const snapshot = () => server.getDocumentState("tests", "book/chapter-1")?.snapshotOffset ?? null

const count = Number(edits)
let ann = await join("ann", "sse")
let bob = await join("bob", "long-poll")
await Promise.all([edit(ann, 0, count), edit(bob, 0, count)])
await Promise.all([ann.provider.flush(), bob.provider.flush()])
await until("ann and bob to agree", () => equal(ann, bob))
await until("a compaction", () => snapshot() !== null)
say({ first: content(ann).length, snapshot: snapshot() })

await lines.next() // The server is killed in the middle of these.
const editing = Promise.all([edit(ann, count, 2 * count), edit(bob, count, 2 * count)])
say({ editing: true })
await editing

await lines.next() // It is up again.
;[ann, bob] = await Promise.all([rejoin(ann), rejoin(bob)])
await until("ann and bob to agree again", () => equal(ann, bob))
await edit(ann, 2 * count, 3 * count)
await ann.provider.flush()
const cat = await join("cat", "sse")
await until("cat to agree", () => equal(ann, bob, cat))
await edit(cat, 0, count)
await cat.provider.flush()
await until("all three to agree", () => equal(ann, bob, cat))
const texts = [ann, bob, cat].map(({ doc }) => doc.getText("text").toString())
const maps = [ann, bob, cat].map(({ doc }) => doc.getMap("map").toJSON())
say({ texts, maps, errors, snapshot: snapshot() })
process.exit(0)
