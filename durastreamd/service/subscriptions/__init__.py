"""Subscriptions over HTTP: routes, bodies, tokens, webhooks and the keys that sign them."""
