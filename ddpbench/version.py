"""The version, where everything may import it from."""

VERSION = "0.1.0"
