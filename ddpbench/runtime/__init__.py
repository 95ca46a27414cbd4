"""Run launches: fork servers, ranks, the watchdog, launch order, time estimates and outcomes.

The process that runs a sweep uses this package, and so do slots, which another launcher such as torchrun starts. This
package imports neither their code nor torch.
"""
