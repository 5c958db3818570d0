"""The audit of a policy's texts: the judge of hazards, and the report."""
