"""A policy in the forms that other tools take."""
