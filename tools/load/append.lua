-- wrk: appends of a fixed body, round robin over the streams; the result is one line of JSON.
-- Arguments after "--": first path, content type, file that holds the body, number of streams.
local requests, turn = {}, 0

function init(args)
  local file = assert(io.open(args[3], "rb"))
  local body = file:read("*a")
  file:close()
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
    '\n{"requests": %d, "seconds": %f, "errors": %d, "p50_ms": %f, "p99_ms": %f, "p999_ms": %f}\n',
    summary.requests, summary.duration / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, latency:percentile(99.9) / 1e3))
end
