"""Feature: the cost of a failure during training with snapshots, with findings and a section of the report."""

from ddpbench.installed import Registered

REGISTERED = (
    Registered(kind="rank", name="recovery", path="ddpbench.features.recovery.rank.recovering:train"),
    Registered(
        kind="section", name="recovery", path="ddpbench.features.recovery.report:section", after="claims"
    ),
    Registered(
        kind="findings",
        name="recovery",
        path="ddpbench.features.recovery.analysis.findings:recovery_findings",
    ),
    Registered(
        kind="answer", name="recovery", path="ddpbench.features.recovery.analysis.findings:recovery_answer"
    ),
)
