"""What numbers mean: correlations over runs, and files of other benchmarks."""
