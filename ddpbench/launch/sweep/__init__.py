"""Plan, prove, run, stop and resume a sweep, which measures the cases of an experiment."""
