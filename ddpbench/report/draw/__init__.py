"""Drawing and the style of figures."""

from ddpbench.matplotlib_folder import settle_matplotlib

settle_matplotlib()  # all drawing code imports this package first
