"""Make the HTML page of a history: each case over runs, with its changes."""

from ddpbench.features.history.report.page import history_page, write_history

__all__ = ["history_page", "write_history"]
