"""Serve an exported model over HTTP, with limits, batching and metrics; a stop finishes the requests in flight."""
