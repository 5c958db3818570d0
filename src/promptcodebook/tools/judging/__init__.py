"""How far a judge agrees with people (`pco judge calibrate`), and a verdict whose intervals hold
the judge's error (`pco judge sheet`, `pco judge verdict`)."""
