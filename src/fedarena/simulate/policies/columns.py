"""What the tables of a run have beside other columns when a policy decides about hyperparameters."""

from __future__ import annotations

from fedarena.simulate.policies.base import Policy

VALIDATION_LOSS, VALIDATION_CHANGE = "validation_loss", "validation_change"


def policy_job_columns(policy: Policy) -> dict[str, str]:
    """Of the table of jobs, and what they mean."""
    return {
        **policy.job_column_names,
        **{name: f"{name} of this job" for name in policy.space.names},
        VALIDATION_LOSS: "loss of the client's model after local training, on samples that the policy judges by",
        VALIDATION_CHANGE: "that minus the loss of the model before; empty unless the policy judges by it",
    }
