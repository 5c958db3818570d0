"""Programs of other libraries under our policies, and our runs in other tools."""
