"""The audit of a policy's texts: the rule scan, the judge of hazards, and what they found."""
