"""Before and beside a training: a proposal, what there is to win, a judge on trial."""
