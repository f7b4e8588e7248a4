// The public conformance suite against the server that CONFORMANCE_URL names.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

runConformanceTests({
  baseUrl: process.env.CONFORMANCE_URL,
  subscriptions: process.env.CONFORMANCE_SUBSCRIPTIONS === "1",
})
