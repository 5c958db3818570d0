"""What may enter a codebook that others will run: the safety scan of rewrites."""
