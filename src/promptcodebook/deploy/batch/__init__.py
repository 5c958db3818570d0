"""A policy over a file of rows: resumable, in order, in bounded memory."""
