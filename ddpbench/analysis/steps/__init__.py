"""What instrumented steps show: losses of efficiency, how long transfers take, one step as it happened."""
