"""A policy in the forms of other tools: `forms.py` has them all, `files/` their code."""
