"""Models with weights here, and providers' own libraries."""
