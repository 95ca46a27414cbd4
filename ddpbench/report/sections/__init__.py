"""The sections of the page, one file or folder each."""
