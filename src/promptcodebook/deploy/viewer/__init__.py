"""Runs in the browser, live, from what the report is made of (`pco view`)."""
