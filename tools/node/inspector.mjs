// The inspector in headless Chromium: node inspector.mjs SCENARIO SERVER_URL [TOKEN].
// Prints lines of JSON that tests/clients/test_inspector.py reads and judges.
import { createInterface } from "node:readline"
import { chromium } from "playwright-core"

const [scenario, url, token] = process.argv.slice(2)
const say = (value) => console.log(JSON.stringify(value))
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
const at = (hash) => `${url}/-/inspector#/${hash}`
const stream = (path, query = "") => `stream/${encodeURIComponent(path)}${query}`
const errors = []

// Leaves the page for another view of itself and waits until it shows something.
async function open(page, hash, selector) {
  await page.goto(at(hash))
  await page.locator(selector).first().waitFor()
}

const scenarios = {
  // Every page, at both widths, in both schemes: what it shows, and that nothing sticks out.
  async pages(page) {
    const seen = {}
    for (const [width, colorScheme] of [[1600, "light"], [400, "dark"]]) {
      await page.setViewportSize({ width, height: 900 })
      await page.emulateMedia({ colorScheme })
      for (const [name, hash, selector] of [
        ["overview", "", ".cards svg"], ["streams", "streams", "tbody tr"],
        ["stream", stream("/v1/stream/json"), ".row"], ["subscriptions", "subscriptions", "h1"],
        ["server", "server", "tbody tr"],
      ]) {
        await open(page, hash, selector)
        seen[`${name} ${width}`] = await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth)
      }
    }
    await page.setViewportSize({ width: 1600, height: 900 })
    await open(page, "", ".cards svg")
    say({ seen, overview: await page.locator("main").innerText() })
    await page.goto(url)
    await page.waitForURL("**/-/inspector*")
    await open(page, "streams", "tbody tr")
    say({ streams: await page.locator("tbody").innerText() })
  },

  // What clients stored, and how they named it, is text: nothing of it runs or becomes a tag.
  async hostile(page) {
    await open(page, "streams", "tbody tr")
    const name = await page.locator("tbody a").first().innerText()
    await page.locator("tbody a").first().click()
    await page.locator(".row").first().waitFor()
    for (let number = 0; number < await page.locator(".row").count(); number++) await page.locator(".row").nth(number).click()
    await page.selectOption("select[aria-label=form]", "text")
    const counted = await page.evaluate(() => ({ tags: document.querySelectorAll("main img, main script, main b.evil, iframe").length, ran: typeof window.ran }))
    say({ name, ...counted, text: await page.locator("pre").innerText() })
  },

  // A live tail of a fast stream: rows in the page stay few, the newest comes in sight.
  async live(page) {
    await open(page, stream("/v1/stream/fast", "?from=now"), "button[aria-pressed]")
    await page.locator("button[aria-pressed]").click()
    say({ following: true })
    await page.waitForFunction(() => document.querySelector(".rows").innerText.includes('"last"'), null, { timeout: 60000 })
    const most = await page.locator(".row").count()
    const said = await page.locator("section [role=status]").innerText()
    say({ most, said })
  },

  // A stream whose bytes do not verify: the page says so with the server's words.
  async damaged(page) {
    await open(page, stream("/v1/stream/json"), ".problem")
    const said = await page.locator(".problem").first().innerText()
    await open(page, "", ".cards .bad")
    say({ said, overview: await page.locator("main").innerText() })
  },

  // By the keyboard alone: to a page, to a row, to its content.
  async keys(page) {
    await open(page, stream("/v1/stream/json"), ".row")
    await page.locator(".rows").focus()
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowDown")
    const chosen = await page.locator(".row[aria-selected=true] .text").innerText()
    await page.keyboard.press("End")
    say({ chosen, last: await page.locator(".row[aria-selected=true] .text").innerText() })
  },

  async token(page) {
    await open(page, "", ".problem")
    const without = await page.locator(".problem").innerText()
    await page.fill("#token", token)
    await page.keyboard.press("Enter")
    await open(page, "streams", "tbody tr")
    const rows = await page.locator("tbody tr").count()
    await open(page, "server", ".problem")
    const refused = await page.locator(".problem").first().innerText()
    await open(page, stream("/v1/stream/json"), ".row")
    await page.locator("details.panel summary").click()
    await page.fill("textarea", '{"written": "here"}')
    await page.getByRole("button", { name: "append" }).click()
    await page.locator("details .problem").waitFor()
    say({ without, rows, refused, append: await page.locator("details .problem").innerText() })
  },

  // Writing: create, append, delete only with the name typed in.
  async write(page) {
    await open(page, "streams", "details.panel")
    await page.locator("details.panel summary").click()
    await page.fill("input[aria-label=path]", "/v1/stream/made here")
    await page.getByRole("button", { name: "create" }).click()
    await page.locator("textarea").waitFor({ state: "attached" })
    await page.locator("details.panel summary").click()
    await page.fill("textarea", '{"written": "here"}')
    await page.getByRole("button", { name: "append" }).click()
    await page.locator(".said").waitFor()
    await page.getByRole("button", { name: "read", exact: true }).click()
    await page.locator(".row").first().waitFor()
    say({ row: await page.locator(".row .text").innerText() })
    await page.getByRole("button", { name: "delete" }).click()
    await page.locator("details .problem:not(.said)").waitFor()
    say({ refused: await page.locator("details .problem").innerText() })
    await page.fill("input[placeholder^='type the path']", "/v1/stream/made here")
    await page.getByRole("button", { name: "delete" }).click()
    await page.waitForURL("**#/streams")
    say({ deleted: true })
  },
}

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: FLAGS })
try {
  const page = await browser.newPage({ viewport: { width: 1600, height: 900 } })
  page.setDefaultTimeout(60000)
  page.on("pageerror", (error) => errors.push(error.message))
  page.on("console", (message) => { if (/Content Security Policy/.test(message.text())) errors.push(message.text()) })
  page.on("request", (request) => { if (!request.url().startsWith(url) && !request.url().startsWith("blob:")) errors.push(request.url()) })
  await scenarios[scenario](page)
  say({ errors })
} finally {
  await browser.close()
  lines.return?.()
  process.stdin.destroy()
}
