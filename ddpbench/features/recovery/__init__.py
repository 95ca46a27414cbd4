"""Feature: the cost of a failure, told in findings and drawn on the page."""

from ddpbench.installed import Registered

REGISTERED = (
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
