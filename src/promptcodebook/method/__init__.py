"""The paper, one noun per file; no I/O except through the LM it is handed."""
