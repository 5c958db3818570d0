"""IFBench and IFEval: requests with verifiable constraints."""
