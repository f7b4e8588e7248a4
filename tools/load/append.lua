-- wrk: appends of a fixed body, round robin over the streams; the result is one line of JSON.
-- Arguments after "--": first path, content type, bytes of a body, number of streams.
local requests, turn = {}, 0

function init(args)
  local body = string.rep("x", tonumber(args[3]))
  local headers = { ["Content-Type"] = args[2] }
  for number = 0, tonumber(args[4]) - 1 do
    requests[number] = wrk.format("POST", args[1] .. number, headers, body)
  end
end

function request()
  turn = (turn + 1) % (#requests + 1)
  return requests[turn]
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "seconds": %f, "errors": %d, "p50_ms": %f, "p99_ms": %f}\n',
    summary.requests, summary.duration / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
