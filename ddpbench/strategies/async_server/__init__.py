"""The `async_server` strategy: asynchronous parameter server."""
