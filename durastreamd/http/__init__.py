"""The connection layer: bytes on sockets become exchanges. The only package that speaks h11 and h2.

``server.Server`` and ``exchange.Exchange`` are what the rest of the project uses. Sizes, counts and
time limits are this package's job (``limits.HttpLimits``); nothing above it knows a socket.
"""
