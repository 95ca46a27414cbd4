"""The page of a comparison of two runs."""

from ddpbench.report.comparison.page import comparison_page, write_comparison

__all__ = ["comparison_page", "write_comparison"]
