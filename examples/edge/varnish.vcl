# Varnish in front of durastreamd: a shared cache, collapsed polls, events that are not held back.
# Put it into /etc/varnish/default.vcl.
vcl 4.1;

backend default {
    .host = "127.0.0.1";
    .port = "4437";
    # A poll waits up to reads.long_poll_s, events come at least every reads.heartbeat_s.
    .first_byte_timeout = 75s;
    .between_bytes_timeout = 75s;
}

sub vcl_recv {
    # Said here, not by the client. Behind another proxy of yours leave out the first line: Varnish
    # has added the address of its caller to what that one said.
    set req.http.X-Forwarded-For = client.ip;
    unset req.http.Forwarded;
    set req.http.X-Forwarded-Proto = "http";
    set req.http.X-Forwarded-Host = req.http.Host;

    # Uploads as they come, events and answers to a token for one client each, HEAD for the end of
    # a stream as it is now: straight to the server and back.
    if (req.method != "GET" || req.url ~ "[?&]live=sse(&|$)" || req.http.Authorization) {
        return (pass);
    }
    return (hash);
}

sub vcl_backend_response {
    # Kept as long as the server says, and a little longer while it is asked for anew.
    if (beresp.http.Cache-Control ~ "(?i)no-store|no-cache|private") {
        set beresp.uncacheable = true;
        # Short, so that what follows at the same URL is collapsed again.
        set beresp.ttl = 1s;
        set beresp.grace = 0s;
        return (deliver);
    }
    set beresp.grace = 300s;
    return (deliver);
}
