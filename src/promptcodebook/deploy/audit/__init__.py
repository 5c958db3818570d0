"""The audit of a policy's texts: the judge of hazards, Presidio, and the report."""
