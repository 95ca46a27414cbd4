"""How figures are drawn and look."""

from ddpbench.matplotlib_folder import settle_matplotlib

settle_matplotlib()  # all that draws imports this package first
