// One file, one process. The time limit is wider than vitest's 5 s because a test that only
// waits for a busy machine tells nothing; the suite's own, longer limits stay as they are.
export default {
  test: {
    include: ["conformance.test.mjs"],
    setupFiles: process.env.CONFORMANCE_H2 === "1" ? ["./over_h2.mjs"] : [],
    testTimeout: 30_000,
    fileParallelism: false,
  },
}
