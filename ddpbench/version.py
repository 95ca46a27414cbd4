"""The version, in a module that everything may import."""

VERSION = "0.1.0"
