"""What a run is: its configuration, how it is put together and executed, suites of runs."""
