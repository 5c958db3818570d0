"""What every room stands on: texts, amounts, draws, files and threads."""
