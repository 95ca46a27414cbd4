#!/usr/bin/env bash
# Fails when a training step became slower than on the base commit by more than 3 %, shown with 95 % confidence.
#   gate.sh EXPERIMENT.toml [BASE_COMMIT]
# Both are measured here and now, interleaved. TOTAL is the time it may take, LIMIT the gate's.
set -euo pipefail

experiment=${1:?give an experiment, such as bench/step.toml}
base=${2:-origin/main}

ddpbench compare --interleave "$experiment" --base "ref=$base" --new path=. \
    --fail-on "${LIMIT:-3%}" --total "${TOTAL:-10 min}" --markdown "${SUMMARY:-ddpbench.md}"
