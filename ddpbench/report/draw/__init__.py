"""Draw figures with matplotlib, in one style."""

from ddpbench.matplotlib_folder import settle_matplotlib

settle_matplotlib()  # all drawing code imports this package first
