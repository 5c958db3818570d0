"""What every room uses: texts, amounts, draws, files and threads."""
