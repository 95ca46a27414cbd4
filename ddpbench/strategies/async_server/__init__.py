"""The `async_server` strategy, an asynchronous parameter server."""
